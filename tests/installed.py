"""What a user of an installation does, with the extras that it has; run with its interpreter.

    python tests/installed.py ROOT [EXTRA ...]

The commands, programs and files of the README, of start.md, of authoring.md and of the tutorials,
every command of the command line, and PettingZoo's tests of every environment. Each of them works,
or ends with one line that names an extra that is not among those given: never with a traceback.
`ROOT` has the pages. Exit status 1 and what failed on stderr.
"""

import argparse
import contextlib
import io
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from blocks import Block, blocks_of, commands_of, smaller

import flowzoo
from flowzoo import extras
from flowzoo.cli import main
from flowzoo.commands.line import COMMANDS
from flowzoo.envs import WORKFLOWS

PAGES = ("README.md", "docs/start.md", "docs/authoring.md", "docs/tutorials/*.md")
SMALL = {"--steps": "1", "--problems": "2", "--samples": "2", "--eval-problems": "4"}
"""What a command that trains is given where the page leaves it open."""
LINES = {
    "list": "", "list --json": "", "doctor": "", "algorithms grpo paper": "",
    "prompts voting": "", "prompts voting --task code --chats": "",
    "play voting --policy scripted:0.8": "",
    "play voting --policy scripted:0.8 --options sandbox=docker": "docker",
    "play search_team --policy scripted:0.8": "bm25s",
    "play writing_pair --policy scripted:0.8": "rapidfuzz",
    "eval voting --policy scripted:0.8 --n 6 --out ev": "",
    "eval voting --policy pocket --n 2": "torch",
    "eval voting --policy vllm:model --n 2": "torch",
    "eval voting --policy openai:m@http://127.0.0.1:9/v1 --n 2": "httpx",
    "eval voting --data org/name --policy scripted:0.8": "datasets",
    "regrade ev": "",
    "leaderboard board.toml": "",
    "filter voting --policy scripted:0.5 --n 4 --samples 2 --out rates.jsonl": "",
    "sft voting --out sft": "torch",
    "train voting": "torch",
    "train voting --engine vllm": "vllm",
    "train voting --backend ray --ray-address local --rollout-workers 1": "ray",
    "train voting --optimizer adamw8bit": "bitsandbytes",
    "train voting --wandb zoo": "wandb",
    "train voting --trackio zoo": "trackio",
    "matrix learning --dry-run": "torch",
    "report ev": "", "report run": "scipy", "report run --png plots": "matplotlib",
    "swap run": "torch",
    "why run": "torch",
    "export run --policy shared --out out": "torch",
    "dataset ev --out set": "pyarrow",
    "serve single --policy openai:m@http://127.0.0.1:9/v1": "uvicorn",
    "new workflow second_look_of_mine": "", "new task letters_of_mine": "",
    "new package panel_of_mine": "",
    "sandbox check --help": "", "completion bash": "",
}  # fmt: skip
"""Command -> the optional module that it needs, or nothing; it is tried where that is missing."""
FOLDERS = {"run": "run.json", "model": "config.json"}
"""Folder -> the file that makes it a training run or a model, for commands that look first."""

BOARD = "settings = { n = 4 }\ncells = [{ workflow = ['voting'], policy = ['scripted:0.8'] }]\n"
"""`board.toml`."""


class Checks:
    """What was tried in this installation, and what failed."""

    def __init__(self, present: list[str]) -> None:
        """Begin, in an installation with these extras."""
        self.present = set(present)
        self.tried = Counter[str]()
        self.failures: list[str] = []

    def fails(self, what: str, why: str) -> None:
        """Note a failure."""
        self.failures.append(f"{what}\n    {why.strip()}")

    def lacks(self, text: str) -> bool:
        """Return whether a text names a missing module, and an extra that is not here."""
        module = re.search(r"needs the module `([\w.]+)`", text)
        extra = module and extras.extra_of(module[1])
        return bool(extra) and extra not in self.present and extras.remedy(extra or "") in text

    def run(self, what: str, work: Callable[[], object]) -> None:
        """Do some Python, which may raise an `ImportError` that names what is not here."""
        self.tried["programs"] += 1
        with contextlib.redirect_stdout(io.StringIO()):
            try:
                work()
            except ImportError as error:
                self.tried["missing extras"] += 1
                extra = extras.extra_of(error.name or "") or "of nothing"
                if not self.lacks(str(error)) and extra in {"of nothing", *self.present}:
                    self.fails(what, traceback.format_exc())
            except BaseException:
                self.fails(what, traceback.format_exc())

    def command(self, args: list[str], *, errors: bool = False) -> str | None:
        """Run a command line; its last line on stderr, None where it worked.

        Args:
            words: the words after `flowzoo`.
            errors: whether it may also end with another error of one line: where a model of the hub
                or a file of somebody's own is needed.
        """
        what = f"flowzoo {shlex.join(args)}"
        self.tried["commands"] += 1
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                status = main(args)
            except SystemExit as end:
                status = end.code
            except BaseException:
                return self.fails(what, traceback.format_exc())
        messages = err.getvalue()
        lines = [line for line in messages.splitlines() if line.startswith("error: ")]
        if status == 0:
            return None
        if status != 2 or len(lines) != 1 or "Traceback" in messages:
            return self.fails(what, f"status {status}: {messages}")
        if self.lacks(lines[0]):
            self.tried["missing extras"] += 1
            if out.getvalue():
                self.fails(what, f"it had begun when it found out: {out.getvalue():.200}")
        elif not errors:
            self.fails(what, lines[0])
        return lines[0]


