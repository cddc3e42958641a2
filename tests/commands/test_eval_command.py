"""`flowzoo eval` with votes, budgets and switches, as a user types it."""

import json
import math
import re
import shlex
import shutil
import statistics
from collections.abc import Callable
from pathlib import Path

import pytest
from endpoint import chat, serving

from flowzoo.agents.evaluation.comparison import as_markdown
from flowzoo.agents.evaluation.regrade import regrade
from flowzoo.agents.policy_map import PolicyMap
from flowzoo.agents.rollout.episodes import EpisodeJob, Rollout
from flowzoo.agents.scripted import ScriptedPolicy
from flowzoo.cli import main
from flowzoo.commands.progress import shown
from flowzoo.commands.progress.shown import QUIET_S, PlainProgress, times_note
from flowzoo.commands.regrade import Options, read_stored
from flowzoo.envs.api.registry import WORKFLOWS, make_workflow
from flowzoo.envs.script import GradeResult
from flowzoo.envs.tasks.math import MathTask
from flowzoo.provenance import grader_digest

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


# -- `flowzoo eval` counts tokens, dollars and seconds of every role, and stops at a budget --------


PRICES = """"writer" = { input = 1, output = 10 }
"chooser" = { input = 2, output = 20 }
"""


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with serving() as endpoint:
        endpoint.answer = lambda body, count: chat("\\boxed{1}")  # 7 prompt tokens, 3 of the reply
        yield endpoint


@pytest.fixture
def line(server, tmp_path):
    (tmp_path / "prices.toml").write_text(PRICES)
    roles = [f"generator=openai:writer@{server.url}", f"aggregator=openai:chooser@{server.url}"]
    return ["eval", "voting", "--n", "10", "--prices", str(tmp_path / "prices.toml"), "--out",
            str(tmp_path / "out"), "--policy", *roles]  # fmt: skip


def usage(tmp_path):
    return json.loads((tmp_path / "out" / "summary.json").read_text())["usage"]


def test_every_role_has_its_tokens_cost_and_latency(line, tmp_path, capsys):
    assert main(line) == 0
    displayed = capsys.readouterr().out
    assert "cost $0.0019: aggregator $0.0007, generator $0.0011\n" in displayed
    assert "seconds per call, median and 95th percentile: aggregator 0." in displayed
    whole = usage(tmp_path)
    generator, aggregator = whole["roles"]["generator"], whole["roles"]["aggregator"]
    assert (generator["calls"], aggregator["calls"]) == (30, 10)
    assert (generator["prompt_tokens"], generator["output_tokens"]) == (210, 90)
    assert generator["cost"] == (210 * 1 + 90 * 10) / 1e6
    assert aggregator["cost"] == (70 * 2 + 30 * 20) / 1e6
    assert whole["cost"] == pytest.approx(generator["cost"] + aggregator["cost"])
    assert 0 < generator["latency"]["median"] <= generator["latency"]["p95"]
    path = "critical path, the longest call of every phase added up: 6.0 output tokens, median 0."
    assert path in " ".join(displayed.split())  # two phases, of replies of 3 tokens
    rows = [json.loads(row)["seconds"] for row in (tmp_path / "out" / "latencies.jsonl").open()]
    paths = [max(*generators) + aggregator for *generators, aggregator in rows]
    assert whole["critical_path"]["median"] == pytest.approx(statistics.median(paths))
    assert all(path < sum(row) for path, row in zip(paths, rows, strict=True))


def test_latencies_outlive_an_interruption_and_are_no_part_of_episodes(line, tmp_path):
    assert main(line) == 0
    whole = usage(tmp_path)
    out = tmp_path / "out"
    episodes = (out / "episodes.jsonl").read_text()
    assert "seconds" not in episodes
    (out / "episodes.jsonl").write_text("".join(episodes.splitlines(keepends=True)[:6]))
    rows = (out / "latencies.jsonl").read_text().splitlines(keepends=True)
    (out / "latencies.jsonl").write_text("".join(rows[:6]) + rows[6][:9])
    assert main(line) == 0
    timed = {"latency": 0, "critical_path": 0, "roles": 0}
    assert usage(tmp_path) | timed == whole | timed
    again = [json.loads(row) for row in (out / "latencies.jsonl").open()]
    assert [json.loads(row) for row in rows[:6]] == again[:6]
    assert len(again) == 10


