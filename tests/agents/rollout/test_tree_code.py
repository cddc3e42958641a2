"""Tree sampling where programs are run: what is known at once, and in how few batches."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from flowzoo.agents import PolicyMap
from flowzoo.agents.rollout.episodes import EpisodeJob, Rollout
from flowzoo.agents.rollout.settings import TreeSettings
from flowzoo.agents.rollout.tree import TreeRollout
from flowzoo.agents.scripted import ScriptedPolicy
from flowzoo.envs import Call, Workflow, make_workflow
from flowzoo.envs.script import Run, RunResult
from flowzoo.envs.tasks.code.task import CodeTask

SIZES: list[int] = []


@dataclass(frozen=True)
class Counting(CodeTask):
    """Notes the sizes of the batches it runs."""

    def run_batch(self, runs: Sequence[Run]) -> list[RunResult]:
        SIZES.append(len(runs))
        return super().run_batch(runs)


def grown(workflow: Workflow, count: int = 3, **settings: Any) -> dict[str, list[Call]]:
    """Rows by decision; every reply is right with probability 1/2."""
    policy_map = PolicyMap.shared(ScriptedPolicy(workflow, 0.5), workflow.role_counts())
    jobs = [EpisodeJob(workflow.task.problem(index)) for index in range(count)]
    sampled = TreeRollout(workflow, policy_map, TreeSettings(**settings)).sample(jobs)
    assert len(sampled.records) == count
    results: dict[str, list[Call]] = {}
    for row in sampled.rows:
        results.setdefault(row.node, []).append(row)
    return results


@pytest.mark.parametrize(
    ("name", "task"),
    [
        ("reasoner_tool_v0", "math"),
        ("coder_tester_v0", "code"),
        ("code_pair_v0", "code"),
        ("tool_planner_v0", "plan_path"),
    ],
)
def test_both_roles_are_valued_at_once_by_team_and_role_score(name, task):
    workflow = make_workflow(name, task, max_turns=2)
    varied = set()
    for rows in grown(workflow, candidates=3).values():
        varied |= {row.role for row in rows if row.value != rows[0].value}
        for row in rows:
            if not row.executed:
                immediate = row.parts.get("local", 0.0) + row.parts.get("team", 0.0)
                assert row.value == pytest.approx(immediate)
                assert row.role_score is not None
    assert varied == set(workflow.roles)


def test_the_testers_teams_share_is_that_of_the_program_it_was_paired_with():
    """In a hidden phase the mate's first candidate is part of every value."""
    workflow = make_workflow("coder_tester_v0", "code", max_turns=1)
    by_node = grown(workflow, candidates=4, count=4)
    coders = {rows[0].problem: rows[0] for rows in by_node.values() if rows[0].role == "coder"}
    for rows in by_node.values():
        if rows[0].role == "tester":
            passed = coders[rows[0].problem].role_score
            assert {row.parts["team"] for row in rows if not row.executed} == {passed}


def test_hidden_tests_of_all_branches_of_a_turn_are_run_in_one_batch():
    workflow = make_workflow("coder_tester_v0", Counting(), max_turns=1)
    SIZES.clear()
    grown(workflow, count=4, candidates=3)
    # 5 branches of 4 episodes; where the best two were not paired before, they are run once more.
    assert len(SIZES) <= 2
    assert SIZES[0] > 20


def test_role_scores_known_early_are_those_known_at_the_end():
    for name, task in (("coder_tester_v0", "code"), ("tool_planner_v0", "plan_path")):
        workflow = make_workflow(name, task, max_turns=2)
        policy_map = PolicyMap.shared(ScriptedPolicy(workflow, 0.5), workflow.role_counts())
        jobs = [EpisodeJob(workflow.task.problem(index)) for index in range(4)]
        records = Rollout(workflow, policy_map).run(jobs)
        assert all(call.role_score is not None for record in records for call in record.calls)
        last = "coder" if task == "code" else "planner"
        for record in records:
            scores = [call.role_score for call in record.calls if call.role == last]
            assert scores[-1] == record.score