@contextlib.contextmanager
def working_in(folder: Path) -> Iterator[None]:
    """Work in a folder, whose modules are found, and forget those again."""
    before, path, modules = os.getcwd(), [*sys.path], set(sys.modules)
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        os.chdir(before)
        sys.path[:] = path
        for name in set(sys.modules) - modules:
            where = getattr(sys.modules[name], "__file__", None)
            if where and Path(where).is_relative_to(folder):
                del sys.modules[name]


def sized(args: list[str]) -> list[str]:
    """The words of a command at a size for tests."""
    args = smaller(args)
    if args[0] == "train":
        args += [part for pair in SMALL.items() if pair[0] not in args for part in pair]
    return args


def play_page(checks: Checks, page: Path, folder: Path) -> None:
    """Run the blocks of a page in `folder`, in order."""
    module, lacking = ModuleType("page"), False
    sys.modules["page"] = module  # where dataclasses look for their names
    for block in blocks_of(page):
        if block.language == "python":
            play_python(checks, page, folder, block, vars(module))
        for args in commands_of(block) if block.language in ("", "shell") else ():
            # What lacks an extra leaves no run behind for the commands after it.
            messages = checks.command(sized(args), errors=lacking or block.language == "")
            lacking = lacking or messages is not None
        for line in block.text.splitlines() if not block.language else ():
            if line.startswith("python -c "):
                play_program(checks, shlex.split(line)[1:])


def play_python(
    checks: Checks, page: Path, folder: Path, block: Block, names: dict[str, Any]
) -> None:
    """Write a block of Python into the file that it, or the page, names; run all others."""
    before = page.read_text("utf-8").partition(block.text)[0].rstrip("`python\n")
    named = re.search(r"(?:[Pp]ut|Save) (?:this|it) (?:into|as) `(\w+\.py)`[^`]*\Z", before)
    after = page.read_text("utf-8").partition(block.text)[2]
    named = named or re.match(r"```\s+(?:Put|Save) it (?:into|as) `(\w+\.py)`", after)
    file = block.file or (named[1] if named else "")
    if file:
        (folder / file).write_text(block.text, encoding="utf-8")
        return
    what = f"{page.name}: {block.text.strip().splitlines()[0]} ..."
    checks.run(what, lambda: exec(compile(block.text, page.name, "exec"), names))


def play_program(checks: Checks, args: list[str]) -> None:
    """Run `python` with these words."""
    checks.tried["programs"] += 1
    done = subprocess.run([sys.executable, *args], capture_output=True, text=True)
    if done.returncode:
        checks.fails(f"python {shlex.join(args)}", done.stderr)


def try_commands(checks: Checks, folder: Path) -> None:
    """Run `LINES`, and compare what they lack with what they need."""
    assert {line.split()[0] for line in LINES} == set(COMMANDS), "a command is not tried"
    with working_in(folder):
        for name, file in FOLDERS.items():
            Path(name).mkdir()
            Path(name, file).write_text("{}", encoding="utf-8")
        Path("board.toml").write_text(BOARD, encoding="utf-8")
        for line, module in LINES.items():
            if module and extras.is_installed(module):
                continue
            messages = checks.command(line.split())
            if module and messages is None:
                checks.fails(f"flowzoo {line}", f"it works without {module}")
            extra = extras.extra_of(module) or ""
            if (
                module
                and "train" in checks.present
                and extras.remedy(extra) not in (messages or "")
            ):
                checks.fails(f"flowzoo {line}", f"expected the extra {extra}: {messages}")


def try_doctor(checks: Checks) -> None:
    """Every optional module is a row of `doctor`, with the state it has here."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        main(["doctor", "--json"])
    rows = {row["name"]: row for row in map(json.loads, out.getvalue().splitlines())}
    for extra, modules in extras.EXTRAS.items():
        for module in modules:
            row = rows[{"PIL": "pillow"}.get(module, module.replace("_", "-"))]
            if row["ok"] != extras.is_installed(module) or extra not in row["detail"]:
                checks.fails("flowzoo doctor", f"{module} of the extra {extra}: {row}")


def try_environments(checks: Checks) -> None:
    """PettingZoo's own tests of every environment, with every mode of rendering it offers."""
    from pettingzoo.test import api_test, render_test

    drawn = "report" in checks.present
    for name in WORKFLOWS:
        module = getattr(flowzoo, name)
        checks.run(f"api_test({name})", lambda module=module: api_test(module.env(), num_cycles=50))
        checks.run(f"render_test({name})", lambda module=module: render_test(module.env))
    modes = flowzoo.voting_v0.env().metadata["render_modes"]
    if ("rgb_array" in modes) is not drawn:
        checks.fails("render_modes", f"{modes}, report {'is' if drawn else 'is not'} installed")


def main_of(root: Path, present: list[str]) -> int:
    """Try everything; the exit status."""
    checks = Checks(present)
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as scratch:
        try_commands(checks, Path(scratch))
        try_doctor(checks)
        try_environments(checks)
        for page in sorted(path for pattern in PAGES for path in root.glob(pattern)):
            folder = Path(scratch, page.stem)
            folder.mkdir()
            with working_in(folder):
                play_page(checks, page, folder)
                if page.stem == "start" and "report" in checks.present:
                    checks.command(["report", "runs/first", "--png", "plots"])
        play_program(checks, [str(root / "examples/debate.py")])
    counts = ", ".join(f"{count} {what}" for what, count in checks.tried.items())
    print(f"extras {', '.join(present) or '(none)'}: {counts}, {len(checks.failures)} failed")
    for failure in checks.failures:
        print(f"FAILED {failure}", file=sys.stderr)
    return bool(checks.failures)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("root", type=Path)
    parser.add_argument("extras", nargs="*")
    options = parser.parse_args()
    sys.exit(main_of(options.root, options.extras))