@pytest.mark.parametrize(
    ("limit", "message"),
    [
        (["--max-tokens-total", "150"], "tokens of --max-tokens-total 150: raise it to play on"),
        (["--max-cost", "0.001"], "of --max-cost 0.001: raise it to play on"),
    ],
)
def test_a_budget_stops_an_evaluation_and_more_of_it_plays_the_rest(
    line, limit, message, server, tmp_path, capsys
):
    assert main([*line, *limit]) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert message in error
    assert "of 10 episodes are saved in" in error
    assert "the same command resumes" in error
    asked = len(server.seen)
    assert asked < 40
    assert main([*line, limit[0], "1000"]) == 0
    whole = usage(tmp_path)
    assert (whole["calls"], whole["prompt_tokens"], whole["output_tokens"]) == (40, 280, 120)


def test_what_cannot_be_counted_has_no_cost_and_keeps_no_budget(line, server, tmp_path, capsys):
    def uncounted(body, count):
        status, headers, reply = chat("\\boxed{1}")
        return status, headers, reply | ({"usage": None} if body["model"] == "chooser" else {})

    server.answer = uncounted
    assert main(line) == 0
    assert "cost n/a: aggregator n/a, generator $0.0011\n" in capsys.readouterr().out
    assert usage(tmp_path)["roles"]["aggregator"]["prompt_tokens"] is None
    assert main([*line, "--max-cost", "1"]) == 2
    assert "does not count tokens, so the evaluation cannot keep a" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("prices", "message"),
    [
        ('"writer" = { input = 1, output = 10 }', "unknown model in the price file 'chooser'"),
        ("writer = 3", "`writer` in"),
        ("writer = { input = -1, output = 1 }", "must be the dollars per million tokens"),
        ("writer = { input = 1 }", "must be the dollars per million tokens"),
        ("writer", "is not TOML"),
    ],
)
def test_wrong_prices_are_explained(line, prices, message, tmp_path, capsys):
    (tmp_path / "prices.toml").write_text(prices)
    assert main(line) == 2
    assert message in " ".join(capsys.readouterr().err.split())


# -- `flowzoo leaderboard`: cells of a file, each an evaluation, and the tables of what they found


FILE = """
[settings]
n = 20
[[cells]]
workflow = ["single", "voting"]
policy = ["scripted:0.4", "scripted:0.9"]
[[cells]]
workflow = ["voting"]
policy = [["generator=scripted:0.4", "aggregator=scripted:0.9"]]
settings = { samples = 2, majority = true, options = ["n_votes=2"] }
label = "two|votes"
"""


@pytest.fixture
def board(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "zoo.toml").write_text(FILE)
    return tmp_path / "runs" / "zoo"


