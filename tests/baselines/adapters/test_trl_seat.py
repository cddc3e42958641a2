"""A seat for TRL without TRL: what it is shown, answered and paid is what a rollout of ours has."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import pytest

from flowzoo.agents import Completion, Roster
from flowzoo.agents.policy import Batching, Request
from flowzoo.agents.rollout.episodes import EpisodeJob, Rollout
from flowzoo.agents.scripted import ScriptedPolicy
from flowzoo.baselines.adapters.outside import one_agent, policies_of
from flowzoo.baselines.adapters.trl_spec import TRLSpec, WorkflowToolSeat, workflow_reward
from flowzoo.envs import EpisodeRecord
from flowzoo.envs.tasks.guarded import get_problem
from flowzoo.errors import UsageError


class Spoken:
    """Answers with given replies, turn by turn, and keeps what it was asked."""

    batching: Batching = "stream"
    name = "spoken"

    def __init__(self, replies: Sequence[str]) -> None:
        self.replies, self.asked = replies, list[str]()

    async def generate(self, requests: Sequence[Request]) -> list[Completion]:
        self.asked += [request.messages[-1]["content"] for request in requests]
        return [Completion(self.replies[int(request.key[4])]) for request in requests]

    async def close(self) -> None:
        pass


def ours(
    spec: TRLSpec, index: int, sample: int, replies: Sequence[str]
) -> tuple[EpisodeRecord, list[str]]:
    """The same episode by a rollout, and the prompts that the agent saw in it."""
    workflow, spoken = spec.workflow, Spoken(replies)
    rest = ScriptedPolicy(workflow, 0.5, spec.seed)
    roster = Roster({**dict.fromkeys(workflow.role_counts(), rest), spec.agent: spoken})
    job = EpisodeJob(get_problem(workflow.task, index, spec.split), sample)
    (record,) = Rollout(workflow, roster, seed=spec.seed).run([job])
    return record, spoken.asked


def test_an_agent_asked_once_is_shown_and_paid_what_our_rollout_shows_and_pays() -> None:
    spec = TRLSpec("voting", "aggregator", others="scripted:0.5", seed=3)
    again: TRLSpec = pickle.loads(pickle.dumps(spec))
    seats = [spec.make() for _ in range(4)]
    rows = [{"prompt": [], "index": index, "sample": sample} for index, sample in
            ((0, 0), (0, 0), (0, 1), (7, 0))]  # fmt: skip
    shown = [seat.reset(**row) for seat, row in zip(seats, rows, strict=True)]
    assert shown[0] == shown[1] == again.make().reset(**rows[0])
    assert shown[0] != shown[2]
    replies = ["A", "\\boxed{1}", "B", "<think>B</think> C"]
    logged: dict[str, float] = {}
    said: list[Any] = [[{"role": "assistant", "content": reply}] for reply in replies]
    paid = workflow_reward(seats, said, index=[], log_metric=logged.__setitem__)
    records = []
    for row, reply, prompt, found in zip(rows, replies, shown, paid, strict=True):
        record, asked = ours(spec, row["index"], row["sample"], [reply])
        assert ([prompt], found) == (asked, record.returns["aggregator_0"])
        records.append(record)
    assert logged == {"workflow_score": sum(record.score for record in records) / 4}
    assert seats[0].reset(index=1) != shown[0], "a seat is used again"


def test_turns_that_a_model_leaves_open_are_answered_with_nothing() -> None:
    spec = TRLSpec("eval_opt", "generator", others="scripted:0.5", turns="many", seed=1)
    paid, turns = [], []
    for index in range(4):
        seat = spec.make()
        assert isinstance(seat, WorkflowToolSeat)
        prompts = [seat.reset(index=index), seat.reply("\\boxed{0}")]
        call = {"role": "assistant", "content": "", "tool_calls": [{"type": "function"}]}
        (found,) = workflow_reward([seat], [[call, {"role": "tool", "content": prompts[1]}]])
        assert seat.reply("more") == "The episode is over."
        record, asked = ours(spec, index, 0, ["\\boxed{0}", *[""] * 9])
        over = ["The episode is over."] if len(asked) == 1 else []
        assert prompts == [*asked[:2], *over], "of a chat that goes on, the new message"
        assert found == record.returns["generator_0"]
        paid.append(found)
        turns.append(len(asked))
    assert max(turns) > 1


def test_what_cannot_be_played_is_said() -> None:
    with pytest.raises(UsageError, match=r"has 3 agents: name one, e\.g\. 'generator_0'"):
        TRLSpec("voting", "generator")
    with pytest.raises(UsageError, match="unknown role or agent 'judge'"):
        TRLSpec("voting", "judge")
    with pytest.raises(UsageError, match="`problems` must be at least 1, got 0"):
        TRLSpec("voting", "aggregator", problems=0)
    spec = TRLSpec("voting", "generator_1")
    with pytest.raises(UsageError, match="generator_1 is answered from outside"):
        policies_of(spec.workflow, {"generator_1": "scripted:1"}, "generator_1")
    assert one_agent(spec.workflow, "generator_1") == "generator_1"
    again = TRLSpec("eval_opt", "generator", others="scripted:0")
    for index in range(20):
        seat = again.make()
        seat.reset(index=index)
        try:
            workflow_reward([seat], ["\\boxed{0}"])
        except UsageError as error:
            assert 'use turns="many"' in str(error)  # noqa: PT017 - some episodes end at once
            return
    raise AssertionError("the generator was never asked again")
