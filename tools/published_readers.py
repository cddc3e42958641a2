"""The readers of the preset `published` beside those of the public code of arXiv 2605.24202.

    python -m tools.published_readers COPY [--replies 10000] [--seed 0]

COPY is a local copy of XHMY/marl-llm-workflows at 6eafb3c: a folder of its files or a bare git
directory. The functions are loaded from it at run time, each alone, without the packages that their
files import. Both read hand-written replies (`tests/envs/readers/published.toml`) and generated
ones; every difference is printed, and the exit status is 1 if there is one.
"""

from __future__ import annotations

import argparse
import ast
import random
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from flowzoo.envs.readers import published

COMMIT = "6eafb3c"
ROOT = Path(__file__).resolve().parent.parent
REPLIES = ROOT / "tests" / "envs" / "readers" / "published.toml"
CANDIDATES, MOST = 3, 3
"""Candidates of a ballot, and most strategies of a plan."""
Read = Callable[[str], Any]

_PIECES = {
    "boxes": (
        "\\boxed{", "\\boxed {", "\\boxed", "\\BOXED{", "\\fbox{", "}", "{", "\\frac{1}{2}",
        "\\{", "\\}", "<|begin_of_box|>", "<|end_of_box|>", "\\boxed{}", "\\boxed{7}", "\\text{",
    ),
    "verdicts": (
        "Correct", "Incorrect", "correct}", "INCORRECT}", "\\boxed{Correct}", "\\boxed{incorrect}",
        "\\boxed{ Correct }", "\\boxed{\\text{Correct}}", "I cannot say that it is correct", "not ",
    ),
    "numbers": (
        "1", "2", "3", "4", "9", "0", "12", "007", "3.5", "-2", "x2", "_3", "²", "٣", "\\boxed{1}",
        "\\boxed{2}", "\\boxed{3}", "\\boxed{4}", "\\boxed{10}", "Candidate 2", "Solution 3",
    ),
    "strategies": (
        "STRATEGY 1:", "Strategy 2: ", "strategy3:", "STRATEGY  10 :\n", "STRATEGY k:",
        "\u017fTRATEGY 2:", "**STRATEGY 2**:", "STRATEGY 1", "STRATEGY:", "1. ", "\n2) ", "\n3.",
        "\n  1. ", "4.5", "\n\n\n", "- ", "use a longer description of the way", "short",
    ),
    "fences": (
        "```", "```python\n", "```py thon\n", "```\n", "````\n", "\n```", "\n```\n", "~~~\n",
        "print(1)", "def f(x):\n    return x\n", "```c++\n", "``", "`x`",
    ),
    "text": (
        " ", "\n", "\t", ". ", ": ", "the answer is 50", "#### 50", "é", "\u2028", "\x0b", "\x1c",
        "答え", "\ud800", "\x00", "because", ",", "-",
    ),
}  # fmt: skip
"""Parts of generated replies, by kind."""
_KINDS = {
    "verdict": ("verdicts", "boxes"),
    "choice": ("numbers", "boxes"),
    "plan": ("strategies",),
    "answer": ("boxes", "numbers"),
    "program": ("fences",),
}
"""Kinds of parts that most replies to a reader have; `text` is in all."""


