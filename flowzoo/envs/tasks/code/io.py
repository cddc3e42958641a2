"""Columns with the inputs and outputs of programs: from JSON to tests."""

import base64
import binascii
import builtins
import json
import pickletools
import re
import symtable
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from flowzoo.errors import DataError
from flowzoo.sandbox.program import CallTest, Compare, StdinTest

IoTest = CallTest | StdinTest
VALUES = Compare("number", 1e-9, 1e-9, tuples_as_lists=True)
TEXTS = Compare("number")


def io_tests(
    where: str, value: object, function: str | None, wrapped: bool = True
) -> tuple[str | None, tuple[IoTest, ...]]:
    """The name of the function that is called (None: stdin style), and the tests."""
    value = _json(where, value) if isinstance(value, str) else value
    if isinstance(value, dict) and "test_cases" in value:
        value = value["test_cases"]
    if isinstance(value, dict):
        function = value.get("fn_name") or function
        pairs = _pair(where, value.get("inputs"), value.get("outputs"))
    elif isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        function, pairs = _list_calls(where, value, function)
    else:
        raise DataError(
            f"{where}: tests must have `inputs` and `outputs`, or be a list of objects with "
            f"`input` and `output`; got {value!r:.80}."
        )
    if not function:
        return None, tuple(StdinTest(_lines(where, a), _lines(where, b), TEXTS) for a, b in pairs)
    if not isinstance(function, str) or not function.isidentifier():
        raise DataError(f"{where}: expected the name of a function, got {function!r:.80}.")
    return function, _calls(where, pairs, wrapped)


