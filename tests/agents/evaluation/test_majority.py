"""Majority votes, pass@k, and the protocol that figures are recorded with."""

import itertools
import json
from dataclasses import replace

import pytest

from flowzoo.agents import PolicyMap, Sampling
from flowzoo.agents.evaluation.evaluate import EvaluationDirectory, evaluate
from flowzoo.agents.evaluation.majority import read_summary, vote, votes_for
from flowzoo.agents.evaluation.protocol import (
    check_comparable,
    check_selection,
    protocol_line,
    protocol_of,
)
from flowzoo.agents.evaluation.summary import attempt_summary, pass_at, stderr
from flowzoo.agents.policy_map import Lengths
from flowzoo.agents.problems import distinct_problems
from flowzoo.agents.scripted import ScriptedPolicy
from flowzoo.envs import EpisodeRecord, make_workflow
from flowzoo.errors import DataError, UsageError
from flowzoo.provenance import grader_digest

SINGLE = make_workflow("single_v0", "math")
PROBLEMS = distinct_problems(SINGLE.task, "validation", 20)


def policy_map(skill: float = 0.5) -> PolicyMap:
    return PolicyMap.shared(ScriptedPolicy(SINGLE, skill, seed=3), SINGLE.role_counts())


def answered(problem, *answers: str | None) -> list[EpisodeRecord]:
    grades = SINGLE.task.grade_batch([problem] * len(answers), answers)
    return [
        EpisodeRecord(
            "single_v0", "math", problem.id, f"{problem.id}#{number}", problem.text, problem.gold,
            grade.score, answer, False, {}, {},
        )
        for number, (answer, grade) in enumerate(zip(answers, grades, strict=True))
    ]  # fmt: skip


def test_pass_at_k_is_the_share_of_draws_with_a_right_one():
    for samples, right in itertools.product(range(1, 7), range(7)):
        if right > samples:
            continue
        attempts = [index < right for index in range(samples)]
        for k in range(1, samples + 1):
            draws = list(itertools.combinations(attempts, k))
            share = sum(any(draw) for draw in draws) / len(draws)
            assert pass_at(samples, right, k) == pytest.approx(share)


def test_attempts_are_summed_up_per_problem():
    first, second = PROBLEMS[:2]
    records = [*answered(first, first.gold, "-1", "-1", "-1"), *answered(second, *["-1"] * 4)]
    results = attempt_summary(records)
    assert (results["problems"], results["samples"], results["avg@4"]) == (2, 4, 0.125)
    assert (results["pass@1"], results["pass@2"], results["pass@4"]) == (0.125, 0.25, 0.5)
    assert results["stderr"] == pytest.approx(stderr([0.25, 0.0])) == pytest.approx(0.125)


def test_equivalent_answers_vote_together_and_ties_go_to_the_first():
    first, second, third = PROBLEMS[:3]
    gold = first.gold
    records = [
        *answered(first, "-1", gold, "-2", f"{gold}.0"),  # two writings of one number
        *answered(second, "-1", second.gold, None, None),  # a tie of one against one
        *answered(third, None, None, None, None),
    ]
    results = vote(SINGLE, [first, second, third], records)
    assert (results["samples"], results["right"], results["abstained"]) == (4, 1, 1)
    assert results["accuracy"] == pytest.approx(1 / 3)
    fewer = vote(SINGLE, [first, second, third], records[1:])  # one verdict is unknown
    assert (fewer["samples"], fewer["right"], fewer["problems"]) == (4, 1, 3)
    with pytest.raises(UsageError, match="episodes of its own problems"):
        vote(SINGLE, [first, second], records)


def test_votes_are_worth_more_than_one_call():
    records, summary = evaluate(SINGLE, policy_map(0.6), PROBLEMS, samples=9)
    results = vote(SINGLE, PROBLEMS, records)
    assert results["calls"] == 9
    assert summary["accuracy"] < results["accuracy"]