class PublicCode:
    """A local copy of the public code."""

    def __init__(self, copy: Path) -> None:
        self._copy = copy

    def source(self, path: str) -> str:
        """The text of a file.

        Raises:
            SystemExit: the copy has no such file.
        """
        if (self._copy / path).is_file():
            return (self._copy / path).read_text(encoding="utf-8")
        command = ["git", "-C", str(self._copy), "show", f"{COMMIT}:{path}"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{self._copy} is no copy of the public code at {COMMIT}: no {path}")
        return done.stdout

    def functions(self, path: str, *names: str) -> SimpleNamespace:
        """Functions and methods of a file by name, with stubs of the classes that they make."""
        found = [
            node
            for node in ast.walk(ast.parse(self.source(path)))
            if isinstance(node, ast.FunctionDef) and node.name in names
        ]
        annotations = "from __future__ import annotations"
        module = ast.Module([*ast.parse(annotations).body, *found], [])
        results = ("EvaluationResult", "ProposalResult")
        space: dict[str, Any] = {"re": re, **dict.fromkeys(results, SimpleNamespace)}
        exec(compile(module, path, "exec"), space)
        return SimpleNamespace(**{name: space[name] for name in names})


def public_readers(copy: Path) -> dict[str, list[Read]]:
    """The public readers by name: of mathematics, and of programs where these have their own."""
    code = PublicCode(copy)
    math, deep = "examples/math_reasoning", "examples/deepcoder/deepcoder"
    limits = SimpleNamespace(max_subtasks=MOST)
    numbers = list(map(str, range(1, CANDIDATES + 1)))
    readers: dict[str, list[Read]] = {"verdict": [], "choice": [], "plan": []}
    for start, end in ((f"{math}/", "_math_workflow.py"), (f"{deep}_", "_workflow.py")):
        verdicts = code.functions(f"{start}evaluator_optimizer{end}", "parse_evaluation")
        choices = code.functions(f"{start}voting{end}", "parse_aggregator_response")
        plans = code.functions(f"{start}orchestrator_workers{end}", "parse_proposals")
        readers["verdict"].append(
            lambda text, found=verdicts: {"correct": True, "incorrect": False}.get(
                found.parse_evaluation(None, text).verdict
            )
        )
        readers["choice"].append(
            lambda text, found=choices: int(found.parse_aggregator_response(None, text, numbers))
        )
        readers["plan"].append(
            lambda text, found=plans: list(found.parse_proposals(limits, text).strategies)
        )
    names = ("extract_answer", "extract_boxed_answer", "last_boxed_only_string", "remove_boxed")
    answers = code.functions("rllm/rewards/math_utils/utils.py", *names)
    programs = code.functions("rllm/rewards/code_reward.py", "extract_code_from_model")
    readers["answer"] = [answers.extract_answer]
    readers["program"] = [programs.extract_code_from_model]
    return readers


def own_readers() -> dict[str, Read]:
    """Flowzoo's readers by name, with the results of the public ones."""
    return {
        "verdict": published.read_verdict,
        "choice": lambda text: published.read_choice(text, CANDIDATES) or 1,
        "plan": lambda text: list(published.read_plan(text, "STRATEGY", MOST)),
        "answer": published.read_answer,
        "program": published.read_program,
    }


def generated(reader: str, count: int, seed: int) -> Iterator[str]:
    """Replies of the parts that `reader` looks for, among others; a part of them is cut off."""
    rng = random.Random(f"{reader}/{seed}")
    for _ in range(count):
        kinds = (*_KINDS[reader] * 2, "text", rng.choice(list(_PIECES)))
        parts = [rng.choice(_PIECES[rng.choice(kinds)]) for _ in range(rng.randint(0, 14))]
        text = rng.choice(("", " ", "\n")).join(parts)
        yield text[: rng.randint(0, len(text))] if rng.random() < 0.2 else text


def compare(copy: Path, count: int, seed: int) -> int:
    """Print the numbers of replies and differences of every reader; returns the differences."""
    public, rows = public_readers(copy), tomllib.loads(REPLIES.read_text(encoding="utf-8"))
    total = 0
    for name, own in own_readers().items():
        written = [row[0] for row in rows[name]]
        different = 0
        for text in [*written, *generated(name, count, seed)]:
            # The public engine strips replies, too.
            results = [own(text), *(read(text.strip()) for read in public[name])]
            if any(result != results[0] for result in results):
                different += 1
                print(f"{name}: {text!a} is read as {results[0]!a}, published {results[1:]!a}")
        print(f"{name}: {len(written)} written, {count} generated, {different} different")
        total += different
    return total


def main() -> None:
    """Compare the readers on the command line's copy."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("copy", type=Path, help="folder or bare git directory of the public code")
    parser.add_argument("--replies", type=int, default=10_000, help="generated replies per reader")
    parser.add_argument("--seed", type=int, default=0, help="seed of the generated replies")
    words = parser.parse_args()
    sys.exit(1 if compare(words.copy, words.replies, words.seed) else 0)


if __name__ == "__main__":
    main()
