"""`flowzoo eval`, `play` and `train` as a user types them, on math and on programs."""

import json
import shlex
from pathlib import Path

import pytest

from flowzoo.cli import main

GSM8K = Path("../shared/data/gsm8k/test.jsonl")
HUMANEVAL = Path("../shared/data/humaneval/HumanEval.jsonl")
PUBLISHED = [
    ("single", "code", HUMANEVAL, 164),
    *((name, "math", GSM8K, 1319) for name in ("voting", "eval_opt", "orch_workers", "single")),
]
"""Workflow, task, file of problems and their number; the first is among the usual cases."""


def last_line(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out.splitlines()[-1]


@pytest.mark.usual(2)
@pytest.mark.parametrize("right", [1, 0])
@pytest.mark.parametrize(("workflow", "task", "data", "problems"), PUBLISHED)
def test_eval_on_all_published_problems(workflow, task, data, problems, right, capsys):
    if not data.exists():
        pytest.skip(f"{data} is not here")
    args = ["eval", workflow, "--task", task, "--data", str(data), "--policy", f"scripted:{right}"]
    assert main(args) == 0
    accuracy = f"accuracy {100 * right}.0 % ({problems * right}/{problems}), 95 % interval "
    assert last_line(capsys).startswith(accuracy)


def test_eval_prints_rates_per_role_and_saves(tmp_path, capsys):
    args = ["eval", "voting", "--policy", "generator=scripted:0.5", "aggregator=scripted:1",
             "--n", "40", "--out", str(tmp_path)]  # fmt: skip
    assert main(args) == 0
    first = capsys.readouterr().out
    assert "generator" in first
    assert "strict" in first
    assert first.splitlines()[-1].startswith("accuracy ")
    assert len((tmp_path / "episodes.jsonl").read_text().splitlines()) == 40
    assert main(args) == 0
    assert capsys.readouterr().out == first


def test_eval_json_is_one_object_before_the_last_line(capsys):
    args = ["eval", "single", "--policy", "scripted:0.5", "--n", "20", "--samples", "3", "--json"]
    assert main(args) == 0
    *_, summary, line = capsys.readouterr().out.splitlines()
    assert json.loads(summary)["episodes"] == 60
    assert "/60), 95 % interval " in line


@pytest.mark.parametrize("workflow", ["voting", "eval_opt", "orch_workers", "single"])
def test_play_shows_every_agent_and_the_verdict(workflow, capsys):
    assert main(["play", workflow, "--policy", "scripted:1.0", "--chats"]) == 0
    output = capsys.readouterr().out
    assert "Put the final answer in" in output
    assert "score 1" in output
    assert main(["play", workflow, "--policy", "scripted:1.0", "--json", "--n", "2"]) == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [record["score"] for record in records] == [1.0, 1.0]


def test_play_keeps_the_token_budgets_of_roles(capsys):
    args = ["play", "voting", "--temperature", "0", "--lengths", "generator=/2"]
    assert main([*args, "--json"]) == 0
    (record,) = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    replies = [call["reply"] for call in record["calls"] if call["role"] == "generator"]
    assert all(len(reply) < 12 for reply in replies)
    assert main(args) == 0
    shown = [line.strip("│ ") for line in capsys.readouterr().out.splitlines()]
    assert [line for line in shown if line in replies] == replies


def test_a_broken_data_file_is_named_with_its_line(tmp_path, capsys):
    path = tmp_path / "broken.jsonl"
    path.write_text('{"question": "1+1?", "answer": "#### 2"}\n{"question": \n')
    assert main(["eval", "voting", "--data", str(path), "--policy", "scripted:1"]) == 2
    assert "broken.jsonl, line 2" in capsys.readouterr().err


def test_train_says_where_everything_is(tmp_path, capsys):
    args = ["train", "eval_opt", "--steps", "1", "--problems", "2", "--samples", "2",
             "--eval-problems", "4", "--out", str(tmp_path)]  # fmt: skip
    assert main(args) == 0
    output = capsys.readouterr().out
    for name in ("metrics.jsonl", "transcripts", "checkpoints"):
        assert str(tmp_path / name) in output
        assert (tmp_path / name).exists()
    assert "held-out accuracy" in output
    *_, report, best = output.splitlines()
    command = shlex.split(report.removeprefix("report"))
    assert command == ["flowzoo", "report", str(tmp_path)]
    assert best.startswith("best  ")
    assert main(command[1:]) == 0
    assert (tmp_path / "report.html").stat().st_size > 0


def test_the_sandbox_is_an_option(capsys):
    args = ["eval", "eval_opt", "--task", "code", "--policy", "scripted:1", "--n", "3"]
    assert main([*args, "--sandbox", "unsafe", "--options", "tools=tests"]) == 0
    assert last_line(capsys).startswith("accuracy 100.0 % (3/3), 95 % interval ")
    assert main([*args, "--sandbox", "unsafe", "--options", "sandbox=auto"]) == 2
    assert "--sandbox and --options give 'sandbox' twice" in capsys.readouterr().err
    assert main(["eval", "single", "--policy", "scripted:1", "--sandbox", "docker"]) == 2
    assert "single_v0 on task 'math' runs no programs" in capsys.readouterr().err


def test_play_shows_a_program(capsys):
    args = ["play", "voting", "--task", "code", "--policy", "scripted:1"]
    assert main(args) == 0
    assert "def f(x):" in capsys.readouterr().out


def asserting(folder: Path, text: str, tests: list[str]) -> list[str]:
    """`flowzoo eval` on a problem that can be judged and on one with these tests."""
    good = {"text": "One.", "code": "def f():\n    return 1", "test_list": ["assert f() == 1"]}
    path = folder / "m.json"
    path.write_text(json.dumps([good, {**good, "text": text, "test_list": tests}]))
    return ["eval", "single", "--task", "code", "--policy", "scripted:1.0", "--data", str(path)]


def test_rows_of_no_use_are_left_out_if_asked_and_counted(tmp_path, capsys):
    args = asserting(tmp_path, "Nothing.", [])
    assert main(args) == 2
    assert "line 2: column 'test_list' is not a list of asserts" in capsys.readouterr().err
    assert main([*args, "--skip-unusable", "--out", str(tmp_path / "out")]) == 0
    output = capsys.readouterr().out
    assert "unusable rows, left out: 1" in output
    assert output.splitlines()[-1].startswith("accuracy 100.0 % (1/1), 95 % interval ")
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["unusable"] == 1


def test_what_the_sandbox_cannot_judge_is_named_and_not_counted(tmp_path, capsys):
    args = asserting(tmp_path, "Never.", ["import os; os._exit(0); f()"])
    assert main([*args, "--out", str(tmp_path / "out")]) == 0
    output = capsys.readouterr().out
    assert "unknown, not counted: 1 episode (the test's own code failed" in output
    assert output.splitlines()[-1].startswith("accuracy 100.0 % (1/1), 1 unknown, 95 % interval ")
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert list(summary["unknown"]) == ["code/all/0/m.json:1#0"]
