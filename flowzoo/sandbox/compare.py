"""Comparison of outputs with expected ones, outside the box: printed texts, and returned values."""

import math
import re
from collections import deque
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final

from flowzoo.sandbox.program import Compare

WHOLE: Final = 2.0**53  # doubles represent all integers up to here
NEAR_WHOLE: Final = 1e-3  # most relative tolerance around an integer


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

# The alternatives start differently, so matching is linear.
_NUMBER: Final = re.compile(rb"[+-]?(?:(?:0|[1-9]\d*)(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?")


def text_matches(output: str | bytes, expected: str, rule: Compare) -> bool:
    """Compare one output with its expected text."""
    given, target = _utf8(output), _utf8(expected)
    if given is None or target is None:
        return False
    if rule.mode == "exact":
        return given == target
    tokens, targets = given.split(), target.split()
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


def _typed_key(value: object) -> Any:
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


def _is_number(value: object) -> bool:
    return type(value) in (int, float, complex, bool, Fraction, Decimal)


def _as_count(value: object) -> Any:
    return int(value) if type(value) is bool else value


def _is_nan(value: object) -> bool:
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


def _is_ordered(value: object) -> bool:
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
