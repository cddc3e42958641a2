"""The compiled kernels against their plain NumPy forms, on ragged groups."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowzoo.baselines.advantages import kernels, loops, reference

SEEDS, CASES = 40, 40
MORE_SEEDS, MORE_CASES = 100, 100  # ten thousand ragged cases in all


def numbered(codes: np.ndarray) -> kernels.GroupIndex:
    """Codes renumbered by first appearance."""
    zeros = kernels.GroupIndex(np.zeros(len(codes), np.int32), np.zeros(1, np.int32))
    return reference.pair(zeros, kernels.GroupIndex(codes.astype(np.int32), np.zeros(0, np.int32)))


def ragged(rng: np.random.Generator) -> tuple[kernels.GroupIndex, kernels.GroupIndex, np.ndarray]:
    """Two groupings and values; groups are very unequal, some of one row, some constant."""
    rows = int(rng.integers(1, 80))
    weights = rng.random(int(rng.integers(1, 12))) ** 4 + 1e-3
    codes = rng.choice(len(weights), rows, p=weights / weights.sum())
    other = rng.integers(0, rng.integers(1, 40), rows)
    kinds = [rng.normal(size=rows), rng.integers(0, 2, rows).astype(float), np.full(rows, 0.1)]
    kinds.append(0.1 + rng.normal(size=rows) * 10.0 ** rng.integers(-17, -7))
    return numbered(codes), numbered(other), kinds[rng.integers(4)] * 10.0 ** rng.integers(-6, 6)


def results(
    module: ModuleType, left: kernels.GroupIndex, right: kernels.GroupIndex, values: np.ndarray
) -> dict[str, tuple[np.ndarray, ...]]:
    """What the functions of `module` make of one case, in units of the largest value."""
    size, groups = np.abs(values).max() or 1.0, len(left.first)
    found = module.reduce(left.codes, values, groups)
    plain = reference.reduce(left.codes, values, groups)
    differences = values - plain.mean[left.codes]
    module.drop_rounding(differences, left.codes, plain)
    floats = (
        differences / size,
        found.mean / size,
        found.squares / size**2,
        module.means_of(left.codes, values, groups) / size,
        module.baseline_loo(left.codes, values, plain) / size,
        module.subtract(values, left.codes, plain.mean) / size,
        module.normalise(values, left.codes, plain, 1, 1e-6 * size),
        module.normalise(values, left.codes, plain, 0, 1e-6 * size),
    )
    exact = (
        found.counts,
        found.low,
        found.high,
        module.take(left.codes, plain.mean),
        module.widen(left.codes, plain.counts, right.codes),
        module.first_rows(left.codes, groups),
        *module.pair(left, right),
        np.array([module.determines(left, right.codes)]),
    )
    return {"floats": floats, "exact": exact}


@settings(max_examples=SEEDS, deadline=None, derandomize=True)
@given(st.integers(0, 2**32))
def test_kernels_equal_the_reference(seed: int) -> None:
    compare(seed, CASES)


@pytest.mark.full
@settings(max_examples=MORE_SEEDS, deadline=None, derandomize=True)
@given(st.integers(0, 2**32))
def test_kernels_equal_the_reference_in_ten_thousand_cases(seed: int) -> None:
    compare(seed, MORE_CASES)


def compare(seed: int, cases: int) -> None:
    rng = np.random.default_rng(seed)
    found: dict[str, list[list[np.ndarray]]] = {"floats": [[], []], "exact": [[], []]}
    for _ in range(cases):
        case = ragged(rng)
        for place, module in enumerate((kernels, reference)):
            for kind, arrays in results(module, *case).items():
                found[kind][place].extend(arrays)
    for got, want in (*zip(*found["floats"], strict=True), *zip(*found["exact"], strict=True)):
        assert got.shape == want.shape
    got, want = (np.concatenate(arrays) for arrays in found["floats"])
    np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-12)
    got, want = (np.concatenate(arrays) for arrays in found["exact"])
    np.testing.assert_array_equal(got, want)


def test_the_plain_loops_give_the_bits_of_the_compiled_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(5)
    cases = [ragged(rng) for _ in range(400)]
    loops.compile_all()
    compiled = [results(kernels, *case) for case in cases]
    always = ("pair_by_hash", "to_go")
    functions = {name: one.py_func for name, one in vars(loops).items() if hasattr(one, "py_func")}
    assert len(functions) == 13
    for name, plain in functions.items():
        if name not in always:
            monkeypatch.setattr(loops, name, plain)
    for case, want in zip(cases, compiled, strict=True):
        got = results(kernels, *case)
        for kind, arrays in want.items():
            for mine, theirs in zip(got[kind], arrays, strict=True):
                assert mine.tobytes() == theirs.tobytes()


def test_few_rows_are_not_worth_numba() -> None:
    code = f"""
import sys
import numpy as np
from flowzoo.baselines.advantages import kernels
codes, values = np.arange(1000, dtype=np.int32) % 7, np.ones(1000)
for time in range({loops.WORTH // 1000}):
    found = kernels.means_of(codes, values, 7)
print("numba" in sys.modules)
same = kernels.means_of(codes, values, 7)
print("numba" in sys.modules, np.array_equal(found, same))
"""
    words = [sys.executable, "-W", "error", "-c", code]
    shown = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert shown.split() == ["False", "True", "True"]


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0])
def test_to_go_equals_the_reference(gamma: float) -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        left, _, values = ragged(rng)
        rows = len(values)
        turns = rng.permutation(rows) // (1 + rng.integers(3))
        # A group has each turn at most once.
        both = numbered(left.codes * 1000 + turns)
        left = kernels.GroupIndex(left.codes[both.first], left.first)
        turns, values = turns[both.first], values[both.first]
        left = numbered(left.codes)
        shares = rng.normal(size=len(values))
        order = np.argsort(turns, kind="stable")
        got = kernels.to_go(values, shares, turns, order, left, gamma)
        want = reference.to_go(values, shares, turns, left.codes, gamma)
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-9 * (1 + np.abs(values).max()))


def test_interleaving_groups_changes_no_bit() -> None:
    """Sums run in each group's own order, so only that order could change them."""
    rng = np.random.default_rng(1)
    codes, values = numbered(rng.integers(0, 30, 500)).codes, rng.normal(size=500)
    order = np.lexsort((np.arange(500), rng.permutation(30)[codes]))
    straight = kernels.reduce(codes, values, 30)
    sorted_codes = numbered(codes[order])
    grouped = kernels.reduce(sorted_codes.codes, values[order], 30)
    place = sorted_codes.codes[np.argsort(order)][numbered(codes).first]
    for found, same in zip(grouped, straight, strict=True):
        np.testing.assert_array_equal(found[place], same)


def test_a_constant_group_has_exactly_its_value_as_mean() -> None:
    found = kernels.reduce(np.zeros(3, np.int32), np.full(3, 0.1), 1)
    assert (found.mean[0], found.squares[0]) == (0.1, 0.0)
    scaled = kernels.normalise(np.full(3, 7.0), np.zeros(3, np.int32), found, 1, 0.0)
    assert scaled.tolist() == [0.0, 0.0, 0.0]
