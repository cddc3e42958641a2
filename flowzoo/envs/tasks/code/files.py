"""The layouts of code files.

| layout      | problem                 | reference            | tests                             |
|-------------|-------------------------|----------------------|-----------------------------------|
| `humaneval` | `prompt`, `entry_point` | `canonical_solution` | `test`: code that defines `check` |
| `mbpp`      | `text` or `prompt`      | `code`               | `test_list`, then challenge tests |
| `livecodebench` | `question_content`  | none                 | `public_test_cases`, `private_...`|
| `codecontests` | `description`        | first in Python 3    | `public_tests`, `private_tests` … |
| `apps`      | `question` or `problem` | first of `solutions` | `input_output` or `tests`         |

* `humaneval`: public are the examples of the docstring that can be read; they do not grade (some
  are wrong). What stands before the function (imports, helpers) is put before an answer. `check`
  is one test, so that `reward="fraction"` has only 0 and 1 to give.
* `mbpp`: the first assert is public and grades, too. A column `test` (MBPP+) is one more test.
  Objects of the program's own classes may be arguments: the name and what it is called with cross.
* `apps`, also the layouts of DeepCoder's sources: stdin style, or call style where a function's
  name is given. Tests that the statement shows are public and grade, too. JSON knows no tuples: a
  tuple equals a list of equal items there. Where a method of a class `Solution` is asked for, the
  modules that such problems take for granted (`List`, `deque`, `math` ...) are imported.
* `livecodebench`, `codecontests`: as `apps`, with a column of public tests; see `contests`.

`columns` may name other columns for the keys `text`, `solution`, `tests` and `entry`.
"""

from __future__ import annotations

import ast
import contextlib
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args

from flowzoo.envs.tasks.code.contests import (
    function_name,
    listed_tests,
    paired_tests,
    python_reference,
)
from flowzoo.envs.tasks.code.examples import docstring_examples
from flowzoo.envs.tasks.code.io import io_tests
from flowzoo.envs.tasks.rows import Unusable, check_layout, first, objects, text_of
from flowzoo.errors import DataError, UsageError
from flowzoo.reward.code.score import extract_code
from flowzoo.sandbox.box.job import check_test
from flowzoo.sandbox.program import CallTest, CheckTest, Test

CodeLayout = Literal["auto", "humaneval", "mbpp", "livecodebench", "codecontests", "apps"]
Names = dict[str, tuple[str, ...]]

_COLUMNS: dict[str, Names] = {
    "humaneval": {
        "text": ("prompt",),
        "solution": ("canonical_solution",),
        "tests": ("test",),
        "entry": ("entry_point",),
    },
    "mbpp": {
        "text": ("text", "prompt"),
        "solution": ("code",),
        "tests": ("test_list",),
        "entry": (),
    },
    "livecodebench": {
        "text": ("question_content",),
        "solution": ("solution",),
        "tests": ("public_test_cases",),
        "entry": (),
    },
    "codecontests": {
        "text": ("description",),
        "solution": ("solutions",),
        "tests": ("public_tests",),
        "entry": (),
    },
    "apps": {
        "text": ("question", "problem"),
        "solution": ("solutions", "solution"),
        "tests": ("input_output", "tests"),
        "entry": ("metadata.func_name", "fn_name"),
    },
}
_FUTURE = re.compile(r"^from __future__ import [^\n]*\n?", re.MULTILINE)
_DEFINED = re.compile(r"^(?:async )?def (\w+)", re.MULTILINE)

SOLUTION_PRELUDE = """\
from bisect import *
from collections import *
from functools import *
from heapq import *
from itertools import *
from typing import *
import bisect, collections, functools, heapq, itertools, math, random, re, string
"""
"""What stands before an answer with a class `Solution`: the site that these problems are from
imports it, and their signatures are written with `List` and `Optional`."""


@dataclass(frozen=True, slots=True)
class CodeRow:
    """One problem of a file. `line` counts from 1; `solution` may be empty."""

    line: int
    text: str
    entry: str | None
    public: tuple[Test, ...]
    hidden: tuple[Test, ...]
    solution: str
    prelude: str = ""
    """Code that stands before every answer: imports and helpers of the prompt."""
    public_grade: bool = False
    """The public tests grade, too."""


def with_prelude(source: str, prelude: str) -> str:
    """A program behind its prelude; imports from `__future__` stay in front."""
    if not prelude.strip():
        return source
    future = "".join(_FUTURE.findall(source))
    return f"{future}{prelude.rstrip()}\n\n{_FUTURE.sub('', source)}"


def code_rows(
    data: str, records: Iterable[tuple[int, Any]], layout: str, columns: dict[str, str]
) -> Iterator[CodeRow | Unusable]:
    """The rows of a code file; see `rows.load`. One that cannot be used is an `Unusable`.

    Raises:
        UsageError: unknown layout or column key.
    """
    check_layout(layout, get_args(CodeLayout), columns, _COLUMNS["apps"])
    readers = {
        "humaneval": _humaneval,
        "mbpp": _mbpp,
        "livecodebench": _livecodebench,
        "codecontests": _codecontests,
        "apps": _apps,
    }
    names: Names | None = None
    for line, record in records:
        try:
            [(_, where, record)] = objects(data, [(line, record)])
            if names is None:
                layout, names = _layout(where, record, layout, columns)
            yield _row(where, line, record, names, readers[layout])
        except DataError as error:
            yield Unusable(line, str(error))


