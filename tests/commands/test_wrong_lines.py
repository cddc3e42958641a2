"""Every wrong command line is one line on stderr, ends with status 2, and loses nothing."""

import json
import shutil
import subprocess
import sys

import pytest

from flowzoo.cli import main
from tests.tables import read_tables

pytestmark = pytest.mark.xdist_group("wrong_lines")  # one process says all of them

SECONDS = 1.5
"""In which a mistake is told, of CPU time, with Python's start."""
SECTIONS = read_tables(__file__, "wrong_lines")
TYPOS = [(line, message) for section in SECTIONS.values() for line, message in section.items()]
"""Mistakes that are found before a library of models is loaded."""

BROKEN_TASK = """
from flowzoo.envs.tasks.math import MathTask
from flowzoo.envs.tasks.task import Task
from flowzoo.envs.workflow import Workflow

class Half(Task):
    name, kind = "half", "math"
    def size(self, split): return None
    def problem(self, index, split="train"): raise KeyError(index)
    def prompt(self, problem): return ""

class Nameless(MathTask):
    name = None

class Raises(MathTask):
    name = "raises"
    def __post_init__(self): raise KeyError("no level")

class Unasked(Workflow):
    name, roles = "unasked_v0", {"solver": 1}
    def play(self, problem): return 3

class Nobody(Unasked):
    name, roles = "nobody_v0", {"nobody": -1}
"""

FEW = '''
from dataclasses import dataclass
from flowzoo.envs import Problem
from flowzoo.envs.tasks.math import MathTask
from flowzoo.envs.tasks import split_of

@dataclass(frozen=True)
class Few(MathTask):
    """Eighty problems."""

    def _generate(self, index, split):
        for step in range(80):
            first = (index + step) % 80
            text = f"What is {first} + 3?"
            if split in ("all", split_of(text)):
                break
        return Problem("math", split, self.seed, index, text, str(first + 3), {"solution": ""})
'''

RUN_ALL = """
import contextlib, io, json, sys, time
from pathlib import Path
from flowzoo import cli

HEAVY = ("torch", "transformers", "vllm", "datasets")

def tree():
    files = [path for path in Path(".").rglob("*") if path.is_file() and path.suffix != ".pyc"]
    return sorted((str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in files)

lines, before, loaded = json.loads(sys.stdin.read()), tree(), set()
start = time.process_time()  # of Python and of importing the command
for line in lines:
    out, err, began = io.StringIO(), io.StringIO(), time.process_time()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = cli.main(line.split())
        except SystemExit as end:
            status = end.code
        except BaseException as error:
            status = repr(error)
    after = tree()
    heavy = {name for name in HEAVY if name in sys.modules} - loaded
    loaded |= heavy
    print(json.dumps({
        "status": status, "out": out.getvalue(), "err": err.getvalue(), "loaded": sorted(heavy),
        "changed": [row[0] for row in set(after) ^ set(before)],
        "cpu": start + time.process_time() - began,
    }))
    before = after
"""


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Files and folders that the lines name; no line may change them."""
    root = tmp_path_factory.mktemp("wrong")
    (root / "runs" / "old").mkdir(parents=True)
    (root / "runs" / "old" / "run.json").write_text('{"settings": {"workflow": "voting"}}')
    (root / "runs" / "old" / "metrics.jsonl").write_text('{"step": 0}\n')
    (root / "void").mkdir()
    (root / "file.txt").write_text("not what is wanted\n")
    (root / "nameless.toml").write_text("steps = 3\n")
    (root / "broken.py").write_text("1 / 0\n")
    (root / "broken_task.py").write_text(BROKEN_TASK)
    (root / "few.py").write_text(FEW)
    args = ["eval", "voting", "--policy", "scripted:1", "--n", "4", "--out", "four"]
    done = subprocess.run([sys.executable, "-m", "flowzoo", *args], cwd=root, capture_output=True)
    assert done.returncode == 0, done.stderr
    shutil.copytree(root / "four", root / "many" / "one")
    return {
        "root": str(root), "runs": "runs", "run": "runs/old", "eval": "four", "void": "void",
        "file": "file.txt", "broken": "broken.py", "broken_task": "broken_task.py",
        "nameless": "nameless.toml", "many": "many", "few": "few.py",
        "long": "x" * 300,
    }  # fmt: skip


def filled(text: str, places: dict[str, str]) -> str:
    """`text` with the places that it names; other braces stay."""
    for name, position in places.items():
        text = text.replace(f"{{{name}}}", position)
    return text


@pytest.fixture(scope="module")
def outcomes(places: dict[str, str]) -> dict[str, dict]:
    """Outcome of every line, in one process."""
    lines = [filled(line, places) for line, _ in TYPOS]
    done = subprocess.run(
        [sys.executable, "-c", RUN_ALL],
        input=json.dumps(lines),
        capture_output=True,
        text=True,
        cwd=places["root"],
    )
    assert done.returncode == 0, done.stderr
    rows = [json.loads(row) for row in done.stdout.splitlines()]
    return dict(zip((line for line, _ in TYPOS), rows, strict=True))


def test_there_are_many_and_each_once():
    assert len(TYPOS) >= 120
    assert len({line for line, _ in TYPOS}) == len(TYPOS)


@pytest.mark.parametrize(("line", "message"), TYPOS)
def test_a_wrong_line_is_told_in_one(line, message, outcomes, places):
    row = outcomes[line]
    assert row["status"] == 2, row
    assert row["out"] == ""
    assert row["err"].count("\n") == 1, row["err"]
    assert row["err"].startswith("error: ")
    assert filled(message, places) in row["err"]
    assert row["changed"] == []
    assert row["loaded"] == [], "a library was loaded before the mistake was found"
    assert row["cpu"] < 2 * SECONDS, "a machine that is busy counts up to twice as much"


def test_a_matrix_that_asks_for_too_many_problems_names_the_cell(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "few.py").write_text(FEW)
    text = '[[cells]]\nworkflow = ["single"]\ntask = ["few.py:Few"]\nlabel = "small"\n'
    (tmp_path / "m.toml").write_text(text)
    assert main(["matrix", "m.toml", "--dry-run", "--trust"]) == 2
    message = capsys.readouterr().err
    assert message.startswith("error: cell single-")
    assert "small: split 'validation'" in message
    assert "--eval-problems 5 takes all of them" in message
