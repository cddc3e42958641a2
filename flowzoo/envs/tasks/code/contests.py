"""Tests and references as two collections of contest problems publish them.

| | tests | reference |
|---|---|---|
| LiveCodeBench | `public_test_cases`, `private_test_cases`: lists as in `io`, JSON or packed | none |
| CodeContests | `public_tests`, `private_tests`, `generated_tests`: `{"input": [...], "output": [...]}` | first of `solutions` in Python 3 |

LiveCodeBench packs its private tests as JSON text in a pickle, compressed, in base64. The pickle is
read as what it has to be, one text; nothing in it is ever executed.
"""  # noqa: E501 - a row of a table

from __future__ import annotations

import base64
import binascii
import json
import pickletools
import zlib
from collections.abc import Mapping
from typing import Any

from flowzoo.errors import DataError

MOST_UNPACKED = 1 << 30
"""Bytes that packed tests may have."""
PYTHON_3 = 3
"""The number of Python 3 among the languages of CodeContests."""
_TEXTS = ("SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8")
_AROUND = ("PROTO", "FRAME", "MEMOIZE", "BINPUT", "LONG_BINPUT", "STOP")


def listed_tests(where: str, value: Any) -> list[Any]:
    """The list of tests in a column of LiveCodeBench; empty where the column is.

    Raises:
        DataError: neither a list, nor JSON of one, nor packed.
    """
    if isinstance(value, str) and value.strip():
        text = value if value.lstrip().startswith("[") else _unpacked(where, value)
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{where}: the tests are no JSON ({error}).") from None
    if value in (None, ""):
        return []
    if not isinstance(value, list):
        raise DataError(f"{where}: expected a list of tests, got {value!r:.80}.")
    return value


def _unpacked(where: str, packed: str) -> str:
    """The text in base64 of a compressed pickle."""
    try:
        stream = zlib.decompressobj()
        data = stream.decompress(base64.b64decode(packed, validate=True), MOST_UNPACKED)
        if not stream.eof:
            raise DataError(
                f"{where}: packed tests of more than {MOST_UNPACKED} bytes, or cut off."
            )
        steps = list(pickletools.genops(data))
    except (binascii.Error, zlib.error, ValueError) as error:
        raise DataError(f"{where}: the tests are neither JSON nor packed ({error}).") from None
    texts = [value for step, value, _ in steps if step.name in _TEXTS]
    if len(texts) != 1 or any(step.name not in (*_TEXTS, *_AROUND) for step, _, _ in steps):
        raise DataError(f"{where}: the packed tests are something else than one text.")
    return str(texts[0])


def function_name(where: str, metadata: Any) -> str | None:
    """The function that LiveCodeBench's `metadata` asks for; None: a program that prints."""
    if isinstance(metadata, str) and metadata.strip():
        try:
            metadata = json.loads(metadata)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{where}: column 'metadata' is no JSON ({error}).") from None
    name = metadata.get("func_name") if isinstance(metadata, Mapping) else None
    return name or None


def paired_tests(where: str, record: Mapping[str, Any], name: str) -> dict[str, list[Any]]:
    """A column of CodeContests as inputs and outputs; both empty where it is missing."""
    value = record.get(name) or {}
    if not isinstance(value, Mapping):
        raise DataError(f"{where}: column {name!r} must have `input` and `output`.")
    inputs, outputs = value.get("input"), value.get("output")
    if len(inputs or ()) != len(outputs or ()):
        raise DataError(f"{where}: column {name!r} has not as many inputs as outputs.")
    return {"inputs": list(inputs or ()), "outputs": list(outputs or ())}


def python_reference(solutions: Any) -> str:
    """The first solution of CodeContests in Python 3; empty where there is none."""
    if not isinstance(solutions, Mapping):
        return ""
    pairs = zip(solutions.get("language") or (), solutions.get("solution") or (), strict=False)
    return next((str(text) for language, text in pairs if language == PYTHON_3), "")
