"""`flowzoo eval` with votes, budgets and switches, as a user types it."""

import json
import re
from pathlib import Path

import pytest
from endpoint import chat, serving

from flowzoo.cli import main

SINGLE = ["eval", "single", "--policy", "scripted:0.6", "--n", "30"]


def test_votes_end_with_their_accuracy_and_resume(tmp_path, capsys):
    args = [*SINGLE, "--samples", "5", "--majority", "--out", str(tmp_path)]
    assert main(args) == 0
    displayed = capsys.readouterr().out
    assert displayed.splitlines()[-1].startswith("majority@5 accuracy ")
    assert "pass@4" in displayed
    assert "validation, 30 problems" in displayed
    assert f"{tmp_path / 'episodes.jsonl'}; their page: flowzoo report {tmp_path}\n" in displayed
    lines = (tmp_path / "episodes.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "episodes.jsonl").write_text("".join(lines[:71]) + lines[71][:9])
    assert main(args) == 0
    again = capsys.readouterr()
    assert again.out == displayed
    assert f"resuming {tmp_path}: 71 of 150 episodes are saved\n" in again.err
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["majority"]["samples"] == summary["protocol"]["samples"] == 5


def test_the_control_gets_as_many_votes_as_the_workflow_has_calls(tmp_path, capsys):
    team, control = str(tmp_path / "team"), str(tmp_path / "control")
    assert main(["eval", "voting", "--policy", "scripted:0.6", "--n", "30", "--out", team]) == 0
    (facts,) = re.findall(r"means of facts: (.*)\n", capsys.readouterr().out)
    assert re.sub(r" [0-9.]+", "", facts) == "abstained, all_correct, recovered"
    args = [*SINGLE, "--like", team, "--out", control, "--json"]
    assert main(args) == 0
    *_, results, _, last = capsys.readouterr().out.splitlines()
    assert last.startswith("majority@4 accuracy ")
    assert json.loads(results)["like"] == {"evaluation": team, "match": "calls"}
    assert main([*SINGLE, "--seed", "1", "--like", team]) == 2
    assert "of other problems (problem_set" in capsys.readouterr().err
    assert main([*SINGLE, "--like", team, "--match", "tokens"]) == 2
    assert "matched by calls" in capsys.readouterr().err
    assert main([*SINGLE, "--like", team, "--majority"]) == 2
    assert "leave out --samples" in capsys.readouterr().err


def test_replies_that_nobody_reads_are_told_of_beside_the_table(tmp_path, capsys):
    args = ["eval", "single", "--n", "8", "--max-tokens", "2", "--out", str(tmp_path)]
    assert main(args) == 0
    cut, unread = [line for line in capsys.readouterr().out.splitlines() if "warning:" in line]
    assert cut.startswith("warning: generator: all 8 replies ran into the length limit of 2 tokens")
    assert unread.startswith("warning: generator: none of 8 replies could be read (strict), e.g. ")
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert [item["cause"] for item in summary["alarms"]] == [
        "truncation/generator",
        "unread/generator",
    ]
    assert main([*args, "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[0])["alarms"] == summary["alarms"]
    assert main(["eval", "single", "--n", "8"]) == 0
    assert "warning:" not in capsys.readouterr().out


def test_a_real_model_has_the_replies_that_the_task_takes(tmp_path, capsys):
    pytest.importorskip("torch", reason="models are read by flowzoo[train]")
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    from flowzoo.agents.pocket import pocket_path

    torch.manual_seed(0)
    shape = AutoConfig.from_pretrained(pocket_path(), hidden_size=512, intermediate_size=3072)
    AutoModelForCausalLM.from_config(shape).save_pretrained(tmp_path / "model")
    AutoTokenizer.from_pretrained(pocket_path()).save_pretrained(tmp_path / "model")
    args = ["eval", "single", "--policy", f"hf:{tmp_path / 'model'}", "--n", "1"]
    assert main([*args, "--out", str(tmp_path / "out")]) == 0
    assert "max_tokens 128 (from the task)" in capsys.readouterr().err
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    assert record["settings"]["policies"]["max_tokens"] == 128
    assert main([*args, "--out", str(tmp_path / "out")]) == 0
    assert "from the task" not in capsys.readouterr().err


def test_tokens_are_matched_with_a_model(tmp_path, capsys):
    team = str(tmp_path / "team")
    assert main(["eval", "voting", "--n", "8", "--out", team]) == 0
    assert main(["eval", "single", "--n", "8", "--like", team, "--match", "tokens", "--json"]) == 0
    displayed = capsys.readouterr()
    assert "resuming" not in displayed.err
    results = json.loads(displayed.out.splitlines()[-2])
    tokens = json.loads((Path(team) / "summary.json").read_text())["tokens"]
    assert abs(results["majority"]["tokens"] - tokens) <= results["tokens"]
    assert results["protocol"]["decoding"]["pocket"]["template_id"]


def test_lengths_and_decoding_reach_the_model(tmp_path, capsys):
    args = ["eval", "voting", "--n", "3", "--max-tokens", "20", "--top-k", "5", "--temperature",
             "0.5", "--lengths", "aggregator=20/2", "--out", str(tmp_path)]  # fmt: skip
    assert main(args) == 0
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


def test_an_evaluation_grows_and_does_not_shrink(tmp_path, capsys):
    grown, whole = str(tmp_path / "grown"), str(tmp_path / "whole")
    assert main([*SINGLE, "--out", grown]) == 0
    first = (tmp_path / "grown" / "episodes.jsonl").read_text()
    args = [*SINGLE[:-1], "40", "--samples", "2"]
    assert main([*args, "--out", grown]) == 0
    assert (tmp_path / "grown" / "episodes.jsonl").read_text().startswith(first)
    last = capsys.readouterr().out.splitlines()[-1]
    assert main([*args, "--out", whole]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == last
    assert "/80), 95 % interval " in last
    assert main([*SINGLE, "--out", grown]) == 2
    assert "holds an evaluation with n 40, which is more than 30" in capsys.readouterr().err
    assert len((tmp_path / "grown" / "episodes.jsonl").read_text().splitlines()) == 80


def test_an_endpoints_token_counts_are_everywhere(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    team, data = tmp_path / "team", tmp_path / "data"
    with serving() as server:
        server.answer = lambda body, count: chat("\\boxed{1}")  # 7 prompt tokens, 3 of the reply
        policy = f"openai:m@{server.url}"
        assert main(["eval", "voting", "--policy", policy, "--n", "4", "--out", str(team)]) == 0
        displayed = capsys.readouterr().out
        args = ["eval", "single", "--policy", policy, "--n", "4", "--like", str(team)]
        assert main([*args, "--match", "tokens", "--json"]) == 0
        results = json.loads(capsys.readouterr().out.splitlines()[-2])
    assert "4.00 calls, 12.0 output tokens, 28.0 prompt tokens\n" in displayed
    assert (results["majority"]["samples"], results["majority"]["tokens"]) == (4, 12.0)
    summary = json.loads((team / "summary.json").read_text())
    assert (summary["tokens"], summary["prompt_tokens"], summary["uncounted"]) == (12.0, 28.0, 0)
    assert {role["tokens"] for role in summary["roles"].values()} == {3.0}
    episode = json.loads((team / "episodes.jsonl").open().readline())
    assert episode["calls"][0]["usage"] == {"prompt": 7, "output": 3}
    parquet = pytest.importorskip("pyarrow.parquet")
    assert main(["dataset", str(team), "--out", str(data)]) == 0
    replies = parquet.read_table(data / "replies" / "train.parquet").to_pylist()
    assert {(row["prompt_tokens"], row["output_tokens"]) for row in replies} == {(7, 3)}
    episodes = parquet.read_table(data / "episodes" / "train.parquet").to_pylist()
    assert {row["output_tokens"] for row in episodes} == {12}


NO_COUNT = [None, "many", {}, {"prompt_tokens": None, "completion_tokens": "3"},
            {"prompt_tokens": -1, "completion_tokens": True}]  # fmt: skip


def test_tokens_that_nobody_counted_are_not_zero(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    team, data = tmp_path / "team", tmp_path / "data"

    def answer(body, count):
        status, headers, reply = chat("\\boxed{1}")
        return status, headers, {**reply, "usage": NO_COUNT[count % len(NO_COUNT)]}

    with serving() as server:
        server.answer = answer
        args = ["eval", "voting", "--n", "4", "--policy"]
        policy = f"openai:m@{server.url}"
        assert main([*args, policy, "--out", str(team)]) == 0
        displayed = capsys.readouterr().out
        mixed = [*args, f"generator={policy}", "aggregator=pocket"]
        assert main(mixed) == 0
        partly = capsys.readouterr().out
    assert "n/a output tokens, n/a prompt tokens\n" in displayed
    assert "calls without token counts: 12\n" in partly
    assert "n/a output" not in partly
    summary = json.loads((team / "summary.json").read_text())
    assert (summary["tokens"], summary["prompt_tokens"], summary["uncounted"]) == (None, None, 16)
    assert {role["tokens_p95"] for role in summary["roles"].values()} == {None}
    parquet = pytest.importorskip("pyarrow.parquet")
    assert main(["dataset", str(team), "--out", str(data)]) == 0
    for table in ("replies", "episodes"):
        rows = parquet.read_table(data / table / "train.parquet").to_pylist()
        assert {row["output_tokens"] for row in rows} == {None}
    assert main([*args, "scripted:1"]) == 0
    assert "n/a output tokens, n/a prompt tokens\n" in capsys.readouterr().out


def test_the_number_format_is_recorded_and_kept(tmp_path, capsys):
    args = ["eval", "single", "--policy", "pocket:xs", "--n", "4", "--max-tokens", "8", "--out"]
    plain, lower = str(tmp_path / "plain"), str(tmp_path / "lower")
    assert main([*args, plain]) == 0
    assert ", float32, strict" in capsys.readouterr().out
    record = json.loads((tmp_path / "plain" / "run.json").read_text())
    assert record["settings"]["policies"]["engine_dtype"] == {"pocket:xs": "float32"}
    assert main([*args, lower, "--engine-dtype", "bfloat16"]) == 0
    assert ", bfloat16, strict" in capsys.readouterr().out
    protocol = json.loads((tmp_path / "lower" / "summary.json").read_text())["protocol"]
    assert protocol["decoding"]["pocket:xs"]["engine_dtype"] == "bfloat16"
    assert main([*args, lower]) == 2, "auto is float32 for a pocket model"
    assert "policies" in capsys.readouterr().err
    assert main([*args, lower, "--engine-dtype", "bfloat16"]) == 0
