"""Columns and groups: exact for every id, whatever it looks like."""

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowzoo.baselines.advantages.columns import CallColumns, Codes, Groups
from flowzoo.envs.records import Call
from flowzoo.errors import UsageError
from tests.baselines.rows import new_call


def make_call(problem: Any, episode: Any, role: Any, turn: Any) -> Call:
    return new_call(problem=problem, episode=episode, role=role, turn=turn)


def encode(calls: list[Call], names: tuple[str, ...]) -> tuple[Codes, list[tuple[Any, ...]]]:
    """Codes of the groups of equal columns `names`, and the key of each group."""
    groups = Groups(CallColumns(calls, keep=names))
    return groups.by(names).codes, groups.keys(names)


# "1" then "11" and "11" then "1"; separators; ids of other types; ints of one hash (-1 and -2;
# 0 and 2**61 - 1), and some that are wider than 64 bits.
TEXTS = ["", "1", "11", "1/1", "/", "a", "a\x00", "'", "1,1", "('1',)", "\ud800"]
INTS = [1, 11, 0, -1, -2, 2**61 - 1, 2**31, 2**32, 2**64, 2**64 + 1]
LOOKALIKES = st.sampled_from([*TEXTS, *INTS])


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(LOOKALIKES, LOOKALIKES, LOOKALIKES, LOOKALIKES), max_size=30))
def test_lookalike_ids_never_share_a_group(keys):
    names = ("problem", "episode", "role", "turn")
    codes, found = encode([make_call(*key) for key in keys], names)
    assert found == list(dict.fromkeys(keys))
    assert [found[code] for code in codes] == keys


@pytest.mark.full
@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(*[st.integers(0, 40)] * 4), min_size=60, max_size=200))
def test_more_possible_pairs_than_rows(keys):
    codes, found = encode([make_call(*key) for key in keys], ("problem", "episode", "role", "turn"))
    assert [found[code] for code in codes] == keys
    assert len(set(codes.tolist())) == len(set(keys))


def test_columns_of_a_group_may_come_in_any_order_and_twice():
    groups = Groups(CallColumns(make_call(n % 2, n % 3, "r", 0) for n in range(12)))
    straight = groups.by(("problem", "episode"))
    assert straight.codes.tolist() == groups.by(("episode", "problem", "episode")).codes.tolist()
    assert straight.first.tolist() == [0, 1, 2, 3, 4, 5]
    assert groups.keys(("episode", "problem")) == [(n % 3, n % 2) for n in range(6)]


def test_numbers_and_flags_are_those_of_the_calls():
    columns = CallColumns(make_call(n % 7, f"e{n // 3}", "rs"[n % 2], n) for n in range(30))
    assert len(columns) == 30
    assert columns.numbers("team").tolist() == pytest.approx([math.nan] * 30, nan_ok=True)
    assert columns.flags("executed").all()
    assert not columns.flags("abstained").any()


def test_columns_that_are_not_kept_cannot_be_read():
    columns = CallColumns([make_call("p", "e", "r", 0)], keep=("problem", "reward"))
    assert columns.ids("problem") == ["p"]
    with pytest.raises(UsageError, match="without 'role'; they hold problem, reward"):
        columns.codes("role")
    with pytest.raises(UsageError, match="problem"):
        CallColumns([], keep=("problm",))


def test_an_unknown_column_is_a_mistake():
    with pytest.raises(UsageError, match="problem"):
        encode([], ("problm",))