def _row(
    where: str, line: int, record: dict[str, Any], names: Names, reader: Callable[..., CodeRow]
) -> CodeRow:
    """The row of a record."""
    text = _statement(where, record, names["text"])
    if first(record, names["tests"]) is None:
        columns_of = " or ".join(map(repr, names["tests"]))
        raise DataError(f"{where}: column {columns_of} with the tests is missing.")
    row = reader(where, line, record, names, text)
    try:
        row.text.encode()
        for test in (*row.public, *row.hidden):
            check_test(row.entry, test, where)
    except UnicodeEncodeError as error:
        raise DataError(f"{where}: the problem's text is no Unicode text ({error}).") from None
    except UsageError as error:
        raise DataError(f"{error}.".replace("..", ".")) from None
    return row


def _layout(
    where: str, record: dict[str, Any], layout: str, columns: dict[str, str]
) -> tuple[str, Names]:
    """The layout (told by the first record where it is `auto`) and its column names."""
    own = {key: (name,) for key, name in columns.items()}
    for name in _COLUMNS if layout == "auto" else (layout,):
        names = {**_COLUMNS[name], **own}
        told = ("text", "tests", "entry") if name == "humaneval" else ("text", "tests")
        if layout != "auto" or all(first(record, names[key]) is not None for key in told):
            return name, names
    expected = "; ".join(
        f"{name}: " + ", ".join(column for group in groups.values() for column in group)
        for name, groups in _COLUMNS.items()
    )
    raise DataError(
        f"{where}: no known layout has the columns {sorted(record)}. Expected {expected}; "
        "or name them with columns={'text': ..., 'tests': ...}."
    )


def _statement(where: str, record: dict[str, Any], columns: tuple[str, ...]) -> str:
    """The problem's text: a string, or the last user message of a chat."""
    value = first(record, columns)
    text = text_of(value) if isinstance(value, str | list) else None
    names = " or ".join(map(repr, columns))
    if text is None and value is not None:
        raise DataError(f"{where}: column {names} must hold a text, got {value!r:.80}.")
    if text is None or not text.strip():
        raise DataError(f"{where}: column {names} is missing or blank.")
    return text


def _source(where: str, columns: tuple[str, ...], value: Any) -> str:
    """A column of source code; "" where it is missing."""
    if value is not None and not isinstance(value, str):
        names = " or ".join(map(repr, columns))
        raise DataError(f"{where}: column {names} must hold source code, got {value!r:.80}.")
    return (value or "").replace("\r\n", "\n")


def _humaneval(where: str, line: int, record: dict[str, Any], names: Names, prompt: str) -> CodeRow:
    entry, code = first(record, names["entry"]), first(record, names["tests"])
    if not isinstance(entry, str) or not entry.isidentifier():
        raise DataError(f"{where}: column {names['entry'][0]!r} names no function: {entry!r:.80}.")
    if not isinstance(code, str) or "def check" not in code:
        raise DataError(f"{where}: column {names['tests'][0]!r} does not define check(candidate).")
    _check_syntax(where, names["tests"][0], code)
    head = re.search(rf"^def {re.escape(entry)}\b", prompt, re.MULTILINE)
    if head is None:
        raise DataError(f"{where}: column {names['text'][0]!r} does not begin def {entry}(...).")
    solution = _source(where, names["solution"], first(record, names["solution"])).rstrip()
    prelude = prompt[: head.start()].strip("\n")
    _check_syntax(where, names["text"][0], prelude, "what stands before the function is")
    return CodeRow(
        line,
        f"Complete the function {entry}.\n\n{prompt.strip()}\n",
        entry,
        docstring_examples(prompt, entry),
        (CheckTest(code, "check(candidate)", prelude),),
        f"{prompt.strip(chr(10))}\n{solution}" if solution else "",
        prelude,
    )


def _mbpp(where: str, line: int, record: dict[str, Any], names: Names, text: str) -> CodeRow:
    column = names["tests"][0]
    value = first(record, names["tests"])
    if not isinstance(value, list) or not value:
        raise DataError(f"{where}: column {column!r} is no list of asserts: {value!r:.80}.")
    asserts = _texts(where, column, value)
    asserts += _texts(where, "challenge_test_list", record.get("challenge_test_list"))
    setup = "\n".join(
        text
        for name in ("test_setup_code", "test_imports")
        for text in _texts(where, name, record.get(name))
    ).strip()
    _check_syntax(where, "test_setup_code", setup)
    for code in asserts:
        if not _check_syntax(where, column, code).body:
            raise DataError(f"{where}: a test in column {column!r} tests nothing: {code!r:.80}.")
    solution = _source(where, names["solution"], first(record, names["solution"]))
    called = [
        name for name in _DEFINED.findall(solution) if re.search(rf"\b{name}\s*\(", asserts[0])
    ]
    entry = first(record, names["entry"]) or (called[0] if called else None)
    if not isinstance(entry, str):
        raise DataError(
            f"{where}: no function of column {names['solution'][0]!r} is called by the first test "
            f"{asserts[0]!r:.80}; name a column that has its name with columns={{'entry': ...}}."
        )
    tests = tuple(CheckTest(code, setup=setup) for code in asserts)
    whole = record.get("test")
    if whole is not None and "test" not in names["tests"]:
        whole = _source(where, ("test",), whole)
        _check_syntax(where, "test", whole)
        tests += (CheckTest(whole, setup=setup),) if whole.strip() else ()
    return CodeRow(
        line,
        f"{text.strip()}\n{asserts[0].strip()}",
        entry,
        tests[:1],
        tests[1:],
        solution.strip("\n"),
        public_grade=True,
    )


