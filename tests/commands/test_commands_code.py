"""`flowzoo eval` and `play` on programming problems."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flowzoo.cli import main

HUMANEVAL = Path("../shared/data/humaneval/HumanEval.jsonl")


@pytest.mark.usual(1)
@pytest.mark.skipif(not HUMANEVAL.exists(), reason=f"{HUMANEVAL} is not here")
@pytest.mark.parametrize(
    ("policy", "line"),
    [
        ("scripted:1.0", "accuracy 100.0 % (164/164)"),
        ("scripted:0.0", "accuracy 0.0 % (0/164)"),
    ],
)
def test_eval_on_all_of_humaneval(policy, line, capsys):
    args = ["eval", "single", "--task", "code", "--data", str(HUMANEVAL), "--policy", policy]
    assert main(args) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith(f"{line}, 95 % interval ")


def test_the_sandbox_is_an_option(capsys):
    args = ["eval", "eval_opt", "--task", "code", "--policy", "scripted:1", "--n", "3"]
    assert main([*args, "--sandbox", "unsafe", "--options", "tools=tests"]) == 0
    assert (
        capsys.readouterr()
        .out.splitlines()[-1]
        .startswith("accuracy 100.0 % (3/3), 95 % interval ")
    )
    assert main([*args, "--sandbox", "unsafe", "--options", "sandbox=auto"]) == 2
    assert "--sandbox and --options give 'sandbox' twice" in capsys.readouterr().err
    assert main(["eval", "single", "--policy", "scripted:1", "--sandbox", "docker"]) == 2
    assert "single_v0 on task 'math' runs no programs" in capsys.readouterr().err


def test_play_shows_a_program(capsys):
    args = ["play", "voting", "--task", "code", "--policy", "scripted:1"]
    assert main(args) == 0
    assert "def f(x):" in capsys.readouterr().out


def test_rows_of_no_use_are_left_out_if_asked_and_counted(tmp_path, capsys):
    good = {"text": "One.", "code": "def f():\n    return 1", "test_list": ["assert f() == 1"]}
    rows = [good, {**good, "text": "Nothing.", "test_list": []}]
    path = tmp_path / "m.json"
    path.write_text(json.dumps(rows))
    args = ["eval", "single", "--task", "code", "--policy", "scripted:1.0", "--data", str(path)]
    assert main(args) == 2
    assert "line 2: column 'test_list' is no list of asserts" in capsys.readouterr().err
    assert main([*args, "--skip-unusable", "--out", str(tmp_path / "out")]) == 0
    output = capsys.readouterr().out
    assert "rows left out, of no use: 1" in output
    assert output.splitlines()[-1].startswith("accuracy 100.0 % (1/1), 95 % interval ")
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["unusable"] == 1


def test_what_the_sandbox_cannot_judge_is_named_and_not_counted(tmp_path, capsys):
    good = {"text": "One.", "code": "def f():\n    return 1", "test_list": ["assert f() == 1"]}
    rows = [good, {**good, "text": "Never.", "test_list": ["import os; os._exit(0); f()"]}]
    path = tmp_path / "m.json"
    path.write_text(json.dumps(rows))
    args = ["eval", "single", "--task", "code", "--policy", "scripted:1.0", "--data", str(path)]
    assert main([*args, "--out", str(tmp_path / "out")]) == 0
    output = capsys.readouterr().out
    assert "not graded, and not counted: code/all/0/m.json:1#0" in " ".join(output.split())
    assert output.splitlines()[-1].startswith("accuracy 100.0 % (1/1), 95 % interval ")
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["ungraded"] == ["code/all/0/m.json:1#0"]
