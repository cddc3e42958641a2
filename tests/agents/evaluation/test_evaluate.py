"""Evaluation: summaries, saved episodes, resuming, unknown verdicts."""

import json
from pathlib import Path
from typing import Any

import pytest
from endpoint import chat, serving
from policies import Replies

from flowzoo.agents import PolicyMap
from flowzoo.agents.evaluation.evaluate import EvaluationDirectory, evaluate, read_episodes
from flowzoo.agents.evaluation.intervals import evaluation_intervals
from flowzoo.agents.evaluation.summary import summarize
from flowzoo.agents.evaluation.usage import usage_summary
from flowzoo.agents.problems import distinct_problems
from flowzoo.agents.rollout.episodes import EpisodeJob, Rollout
from flowzoo.agents.scripted import ScriptedPolicy
from flowzoo.baselines.advantages.compute import RunningMean
from flowzoo.baselines.advantages.spec import AdvantageSpec
from flowzoo.baselines.training.advantage_computer import AdvantageComputer
from flowzoo.cli import main
from flowzoo.envs import Episode, UngradedError, make_workflow
from flowzoo.envs.tasks.task import Problem
from flowzoo.errors import DataError, UsageError

WORKFLOW = make_workflow("voting_v0", "math")
PROBLEMS = distinct_problems(WORKFLOW.task, "validation", 30)


def policy_map(skill: float = 0.6) -> PolicyMap:
    policy = ScriptedPolicy(WORKFLOW, skill, seed=5)
    return PolicyMap.shared(policy, WORKFLOW.role_counts())


def test_summary_counts_what_the_episodes_say():
    records, summary = evaluate(WORKFLOW, policy_map(), PROBLEMS, samples=2, seed=1)
    assert len(records) == 60
    assert summary["episodes"] == 60
    assert summary["accuracy"] == sum(record.score for record in records) / 60
    assert summary["calls"] == 4
    generator = summary["roles"]["generator"]
    assert generator["calls"] == 180
    drafts = [call for record in records for call in record.calls if call.role == "generator"]
    assert generator["role_score"] == pytest.approx(
        sum(call.role_score or 0.0 for call in drafts) / 180
    )
    assert 0.4 < generator["role_score"] < 0.8
    assert summary["facts"]["abstained"] == 0
    assert summary == {
        **summarize(records),
        "intervals": evaluation_intervals(records),
        "usage": usage_summary(records, {}, {}),
    }


def test_a_stopped_evaluation_continues_where_it_was(tmp_path):
    whole = EvaluationDirectory(tmp_path / "whole", {"n": 30})
    records, summary = evaluate(WORKFLOW, policy_map(), PROBLEMS, seed=1, store=whole)
    lines = (tmp_path / "whole" / "episodes.jsonl").read_text().splitlines(keepends=True)
    assert len(lines) == 30

    stopped = tmp_path / "stopped"
    stopped.mkdir()
    (stopped / "run.json").write_text((tmp_path / "whole" / "run.json").read_text())
    (stopped / "episodes.jsonl").write_text("".join(lines[:11]) + lines[11][:40])
    store = EvaluationDirectory(stopped, {"n": 30})
    assert len(store.finished) == 11
    again, resumed = evaluate(WORKFLOW, policy_map(), PROBLEMS, seed=1, store=store)
    assert resumed == summary
    assert sorted(record.episode for record in again) == sorted(r.episode for r in records)
    assert len(read_episodes(stopped / "episodes.jsonl")) == 30
    assert json.loads((stopped / "summary.json").read_text())["accuracy"] == summary["accuracy"]


