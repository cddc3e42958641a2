"""The smallest set that fails by itself, on oracles of known truth."""

import itertools

import pytest

from flowzoo.baselines.why.explain import smallest_failing

ITEMS = list(range(8))


@pytest.mark.parametrize("parallel", [1, 2, 3])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_every_conjunction_is_found_exactly_at_small_cost(size, parallel):
    for truth in itertools.combinations(ITEMS, size):
        asked: list[int] = []

        def failing(sets, truth=truth, asked=asked):
            assert len(sets) <= parallel
            asked.append(len(sets))
            return [set(truth) <= set(kept) for kept in sets]

        assert smallest_failing(ITEMS, failing, parallel) == list(truth)
        assert len(asked) <= 4 * size


def test_of_two_causes_one_is_found():
    def failing(sets):
        return [1 in kept or 6 in kept for kept in sets]

    assert smallest_failing(ITEMS, failing, 2) == [1]
