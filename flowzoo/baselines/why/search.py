"""The smallest set that fails by itself, by halves: delta debugging.

After A. Zeller and R. Hildebrandt, IEEE Trans. Softw. Eng. 28 (2002) 183, and U. Junker, AAAI 2004,
167. Sets of settings take the place of lines of input; what cannot be run counts as not failing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def smallest_failing(
    items: Sequence[T], failing: Callable[[list[list[T]]], list[bool]], parallel: int = 1
) -> list[T]:
    """Reduce a set that fails until none of its items can be left out.

    Each item of the result ends the shortest start of `items` that fails with those before
    it. `failing` tests up to `parallel` sets at once; that no item fails is known.
    """
    result: list[T] = []
    left = list(items)
    while left and not (result and failing([result])[0]):
        low, high = 0, len(left)  # a start of `high` items fails, one of `low` does not
        while high - low > 1:
            count = min(parallel, high - low - 1)
            cuts = [low + (high - low) * (i + 1) // (count + 1) for i in range(count)]
            results = failing([[*left[:cut], *result] for cut in cuts])
            high = min((cut for cut, fails in zip(cuts, results, strict=True) if fails),
                       default=high)  # fmt: skip
            low = max((cut for cut in cuts if cut < high), default=low)
        result = [left[high - 1], *result]
        left = left[: high - 1]
    return result
