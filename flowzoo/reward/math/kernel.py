r"""Compiled pass for plain numbers in last boxes of replies.

Other rows are left to the Python path, which returns the same verdicts (a test compares them).
Numba is imported once a process has scored enough replies for the import to pay.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import numpy as np

BATCH_ABOVE: Final = 64  # rows of a batch below which a call of the kernel is slower
# Rows scored in Python from which loading the kernel pays: the time that loading takes over what
# the kernel saves on a row (`python -m benchmarks.speed math_batches`).
LOAD_ABOVE: Final = 1_300_000
TAIL_BYTES: Final = 256  # most bytes from the start of a box to the end of the reply
_MARGIN: Final = 80
_MAX_DIGITS: Final = 14
_PLAIN_GOLD = re.compile(rf"-?\d{{1,{_MAX_DIGITS}}}(?:\.\d{{1,{_MAX_DIGITS}}})?", re.ASCII)
_LEFT, _DIFFERENT, _EQUAL = 0, 1, 2


def plain_gold(gold: str) -> tuple[int, int] | None:
    """`(mantissa, decimals)` of a gold that is a short plain decimal, else None."""
    if _PLAIN_GOLD.fullmatch(gold) is None:
        return None
    whole, _, fraction = gold.partition(".")
    fraction = fraction.rstrip("0")
    if len(whole.lstrip("-")) + len(fraction) > _MAX_DIGITS:
        return None
    return int(whole + fraction), len(fraction)


_scored = 0  # rows of batches scored in Python in this process


def pays_to_load(rows: int) -> bool:
    """True if compiling or loading the kernel pays for a batch of `rows`."""
    global _scored
    if rows < BATCH_ABOVE:
        return False
    if not is_loaded():
        _scored += rows
    return _scored >= LOAD_ABOVE or is_loaded()


def is_loaded() -> bool:
    """True if this process has loaded the kernel already."""
    return _kernel.cache_info().currsize > 0


def judge_plain(preds: Sequence[str], golds: Sequence[tuple[int, int]]) -> list[int]:
    """Judge rows: 2 (equal), 1 (different) or 0 (left to the Python path)."""
    import numpy as np

    tails = [pred[-TAIL_BYTES:] for pred in preds]
    buffer = np.frombuffer("".join(tails).encode("ascii"), dtype=np.uint8)
    ends = np.cumsum(np.fromiter(map(len, tails), dtype=np.int64, count=len(tails)))
    is_cut = np.fromiter((len(pred) > TAIL_BYTES for pred in preds), np.bool_, len(preds))
    numbers = np.array(golds, dtype=np.int64).reshape(len(golds), 2)
    out = np.zeros(len(preds), dtype=np.int8)
    _kernel()(buffer, ends, is_cut, numbers, out)
    return out.tolist()


@cache
def _kernel() -> Callable[[Any, Any, Any, Any, Any], None]:
    from numba import njit

    find = njit(cache=True, nogil=True)(_find_box)
    parse = njit(cache=True, nogil=True)(_parse)

    # A closure over compiled functions cannot be cached: they are passed as globals.
    globals()["_find"], globals()["_read"] = find, parse
    return njit(cache=True, nogil=True)(_judge)


def _find_box(buffer: np.ndarray, start: int, end: int) -> int:
    # Index after the last `\boxed{` if it is the last `box` by a margin, else -1.
    i = end - 2
    first = -1
    while i > start:
        if buffer[i] == 111 and buffer[i - 1] == 98 and i + 1 < end and buffer[i + 1] == 120:
            if first >= 0:
                return first if first - i > _MARGIN else -1
            # \boxed{ with b at i - 1
            if i - 2 < start or buffer[i - 2] != 92 or i + 4 >= end:
                return -1
            if buffer[i + 2] != 101 or buffer[i + 3] != 100 or buffer[i + 4] != 123:
                return -1
            first = i + 5
        if first >= 0 and first - i > _MARGIN + 8:
            return first
        i -= 1
    return first


def _parse(buffer: np.ndarray, at: int, end: int) -> tuple[int, int]:
    # Mantissa and decimals of the number before the next `}`; decimals -1 if there is none.
    sign = 1
    if at < end and buffer[at] == 45:
        sign, at = -1, at + 1
    mantissa, digits, decimals, dot, zeros = 0, 0, 0, False, 0
    while at < end and buffer[at] != 125:
        byte = buffer[at]
        if byte == 46 and not dot and digits > 0:
            dot = True
        elif 48 <= byte <= 57 and digits < _MAX_DIGITS:
            mantissa = mantissa * 10 + (byte - 48)
            digits += 1
            decimals += 1 if dot else 0
            zeros = zeros + 1 if byte == 48 else 0
        else:
            return 0, -1
        at += 1
    if at >= end or digits == 0 or (dot and decimals == 0):
        return 0, -1
    while decimals > 0 and zeros > 0:
        mantissa //= 10
        decimals -= 1
        zeros -= 1
    return sign * mantissa, decimals


_find: Callable[..., int] = _find_box
_read: Callable[..., tuple[int, int]] = _parse


def _judge(
    buffer: np.ndarray, ends: np.ndarray, is_cut: np.ndarray, numbers: np.ndarray, out: np.ndarray
) -> None:
    start = 0
    for row in range(len(ends)):
        end = ends[row]
        at = _find(buffer, start, end)
        if at >= 0 and not (is_cut[row] and at - start < _MARGIN + 8):
            mantissa, decimals = _read(buffer, at, end)
            if decimals >= 0:
                same = mantissa == numbers[row, 0] and decimals == numbers[row, 1]
                out[row] = _EQUAL if same else _DIFFERENT
        start = end