def test_every_cell_is_an_evaluation_and_the_best_comes_first(board, capsys):
    assert main(["leaderboard", "zoo.toml"]) == 0
    displayed = capsys.readouterr().out
    assert displayed == (board / "leaderboard.md").read_text()
    tables = json.loads((board / "leaderboard.json").read_text())["tables"]
    assert as_markdown(tables) == displayed
    tables[0]["rows"][0]["policy"] = "a|b <img src=x onerror=alert(1)> `c` [d](javascript:e)\nf"
    tables[0]["task"] = "<script>"
    text = as_markdown(tables)
    assert not {*"<>`[]"} & {*text}
    assert [line.count("|") for line in text.splitlines()] == [
        line.count("|") for line in displayed.splitlines()
    ]
    (table,) = json.loads((board / "leaderboard.json").read_text())["tables"]
    rows = table["rows"]
    names = ["single-scripted-0.4", "single-scripted-0.9", "voting-scripted-0.4",
             "voting-scripted-0.9",
             "voting-generator=scripted-0.4-aggregator=scripted-0.9-two-votes"]  # fmt: skip
    assert sorted(row["name"] for row in rows) == sorted(names)
    assert [row["accuracy"] for row in rows] == sorted(
        (row["accuracy"] for row in rows), reverse=True
    )
    best = rows[0]
    assert best["behind"] is None
    for row in rows:
        summary = json.loads((board / row["name"] / "summary.json").read_text())
        assert row["accuracy"] == summary.get("majority", summary)["accuracy"]
        if row is not best:
            assert row["behind"]["difference"] == pytest.approx(row["accuracy"] - best["accuracy"])
    lines = [line for line in displayed.splitlines() if line.startswith("| ")]
    assert len(lines) == 7
    assert lines[2].startswith(f"| {best['workflow']} ")
    assert "voting_v0 (2 each) | generator=scripted:0.4 aggregator=scripted:0.9" in displayed


def test_a_cell_can_be_repeated_by_hand_and_a_finished_one_is_not_played(board, capsys):
    assert main(["leaderboard", "zoo.toml", "--dry-run", "--only", "single", "two"]) == 0
    commands = capsys.readouterr().out.splitlines()
    assert len(commands) == 3
    assert not board.exists()
    for command in commands:
        assert main(shlex.split(command)[1:]) == 0
    times = {path: path.stat().st_mtime_ns for path in board.glob("*/run.json")}
    capsys.readouterr()
    assert main(["leaderboard", "zoo.toml", "--json"]) == 0
    (table,) = json.loads(capsys.readouterr().out)["tables"]
    assert len(table["rows"]) == 5
    assert times == {path: path.stat().st_mtime_ns for path in times}


