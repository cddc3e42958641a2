"""Commands that ask for more problems than there are end before they load a library of models."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

TASK = '''
from dataclasses import dataclass
from flowzoo.envs import Problem
from flowzoo.envs.tasks.math.task import MathTask
from flowzoo.envs.tasks import split_of

@dataclass(frozen=True)
class Few(MathTask):
    """Eighty problems."""

    def _generated(self, index, split):
        for step in range(80):
            first = (index + step) % 80
            text = f"What is {first} + 3?"
            if split in ("all", split_of(text)):
                break
        return Problem("math", split, self.seed, index, text, str(first + 3), {"solution": ""})
'''
RUN = """
import json, sys
from flowzoo.cli import main
for words in json.loads(sys.argv[1]):
    print(main(words), "torch" in sys.modules or "transformers" in sys.modules)
"""
ON = ["--task", "few.py:Few"]
LINES = {
    "sft": (["sft", "single", *ON, "--n", "20"], "--eval-problems 5 takes all of them"),
    "sft n": (
        ["sft", "single", *ON, "--n", "99", "--eval-problems", "5"],
        "'train' .* 99 were asked for: --n 34 takes all of them",
    ),
    "sft source": (["sft", "single", "--source", "nowhere"], "source 'nowhere' is no file"),
    "train": (["train", "single", *ON], "--eval-problems 5 takes all of them"),
    "train rates": (["train", "single", "--difficulty", "no.jsonl"], "no pass rates in no.jsonl"),
    "eval": (["eval", "single", *ON, "--policy", "scripted:1"], "--n 5 takes all of them"),
    "filter": (
        ["filter", "single", *ON, "--policy", "scripted:1", "--out", "rates.jsonl"],
        "--n 34 takes all of them",
    ),
}


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, str]]:
    """Status, with whether a library of models was loaded, and error of every line."""
    folder = tmp_path_factory.mktemp("early")
    (folder / "few.py").write_text(TASK)
    lines = json.dumps([args for args, _ in LINES.values()])
    done = subprocess.run(
        [sys.executable, "-c", RUN, lines], cwd=folder, capture_output=True, text=True, check=False
    )
    statuses, errors = done.stdout.splitlines(), done.stderr.splitlines()
    assert len(statuses) == len(errors) == len(LINES), done
    return dict(zip(LINES, zip(statuses, errors, strict=True), strict=True))


@pytest.mark.parametrize("name", LINES)
def test_too_few_problems_are_told_of_before_anything_is_loaded(ended, name):
    status, error = ended[name]
    assert status == "2 False"
    assert re.search(LINES[name][1], error), error


def test_a_matrix_names_the_cell(tmp_path):
    (tmp_path / "few.py").write_text(TASK)
    text = '[[cells]]\nworkflow = ["single"]\ntask = ["few.py:Few"]\nlabel = "small"\n'
    (tmp_path / "m.toml").write_text(text)
    args = json.dumps([["matrix", "m.toml", "--dry-run"]])
    done = subprocess.run(
        [sys.executable, "-c", RUN, args],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.startswith("2 ")
    assert "error: cell single-" in done.stderr
    assert "small: split 'validation'" in done.stderr
    assert "--eval-problems 5 takes all of them" in done.stderr
