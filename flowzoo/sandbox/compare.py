"""Comparison of outputs with expected ones, outside the box.

Texts are compared in batches, large batches in one compiled pass over the bytes; returned values
one by one.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Callable, Sequence
from decimal import Decimal
from fractions import Fraction
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from flowzoo.errors import UsageError
from flowzoo.sandbox.program import Compare

if TYPE_CHECKING:
    import numpy as np


DIFFERENT, EQUAL, LEFT = 0, 1, 2  # results; `LEFT`: left to the Python path

_NO_NUMBER, _FLOAT, _WHOLE, _HARD = 0, 1, 2, 3
_EXACT_POWER: Final = 22
_EXACT_MANTISSA: Final = 2**53
_MOST_DIGITS: Final = 18
WHOLE: Final = 2.0**53  # doubles represent all integers up to here
NEAR_WHOLE: Final = 1e-3  # most relative tolerance around an integer
_POWERS: Final = tuple(10.0**n for n in range(_EXACT_POWER + 1))


def match_rows(
    outputs: Sequence[bytes],
    expected: Sequence[bytes],
    numeric: Sequence[bool],
    absolute: Sequence[float],
    relative: Sequence[float],
) -> list[int]:
    """Compare rows after splitting at white space: `EQUAL`, `DIFFERENT` or `LEFT`."""
    # Results equal the results of `outputs.text_matches` (a test compares them), which handles rows
    # with a number that two doubles cannot represent exactly. Numba compiles at the first use.
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
    if i + 1 < end and a[i] == 48 and 48 <= a[i + 1] <= 57:
        return _NO_NUMBER, 0.0
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
    # Both operands are exact doubles, so the single rounding is correct (Clinger 1990).
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


# Texts (stdin style) are compared as UTF-8 bytes; other bytes match nothing.
#
# - `exact`: the same bytes, the last line's end included.
# - `tokens`: the same tokens. White space is ASCII's (blank, \t \n \v \f \r); a no-break space is
#   text.
# - `number`: as `tokens`, but two different tokens are also equal if both are finite decimal
#   numbers (`-1`, `.5`, `1e-3`; no `_`, no hexadecimal, no nan or inf) and differ by at most
#   `max(absolute, relative * |expected|)`. A leading zero makes a word: `7` is not `007`. Two whole
#   numbers must be equal, of any length and spelling (`1e9` is not `1000000007`): a tolerance is
#   only for rounded values. If the expected number is an integer in digits, this also holds beyond
#   2**53, where doubles do not represent all integers; two floats may differ there. For an integer
#   in digits the relative part is at most 0.001.

# Bytes compared in Python from which loading the kernel pays; loading takes 0.3 s (2.5 s at the
# first use after an installation, for compilation).
LOAD_ABOVE: Final = 4_000_000
BATCH_ABOVE: Final = 1_000  # bytes of a batch below which a call of the kernel is slower
# Bytes of a row under `tokens` from which the kernel is faster than `bytes.split`.
LONG: Final = 500

# The alternatives start differently, so matching is linear.
_NUMBER: Final = re.compile(rb"[+-]?(?:(?:0|[1-9]\d*)(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?")


def texts_match(
    outputs: Sequence[str | bytes], expected: Sequence[str], rules: Sequence[Compare]
) -> list[bool]:
    """Compare each output with its expected text."""
    if not len(outputs) == len(expected) == len(rules):
        raise UsageError(
            "expected equal numbers of outputs, expected texts and rules; got "
            f"{len(outputs)}, {len(expected)} and {len(rules)}"
        )
    got = [_utf8(text) for text in outputs]
    targets = [_utf8(text) for text in expected]
    answers: dict[int, bool] = {}
    rows = [row for row, rule in enumerate(rules) if _is_slow(got[row], targets[row], rule)]
    if pays_to_load(sum(len(got[row] or b"") for row in rows)):
        answers = _match_compiled(rows, got, targets, rules)
    return [
        answers[row] if row in answers else text_matches(got[row], targets[row], rule)
        for row, rule in enumerate(rules)
    ]


def _is_slow(output: bytes | None, expected: bytes | None, rule: Compare) -> bool:
    if output is None or rule.mode == "exact" or output == expected:
        return False
    return expected is not None and (rule.mode == "number" or len(output) >= LONG)


_compared = 0  # bytes of slow rows compared in Python in this process


def pays_to_load(size: int) -> bool:
    """True if compiling or loading the kernel pays for rows of `size` bytes."""
    global _compared
    if size < BATCH_ABOVE:
        return False
    if not is_loaded():
        _compared += size
    return _compared >= LOAD_ABOVE or is_loaded()


def _match_compiled(
    rows: Sequence[int],
    got: Sequence[bytes | None],
    targets: Sequence[bytes | None],
    rules: Sequence[Compare],
) -> dict[int, bool]:
    matches = match_rows(
        [got[row] or b"" for row in rows],
        [targets[row] or b"" for row in rows],
        [rules[row].mode == "number" for row in rows],
        [rules[row].absolute for row in rows],
        [rules[row].relative for row in rows],
    )
    pairs = zip(rows, matches, strict=True)
    return {row: answer == EQUAL for row, answer in pairs if answer != LEFT}


def text_matches(output: bytes | None, expected: bytes | None, rule: Compare) -> bool:
    """Compare a row in plain Python; None, a text that is not UTF-8, matches nothing."""
    if output is None or expected is None:
        return False
    if rule.mode == "exact":
        return output == expected
    tokens, targets = output.split(), expected.split()
    if rule.mode == "tokens" or len(tokens) != len(targets):
        return tokens == targets
    return all(
        token == other or _numbers_match(token, other, rule)
        for token, other in zip(tokens, targets, strict=True)
    )


def _numbers_match(token: bytes, expected: bytes, rule: Compare) -> bool:
    if _NUMBER.fullmatch(token) is None or _NUMBER.fullmatch(expected) is None:
        return False
    if token.lstrip(b"+-").isdigit() and expected.lstrip(b"+-").isdigit():
        return _split_sign(token) == _split_sign(expected)
    value, target = float(token), float(expected)
    if math.isinf(value) or math.isinf(target):
        return False
    is_whole = expected.lstrip(b"+-").isdigit()
    if is_whole and abs(target) >= WHOLE:
        return value == target and Decimal(token.decode()) == Decimal(expected.decode())
    return floats_match(value, target, is_whole, rule)


def _split_sign(whole: bytes) -> tuple[bool, bytes]:
    # Python converts at most 4,300 digits to an int.
    digits = whole.lstrip(b"+-0")
    return whole[:1] == b"-" and digits != b"", digits


def _utf8(text: str | bytes) -> bytes | None:
    if isinstance(text, bytes):
        return text
    try:
        return text.encode()
    except UnicodeEncodeError:
        return None


# Returned values (call style); both sides are plain data of exact builtin types.
# - `exact`: equal values of equal types at every depth: a tuple is not a list, True is not 1, 1 is
#   not 1.0. NaN equals NaN (otherwise a program that must return it could not pass), -0.0 equals
#   0.0, and the order of sets and dicts is ignored.
# - `tokens`: as `exact`, but strings are compared after splitting at ASCII white space.
# - `number`: as `tokens`, but if one of two numbers is a float they may differ by
#   `max(absolute, relative * |expected|)`, and one of them may be an int, a Fraction or a Decimal;
#   two whole numbers must be equal (as in texts), and True and False are the numbers 1 and 0, as
#   in Python. Infinities and NaN equal only themselves. Keys of dicts, and sets with members other
#   than numbers, are compared as under `exact`.
#
# With `tuples_as_lists` a tuple equals a list of equal items, for tests from JSON.
def values_match(value: Any, expected: Any, rule: Compare) -> bool:
    """True if `value` matches `expected` under `rule`."""
    if rule.mode == "number" and _is_number(value) and _is_number(expected):
        return _close(_as_count(value), _as_count(expected), rule)
    if rule.tuples_as_lists and isinstance(value, list | tuple):
        value = list(value)
        expected = list(expected) if type(expected) is tuple else expected
    if type(value) is not type(expected):
        return False
    if isinstance(value, str):
        if rule.mode == "exact":
            return value == expected
        return _tokens(value) == _tokens(expected)
    if isinstance(value, list | tuple | deque):
        return len(value) == len(expected) and all(
            values_match(member, other, rule) for member, other in zip(value, expected, strict=True)
        )
    if isinstance(value, set | frozenset):
        return _sets_match(value, expected, rule)
    if isinstance(value, dict):
        return _dicts_match(value, expected, rule)
    return _typed_key(value) == _typed_key(expected)


def _dicts_match(value: dict[Any, Any], expected: dict[Any, Any], rule: Compare) -> bool:
    items = {_typed_key(key): item for key, item in value.items()}
    targets = {_typed_key(key): item for key, item in expected.items()}
    return items.keys() == targets.keys() and all(
        values_match(items[key], item, rule) for key, item in targets.items()
    )


def _sets_match(
    value: set[Any] | frozenset[Any], expected: set[Any] | frozenset[Any], rule: Compare
) -> bool:
    if len(value) != len(expected):
        return False
    if rule.mode == "number" and all(map(_is_ordered, (*value, *expected))):
        pairs = zip(sorted(value), sorted(expected), strict=True)
        return all(values_match(member, other, rule) for member, other in pairs)
    return {_typed_key(item) for item in value} == {_typed_key(item) for item in expected}


def _typed_key(value: Any) -> Any:
    """A hashable key that is equal exactly if type and value are, also for NaN."""
    if isinstance(value, float) and math.isnan(value):
        return float, "nan"
    if isinstance(value, complex):
        return complex, _typed_key(value.real), _typed_key(value.imag)
    if isinstance(value, tuple):
        return tuple, tuple(map(_typed_key, value))
    if isinstance(value, frozenset):
        return frozenset, frozenset(map(_typed_key, value))
    return type(value), value


def _tokens(text: str) -> list[bytes]:
    # Keeps lone surrogates.
    return text.encode("utf-8", "surrogatepass").split()


def _is_number(value: Any) -> bool:
    return type(value) in (int, float, complex, bool, Fraction, Decimal)


def _as_count(value: Any) -> Any:
    return int(value) if type(value) is bool else value


def _is_nan(value: Any) -> bool:
    return bool(value != value)


def _reals_match(value: Any, expected: Any, rule: Compare) -> bool:
    try:
        number, target = float(value), float(expected)
    except OverflowError:  # an int beyond the floats
        return type(value) is type(expected) and value == expected
    if math.isinf(number) or math.isinf(target):
        return number == target
    if math.isnan(number) or math.isnan(target):
        return False
    if type(expected) is int and abs(target) >= WHOLE:
        return bool(value == expected)
    return floats_match(number, target, type(expected) is int, rule)


def floats_match(value: float, target: float, is_whole: bool, rule: Compare) -> bool:
    """True if two spellings of finite numbers are within the tolerance."""
    if (is_whole or abs(target) <= WHOLE) and value.is_integer() and target.is_integer():
        return value == target
    share = rule.relative * abs(target)
    return abs(value - target) <= max(rule.absolute, min(share, NEAR_WHOLE) if is_whole else share)


def _is_ordered(value: Any) -> bool:
    return type(value) in (int, bool) or (type(value) is float and not math.isnan(value))


def _close(value: complex, expected: complex, rule: Compare) -> bool:
    if type(value) is int and type(expected) is int:
        return value == expected
    if complex in (type(value), type(expected)):
        if type(value) is not type(expected):
            return False
    elif type(value) in (Fraction, Decimal) or not (_is_nan(value) or _is_nan(expected)):
        return _reals_match(value, expected, rule)
    if _typed_key(value) == _typed_key(expected):
        return True
    try:
        gap = abs(value - expected)
        return math.isfinite(gap) and gap <= max(rule.absolute, rule.relative * abs(expected))
    except OverflowError:  # an int beyond the range of floats, or a complex's absolute value
        return False
