"""Conditional shares of roles, from planted episodes and from scripted ones."""

from typing import Any

import pytest

from flowzoo.agents import PolicyMap
from flowzoo.agents.evaluation.summary import Proportion, role_shares, summarize
from flowzoo.agents.problems import distinct_problems
from flowzoo.agents.rollout.episodes import EpisodeJob, Rollout
from flowzoo.agents.scripted import ScriptedPolicy
from flowzoo.envs import EpisodeRecord, make_workflow

COUNTS = ("true_accept", "false_accept", "true_reject", "false_reject", "abstained")


def planted(*facts: dict[str, Any]) -> list[EpisodeRecord]:
    return [
        EpisodeRecord("w", "t", f"p{n}", f"p{n}#0", "", "", 0.0, None, False, item, {})
        for n, item in enumerate(facts)
    ]


def verdicts(*counts: int) -> dict[str, Any]:
    return dict(zip(COUNTS, counts, strict=True))


def test_verdicts_are_weighed_by_call_and_not_by_episode():
    # One episode of one right verdict, one of four verdicts of which one is right.
    results = role_shares(planted(verdicts(1, 0, 0, 0, 0), verdicts(0, 1, 1, 2, 0)))
    assert results["evaluator_tpr"] == Proportion(1 / 3, 3)
    assert results["evaluator_tnr"] == Proportion(1 / 2, 2)
    assert results["evaluator_abstained"] == Proportion(0.0, 5)


def test_unreadable_verdicts_judge_nothing_and_are_counted():
    results = role_shares(planted(verdicts(1, 0, 0, 0, 2), verdicts(0, 0, 0, 0, 1)))
    assert results["evaluator_tpr"] == Proportion(1.0, 1)
    assert "evaluator_tnr" not in results  # no wrong answer was judged: no share, rather than 0
    assert results["evaluator_abstained"] == Proportion(3 / 4, 4)


def test_recovery_is_of_contested_episodes_alone():
    def vote(anyone: bool, contested: bool, recovered: bool) -> dict[str, Any]:
        return {"any_correct": anyone, "contested": contested, "recovered": recovered}

    results = role_shares(
        planted(
            vote(True, True, True), vote(True, True, False), vote(True, True, False),
            vote(True, False, False), vote(False, False, False), {},
            {"any_correct": None, "contested": None, "recovered": None},
        )
    )  # fmt: skip
    assert results["any_correct"] == Proportion(4 / 5, 5)
    assert results["contested"] == Proportion(3 / 5, 5)
    assert results["aggregator_recovery"] == Proportion(1 / 3, 3)
    assert set(results) == {"any_correct", "contested", "aggregator_recovery"}


def test_refinement_is_of_wrong_and_of_right_first_attempts():
    def refined(first: bool, last: bool) -> dict[str, Any]:
        return {
            "first_correct": first,
            "recovered": last and not first,
            "regressed": first and not last,
        }

    cases = [(False, True), (False, False), (False, False), (False, False), (True, True),
             (True, False)]  # fmt: skip
    results = role_shares(planted(*(refined(*case) for case in cases)))
    assert results == {
        "refinement_recovery": Proportion(1 / 4, 4), "refinement_regression": Proportion(1 / 2, 2)
    }  # fmt: skip


def test_a_verifier_of_evidence_has_its_own_names():
    counts = {"true_yes": 3, "false_yes": 1, "true_no": 1, "false_no": 1}
    results = role_shares(planted(counts))
    assert results == {"verifier_tpr": Proportion(3 / 4, 4), "verifier_tnr": Proportion(1 / 2, 2)}


def test_facts_of_other_kinds_are_passed_over():
    odd = {"contested": "yes", "recovered": [1], "any_correct": 0.5, "first_correct": "no"}
    assert role_shares(planted(odd)) == {}
    assert role_shares([]) == {}


@pytest.mark.parametrize("workflow", ["voting_v0", "eval_opt_v0", "orch_workers_v0"])
def test_scripted_episodes_give_what_their_calls_say(workflow):
    built = make_workflow(workflow, "math")
    problems = distinct_problems(built.task, "validation", 60)
    policy_map = PolicyMap.shared(ScriptedPolicy(built, 0.6, seed=2), built.role_counts())
    records = Rollout(built, policy_map, seed=0).run([EpisodeJob(problem) for problem in problems])
    shares = summarize(records)["shares"]
    if workflow == "eval_opt_v0":
        judged = {True: [0, 0], False: [0, 0]}
        for record in records:
            for before, call in zip(record.calls, record.calls[1:], strict=False):
                if call.role == "evaluator":
                    tally = judged[before.role_score == 1.0]
                    tally[0] += int(call.role_score or 0)
                    tally[1] += 1
        for name, right in (("evaluator_tpr", True), ("evaluator_tnr", False)):
            hits, cases = judged[right]
            assert shares[name] == {"share": hits / cases, "of": cases}
        first = [(record.calls[0].role_score == 1.0, record.score == 1.0) for record in records]
        wrong = [last for start, last in first if not start]
        assert shares["refinement_recovery"] == {"share": sum(wrong) / len(wrong), "of": len(wrong)}
    else:
        role = {"voting_v0": "generator", "orch_workers_v0": "worker"}[workflow]
        contested = [
            record.score == 1.0
            for record in records
            if len({call.role_score for call in record.calls if call.role == role}) == 2
        ]
        assert shares["aggregator_recovery"] == {
            "share": sum(contested) / len(contested), "of": len(contested)
        }  # fmt: skip
