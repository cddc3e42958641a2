"""Joint nodes: which joint actions are tried, what rows are worth, and the budget."""

from collections import Counter
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from policies import Numbers

from flowzoo.agents import PolicyMap
from flowzoo.agents.rollout.episodes import EpisodeJob, RolloutBatch
from flowzoo.agents.rollout.joint import JointRollout, joint_actions, split_budget
from flowzoo.agents.rollout.settings import JointSettings
from flowzoo.agents.scripted import ScriptedPolicy
from flowzoo.envs import Ask, EpisodeRecord, Outcome, RoleScore, Workflow, make_workflow
from flowzoo.envs.tasks.math import MathTask
from flowzoo.errors import UsageError

TASK = MathTask()


@dataclass(frozen=True)
class Pair(Workflow):
    """Two writers at once, `turns` times; the score is a function of all they said."""

    name: ClassVar[str] = "pair_v0"
    roles: ClassVar[dict[str, int]] = {"left": 1, "right": 1}
    turns: int = 1

    def play(self, problem):
        replies: list[int] = []
        for _ in range(self.turns):
            texts = yield [Ask(f"{side}_0", f"{replies}", str) for side in ("left", "right")]
            replies += [int(reply.text) for reply in texts]
            for reply in texts:
                yield RoleScore(reply, int(reply.text) / 100)
        return Outcome(str(replies), sum(replies) / (100 * len(replies)))


@dataclass(frozen=True)
class Line(Workflow):
    """One writer, three times."""

    name: ClassVar[str] = "line_v0"
    roles: ClassVar[dict[str, int]] = {"writer": 1}

    def play(self, problem):
        replies: list[int] = []
        for _ in range(3):
            reply = yield Ask("writer_0", f"{replies}", str)
            replies.append(int(reply.text))
        return Outcome(str(replies), (replies[0] * replies[1] * replies[2] % 101) / 100)


def grown(workflow: Workflow, policy: Any = None, count: int = 2, **settings: Any) -> RolloutBatch:
    policy_map = PolicyMap.shared(policy or Numbers(), workflow.roles)
    jobs = [EpisodeJob(TASK.problem(index), 3) for index in range(count)]
    return JointRollout(workflow, policy_map, JointSettings(**settings), seed=5).sample(jobs)


def containing(sampled: RolloutBatch, row: Any) -> list[EpisodeRecord]:
    """The leaves in which a row was executed."""
    spot = (row.node, row.agent, row.candidate)
    return [
        record
        for record in sampled.records
        if spot in [(call.node, call.agent, call.candidate) for call in record.calls]
    ]


