"""Statistics of ragged groups beside plain Python; columns and groups, exact for every id."""

import math
from collections import defaultdict
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowzoo.baselines.advantages import segments
from flowzoo.baselines.advantages.columns import CallColumns, Codes, Groups
from flowzoo.baselines.advantages.segments import ALIKE, GroupIndex, GroupStats
from flowzoo.envs.records import Call
from flowzoo.errors import UsageError
from tests.baselines.rows import new_call

SEEDS, CASES = 40, 20


def numbered(codes: np.ndarray) -> GroupIndex:
    """Codes renumbered by first appearance."""
    first: dict[int, int] = {}
    for row, code in enumerate(codes.tolist()):
        first.setdefault(code, row)
    numbers = {code: number for number, code in enumerate(first)}
    renumbered = [numbers[code] for code in codes.tolist()]
    return GroupIndex(np.array(renumbered, np.int32), np.array([*first.values()], np.int32))


def ragged(rng: np.random.Generator) -> tuple[GroupIndex, GroupIndex, np.ndarray]:
    """Two groupings and values; groups are very unequal, some of one row, some constant."""
    rows = int(rng.integers(1, 80))
    weights = rng.random(int(rng.integers(1, 12))) ** 4 + 1e-3
    codes = rng.choice(len(weights), rows, p=weights / weights.sum())
    other = rng.integers(0, rng.integers(1, 40), rows)
    kinds = [rng.normal(size=rows), rng.integers(0, 2, rows).astype(float), np.full(rows, 0.1)]
    kinds.append(0.1 + rng.normal(size=rows) * 10.0 ** rng.integers(-17, -7))
    return numbered(codes), numbered(other), kinds[rng.integers(4)] * 10.0 ** rng.integers(-6, 6)


def by_group(codes: np.ndarray) -> list[list[int]]:
    rows = defaultdict[int, list[int]](list)
    for row, code in enumerate(codes.tolist()):
        rows[code].append(row)
    return [rows[code] for code in sorted(rows)]


def plain_stats(values: list[float]) -> tuple[float, float, float, float, float]:
    """Count, mean, squares, low and high of one group."""
    low, high, count = min(values), max(values), float(len(values))
    if high - low <= ALIKE * max(abs(low), abs(high)):
        return count, low, 0.0, low, low
    mean = math.fsum(values) / count
    return count, mean, math.fsum((value - mean) ** 2 for value in values), low, high


def check_groups(left: GroupIndex, right: GroupIndex) -> None:
    rows = list(zip(left.codes.tolist(), right.codes.tolist(), strict=True))
    first: dict[tuple[int, int], int] = {}
    for number, row in enumerate(rows):
        first.setdefault(row, number)
    numbers = {row: number for number, row in enumerate(first)}
    both = segments.pair(left, right)
    assert both.codes.tolist() == [numbers[row] for row in rows]
    assert both.first.tolist() == [*first.values()]
    assert segments.first_rows(left.codes).tolist() == left.first.tolist()
    assert segments.determines(left, right.codes) == (len(first) == len(left.first))


def assert_close(values: np.ndarray, expected: np.ndarray, least: float) -> None:
    """Compare as `pytest.approx` does, which takes far longer for one value at a time."""
    assert (np.abs(values - expected) <= np.maximum(1e-9 * np.abs(expected), least)).all()


def check_statistics(left: GroupIndex, right: GroupIndex, values: np.ndarray) -> None:
    size, groups = np.abs(values).max() or 1.0, by_group(left.codes)
    stats = segments.reduce(left.codes, values, len(groups))
    expected = [plain_stats(values[rows].tolist()) for rows in groups]
    units = np.array([1.0, size, size**2, size, size])
    np.testing.assert_allclose(np.array(stats).T / units, expected / units, rtol=1e-9, atol=1e-12)
    differences = values - stats.mean[left.codes]
    segments.drop_rounding(differences, left.codes, stats)
    means_of_others, from_mean, quotients, wide = np.empty((4, len(values)))
    for code, (rows, (count, mean, squares, low, high)) in enumerate(
        zip(groups, expected, strict=True)
    ):
        constant = low == high
        of_group = values[rows].tolist()
        deviation = math.sqrt(squares / max(count - 1, 1)) + 1e-6 * size
        for place, (row, value) in enumerate(zip(rows, of_group, strict=True)):
            others = of_group[:place] + of_group[place + 1 :]
            means_of_others[row] = low if constant else math.fsum(others) / len(others)
            from_mean[row] = 0.0 if constant else value - mean
            quotients[row] = 0.0 if constant else value / deviation
            wide[row] = len(groups) + right.codes[row] if len(rows) == 1 else code
    assert_close(segments.baseline_loo(left.codes, values, stats), means_of_others, 1e-12 * size)
    assert_close(differences, from_mean, 1e-12 * size)
    assert_close(segments.normalize(values, left.codes, stats, 1, 1e-6 * size), quotients, 1e-9)
    assert (segments.widen(left.codes, stats.counts, right.codes) == wide).all()


@settings(max_examples=SEEDS, deadline=None, derandomize=True)
@given(st.integers(0, 2**32))
def test_ragged_groups_have_the_statistics_of_each_by_itself(seed):
    rng = np.random.default_rng(seed)
    for _ in range(CASES):
        left, right, values = ragged(rng)
        check_groups(left, right)
        check_statistics(left, right, values)


@pytest.mark.parametrize("gamma", [0.0, 0.5, 0.9, 1.0])
def test_returns_to_go_are_the_discounted_sums(gamma):
    rng = np.random.default_rng(0)
    for _ in range(300):
        left, _, values = ragged(rng)
        turns = rng.permutation(len(values)) // (1 + rng.integers(3))
        # A group has each turn at most once.
        rows = numbered(left.codes * 1000 + turns).first
        grouping, turns, values = numbered(left.codes[rows]), turns[rows], values[rows]
        shares = rng.normal(size=len(values))
        returns = segments.to_go(values, shares, turns, grouping, gamma)
        ahead = turns - turns[:, None]
        later = (grouping.codes == grouping.codes[:, None]) & (ahead >= 0)
        ahead = np.where(later, ahead, 0)
        expected = (later * gamma**ahead) @ values + gamma ** ahead.max(1) * shares
        assert_close(returns, expected, 1e-9 * (1 + np.abs(values).max()))


def test_interleaving_groups_changes_no_bit():
    rng = np.random.default_rng(1)
    codes, values = numbered(rng.integers(0, 30, 500)).codes, rng.normal(size=500)
    order = np.lexsort((np.arange(500), rng.permutation(30)[codes]))
    straight = segments.reduce(codes, values, 30)
    sorted_codes = numbered(codes[order])
    grouped = segments.reduce(sorted_codes.codes, values[order], 30)
    index = sorted_codes.codes[np.argsort(order)][numbered(codes).first]
    for ordered, interleaved in zip(grouped, straight, strict=True):
        np.testing.assert_array_equal(ordered[index], interleaved)


def test_a_constant_group_has_exactly_its_value_as_mean():
    codes = np.zeros(3, np.int32)
    stats: GroupStats = segments.reduce(codes, np.full(3, 0.1), 1)
    assert (stats.mean[0], stats.squares[0]) == (0.1, 0.0)
    assert segments.normalize(np.full(3, 7.0), codes, stats, 1, 0.0).tolist() == [0.0, 0.0, 0.0]


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