def test_a_cell_that_fails_leaves_the_others(board, capsys, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    (board.parent.parent / "prices.toml").write_text("m = { input = 1e4, output = 1e4 }")
    with serving() as server:
        server.answer = lambda body, count: chat("\\boxed{1}")
        file = FILE.replace('"scripted:0.4", ', f'"openai:m@{server.url}", ').replace(
            "n = 20", 'n = 20\nprices = "prices.toml"\nmax_cost = 3'
        )
        (board.parent.parent / "zoo.toml").write_text(file)
        assert main(["leaderboard", "zoo.toml"]) == 1
        first = capsys.readouterr()
        message = " ".join(first.err.split())
        assert "failed: voting-openai-m: the evaluation has cost $" in message
        assert list(json.loads((board / "leaderboard.json").read_text())["failures"]) == [
            "voting-openai-m"
        ]
        (board.parent.parent / "zoo.toml").write_text(
            file.replace("max_cost = 3", "max_cost = 100")
        )
        assert main(["leaderboard", "zoo.toml"]) == 0
        count = len(server.seen)
        assert "$2.0000 |" in capsys.readouterr().out
        assert main(["leaderboard", "zoo.toml"]) == 0
        (board.parent.parent / "prices.toml").write_text("m = { input = 1e4, output = 0 }")
        assert main(["leaderboard", "zoo.toml", "--only", "single-openai"]) == 0
        assert "$1.4000 |" in capsys.readouterr().out
        assert len(server.seen) == count


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("n = 20", "nn = 20", "cell single-scripted-0.4: flowzoo eval has no option --nn"),
        ("n = 20", 'out = "x"', "must not have `out`"),
        ("[[cells]]", "[[cell]]", "unknown field in zoo.toml 'cell'"),
        ('["scripted:0.4", "scripted:0.9"]', '"scripted:0.4"', "`policy` of a cell"),
        ('"scripted:0.4", "s', '"scripted:0.9", "s', "has the cell single-scripted-0.9 twice"),
        ('workflow = ["single", "voting"]', "", "needs a list `workflow`"),
        ("label", "lable", "unknown field of a cell in zoo.toml 'lable'. Did you mean 'label'"),
        ("n_votes=2", "n_vote=2", "aggregator=scripted-0.9-two-votes: "),
    ],
)
def test_a_mistake_is_found_before_anything_is_played(board, before, after, message, capsys):
    (board.parent.parent / "zoo.toml").write_text(FILE.replace(before, after))
    assert main(["leaderboard", "zoo.toml"]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not board.exists()


# -- `flowzoo regrade`: stored episodes judged again, as a user types it ---------------------------


def stored(tmp_path: Path, *words: str) -> Path:
    folder = tmp_path / "stored"
    line = ["eval", *words, "--policy", "scripted:0.6", "--out", str(folder)]
    assert main(line) == 0
    return folder


def change(folder: Path, index: int, **values: object) -> None:
    path = folder / "episodes.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for name, value in values.items():
        if name == "reply":
            rows[index]["calls"][-1]["reply"] = value
        elif name == "role_score":
            rows[index]["calls"][0]["role_score"] = value
        else:
            rows[index][name] = value
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def judged(folder: Path, capsys: pytest.CaptureFixture[str], *words: str) -> dict:
    capsys.readouterr()
    assert main(["regrade", str(folder), "--json", *words]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("name", WORKFLOWS)
def test_every_workflow_is_judged_as_when_it_was_played(name):
    workflow = make_workflow(name)
    problems = [workflow.task.problem(index, "validation") for index in range(6)]
    policies = PolicyMap.shared(ScriptedPolicy(workflow, 0.6), workflow.roles)
    records = Rollout(workflow, policies).run([EpisodeJob(problem) for problem in problems])
    rows = [json.loads(json.dumps(record.to_json())) for record in records]
    assert [episode.state for episode in regrade(workflow, rows)] == ["same"] * 6


def test_equal_verdicts_are_said_with_the_grader_that_gave_them(tmp_path, capsys):
    folder = stored(tmp_path, "voting", "--n", "30")
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    capsys.readouterr()
    assert main(["regrade", str(folder)]) == 0
    first, states, accuracy = capsys.readouterr().out.splitlines()
    assert first.startswith(f"30 episodes of {folder} judged again in ")
    assert first.endswith(f" s; grader {grader_digest()}, as then")
    assert states == "30 same"
    assert accuracy.startswith("accuracy ")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == files
    record = json.loads((folder / "run.json").read_text())
    assert record["provenance"].pop("grader") == grader_digest()
    (folder / "run.json").write_text(json.dumps(record))
    assert main(["regrade", str(folder)]) == 0
    assert f"grader then not recorded, now {grader_digest()}" in capsys.readouterr().out


def test_a_changed_verdict_is_listed_by_what_differs(tmp_path, capsys):
    folder = stored(tmp_path, "single", "--n", "20")
    rows = [json.loads(line) for line in (folder / "episodes.jsonl").read_text().splitlines()]
    right = [index for index, row in enumerate(rows) if row["score"] == 1.0][:2]
    for index in right:  # as a stricter grader had it
        change(folder, index, score=0.0, role_score=0.0)
    change(folder, next(index for index, row in enumerate(rows) if row["score"] == 0.0), answer="x")
    capsys.readouterr()
    assert main(["regrade", str(folder)]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[1] == "17 same, 3 changed"
    names = ", ".join(rows[index]["episode"] for index in right)
    assert f"  2  score 0 -> 1: {names}" in printed
    assert f"  2  generator: role score 0 -> 1: {names}" in printed
    assert any(line.startswith("  1  another answer is read: ") for line in printed)
    assert ", +10.0 points (95 % interval " in printed[-1]
    assert printed[-1].endswith(", paired by problem)")


def test_a_grader_of_today_that_does_not_know_is_no_zero(tmp_path, capsys, monkeypatch):
    folder = stored(tmp_path, "single", "--n", "8")
    grade_batch = MathTask.grade_batch

    def unknown_first(task, problems, answers):
        found = grade_batch(task, problems, answers)
        return [GradeResult(math.nan, "unknown: no box started"), *found[1:]]

    monkeypatch.setattr(MathTask, "grade_batch", unknown_first)
    result = judged(folder, capsys)
    assert result["states"] == {
        "same": 7, "changed": 0, "unknown": 1, "other course": 0, "other problem": 0,
    }  # fmt: skip
    first = result["episodes"][0]
    assert (first["after"], first["reasons"]) == (None, ["no box started"])


def test_a_script_that_asks_what_was_not_answered_takes_another_course(tmp_path, capsys):
    folder = stored(tmp_path, "eval_opt", "--n", "12")
    rows = [json.loads(line) for line in (folder / "episodes.jsonl").read_text().splitlines()]
    roles = [[call["role"] for call in row["calls"]] for row in rows]
    index = roles.index(["generator", "evaluator"])  # accepted at once
    change(folder, index, reply="\\boxed{incorrect}")
    result = judged(folder, capsys)
    assert result["states"]["other course"] == 1
    assert result["episodes"][index]["reasons"] == ["generator_0 is asked, and no reply was stored"]


def test_a_task_with_other_problems_by_now(tmp_path, capsys):
    folder = stored(tmp_path, "single", "--n", "4")
    change(folder, 2, gold="7777")
    result = judged(folder, capsys)
    assert [row["state"] for row in result["episodes"]] == ["same"] * 2 + ["other problem", "same"]
    assert result["episodes"][2]["after"] is None


def test_an_evaluation_of_a_training_run_by_its_step(tmp_path, capsys):
    run = str(tmp_path / "run")
    line = ["train", "single", "--steps", "1", "--problems", "2", "--samples", "2"]
    assert main([*line, "--eval-problems", "8", "--out", run]) == 0
    last = judged(Path(run), capsys)
    assert last["source"] == f"{run}, step 1"
    assert last["states"]["same"] == 8
    assert last["grader"]["then"] == grader_digest()
    assert judged(Path(run), capsys, "--step", "0")["source"] == f"{run}, step 0"
    assert main(["regrade", run, "--step", "9"]) == 2
    assert "at step 9: expected one of 0, 1" in capsys.readouterr().err


def test_what_cannot_be_judged_again_is_refused_in_one_line(tmp_path, capsys):
    folder = stored(tmp_path, "single", "--n", "2")
    record = json.loads((folder / "run.json").read_text())
    refused = {
        "was not loaded": {**record["settings"], "workflow": "stranger.py:Team"},
        "whose own results are not stored": {**record["settings"], "env": "x.py:make"},
    }
    for message, settings in refused.items():
        (folder / "run.json").write_text(json.dumps({**record, "settings": settings}))
        capsys.readouterr()
        assert main(["regrade", str(folder)]) == 2
        assert message in capsys.readouterr().err
    (folder / "run.json").write_text(json.dumps({"kind": "evaluation"}))
    assert main(["regrade", str(folder)]) == 2
    assert "run.json has no settings of an evaluation" in capsys.readouterr().err
    (folder / "run.json").write_text(json.dumps(record))
    (folder / "episodes.jsonl").write_text('{"episode": "x"}\n' * 2)
    assert main(["regrade", str(folder)]) == 2
    assert "line 1: not an episode" in capsys.readouterr().err
    (folder / "episodes.jsonl").write_text("")
    assert main(["regrade", str(folder)]) == 2
    assert "has no stored episodes" in capsys.readouterr().err
    shutil.rmtree(folder)
    assert main(["regrade", str(folder)]) == 2
    assert "it has no run.json" in capsys.readouterr().err


def test_programs_of_a_stranger_run_in_a_sandbox(tmp_path):
    folder = stored(tmp_path, "single", "--task", "code", "--n", "3")
    record = json.loads((folder / "run.json").read_text())
    record["settings"]["problems"]["sandbox"] = "unsafe"
    record["grading"]["sandbox"]["tier"] = "unsafe"
    (folder / "run.json").write_text(json.dumps(record))
    stored_episodes = read_stored(Options(folder))
    assert stored_episodes.workflow.task.sandbox != "unsafe"
    assert read_stored(Options(folder, sandbox="unsafe")).workflow.task.sandbox == "unsafe"


# -- Progress without a terminal: which lines are printed when, on a clock of the tests' own -------


class Clock:
    """Seconds that pass when they are told to."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def lines() -> list[str]:
    return []


@pytest.fixture
def plain(clock: Clock, lines: list[str]) -> Callable[..., PlainProgress]:
    """`plain(total, done, note)`: progress in steps that writes into `lines`."""

    def make(total: int, done: int = 0, note: str = "") -> PlainProgress:
        return PlainProgress("step", total, done, note, write=lines.append, clock=clock)

    return make


def test_long_steps_have_a_line_each_and_short_ones_no_flood(clock, lines, plain):
    slow = plain(4)
    for step in range(1, 5):
        clock.now += 72
        slow.show(step, "reward 0.33, 18 tok/s")
    assert lines == [
        "step 1/4, reward 0.33, 18 tok/s, 1:12, 3:36 left",
        "step 2/4, reward 0.33, 18 tok/s, 2:24, 2:24 left",
        "step 3/4, reward 0.33, 18 tok/s, 3:36, 1:12 left",
        "step 4/4, reward 0.33, 18 tok/s, 4:48",
    ]
    lines.clear()
    quick = plain(1000)
    for step in range(1, 1001):
        clock.now += 0.1
        quick.show(step)
    assert len(lines) in (9, 10)


def test_a_long_silence_is_broken(clock, lines, plain):
    progress = plain(10, note="initial evaluation")
    for _ in range(65):
        clock.now += 1
        progress.beat()
    assert lines == [f"step 0/10, initial evaluation, 0:{int(QUIET_S)}",
                     "step 0/10, initial evaluation, 1:00"]  # fmt: skip
    progress.show(0)
    progress.say("step    0  held-out accuracy 4.0 %")
    clock.now += QUIET_S
    progress.beat()
    assert lines[2:] == [
        "step    0  held-out accuracy 4.0 %", "step 0/10, 1:35; the next has taken 0:30"
    ]  # fmt: skip


def test_what_is_left_does_not_count_what_was_there_before(clock, lines, plain):
    # A resumed evaluation is told of its finished episodes at once.
    progress = plain(100)
    for done in range(1, 91):
        progress.show(done)
    clock.now += 60
    progress.show(91)
    assert lines == ["step 91/100, 1:00, 9:00 left"]
    # Nor does the evaluation of the start: a run that begins, and one that goes on at step 40.
    lines.clear()
    for first in (0, 40):
        run = plain(first + 10, first)
        clock.now += 600 * (first == 0)
        run.show(first)
        clock.now += 20
        run.show(first + 1)
    assert [line.split(", ")[-1] for line in lines if "left" in line] == ["3:00 left"] * 2


def test_times():
    assert [times_note(*both) for both in ((0, None), (61.9, 0), (5, 3600.0))] == [
        "0:00", "1:01", "0:05, 60:00 left"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("args", "line"),
    [
        ("eval single --policy scripted:0.5 --n 6",
         r"evaluating 6/6, accuracy \d+\.\d %, 0:\d\d"),
        ("train single --steps 2 --problems 2 --eval-problems 2",
         r"step 2/2, \d+\.\d s, reward \d\.\d\d, [\d,]+ tok/s, 0:\d\d"),
        ("sft single --n 8 --epochs 1 --batch 4 --eval-problems 2",
         r"step 2/2, \d+\.\d s, loss \d+\.\d{3}, 0:\d\d"),
    ],
)  # fmt: skip
def test_commands_print_lines_where_stderr_is_no_terminal(
    args, line, tmp_path, monkeypatch, capsys
):
    if not args.startswith("eval"):
        pytest.importorskip("torch", reason="the trainer needs flowzoo[train]")
    monkeypatch.setattr(shown, "STEP_S", 0.0)
    assert main([*args.split(), "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().err.splitlines()
    assert any(re.fullmatch(line, item) for item in printed), printed
