r"""Comparison of outputs: texts in whole batches, returned values one by one.

    texts_match(outputs, expected, rules) -> list[bool]
    values_match(value, expected, rule) -> bool

Texts (stdin style) are compared as UTF-8 bytes, so that a byte which is not UTF-8 can match
nothing: there is no replacement character in between.

- `exact`: the same bytes, the last line's end included.
- `tokens`: the same tokens. White space is ASCII's (blank, \t \n \v \f \r); a no-break space
  is text.
- `number`: as `tokens`, but two different tokens are also equal where both are finite decimal
  numbers (`-1`, `.5`, `1e-3`; no `_`, no hexadecimal, no nan or inf) and differ by at most
  `max(absolute, relative * |expected|)`. Two whole numbers must be equal, of any length
  and spelling (`1e9` is not `1000000007`): a tolerance is for what was rounded. Beyond 2**53, where
  doubles no longer hold them all, a float must be the nearest double to a number in digits, and two
  floats may differ again. Around a number in digits alone the relative part ends at 0.001.

Rows with numbers and long rows take one compiled pass (`compare_kernel`) once there has been enough
of them to pay for its loading; the others take the plain Python here, which is also what the kernel
is tested against.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Final

from flowzoo.errors import UsageError
from flowzoo.sandbox.compare import kernel as compare_kernel
from flowzoo.sandbox.compare.values import floats_match, values_match
from flowzoo.sandbox.program import Compare

__all__ = ["texts_match", "values_match"]

# Bytes that were or would be compared in Python before the kernel is worth its loading, which takes
# 0.3 s (2.5 s at the first use after an installation, when it is compiled).
LOAD_ABOVE: Final = 4_000_000
BATCH_ABOVE: Final = 1_000  # bytes of a batch below which the call costs more than it saves
# Bytes of a row under `tokens` from which on the kernel is faster than `bytes.split`.
LONG: Final = 500

# Alternatives that start differently: no digit can be tried in two places, so no quadratic time.
_NUMBER: Final = re.compile(rb"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?")


def texts_match(
    outputs: Sequence[str | bytes], expected: Sequence[str], rules: Sequence[Compare]
) -> list[bool]:
    """Compare each output with its expected text."""
    if not len(outputs) == len(expected) == len(rules):
        raise UsageError(
            "as many outputs, expected texts and rules are needed; got "
            f"{len(outputs)}, {len(expected)} and {len(rules)}"
        )
    got = [_utf8(text) for text in outputs]
    targets = [_utf8(text) for text in expected]
    answers: dict[int, bool] = {}
    rows = [row for row, rule in enumerate(rules) if _is_slow(got[row], targets[row], rule)]
    if _pays(sum(len(got[row] or b"") for row in rows)):
        answers = _compiled(rows, got, targets, rules)
    return [
        answers[row] if row in answers else text_matches(got[row], targets[row], rule)
        for row, rule in enumerate(rules)
    ]


def _is_slow(output: bytes | None, expected: bytes | None, rule: Compare) -> bool:
    if output is None or rule.mode == "exact" or output == expected:
        return False
    return expected is not None and (rule.mode == "number" or len(output) >= LONG)


_compared = 0  # bytes of slow rows that Python has compared in this process


def _pays(size: int) -> bool:
    global _compared
    if size < BATCH_ABOVE:
        return False
    if not compare_kernel.is_loaded():
        _compared += size
    return _compared >= LOAD_ABOVE or compare_kernel.is_loaded()


def _compiled(
    rows: Sequence[int],
    got: Sequence[bytes | None],
    targets: Sequence[bytes | None],
    rules: Sequence[Compare],
) -> dict[int, bool]:
    matches = compare_kernel.match_rows(
        [got[row] or b"" for row in rows],
        [targets[row] or b"" for row in rows],
        [rules[row].mode == "number" for row in rows],
        [rules[row].absolute for row in rows],
        [rules[row].relative for row in rows],
    )
    pairs = zip(rows, matches, strict=True)
    return {
        row: answer == compare_kernel.EQUAL
        for row, answer in pairs
        if answer != compare_kernel.LEFT
    }


def text_matches(output: bytes | None, expected: bytes | None, rule: Compare) -> bool:
    """One row in plain Python; None, a text that is no UTF-8, matches nothing."""
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
        return _signed(token) == _signed(expected)
    value, target = float(token), float(expected)
    if math.isinf(value) or math.isinf(target):
        return False
    return floats_match(value, target, expected.lstrip(b"+-").isdigit(), rule)


def _signed(whole: bytes) -> tuple[bool, bytes]:
    # Python reads at most 4,300 digits as an int.
    digits = whole.lstrip(b"+-0")
    return whole[:1] == b"-" and digits != b"", digits


def _utf8(text: str | bytes) -> bytes | None:
    if isinstance(text, bytes):
        return text
    try:
        return text.encode()
    except UnicodeEncodeError:
        return None
