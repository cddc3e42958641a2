"""`flowzoo eval`, `play` and `train` as a user types them."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from flowzoo.cli import main

GSM8K = Path("../shared/data/gsm8k/test.jsonl")
needs_gsm8k = pytest.mark.skipif(not GSM8K.exists(), reason=f"{GSM8K} is not here")


def last_line(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out.splitlines()[-1]


@pytest.mark.usual(1)
@needs_gsm8k
@pytest.mark.parametrize(
    ("policy", "line"),
    [
        ("scripted:1.0", "accuracy 100.0 % (1319/1319)"),
        ("scripted:0.0", "accuracy 0.0 % (0/1319)"),
    ],
)
@pytest.mark.parametrize("workflow", ["voting", "eval_opt", "orch_workers", "single"])
def test_eval_on_all_of_gsm8k(workflow, policy, line, capsys):
    args = ["eval", workflow, "--task", "math", "--data", str(GSM8K), "--policy", policy]
    assert main(args) == 0
    assert last_line(capsys).startswith(f"{line}, 95 % interval ")


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
    command = shlex.split(output.splitlines()[-1].removeprefix("report"))
    assert command == ["flowzoo", "report", str(tmp_path)]
    assert main(command[1:]) == 0
    assert (tmp_path / "report.html").stat().st_size > 0