def _texts(where: str, column: str, value: Any) -> list[str]:
    """The texts of a column that holds one, a list of them, or nothing."""
    items = value if isinstance(value, list) else [] if value is None else [value]
    for item in items:
        if not isinstance(item, str):
            raise DataError(f"{where}: column {column!r} must hold Python code, got {item!r:.80}.")
    return items


def _apps(where: str, line: int, record: dict[str, Any], names: Names, text: str) -> CodeRow:
    starter = _source(where, ("starter_code",), record.get("starter_code"))
    solution = _reference(where, names["solution"], first(record, names["solution"]))
    is_method = re.search(r"^class Solution\b", starter or solution, re.MULTILINE) is not None
    function, tests = io_tests(
        where, first(record, names["tests"]), first(record, names["entry"]), not is_method
    )
    shown = tuple(test for test in tests if _is_shown(test, text))
    hidden = tuple(test for test in tests if test not in shown)
    return _contest_row(line, text, starter, function, is_method, shown, hidden, solution)


def _livecodebench(
    where: str, line: int, record: dict[str, Any], names: Names, text: str
) -> CodeRow:
    starter = _source(where, ("starter_code",), record.get("starter_code"))
    shown = listed_tests(where, first(record, names["tests"]))
    packed = listed_tests(where, record.get("private_test_cases"))
    name = function_name(where, record.get("metadata"))
    function, tests = io_tests(where, [*shown, *packed], name)
    solution = _source(where, names["solution"], first(record, names["solution"]))
    is_method = "class Solution" in starter
    parts = tests[: len(shown)], tests[len(shown) :]
    return _contest_row(line, text, starter, function, is_method, *parts, solution)


def _codecontests(
    where: str, line: int, record: dict[str, Any], names: Names, text: str
) -> CodeRow:
    shown = paired_tests(where, record, names["tests"][0])
    hidden = [paired_tests(where, record, name) for name in ("private_tests", "generated_tests")]
    whole = {key: [one for part in (shown, *hidden) for one in part[key]] for key in shown}
    _, tests = io_tests(where, whole, None)
    count = len(shown["inputs"])
    solution = python_reference(first(record, names["solution"]))
    return _contest_row(line, text, "", None, False, tests[:count], tests[count:], solution)


def _contest_row(
    line: int,
    text: str,
    starter: str,
    function: str | None,
    is_method: bool,
    shown: tuple[Test, ...],
    hidden: tuple[Test, ...],
    solution: str,
) -> CodeRow:
    """The row of a problem whose tests are inputs and outputs."""
    entry = f"Solution.{function}" if function and is_method else function
    how = (
        f"Write {entry}."
        if entry
        else "Write a program that reads the input from stdin and prints the output."
    )
    parts = [text.strip(), how, starter.strip()]
    return CodeRow(
        line,
        "\n\n".join(part for part in parts if part),
        entry,
        shown,
        hidden,
        solution,
        SOLUTION_PRELUDE if entry and is_method else "",
        public_grade=True,
    )


def _is_shown(test: Test, text: str) -> bool:
    """Whether the statement holds both the input and the output, as lines of their own."""
    if isinstance(test, CallTest | CheckTest):
        return False
    lines = "".join(f"\n{line.strip()}" for line in text.splitlines()) + "\n"
    parts = (
        "\n".join(line.strip() for line in part.strip().splitlines())
        for part in (test.stdin, test.expected)
    )
    return all(part and f"\n{part}\n" in lines for part in parts)


def _reference(where: str, columns: tuple[str, ...], value: Any) -> str:
    """The first of the solutions, which may be a list, JSON of a list, or a text; may be fenced."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        with contextlib.suppress(ValueError, RecursionError):  # a program may begin with a list
            value = json.loads(value)
    if isinstance(value, list):
        value = value[0] if value else None
    source = _source(where, columns, value)
    return (extract_code(source) or source).strip("\n")


def _check_syntax(where: str, column: str, code: str, what: str = "the tests are") -> ast.Module:
    """`code` parsed, never executed; `DataError` unless it is Python."""
    try:
        return ast.parse(code)
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise DataError(f"{where}: {what} no Python, in column {column!r}: {error}.") from None
