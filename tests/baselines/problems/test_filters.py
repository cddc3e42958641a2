"""Groups without variance: dropped, refilled from the stream, counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from flowzoo.agents import Roster
from flowzoo.agents.problems import ProblemStream, stream_indices
from flowzoo.agents.rollout.episodes import EpisodeJob, Rollout, RolloutBatch
from flowzoo.agents.rollout.joint import JointRollout, JointSettings
from flowzoo.agents.rollout.tree import TreeRollout, TreeSettings
from flowzoo.agents.scripted import ScriptedPolicy
from flowzoo.baselines.problems.filters import (
    FilterConfig,
    gather,
    has_variance,
    job_of,
    needed,
    varied,
)
from flowzoo.envs import EpisodeRecord, make_workflow
from flowzoo.errors import UsageError

WORKFLOW = make_workflow("voting_v0", "math")
TASK = WORKFLOW.task


class Player:
    """Plays with a scripted policy and remembers the jobs."""

    def __init__(self, skill: float) -> None:
        policy = ScriptedPolicy(WORKFLOW, skill)
        self.rollout = Rollout(WORKFLOW, Roster.shared(policy, WORKFLOW.role_counts()))
        self.rounds: list[list[EpisodeJob]] = []

    def __call__(self, jobs: Sequence[EpisodeJob]) -> RolloutBatch:
        self.rounds.append(list(jobs))
        return self.rollout.sample(jobs)


def collect(skill: float, place: int = 0, problems: int = 6, **config: object):
    player, stream = Player(skill), ProblemStream("train", 3, cursor=place)
    rule = FilterConfig(**config)  # type: ignore[arg-type]
    found = gather(stream, TASK, player, rule, problems=problems, samples=4)
    return found, player, stream


def test_kept_groups_are_whole_and_vary() -> None:
    found, player, stream = collect(0.8, zero_variance="drop", refills=20)
    played = [job.problem.id for jobs in player.rounds for job in jobs]
    assert found.counts["filter/drawn"] == len(played) / 4 == stream.cursor
    assert found.counts["filter/refills"] == len(player.rounds) - 1 > 0
    assert found.counts["filter/kept"] == 6
    assert found.counts["filter/dropped"] > 0
    assert found.counts["filter/capped"] == 0
    assert len(found.kept) == 24
    assert len(found.sampled.records) == len(played)  # statistics see everything
    groups: dict[int, list[EpisodeRecord]] = {}
    for number, record in enumerate(found.sampled.records):
        groups.setdefault(number // 4, []).append(record)
    for group in groups.values():
        inside = [job_of(record.episode) in found.kept for record in group]
        assert len(set(inside)) == 1
        rows = [call for record in group for call in record.calls]
        assert has_variance(RolloutBatch(group, rows)) or not inside[0]
    trained = [row for row in found.sampled.rows if found.trains(row)]
    assert len(trained) == 6 * 4 * 4
    total = sum(found.counts[f"filter/{name}"] for name in ("kept", "dropped", "surplus"))
    assert total == found.counts["filter/drawn"]


def test_the_cap_ends_it_and_is_reported() -> None:
    found, player, _ = collect(1.0, zero_variance="drop", refills=2)
    assert len(player.rounds) == 3
    assert found.kept == frozenset()
    assert found.counts["filter/capped"] == 1
    assert found.counts["filter/dropped"] == found.counts["filter/drawn"] == 18


def test_without_the_filter_nothing_is_dropped_and_the_stream_is_the_old_one() -> None:
    found, player, stream = collect(1.0)
    assert len(player.rounds) == 1
    assert found.kept == {record.episode for record in found.sampled.records}
    assert found.counts["filter/dropped"] == 0
    drawn = [job.problem.index for job in player.rounds[0][::4]]
    assert drawn == stream_indices(None, 3, 1, 6)
    drawn = [problem.index for problem in stream.take(TASK, 6)]
    assert drawn == stream_indices(None, 3, 2, 6)


def test_a_step_repeats_from_its_cursor() -> None:
    first, _, stream = collect(0.8, zero_variance="drop")
    second, _, _ = collect(0.8, place=stream.cursor, zero_variance="drop")
    again, _, _ = collect(0.8, place=stream.cursor, zero_variance="drop")
    assert again == second
    assert not {r.problem for r in first.sampled.records} & {
        r.problem for r in second.sampled.records
    }


def test_a_problem_drawn_twice_in_a_step_makes_two_groups() -> None:
    stream = ProblemStream("train", 0, only=[7])
    found = gather(stream, TASK, Player(0.5), FilterConfig(), problems=3, samples=4)
    assert len({record.episode for record in found.sampled.records}) == 12
    assert {record.problem for record in found.sampled.records} == {TASK.problem(7, "train").id}


def test_what_counts_as_variance() -> None:
    found, _, _ = collect(0.6)
    calls = [replace(call, reward=0.0) for call in found.sampled.records[0].calls]
    assert not varied(calls, [0.0, 0.0])
    assert varied(calls, [0.0, 1.0])
    aggregator = [replace(call, reward=1.0) for call in calls if call.role == "aggregator"]
    others = [call for call in calls if call.role != "aggregator"]
    assert not varied([*others, *aggregator], [0.0, 0.0])  # roles differ, none within itself
    assert varied([*calls, *aggregator], [0.0, 0.0])
    tried = [replace(call, node=f"n{i}", value=float(i)) for i, call in enumerate(calls)]
    assert not varied(tried, [0.0, 0.0])
    assert varied([*tried, replace(tried[0], value=5.0)], [0.0, 0.0])


def test_as_many_are_drawn_as_are_likely_to_be_needed() -> None:
    assert needed(4, 0, 16, 16) == 16
    assert needed(4, 8, 16, 16) == 8
    assert needed(4, 16, 16, 16) == 4
    assert needed(15, 1, 16, 16) == 16


def test_mistakes_are_refused() -> None:
    with pytest.raises(UsageError, match="Valid choices: drop, keep"):
        FilterConfig(zero_variance="discard")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="refills"):
        FilterConfig(refills=-1)
    with pytest.raises(UsageError, match="no problem left"):
        ProblemStream("train", 0, only=[])
    with pytest.raises(UsageError, match="cursor"):
        ProblemStream("train", 0, cursor=-1)


@pytest.mark.parametrize("kind", ["tree", "joint"])
def test_candidates_that_differ_are_kept_where_all_episodes_fail(kind: str) -> None:
    workflow = make_workflow("voting_v0", "math", credit="mix")
    roster = Roster.shared(ScriptedPolicy(workflow, 0.5), workflow.role_counts())
    sampler = (
        TreeRollout(workflow, roster, TreeSettings(candidates=3, value="rollout"))
        if kind == "tree"
        else JointRollout(workflow, roster, JointSettings(candidates=2, leaves=4))
    )
    found = gather(
        ProblemStream("train", 1), TASK, sampler.sample, FilterConfig("drop"), problems=4, samples=1
    )
    assert found.counts["filter/kept"] == 4
    rows = [row for row in found.sampled.rows if found.trains(row)]
    assert {job_of(row.episode) for row in rows} == found.kept
    assert len({row.problem for row in rows}) == 4
    for problem in {row.problem for row in rows}:
        nodes: dict[str, set[float | None]] = {}
        for row in rows:
            if row.problem == problem:
                nodes.setdefault(row.node, set()).add(row.value)
        assert any(len(values) > 1 for values in nodes.values())
