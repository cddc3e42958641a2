"""Tests given as inputs and outputs, in the forms that APPS and DeepCoder's sources use.

    {"inputs": [...], "outputs": [...], "fn_name": "f"}     APPS, TACO; without fn_name: stdin
    [{"input": ..., "output": ..., "type": "stdin_stdout", "fn_name": ...}, ...]
    {"test_cases": [...]}                                   the same in a mapping

each as a value or as JSON text.
"""

from __future__ import annotations

import base64
import binascii
import json
import pickletools
import zlib
from collections.abc import Mapping
from typing import Any

from flowzoo.errors import DataError
from flowzoo.sandbox.program import CallTest, Compare, StdinTest, Test

VALUES = Compare("number", 1e-9, 1e-9, tuples_as_lists=True)
TEXTS = Compare("number")


def io_tests(
    where: str, value: Any, function: str | None, wrapped: bool = True
) -> tuple[str | None, tuple[Test, ...]]:
    """The name of the function that is called (None: stdin style), and the tests."""
    value = _json(where, value) if isinstance(value, str) else value
    if isinstance(value, dict) and "test_cases" in value:
        value = value["test_cases"]
    if isinstance(value, dict):
        function = value.get("fn_name") or function
        pairs = _paired(where, value.get("inputs"), value.get("outputs"))
    elif isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        function, pairs = _listed(where, value, function)
    else:
        raise DataError(
            f"{where}: tests must have `inputs` and `outputs`, or be a list of objects with "
            f"`input` and `output`; got {value!r:.80}."
        )
    if not function:
        return None, _prints(where, pairs)
    if not isinstance(function, str) or not function.isidentifier():
        raise DataError(f"{where}: expected the name of a function, got {function!r:.80}.")
    return function, _calls(where, pairs, wrapped)


def _json(where: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: the tests are no JSON ({error}).") from None


def _paired(where: str, inputs: Any, outputs: Any) -> list[tuple[Any, Any]]:
    if not isinstance(inputs, list) or not isinstance(outputs, list) or not inputs:
        raise DataError(f"{where}: the tests have no lists `inputs` and `outputs`.")
    if len(inputs) != len(outputs):
        raise DataError(f"{where}: {len(inputs)} inputs, but {len(outputs)} outputs.")
    return list(zip(inputs, outputs, strict=True))


def _listed(
    where: str, items: list[dict[str, Any]], function: str | None
) -> tuple[Any, list[tuple[Any, Any]]]:
    names = [_called(where, item, function) for item in items]
    if any(name != names[0] for name in names):
        raise DataError(f"{where}: the tests of one problem must all be of one type and function.")
    pairs = [(item.get("input"), item.get("output")) for item in items]
    if any(given is None or expected is None for given, expected in pairs):
        raise DataError(f"{where}: a test has no `input` or no `output`.")
    return names[0], pairs


def _called(where: str, item: dict[str, Any], function: str | None) -> Any:
    named = item.get("fn_name") or function
    kind = item.get("type") or item.get("testtype") or ("functional" if named else "stdin")
    if "stdin" in str(kind):
        return None
    if not named:
        raise DataError(f"{where}: tests of type {kind!r} need the function's name (`fn_name`).")
    return named


def _prints(where: str, pairs: list[tuple[Any, Any]]) -> tuple[Test, ...]:
    return tuple(
        StdinTest(_lines(where, given), _lines(where, expected), TEXTS) for given, expected in pairs
    )


def _lines(where: str, value: Any) -> str:
    # Text of stdin or stdout: a string, or a list of lines.
    if isinstance(value, list):
        return "".join(f"{line}\n" for line in value)
    if not isinstance(value, str):
        raise DataError(f"{where}: expected the text of an input or output, got {value!r:.80}.")
    return value


def _calls(where: str, pairs: list[tuple[Any, Any]], wrapped: bool) -> tuple[Test, ...]:
    # Arguments are lists, or texts with one JSON value a line (then outputs are JSON, too).
    if all(isinstance(given, str) for given, _ in pairs):
        pairs = [_parsed(where, given, expected) for given, expected in pairs]
    elif wrapped and all(type(expected) is list and len(expected) == 1 for _, expected in pairs):
        pairs = [(given, expected[0]) for given, expected in pairs]
    if not all(isinstance(given, list) for given, _ in pairs):
        raise DataError(f"{where}: the input of a call must be the list of its arguments.")
    return tuple(CallTest(tuple(given), expected, {}, VALUES) for given, expected in pairs)


def _parsed(where: str, given: str, expected: Any) -> tuple[Any, Any]:
    arguments = [_json(where, line) for line in given.split("\n") if line.strip()]
    return arguments, _json(where, expected) if isinstance(expected, str) else expected


MOST_UNPACKED = 1 << 30  # bytes that packed tests may have
PYTHON_3 = 3  # the number of Python 3 among the languages of CodeContests
_TEXTS = ("SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8")
_AROUND = ("PROTO", "FRAME", "MEMOIZE", "BINPUT", "LONG_BINPUT", "STOP")


def listed_tests(where: str, value: Any) -> list[Any]:
    """The list of tests in a column of LiveCodeBench; empty where the column is."""
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
