"""Returns to go: every part counted once, the team's outcome once per agent."""

from dataclasses import replace

import pytest

from flowzoo.baselines.advantages.compute import compute
from flowzoo.baselines.advantages.spec import AdvantageSpec
from flowzoo.envs.records import Call
from flowzoo.errors import UsageError
from tests.baselines.rows import new_call


def make_call(agent: str, turn: int, immediate: float, share: float) -> Call:
    return new_call(
        agent=agent,
        role=agent[:-2],
        turn=turn,
        phase=turn,
        parts={"team": share},
        reward=immediate + share,
        immediate=immediate,
    )


def to_go(calls: list[Call], gamma: float) -> list[float]:
    spec = AdvantageSpec(target="return_to_go", gamma=gamma, mean="none", std="none")
    return compute(calls, spec).values.tolist()


CALLS = [
    make_call("main_0", 0, 0.25, 1.0),
    make_call("helper_0", 0, 0.5, 1.0),
    make_call("main_0", 1, 0.125, 1.0),
    make_call("main_0", 2, 0.5, 1.0),
    make_call("helper_0", 1, 0.0, 1.0),
]


def test_the_team_outcome_counts_once_per_agent_and_not_per_call():
    # main: 0.25 + 0.125 + 0.5, then 1 once; helper: 0.5 + 0, then 1 once.
    assert to_go(CALLS, 1.0) == [1.875, 1.5, 1.625, 1.5, 1.0]


def test_discount_per_turn_of_the_agent():
    # main from turn 0: 0.25 + 0.125/2 + 0.5/4 + 1/4; helper: 0.5 + 0/2 + 1/2.
    assert to_go(CALLS, 0.5) == [0.6875, 1.0, 0.875, 1.5, 1.0]
    assert to_go(CALLS, 0.0) == [0.25, 0.5, 0.125, 1.5, 1.0]


def test_rows_may_come_in_any_order():
    order = [3, 1, 4, 0, 2]
    straight = to_go(CALLS, 0.5)
    assert to_go([CALLS[row] for row in order], 0.5) == [straight[row] for row in order]


def test_a_reply_that_abstained_is_not_paid_for_its_teams_success():
    mute = replace(CALLS[0], reward=0.25, strict=False)
    assert to_go([mute, CALLS[2], CALLS[3]], 1.0) == [0.875, 1.625, 1.5]


def test_candidates_that_were_not_executed_have_no_return_to_go():
    with pytest.raises(UsageError, match="candidate"):
        to_go([*CALLS, replace(CALLS[0], executed=False, candidate=1)], 1.0)


def test_two_calls_with_one_turn_are_a_mistake():
    with pytest.raises(UsageError, match="main_0"):
        to_go([*CALLS, CALLS[2]], 1.0)
