"""Whole batches of outputs against expected texts in one compiled pass over their bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import numpy as np

DIFFERENT, EQUAL, LEFT = 0, 1, 2  # answers; `LEFT`: for the Python path

_NO_NUMBER, _FLOAT, _WHOLE, _HARD = 0, 1, 2, 3
_EXACT_POWER: Final = 22
_EXACT_MANTISSA: Final = 2**53
_MOST_DIGITS: Final = 18
WHOLE: Final = 2.0**53  # up to here a double holds every whole number
NEAR_WHOLE: Final = 1e-3  # distance that a relative tolerance allows around a whole number
_POWERS: Final = tuple(10.0**n for n in range(_EXACT_POWER + 1))


def match_rows(
    outputs: Sequence[bytes],
    expected: Sequence[bytes],
    numeric: Sequence[bool],
    absolute: Sequence[float],
    relative: Sequence[float],
) -> list[int]:
    """For each row `EQUAL`, `DIFFERENT` or `LEFT`, after splitting at white space."""
    # Rows answer as `outputs.text_matches` does (a test compares them). Left to it are rows with a
    # number that two doubles cannot hold without rounding. Numba compiles at the first use only.
    import numpy as np

    out = np.zeros(len(outputs), dtype=np.int8)
    _kernel()(
        *_join(outputs),
        *_join(expected),
        np.array(numeric, dtype=np.bool_),
        np.array(absolute, dtype=np.float64),
        np.array(relative, dtype=np.float64),
        out,
    )
    return out.tolist()


def is_loaded() -> bool:
    """True if this process has compiled the kernel already."""
    return _kernel.cache_info().currsize > 0


def _join(texts: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray]:
    # Shapes: (bytes,) uint8 and (rows,) int64.
    import numpy as np

    buffer = np.frombuffer(b"".join(texts), dtype=np.uint8)
    ends = np.cumsum(np.fromiter(map(len, texts), dtype=np.int64, count=len(texts)))
    return buffer, ends


@cache
def _kernel() -> Callable[..., None]:
    from numba import njit

    compiled = njit(cache=True, nogil=True)
    # A closure over compiled functions cannot be cached: they are passed as globals.
    for name in ("_same", "_skip", "_stop", "_scan", "_same_whole"):
        globals()[name] = compiled(globals()[name])
    globals()["_same_number"] = compiled(_same_number)
    return compiled(_match)


def _same(a: np.ndarray, i: int, end: int, b: np.ndarray, j: int, stop: int) -> bool:
    if end - i != stop - j:
        return False
    for k in range(end - i):  # noqa: SIM110 - numba compiles no generator expression
        if a[i + k] != b[j + k]:
            return False
    return True


def _skip(a: np.ndarray, i: int, end: int) -> int:
    while i < end and (a[i] == 32 or 9 <= a[i] <= 13):
        i += 1
    return i


def _stop(a: np.ndarray, i: int, end: int) -> int:
    while i < end and not (a[i] == 32 or 9 <= a[i] <= 13):
        i += 1
    return i


def _scan(a: np.ndarray, i: int, end: int) -> tuple[int, float]:
    """Classify a token as a number, with its value if it can be read exactly."""
    negative = a[i] == 45
    if negative or a[i] == 43:
        i += 1
    mantissa, digits, decimals, seen, dot = 0, 0, 0, 0, False
    while i < end and (48 <= a[i] <= 57 or (a[i] == 46 and not dot)):
        if a[i] == 46:
            dot = True
        else:
            seen += 1
            decimals += 1 if dot else 0
            if digits > 0 or a[i] != 48:
                digits += 1
                if digits <= _MOST_DIGITS:
                    mantissa = mantissa * 10 + (a[i] - 48)
        i += 1
    if seen == 0:
        return _NO_NUMBER, 0.0
    whole = i == end and not dot
    exponent = 0
    if i < end:
        if a[i] != 101 and a[i] != 69:
            return _NO_NUMBER, 0.0
        i += 1
        shrinks = i < end and a[i] == 45
        if i < end and (a[i] == 45 or a[i] == 43):
            i += 1
        if i == end:
            return _NO_NUMBER, 0.0
        while i < end and 48 <= a[i] <= 57:
            exponent = min(exponent * 10 + (a[i] - 48), 1 << 40)
            i += 1
        if i < end:
            return _NO_NUMBER, 0.0
        exponent = -exponent if shrinks else exponent
    exponent -= decimals
    kind = _WHOLE if whole else _FLOAT
    if digits == 0:
        return kind, 0.0
    if digits > _MOST_DIGITS or mantissa > _EXACT_MANTISSA or abs(exponent) > _EXACT_POWER:
        return (kind if whole else _HARD), float("nan")
    # Both operands are exact doubles, so the one rounding is the right one (Clinger 1990).
    power = _POWERS[abs(exponent)]
    value = mantissa * power if exponent >= 0 else mantissa / power
    return kind, -value if negative else value


def _same_whole(a: np.ndarray, i: int, end: int, b: np.ndarray, j: int, stop: int) -> bool:
    below, under = a[i] == 45, b[j] == 45
    while i < end and not 49 <= a[i] <= 57:
        i += 1
    while j < stop and not 49 <= b[j] <= 57:
        j += 1
    return _same(a, i, end, b, j, stop) and (below == under or i == end)


def _same_number(
    a: np.ndarray,
    i: int,
    end: int,
    b: np.ndarray,
    j: int,
    stop: int,
    absolute: float,
    relative: float,
) -> int:
    kind, value = _scan(a, i, end)
    kind_b, number_b = _scan(b, j, stop)
    if kind == _NO_NUMBER or kind_b == _NO_NUMBER:
        return DIFFERENT
    if kind == _WHOLE and kind_b == _WHOLE:
        return EQUAL if _same_whole(a, i, end, b, j, stop) else DIFFERENT
    if value != value or number_b != number_b:
        return LEFT
    if (kind_b == _WHOLE or abs(number_b) <= WHOLE) and value % 1 == 0 and number_b % 1 == 0:
        return EQUAL if value == number_b else DIFFERENT
    share = relative * abs(number_b)
    if kind_b == _WHOLE:
        share = min(share, NEAR_WHOLE)
    return EQUAL if abs(value - number_b) <= max(absolute, share) else DIFFERENT


def _match(
    a: np.ndarray,
    a_ends: np.ndarray,
    b: np.ndarray,
    b_ends: np.ndarray,
    numeric: np.ndarray,
    absolute: np.ndarray,
    relative: np.ndarray,
    out: np.ndarray,
) -> Any:
    i, j = 0, 0
    for row in range(len(a_ends)):
        end, stop = a_ends[row], b_ends[row]
        answer = EQUAL
        while answer != DIFFERENT:
            i, j = _skip(a, i, end), _skip(b, j, stop)
            if i == end or j == stop:
                if i != end or j != stop:
                    answer = DIFFERENT
                break
            i_end, j_end = _stop(a, i, end), _stop(b, j, stop)
            if not _same(a, i, i_end, b, j, j_end):
                result = DIFFERENT
                if numeric[row]:
                    result = _same_number(a, i, i_end, b, j, j_end, absolute[row], relative[row])
                if result != EQUAL:
                    answer = result
            i, j = i_end, j_end
        out[row] = answer
        i, j = end, stop
