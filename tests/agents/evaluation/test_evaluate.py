"""Evaluation: summaries, saved episodes, resuming."""

import json

import pytest
from policies import Replies

from flowzoo.agents import PolicyMap
from flowzoo.agents.evaluation.evaluate import EvaluationDirectory, evaluate, read_episodes
from flowzoo.agents.evaluation.intervals import evaluation_intervals
from flowzoo.agents.evaluation.summary import summarize
from flowzoo.agents.evaluation.usage import usage_summary
from flowzoo.agents.problems import distinct_problems
from flowzoo.agents.scripted import ScriptedPolicy
from flowzoo.envs import make_workflow
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


def test_samples_of_a_problem_are_different_episodes():
    records, _ = evaluate(WORKFLOW, policy_map(), PROBLEMS[:10], samples=8)
    assert len({record.episode for record in records}) == 80
    replies = {record.calls[0].reply for record in records if record.problem == PROBLEMS[0].id}
    assert len(replies) > 1


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


def test_a_store_of_other_settings_is_refused(tmp_path):
    EvaluationDirectory(tmp_path, {"n": 30, "seed": 0}).save_summary({})
    with pytest.raises(UsageError, match=r"other settings \(seed\)"):
        EvaluationDirectory(tmp_path, {"n": 30, "seed": 1})


def test_a_broken_line_in_the_middle_is_named(tmp_path):
    store = EvaluationDirectory(tmp_path, {})
    evaluate(WORKFLOW, policy_map(), PROBLEMS[:3], store=store)
    path = tmp_path / "episodes.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], "{", lines[2]]))
    del store
    with pytest.raises(DataError, match="line 2"):
        EvaluationDirectory(tmp_path, {})


def test_records_survive_json(tmp_path):
    store = EvaluationDirectory(tmp_path, {})
    records, _ = evaluate(WORKFLOW, policy_map(), PROBLEMS[:5], store=store)
    saved = {record.episode: record for record in read_episodes(tmp_path / "episodes.jsonl")}
    for record in records:
        again = saved[record.episode]
        assert again.calls == record.calls
        assert json.dumps(again.to_json()) == json.dumps(record.to_json())


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
    with pytest.raises(UsageError, match="other settings"):
        EvaluationDirectory(tmp_path, {"n": 30})
    assert len(EvaluationDirectory(tmp_path, {}).finished) == 3