def _json(where: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: the tests are not JSON ({error}).") from None


def _pair(where: str, inputs: object, outputs: object) -> list[tuple[object, object]]:
    if not isinstance(inputs, list) or not isinstance(outputs, list) or not inputs:
        raise DataError(f"{where}: the tests have no lists `inputs` and `outputs`.")
    if len(inputs) != len(outputs):
        raise DataError(f"{where}: {len(inputs)} inputs, but {len(outputs)} outputs.")
    return list(zip(inputs, outputs, strict=True))


def _list_calls(
    where: str, items: list[dict[str, object]], function: str | None
) -> tuple[Any, list[tuple[object, object]]]:
    names = [_called_name(where, item, function) for item in items]
    if any(name != names[0] for name in names):
        raise DataError(f"{where}: the tests of one problem must all be of one type and function.")
    pairs = [(item.get("input"), item.get("output")) for item in items]
    if any(given is None or expected is None for given, expected in pairs):
        raise DataError(f"{where}: a test has no `input` or no `output`.")
    return names[0], pairs


def _called_name(where: str, item: dict[str, object], function: str | None) -> Any:
    named = item.get("fn_name") or function
    kind = item.get("type") or item.get("testtype") or ("functional" if named else "stdin")
    if "stdin" in str(kind):
        return None
    if not named:
        raise DataError(f"{where}: tests of type {kind!r} need the function's name (`fn_name`).")
    return named


def _lines(where: str, value: object) -> str:
    # Text of stdin or stdout: a string, or a list of lines.
    if isinstance(value, list):
        return "".join(f"{line}\n" for line in value)
    if not isinstance(value, str):
        raise DataError(f"{where}: expected the text of an input or output, got {value!r:.80}.")
    return value


def _calls(where: str, pairs: list[tuple[Any, Any]], wrapped: bool) -> tuple[IoTest, ...]:
    # Arguments are lists, or texts with one JSON value per line (then outputs are also JSON).
    if all(isinstance(given, str) for given, _ in pairs):
        pairs = [_parse_lines(where, given, expected) for given, expected in pairs]
    else:
        pairs = [(_whole_keys(given), _whole_keys(expected)) for given, expected in pairs]
        if wrapped and all(type(expected) is list and len(expected) == 1 for _, expected in pairs):
            pairs = [(given, expected[0]) for given, expected in pairs]
    if not all(isinstance(given, list) for given, _ in pairs):
        raise DataError(f"{where}: the input of a call must be the list of its arguments.")
    return tuple(CallTest(tuple(given), expected, {}, VALUES) for given, expected in pairs)


def _whole_keys(value: object) -> Any:
    # JSON has only texts as keys; APPS reads a dict's, also of dicts in a list, as integers.
    if isinstance(value, list):
        return [_whole_keys(item) if isinstance(item, dict) else item for item in value]
    try:
        return {int(key): item for key, item in value.items()} if type(value) is dict else value
    except ValueError:
        return value


def _parse_lines(where: str, given: str, expected: object) -> tuple[Any, Any]:
    arguments = [_json(where, line) for line in given.split("\n") if line.strip()]
    return arguments, _json(where, expected) if isinstance(expected, str) else expected


MOST_UNPACKED = 1 << 30  # most bytes of packed tests
PYTHON_3 = 3  # the number of Python 3 among the languages of CodeContests
_TEXTS = ("SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8")
_AROUND = ("PROTO", "FRAME", "MEMOIZE", "BINPUT", "LONG_BINPUT", "STOP")


def listed_tests(where: str, value: object) -> list[Any]:
    """Read the list of tests in a column of LiveCodeBench; empty if the column is empty."""
    if isinstance(value, str) and value.strip():
        text = value if value.lstrip().startswith("[") else _unpack(where, value)
        value = _json(where, text)
    if value in (None, ""):
        return []
    if not isinstance(value, list):
        raise DataError(f"{where}: expected a list of tests, got {value!r:.80}.")
    return value


def _unpack(where: str, packed: str) -> str:
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
        raise DataError(f"{where}: the packed tests are not a single text.")
    return str(texts[0])


def function_name(where: str, metadata: object) -> str | None:
    """Read the function name in LiveCodeBench's `metadata`; None: a program that prints."""
    if isinstance(metadata, str) and metadata.strip():
        try:
            metadata = json.loads(metadata)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{where}: column 'metadata' is not JSON ({error}).") from None
    name = metadata.get("func_name") if isinstance(metadata, Mapping) else None
    return name or None


def paired_tests(where: str, record: Mapping[str, object], name: str) -> dict[str, list[Any]]:
    """Read a column of CodeContests as inputs and outputs; both empty if it is missing."""
    value = record.get(name) or {}
    if not isinstance(value, Mapping):
        raise DataError(f"{where}: column {name!r} must have `input` and `output`.")
    inputs, outputs = value.get("input"), value.get("output")
    if len(inputs or ()) != len(outputs or ()):
        raise DataError(f"{where}: column {name!r} has different numbers of inputs and outputs.")
    return {"inputs": list(inputs or ()), "outputs": list(outputs or ())}


def python_reference(solutions: object) -> str:
    """The first solution of CodeContests in Python 3; empty without one."""
    if not isinstance(solutions, Mapping):
        return ""
    pairs = zip(solutions.get("language") or (), solutions.get("solution") or (), strict=False)
    return next((str(text) for language, text in pairs if language == PYTHON_3), "")


def runs_here(source: str) -> bool:
    """True if a program is Python 3 and, as far as its text shows, uses only names that it has."""
    try:
        top = symtable.symtable(source, "<reference>", "exec")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    used, bound, tables = set[str](), set(dir(builtins)), [top]
    while tables:
        table = tables.pop()
        tables += table.get_children()
        for symbol in table.get_symbols():
            if table is top or symbol.is_global():
                has = symbol.is_assigned() or symbol.is_imported()
                (bound if has else used).add(symbol.get_name())
    # A star may bring any name; the presupposed names of a class `Solution` are imported so.
    return used <= bound or "import *" in source or "class Solution" in source


# A decimal fraction, with its digits after the point; they are empty in `1e-05`.
_DECIMAL = re.compile(r"(?<![\w.])-?(?:\d*\.(\d+)(?:e[-+]?\d+)?|\d+e-\d+)(?![\w.])", re.I)
_ROUNDED = re.compile(r"\b(?:error|precision|decimal|toleran\w+|approximat\w+|round\w*)\b", re.I)


def with_rule(text: str, tests: Iterable[IoTest], outputs: list[object]) -> tuple[IoTest, ...]:
    """Tests of a problem with this statement and these outputs, compared by its rule."""
    rule = output_rule(text, outputs)
    return tuple(replace(test, compare=replace(test.compare, **rule)) for test in tests)


def output_rule(text: str, outputs: list[object]) -> dict[str, Any]:
    """Fields of `Compare` for the outputs of a problem with this statement."""
    # There is a tolerance if an output is a decimal fraction or the statement speaks of rounding.
    # Decimals with a final zero beside others of another length are words (`1.10` after `1.9`).
    if _ROUNDED.search(text):
        return {}
    places = {digits for output in outputs for digits in _DECIMAL.findall(str(output))}
    lengths = {*map(len, places)} - {0}
    if len(lengths) > 1 and any(len(digits) > 1 and digits[-1] == "0" for digits in places):
        return {"mode": "tokens"}
    return {} if places else {"absolute": 0.0, "relative": 0.0}