@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 200), st.integers(0, 9))
def test_joint_actions_are_distinct_and_hold_every_candidate_equally_often(c, agents, most, seed):
    results = joint_actions(c, agents, most, ("test", seed))
    assert results[:c] == [(j,) * agents for j in range(c)]
    assert len(set(results)) == len(results) == max(1, min(most // c, c ** (agents - 1))) * c
    for slot in range(agents):
        counts = Counter(choice[slot] for choice in results)
        assert set(counts) == set(range(c))
        assert len(set(counts.values())) == 1


@given(st.integers(0, 100), st.integers(1, 20))
def test_shares_add_up_and_differ_by_one_at_most(budget, parts):
    results = split_budget(budget, parts)
    assert (len(results), sum(results)) == (parts, budget)
    assert max(results) - min(results) <= 1
    assert results == sorted(results, reverse=True)


def test_aligned_joins_the_jth_candidates():
    sampled = grown(Pair(TASK), candidates=3, leaves=3, count=1)
    chosen = [[call.candidate for call in record.calls] for record in sampled.records]
    assert chosen == [[0, 0], [1, 1], [2, 2]]
    assert len(sampled.rows) == 6
    for row in sampled.rows:
        (record,) = containing(sampled, row)
        assert row.value == pytest.approx(record.score)
    assert all(row.executed for row in sampled.rows)


def test_cross_averages_over_the_combinations_and_never_sums():
    """Published: the values of a candidate's combinations are summed."""
    sampled = grown(Pair(TASK), candidates=3, joint="cross", leaves=9, count=1)
    assert len(sampled.records) == 9
    assert len(sampled.rows) == 6
    replies = {(row.agent, row.candidate): int(row.reply) for row in sampled.rows}
    for row in sampled.rows:
        other = "right_0" if row.agent == "left_0" else "left_0"
        scores = [(int(row.reply) + replies[other, j]) / 200 for j in range(3)]
        assert row.value == pytest.approx(sum(scores) / 3)
    some = grown(Pair(TASK), candidates=3, joint="cross", leaves=9, children=6, count=1)
    assert len(some.records) == 6
    assert len({record.answer for record in some.records}) == 6


def test_a_nodes_value_is_the_mean_over_its_children():
    sampled = grown(Line(TASK), candidates=2, leaves=5, count=1)
    # 2 at the root with budgets 3 and 2; below them 2 each (2 + 1 and 1 + 1), then 2, 1, 1, 1.
    assert len(sampled.records) == 5
    scores = {record.episode.rpartition("/")[2]: record.score for record in sampled.records}
    assert sorted(scores) == ["0.0.0", "0.0.1", "0.1.0", "1.0.0", "1.1.0"]
    deep = (scores["0.0.0"] + scores["0.0.1"]) / 2
    expected = {
        ("", 0): (deep + scores["0.1.0"]) / 2,  # the mean of means, not of the three leaves
        ("", 1): (scores["1.0.0"] + scores["1.1.0"]) / 2,
        ("0", 0): deep,
        ("0", 1): scores["0.1.0"],
        ("1", 0): scores["1.0.0"],
        ("1", 1): scores["1.1.0"],
        ("0.0", 0): scores["0.0.0"],
        ("0.0", 1): scores["0.0.1"],
        ("0.1", 0): scores["0.1.0"],
        ("1.0", 0): scores["1.0.0"],
        ("1.1", 0): scores["1.1.0"],
    }
    results = {(row.node.rpartition("/")[2], row.candidate): row.value for row in sampled.rows}
    assert results == pytest.approx(expected)
    assert {row.node.rpartition("/")[0] for row in sampled.rows} == {f"{TASK.problem(0).id}#3"}


def test_local_rewards_of_later_calls_count_and_the_teams_share_once():
    sampled = grown(Pair(TASK, credit="mix", turns=2), candidates=2, leaves=2, count=3)
    first = 0
    for row in sampled.rows:
        (record,) = containing(sampled, row)
        selected = [call for call in record.calls if call.agent == row.agent]
        earned = sum(call.parts["local"] for call in selected if call.phase >= row.phase)
        assert row.value == pytest.approx(record.score + earned)
        first += row.phase == 0
    assert first == 12


def test_rows_of_a_node_share_prompt_and_state_and_stand_in_a_record():
    sampled = grown(Pair(TASK, turns=2), candidates=3, joint="cross", leaves=18)
    groups: dict[tuple[str, str], list[Any]] = {}
    for row in sampled.rows:
        groups.setdefault((row.node, row.agent), []).append(row)
    for rows in groups.values():
        assert [row.candidate for row in rows] == list(range(len(rows)))
        assert len({(str(row.messages), row.state_hash) for row in rows}) == 1
    records = {record.episode: record for record in sampled.records}
    assert len(records) == len(sampled.records)
    for row in sampled.rows:
        assert row in records[row.episode].calls
    for record in sampled.records:
        replies_by_spot = {(row.node, row.agent, row.candidate): row.reply for row in sampled.rows}
        for call in record.calls:
            assert replies_by_spot[call.node, call.agent, call.candidate] == call.reply
        replies = [int(call.reply) for call in record.calls]
        assert record.answer == str(replies)
        assert record.calls[2].messages[0]["content"] == str(replies[:2])


@pytest.mark.parametrize("leaves", [4, 7, 16, 64, 100])
def test_the_leaves_are_budgeted(leaves):
    policy = Numbers()
    sampled = grown(Line(TASK), policy, candidates=4, leaves=leaves, count=2)
    assert len(sampled.records) == 2 * min(leaves, 4**3)
    assert len(policy.batches) == 3  # as many as one episode takes
    requests = policy.requests
    assert len({request.key for request in requests}) == len(requests) == len(sampled.rows)
    assert len(sampled.rows) == 2 * (4 + min(leaves, 16) + min(leaves, 64))


def test_rows_do_not_depend_on_episodes_in_flight_or_arrival_order():
    def rows(**options: Any) -> RolloutBatch:
        workflow = Pair(TASK, turns=2)
        policy_map = PolicyMap.shared(Numbers(), workflow.roles)
        settings = JointSettings(candidates=2, joint="cross", leaves=8)
        built = [EpisodeJob(TASK.problem(index)) for index in range(5)]
        return JointRollout(workflow, policy_map, settings, **options).sample(built)

    expected = rows(seed=5)
    assert rows(seed=5, in_flight=1) == expected
    assert rows(seed=5, deterministic=False) == expected
    assert rows(seed=6) != expected


@pytest.mark.parametrize("name", ["writing_pair_v0", "voting_v0", "eval_opt_v0", "orch_workers_v0"])
def test_shipped_workflows_grow_trees(name):
    workflow = make_workflow(name)
    policy_map = PolicyMap.shared(ScriptedPolicy(workflow, 0.5), workflow.role_counts())
    seen: list[str] = []
    sampler = JointRollout(
        workflow, policy_map, JointSettings(candidates=2, leaves=4),
        on_episode=lambda record: seen.append(record.episode),
    )  # fmt: skip
    sampled = sampler.sample([EpisodeJob(workflow.task.problem(index)) for index in range(3)])
    assert sorted(seen) == sorted(record.episode for record in sampled.records)
    assert 6 <= len(sampled.records) <= 12
    assert {row.role for row in sampled.rows} == set(workflow.roles)
    assert all(row.value is not None and 0 <= row.value <= 1 for row in sampled.rows)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"leaves": 3}, r"`leaves` must be at least `candidates` \(4\)"),
        ({"children": 8}, '`children` goes with joint="cross"'),
        ({"joint": "cross", "children": 3}, r"must be at least `candidates` \(4\); got 3"),
    ],
)
def test_impossible_settings_are_errors(settings, message):
    with pytest.raises(UsageError, match=message):
        JointSettings(**settings)