def test_the_number_of_votes_follows_from_the_budget():
    assert votes_for({"calls": 4.2, "tokens": 90.0}, "calls", 1.0) == 4
    assert votes_for({"calls": 4.2, "tokens": 90.0}, "tokens", 20.0) == 4  # 4.5, even
    assert votes_for({"calls": 0.3}, "calls", 1.0) == 1
    with pytest.raises(UsageError, match="matched by calls"):
        votes_for({"tokens": 0.0}, "tokens", 0.0)
    with pytest.raises(UsageError, match=r"not counted and 20, per episode.*matched by calls"):
        votes_for({"tokens": 90.0, "uncounted": 1}, "tokens", 20.0)
    with pytest.raises(UsageError, match="unknown budget"):
        votes_for({}, "seconds", 1.0)  # type: ignore[arg-type]


def test_the_protocol_says_what_decides_a_figure(tmp_path):
    class Model(ScriptedPolicy):
        sampling = Sampling(temperature=0.7, top_p=0.9, max_tokens=33)
        thinking = False

    workflow = make_workflow("voting_v0", "math", preset="paper")
    model = Model(workflow, 1.0, name="m")
    players = PolicyMap(
        dict.fromkeys(workflow.role_counts(), model), {"generator": Lengths(80, 20)}
    )
    results = protocol_of(workflow, players, PROBLEMS, samples=2, seed=7)
    assert json.loads(json.dumps(results)) == {
        "workflow": "voting_v0",
        "task": "math",
        "split": "validation",
        "problems": 20,
        "problem_set": results["problem_set"],
        "samples": 2,
        "seed": 7,
        "reading": "lenient",
        "grader": grader_digest(),
        "examples": {},
        "score_range": [0.0, 1.0],
        "prompts": workflow.prompts_id,
        "settings": json.loads(json.dumps(dict(workflow.spec))),
        "policies": {"generator": "m", "aggregator": "m"},
        "decoding": {
            "m": {
                "decoding": "sampled", "temperature": 0.7, "top_p": 0.9, "top_k": 0,
                "max_tokens": 33, "thinking": False,
            }
        },
        "lengths": {"generator": [80, 20], "aggregator": [None, None]},
    }  # fmt: skip
    line = protocol_line(results)
    for part in ("validation, 20 problems", "2 per problem", "T=0.7 p=0.9", "lenient", "seed 7"):
        assert part in line
    other = protocol_of(workflow, players, PROBLEMS[1:], samples=2, seed=7)
    check_comparable(results, results, "x")
    with pytest.raises(UsageError, match=r"of other problems \(problems 19 -> 20, problem_set"):
        check_comparable(results, other, "x")
    changed = [replace(PROBLEMS[0], text="another"), *PROBLEMS[1:]]
    assert protocol_of(workflow, players, changed, samples=2, seed=7) != results


def test_an_evaluation_is_saved_with_its_protocol_and_can_grow(tmp_path):
    store = EvaluationDirectory(tmp_path, {"n": 20})
    evaluate(SINGLE, policy_map(), PROBLEMS, samples=1, store=store)
    _, grown = evaluate(SINGLE, policy_map(), PROBLEMS, samples=3, store=store)
    assert len((tmp_path / "episodes.jsonl").read_text().splitlines()) == 60
    _, fresh = evaluate(SINGLE, policy_map(), PROBLEMS, samples=3)
    assert {k: grown[k] for k in ("accuracy", "avg@3", "pass@3")} == {
        k: fresh[k] for k in ("accuracy", "avg@3", "pass@3")
    }
    assert read_summary(tmp_path)["protocol"]["samples"] == 3
    (tmp_path / "summary.json").write_text("{}")
    with pytest.raises(DataError, match="no protocol"):
        read_summary(tmp_path)
    with pytest.raises(UsageError, match="no finished evaluation"):
        read_summary(tmp_path / "none")


def test_the_best_checkpoint_is_not_chosen_on_test():
    check_selection("validation")
    with pytest.raises(UsageError, match="eval_split to validation"):
        check_selection("test")


def test_the_hash_of_the_prompts_covers_the_tasks_instruction(monkeypatch):
    before = make_workflow("single_v0", "math").prompts_id
    monkeypatch.setattr(type(SINGLE.task), "instruction", "Answer in words.")
    after = make_workflow("single_v0", "math").prompts_id
    assert before != after
    assert before.split(":")[0] == after.split(":")[0] == "single_v0@1"