def test_a_broken_line_in_the_middle_is_named(tmp_path):
    store = EvaluationDirectory(tmp_path, {})
    evaluate(WORKFLOW, policy_map(), PROBLEMS[:3], store=store)
    path = tmp_path / "episodes.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], "{", lines[2]]))
    del store
    with pytest.raises(DataError, match="line 2"):
        EvaluationDirectory(tmp_path, {})


@pytest.mark.parametrize("workflow", ["voting", "eval_opt", "orch_workers", "single"])
@pytest.mark.parametrize("preset", ["strict", "paper"])
def test_empty_replies_score_nothing(workflow, preset):
    built = make_workflow(workflow, "math", preset=preset)
    mute = PolicyMap.shared(Replies(), built.role_counts())
    records, summary = evaluate(built, mute, PROBLEMS)
    assert summary["accuracy"] == 0.0
    assert all(call.reward == 0.0 for record in records for call in record.calls)
    assert all(role["strict"] == 0.0 for role in summary["roles"].values())


def test_two_processes_do_not_pay_for_the_same_episodes(tmp_path):
    store = EvaluationDirectory(tmp_path, {})
    with pytest.raises(UsageError, match="another process is evaluating"):
        EvaluationDirectory(tmp_path, {})
    evaluate(WORKFLOW, policy_map(), PROBLEMS[:3], store=store)
    del store
    with pytest.raises(UsageError, match=r"other settings \(n\)"):
        EvaluationDirectory(tmp_path, {"n": 30})
    assert len(EvaluationDirectory(tmp_path, {}).finished) == 3


RIGHT = "```python\ndef f():\n    return 1\n```"
WRONG = "```python\ndef f():\n    return 2\n```"
KILLER = "```python\nimport os\nos.kill(os.getppid(), 9)\ndef f():\n    return 2\n```"
"""A program that ends the process that runs it, where nothing confines it."""
BROKEN = "import os; os._exit(0); f()"
"""A test that ends before it calls the function."""


def code_file(folder: Path, *tests: str) -> str:
    rows = [
        {"text": f"Problem {number}.", "code": "def f():\n    return 1", "test_list": [test]}
        for number, test in enumerate(tests)
    ]
    path = folder / "m.json"
    path.write_text(json.dumps(rows))
    return str(path)


def never_paid(body: dict[str, Any], count: int) -> Any:
    """Solve the first problem, and kill the box elsewhere."""
    first = "Problem 0." in body["messages"][-1]["content"]
    return chat(RIGHT if first else KILLER)


def test_a_policy_cannot_raise_its_mean_by_killing_its_boxes(tmp_path, capsys):
    data = code_file(tmp_path, *["assert f() == 1"] * 4)
    with serving() as server:
        server.answer = never_paid
        args = ["eval", "single", "--task", "code", "--data", data, "--sandbox", "unsafe",
                "--policy", f"openai:m@{server.url}", "--out", str(tmp_path / "out")]  # fmt: skip
        assert main(args) == 0
    output = capsys.readouterr().out
    assert output.splitlines()[-1].startswith("accuracy 25.0 % (1/4), 95 % interval ")
    assert "unknown" not in json.loads((tmp_path / "out" / "summary.json").read_text())


def test_a_test_that_fails_by_itself_is_unknown_and_counted_apart(tmp_path, capsys):
    data = code_file(tmp_path, "assert f() == 1", BROKEN, "assert f() == 1")
    board = tmp_path / "board.toml"
    board.write_text(
        f'settings = {{ data = "{data}" }}\n[[cells]]\n'
        'workflow = ["single"]\ntask = ["code"]\npolicy = ["scripted:1.0"]\n'
    )
    assert main(["leaderboard", str(board), "--out", str(tmp_path / "out")]) == 0
    assert "| 100.0 % (1 unknown) |" in capsys.readouterr().out
    (table,) = json.loads((tmp_path / "out" / "leaderboard.json").read_text())["tables"]
    (row,) = table["rows"]
    assert (row["episodes"], row["unknown"]) == (2, 1)
    ((name, reason),) = json.loads((Path(row["folder"]) / "summary.json").read_text())[
        "unknown"
    ].items()
    assert name == "code/all/0/m.json:1#0"
    assert "the test's own code failed" in reason


def test_votes_and_attempts_go_on_without_unknown_episodes(tmp_path, capsys):
    data = code_file(tmp_path, "assert f() == 1", BROKEN)
    out = tmp_path / "out"
    args = ["eval", "single", "--task", "code", "--data", data, "--policy", "scripted:1.0",
            "--samples", "2", "--majority", "--out", str(out)]  # fmt: skip
    assert main(args) == 0
    assert "majority@2 accuracy 100.0 % (1/1), 2 unknown" in capsys.readouterr().out
    assert main([*args, "--against", str(out)]) in (0, 2)


def groups(data: str, sandbox: str, reply: dict[int, str]) -> tuple[Any, list[float]]:
    """Four episodes of the only problem, each with its reply, and their advantages."""
    workflow = make_workflow("single", "code", data=data, sandbox=sandbox)
    problem = workflow.task.problem(0, "all")
    policy = Replies(lambda request: reply[int(request.key[2])])
    rollout = Rollout(
        workflow, PolicyMap.shared(policy, workflow.role_counts()), on_error="ungraded"
    )
    batch = rollout.sample([EpisodeJob(problem, sample) for sample in range(4)])
    spec = AdvantageSpec(mean="mean", mean_group=("problem",), std="none")
    return batch, AdvantageComputer(spec)(batch, RunningMean()).values.tolist()


def test_a_reply_that_kills_its_box_is_trained_on_as_wrong(tmp_path):
    data = code_file(tmp_path, "assert f() == 1")
    batch, values = groups(data, "unsafe", {0: RIGHT, 1: KILLER, 2: WRONG, 3: WRONG})
    assert [record.score for record in batch.records] == [1.0, 0.0, 0.0, 0.0]
    assert batch.failed == 0
    assert values == pytest.approx([0.75, -0.25, -0.25, -0.25])


def test_a_row_of_an_unknown_verdict_is_no_row_and_not_in_its_groups_baseline(tmp_path):
    data = code_file(tmp_path, BROKEN)
    unreadable = "I do not know."
    batch, values = groups(data, "auto", {0: RIGHT, 1: unreadable, 2: unreadable, 3: WRONG})
    assert [row.episode.rpartition("#")[2] for row in batch.rows] == ["1", "2"]
    assert [record.score for record in batch.records] == [0.0, 0.0]
    assert (batch.failed, values) == (2, [0.0, 0.0])


def test_an_answer_to_a_gold_that_cannot_be_read_is_unknown():
    workflow = make_workflow("single", "math")
    deep = "(" * 500 + "1" + ")" * 500
    problem = Problem("math", "all", 0, 0, "What is it?", deep, {"source": "own"})
    episode = Episode(workflow, problem)
    episode.reply("generator_0", "\\boxed{1}")
    results = workflow.task.grade_batch([problem], ["1"])
    assert results[0].status == "unknown: the reference answer cannot be read"
    with pytest.raises(UngradedError, match="reference answer cannot be read") as caught:
        episode.resolve(results)
    assert caught.value.reason == "the reference answer cannot be read"


NEST = 100_000
HOSTILE = {
    "a long text": "x" * 10**7,
    "a long box": "\\boxed{" + "1+" * (5 * 10**6) + "1}",
    "a deep box": "\\boxed{" + "(" * NEST + "1" + ")" * NEST + "}",
    "deep braces": "\\boxed{" * NEST + "1" + "}" * NEST,
    "not a number": "\\boxed{NaN}",
    "a long program": f"```python\nx = '{'x' * 10**7}'\n```",
    "a deep program": f"```python\nx = {'[' * NEST}{']' * NEST}\n```",
    "a program that is not a number": "```python\ndef f():\n    return float('nan')\n```",
    "a lone surrogate": "\\boxed{\ud800}",
    "a null character": "```python\nx = '\0'\n```",
}


@pytest.mark.parametrize("task", ["math", "code"])
def test_hostile_replies_score_0_and_none_is_unknown(tmp_path, task):
    rows = [{"question": f"Question {number}?", "answer": "1"} for number in range(len(HOSTILE))]
    (tmp_path / "q.jsonl").write_text("\n".join(map(json.dumps, rows)))
    data = code_file(tmp_path, *["assert f() == 1"] * len(HOSTILE))
    data = str(tmp_path / "q.jsonl") if task == "math" else data
    workflow = make_workflow("single", task, data=data)
    problems = [workflow.task.problem(index, "all") for index in range(len(HOSTILE))]
    texts = list(HOSTILE.values())
    policy = Replies(lambda request: texts[int(request.problem.rpartition(":")[2])])
    policy_map = PolicyMap.shared(policy, workflow.role_counts())
    records, summary = evaluate(workflow, policy_map, problems)
    assert [record.score for record in records] == [0.0] * len(HOSTILE)
    assert (summary["accuracy"], summary.get("unknown")) == (0.0, None)
