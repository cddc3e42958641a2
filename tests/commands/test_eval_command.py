"""`flowzoo eval` with votes, budgets and switches, as a user types it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flowzoo.cli import main

SINGLE = ["eval", "single", "--policy", "scripted:0.6", "--n", "30"]


def test_votes_end_with_their_accuracy_and_resume(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*SINGLE, "--samples", "5", "--majority", "--out", str(tmp_path)]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert shown.splitlines()[-1].startswith("majority@5 accuracy ")
    assert "pass@4" in shown
    assert "validation, 30 problems" in shown
    lines = (tmp_path / "episodes.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "episodes.jsonl").write_text("".join(lines[:71]) + lines[71][:9])
    assert main(words) == 0
    assert capsys.readouterr().out == shown
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["majority"]["samples"] == summary["protocol"]["samples"] == 5


def test_the_control_gets_as_many_votes_as_the_workflow_has_calls(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    team, control = str(tmp_path / "team"), str(tmp_path / "control")
    assert main(["eval", "voting", "--policy", "scripted:0.6", "--n", "30", "--out", team]) == 0
    words = [*SINGLE, "--like", team, "--out", control, "--json"]
    assert main(words) == 0
    *_, found, _, last = capsys.readouterr().out.splitlines()
    assert last.startswith("majority@4 accuracy ")
    assert json.loads(found)["like"] == {"evaluation": team, "match": "calls"}
    assert main([*SINGLE, "--seed", "1", "--like", team]) == 2
    assert "of other problems (problem_set" in capsys.readouterr().err
    assert main([*SINGLE, "--like", team, "--match", "tokens"]) == 2
    assert "matched by calls" in capsys.readouterr().err
    assert main([*SINGLE, "--like", team, "--majority"]) == 2
    assert "leave out --samples" in capsys.readouterr().err


def test_tokens_are_matched_with_a_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    team = str(tmp_path / "team")
    assert main(["eval", "voting", "--n", "8", "--out", team]) == 0
    assert main(["eval", "single", "--n", "8", "--like", team, "--match", "tokens", "--json"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-2])
    tokens = json.loads((Path(team) / "summary.json").read_text())["tokens"]
    assert abs(found["majority"]["tokens"] - tokens) <= found["tokens"]
    assert found["protocol"]["decoding"]["pocket"]["template_id"]


def test_lengths_and_decoding_reach_the_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["eval", "voting", "--n", "3", "--max-tokens", "20", "--top-k", "5", "--temperature",
             "0.5", "--lengths", "aggregator=20/2", "--out", str(tmp_path)]  # fmt: skip
    assert main(words) == 0
    assert "prompts over their budget, shortened: aggregator 100.0 %" in capsys.readouterr().out
    episodes = [json.loads(line) for line in (tmp_path / "episodes.jsonl").open()]
    calls = [call for episode in episodes for call in episode["calls"]]
    choices = [call for call in calls if call["role"] == "aggregator"]
    assert {call["finish"] for call in choices} == {"length"}
    assert all(len(call["output_ids"]) == 2 for call in choices)
    assert all(len(call["prompt_ids"]) <= 20 and call["shortened"] > 0 for call in choices)
    assert {call["shortened"] for call in calls if call["role"] == "generator"} == {0}
    protocol = json.loads((tmp_path / "summary.json").read_text())["protocol"]
    assert protocol["lengths"] == {"generator": [None, 20], "aggregator": [20, 2]}
    assert (protocol["decoding"]["pocket"]["top_k"], protocol["samples"]) == (5, 1)
    assert main(["eval", "single", "--n", "3", "--thinking", "on"]) == 2
    assert "does not think" in capsys.readouterr().err


def test_an_evaluation_grows_and_does_not_shrink(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    grown, whole = str(tmp_path / "grown"), str(tmp_path / "whole")
    assert main([*SINGLE, "--out", grown]) == 0
    first = (tmp_path / "grown" / "episodes.jsonl").read_text()
    words = [*SINGLE[:-1], "40", "--samples", "2"]
    assert main([*words, "--out", grown]) == 0
    assert (tmp_path / "grown" / "episodes.jsonl").read_text().startswith(first)
    last = capsys.readouterr().out.splitlines()[-1]
    assert main([*words, "--out", whole]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == last
    assert last.endswith("/80)")
    assert main([*SINGLE, "--out", grown]) == 2
    assert "holds an evaluation with n 40, which is more than 30" in capsys.readouterr().err
    assert len((tmp_path / "grown" / "episodes.jsonl").read_text().splitlines()) == 80
