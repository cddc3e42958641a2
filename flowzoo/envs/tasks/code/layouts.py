"""Readers of code files: one for each layout, from a record to a row.

| layout      | problem                 | reference            | tests                             |
|-------------|-------------------------|----------------------|-----------------------------------|
| `humaneval` | `prompt`, `entry_point` | `canonical_solution` | `test`: code that defines `check` |
| `mbpp`      | `text` or `prompt`      | `code`               | `test_list`, then challenge tests |
| `livecodebench` | `question_content`  | none                 | `public_test_cases`, private ones |
| `codecontests` | `description`        | first in Python 3    | `public_tests`, `private_tests` … |
| `apps`      | `question` or `problem` | first of `solutions` | `input_output` or `tests`         |

* `humaneval`: the readable examples of the docstring are public and do not grade (some are wrong).
  Code before the function (imports, helpers) is prepended to an answer. `check` is one test, so
  `reward="fraction"` is only 0 or 1.
* `mbpp`: the first assert is public and also grades. A column `test` (MBPP+) is one more test.
  Objects of the program's classes may be arguments: class name and arguments are transferred.
* `apps`, also the layouts of DeepCoder's sources: stdin style, or call style if a function's name
  is given. Tests shown in the statement are public and also grade. JSON has no tuples: a tuple
  equals a list of equal items. For a method of a class `Solution`, the names that such problems
  presuppose (`List`, `deque`, `math` ...) are imported.
* `livecodebench`, `codecontests`: as `apps`, with a column of public tests; see `io`.

`columns` may name other columns for the keys `text`, `solution`, `tests` and `entry`.
"""

from __future__ import annotations

import ast
import contextlib
import json
import logging
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import chain
from typing import TYPE_CHECKING, Literal, get_args

from flowzoo.aliases import DataRecord
from flowzoo.envs.tasks.code.io import (
    IoTest,
    function_name,
    io_tests,
    listed_tests,
    paired_tests,
    python_reference,
    runs_here,
    with_rule,
)
from flowzoo.envs.tasks.rows import (
    Columns,
    DataSource,
    Names,
    Records,
    Unusable,
    check_layout,
    data_source,
    find_layout,
    first,
    listed,
    objects,
    text_of,
    unusable_rows,
)
from flowzoo.errors import DataError, UsageError
from flowzoo.reward.code.score import extract_code, judge_again
from flowzoo.sandbox.box.job import MOST_OUTPUT, check_test, least_output
from flowzoo.sandbox.program import (
    PACKAGES,
    CallTest,
    CheckTest,
    Compare,
    Limits,
    Program,
    Test,
    package_names,
    package_remedy,
)

if TYPE_CHECKING:
    from flowzoo.sandbox.sandbox import Sandbox


_LITERALS = (ast.List, ast.Tuple, ast.Set, ast.Dict)
# Parts of the names of functions that report a test's outcome.
_JUDGES = ("assert", "fail", "raise", "exit", "abort")


def imported_modules(tree: ast.Module) -> frozenset[str]:
    """Modules that code imports unconditionally: not inside a `try` or a function."""
    modules: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.Import):
            modules.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            modules.add(str(node.module).partition(".")[0])
    return frozenset(modules)


def calls_program(tree: ast.Module, entry: str) -> bool:
    """True if code may call the program: by the entry's name or a parameter of `check`."""
    names = {entry.rpartition(".")[2], "candidate"}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == "check":
            args = node.args
            names |= {arg.arg for arg in (*args.posonlyargs, *args.args, args.vararg) if arg}
    return any(_mentions(node, names) for node in _nodes(tree))


def asserts_something(trees: Iterable[ast.Module]) -> bool:
    """True if code can reject an answer: by an assertion, an exception, or a function's name."""
    return any(
        isinstance(node, ast.Assert | ast.Raise)
        or (isinstance(node, ast.Name) and any(part in node.id.lower() for part in _JUDGES))
        or (isinstance(node, ast.Attribute) and any(part in node.attr.lower() for part in _JUDGES))
        for tree in trees
        for node in _nodes(tree)
    )


def _mentions(node: ast.AST, names: set[str]) -> bool:
    """True if a node is one of the names, or a text with one, which `eval` could read."""
    if isinstance(node, ast.Name):
        return isinstance(node.ctx, ast.Load) and node.id in names
    if isinstance(node, ast.Attribute):
        return node.attr in names
    text = node.value if isinstance(node, ast.Constant) else None
    return isinstance(text, str) and any(name in text for name in names)


def _nodes(tree: ast.Module) -> Iterator[ast.AST]:
    # All nodes; those inside lists and dicts, which may be long, come last.
    waiting: list[ast.AST] = [tree]
    literals: list[ast.AST] = []
    while waiting or literals:
        node = (waiting or literals).pop()
        yield node
        for child in ast.iter_child_nodes(node):
            (literals if isinstance(child, _LITERALS) else waiting).append(child)


_QUOTES = re.compile(r'"""|\'\'\'')
_EXAMPLE = re.compile(
    r"^[ \t]*(?:>>>|For|\*|-|[0-9]+\.)?[ \t]*(\w+\(.*\))[ \t]*"
    r"(?:==?>?|➞|->|➔|returns?|should return)[ \t]*(.+?)[ \t]*[.;,]?$",
    re.MULTILINE,
)
_EQUAL = Compare("number")


def docstring_examples(prompt: str, entry: str) -> tuple[CallTest, ...]:
    """The examples that call `entry` with plain data and expect plain data."""
    # Doctests, and lines such as `f(2) == 4` or `f(2) ➞ 4`; they are parsed, never executed.
    import doctest  # imports the debugger and unittest

    try:
        # The last example may end in the quotes of the docstring.
        examples = [
            (item.source, _QUOTES.split(item.want)[0])
            for item in doctest.DocTestParser().get_examples(prompt)
        ]
    except ValueError:  # inconsistent indentation
        examples = []
    examples += [match.groups() for match in _EXAMPLE.finditer(prompt)]
    tests = (_example(call.strip(), expected.strip(), entry) for call, expected in examples)
    return tuple(test for test in tests if test is not None)


def _example(call: str, expected: str, entry: str) -> CallTest | None:
    try:
        expression = ast.parse(call, mode="eval").body
        if not isinstance(expression, ast.Call) or ast.unparse(expression.func) != entry:
            return None
        args = tuple(ast.literal_eval(arg) for arg in expression.args)
        options = {str(item.arg): ast.literal_eval(item.value) for item in expression.keywords}
        return CallTest(args, ast.literal_eval(expected), options, _EQUAL)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None


_FUTURE = re.compile(r"^from __future__ import [^\n]*\n?", re.MULTILINE)
_DEFINED = re.compile(r"^(?:async )?def (\w+)", re.MULTILINE)

# Imports before an answer with a class `Solution`: the problems' website provides them, and
# signatures use `List` and `Optional`.
SOLUTION_PRELUDE = """\
from bisect import *
from collections import *
from functools import *
from heapq import *
from itertools import *
from typing import *
import bisect, collections, functools, heapq, itertools, math, random, re, string
"""


# Setup for tests with `allclose`, which is true in NumPy if one side is empty.
CLOSE = """
import numpy

def _guard(close=numpy.allclose, size=numpy.size):
    def allclose(a, b, *args, **kwargs):
        return (size(a) == 0) == (size(b) == 0) and close(a, b, *args, **kwargs)

    numpy.allclose = allclose

_guard()
del _guard
"""


@dataclass(frozen=True, slots=True)
class CodeRow:
    """One problem of a file. `line` counts from 1; `solution` may be empty."""

    line: int
    text: str
    entry: str | None
    public: tuple[Test, ...]
    hidden: tuple[Test, ...]
    solution: str
    prelude: str = ""  # code before every answer: imports and helpers of the prompt
    public_grade: bool = False  # the public tests also grade
    # Modules that its tests import.
    imports: frozenset[str] = field(default=frozenset(), repr=False)
    asserts: bool = field(default=True, repr=False)  # its tests can reject an answer


def with_prelude(source: str, prelude: str) -> str:
    """A program after its prelude; imports from `__future__` stay first."""
    if not prelude.strip():
        return source
    future = "".join(_FUTURE.findall(source))
    return f"{future}{prelude.rstrip()}\n\n{_FUTURE.sub('', source)}"


def _source(where: str, columns: tuple[str, ...], value: object) -> str:
    if value is not None and not isinstance(value, str):
        names = " or ".join(map(repr, columns))
        raise DataError(f"{where}: column {names} must hold source code, got {value!r:.80}.")
    return (value or "").replace("\r\n", "\n")


def read_humaneval(where: str, line: int, record: DataRecord, names: Names, prompt: str) -> CodeRow:
    """Read a function to complete: the code before it is the prelude, `check` the hidden test."""
    entry, code = first(record, names["entry"]), first(record, names["tests"])
    if not isinstance(entry, str) or not entry.isidentifier():
        raise DataError(f"{where}: column {names['entry'][0]!r} names no function: {entry!r:.80}.")
    if not isinstance(code, str) or "def check" not in code:
        raise DataError(f"{where}: column {names['tests'][0]!r} does not define check(candidate).")
    tree = _check_syntax(where, names["tests"][0], code)
    _check_calls(where, [tree], entry)
    head = re.search(rf"^def {re.escape(entry)}\b", prompt, re.MULTILINE)
    if head is None:
        raise DataError(
            f"{where}: column {names['text'][0]!r} does not start with def {entry}(...)."
        )
    solution = _source(where, names["solution"], first(record, names["solution"])).rstrip()
    prelude = prompt[: head.start()].strip("\n")
    before = _check_syntax(where, names["text"][0], prelude, "the code before the function is")
    return CodeRow(
        line,
        f"Complete the function {entry}.\n\n{prompt.strip()}\n",
        entry,
        docstring_examples(prompt, entry),
        (CheckTest(code, "check(candidate)", _setup(prelude, tree, code)),),
        f"{prompt.strip(chr(10))}\n{solution}" if solution else "",
        prelude,
        imports=imported_modules(before) | imported_modules(tree),
        asserts=asserts_something([tree]),
    )


def read_mbpp(where: str, line: int, record: DataRecord, names: Names, text: str) -> CodeRow:
    """Read a problem with asserts; the first is shown, and the function it calls is the entry."""
    column = names["tests"][0]
    value = listed(first(record, names["tests"]))
    if not isinstance(value, list) or not value:
        raise DataError(f"{where}: column {column!r} is not a list of asserts: {value!r:.80}.")
    asserts = _texts(where, column, value)
    asserts += _texts(where, "challenge_test_list", record.get("challenge_test_list"))
    setup = "\n".join(
        text
        for name in ("test_setup_code", "test_imports")
        for text in _texts(where, name, record.get(name))
    ).strip()
    before = _check_syntax(where, "test_setup_code", setup)
    trees = [_check_syntax(where, column, code) for code in asserts]
    for code, tree in zip(asserts, trees, strict=True):
        if not tree.body:
            raise DataError(f"{where}: a test in column {column!r} tests nothing: {code!r:.80}.")
    solution = _source(where, names["solution"], first(record, names["solution"]))
    entry = _tested_name(where, record, names, solution, asserts[0])
    tests = tuple(CheckTest(code, setup=setup) for code in asserts)
    whole = record.get("test")
    if whole is not None and "test" not in names["tests"]:
        whole = _source(where, ("test",), whole)
        trees.append(_check_syntax(where, "test", whole))
        full = CheckTest(whole, setup=_setup(setup, trees[-1], whole))
        tests += (full,) if whole.strip() else ()
    _check_calls(where, trees, entry)
    return CodeRow(
        line,
        f"{text.strip()}\n{asserts[0].strip()}",
        entry,
        tests[:1],
        tests[1:],
        solution.strip("\n"),
        public_grade=True,
        imports=frozenset[str]().union(*map(imported_modules, [before, *trees])),
        asserts=asserts_something([before, *trees]),
    )


def _tested_name(where: str, record: DataRecord, names: Names, solution: str, test: str) -> str:
    called = [name for name in _DEFINED.findall(solution) if re.search(rf"\b{name}\s*\(", test)]
    entry = first(record, names["entry"]) or (called[0] if called else None)
    if not isinstance(entry, str):
        raise DataError(
            f"{where}: no function of column {names['solution'][0]!r} is called by the first test "
            f"{test!r:.80}; name a column that has its name with --options "
            "columns=entry:COLUMN (in Python columns={'entry': ...})."
        )
    return entry


def _texts(where: str, column: str, value: object) -> list[str]:
    value = listed(value)
    items = value if isinstance(value, list) else [] if value is None else [value]
    for item in items:
        if not isinstance(item, str):
            raise DataError(f"{where}: column {column!r} must hold Python code, got {item!r:.80}.")
    return items


def read_apps(where: str, line: int, record: DataRecord, names: Names, text: str) -> CodeRow:
    """Inputs and outputs in one column; tests that the statement shows are public."""
    starter = _source(where, ("starter_code",), record.get("starter_code"))
    solution = _reference(where, names["solution"], first(record, names["solution"]))
    is_method = re.search(r"^class Solution\b", starter or solution, re.MULTILINE) is not None
    function, tests = io_tests(
        where, first(record, names["tests"]), first(record, names["entry"]), not is_method
    )
    public = tuple(test for test in tests if _is_shown(test, text))
    hidden = tuple(test for test in tests if test not in public)
    return _contest_row(line, text, starter, function, is_method, public, hidden, solution)


def read_livecodebench(
    where: str, line: int, record: DataRecord, names: Names, text: str
) -> CodeRow:
    """Public tests in a column, private ones packed in another."""
    starter = _source(where, ("starter_code",), record.get("starter_code"))
    public = listed_tests(where, first(record, names["tests"]))
    packed = listed_tests(where, record.get("private_test_cases"))
    name = function_name(where, record.get("metadata"))
    function, tests = io_tests(where, [*public, *packed], name)
    solution = _source(where, names["solution"], first(record, names["solution"]))
    is_method = "class Solution" in starter
    parts = tests[: len(public)], tests[len(public) :]
    return _contest_row(line, text, starter, function, is_method, *parts, solution)


def read_codecontests(
    where: str, line: int, record: DataRecord, names: Names, text: str
) -> CodeRow:
    """Public, private and generated tests, each as lists of inputs and outputs."""
    public = paired_tests(where, record, names["tests"][0])
    hidden = [paired_tests(where, record, name) for name in ("private_tests", "generated_tests")]
    whole = {key: [item for part in (public, *hidden) for item in part[key]] for key in public}
    _, tests = io_tests(where, whole, None)
    count = len(public["inputs"])
    solution = python_reference(first(record, names["solution"]))
    return _contest_row(line, text, "", None, False, tests[:count], tests[count:], solution)


def _contest_row(
    line: int,
    text: str,
    starter: str,
    function: str | None,
    is_method: bool,
    public: tuple[IoTest, ...],
    hidden: tuple[IoTest, ...],
    solution: str,
) -> CodeRow:
    entry = f"Solution.{function}" if function and is_method else function
    how = (
        f"Write {entry}."
        if entry
        else "Write a program that reads the input from stdin and prints the output."
    )
    parts = [text.strip(), how, starter.strip()]
    outputs = [test.expected for test in (*public, *hidden)]
    return CodeRow(
        line,
        "\n\n".join(part for part in parts if part),
        entry,
        with_rule(text, public, outputs),
        with_rule(text, hidden, outputs),
        solution,
        SOLUTION_PRELUDE if entry and is_method else "",
        public_grade=True,
    )


def _is_shown(test: IoTest, text: str) -> bool:
    # True if the statement contains the input and the output as separate lines.
    if isinstance(test, CallTest):
        return False
    lines = "".join(f"\n{line.strip()}" for line in text.splitlines()) + "\n"
    parts = (
        "\n".join(line.strip() for line in part.strip().splitlines())
        for part in (test.stdin, test.expected)
    )
    return all(part and f"\n{part}\n" in lines for part in parts)


def _reference(where: str, columns: tuple[str, ...], value: object) -> str:
    # The first of the solutions that runs: a list, JSON of a list, or a text; may be fenced.
    if isinstance(value, str) and value.lstrip().startswith("["):
        with contextlib.suppress(ValueError, RecursionError):  # a program may begin with a list
            value = json.loads(value)
    items = value if isinstance(value, list) else [value]
    texts = (_source(where, columns, item) for item in items)
    sources = ((extract_code(text) or text).strip("\n") for text in texts)
    start = next(sources, "")
    return next(filter(runs_here, chain([start], sources)), start)


def _setup(setup: str, tree: ast.Module, code: str) -> str:
    is_near = "allclose" in code and "numpy" in imported_modules(tree)
    return f"{setup}\n{CLOSE}" if is_near else setup


def _check_calls(where: str, trees: list[ast.Module], entry: str) -> None:
    if not any(calls_program(tree, entry) for tree in trees):
        raise DataError(f"{where}: the tests never call {entry}, so every program passes them.")


def _check_syntax(where: str, column: str, code: str, what: str = "the tests are") -> ast.Module:
    try:
        return ast.parse(code)
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise DataError(f"{where}: {what} not Python, in column {column!r}: {error}.") from None


CodeLayout = Literal["auto", "humaneval", "mbpp", "livecodebench", "codecontests", "apps"]


def _names(text: str, tests: str, solution: str, entry: str = "") -> Names:
    columns = {"text": text, "tests": tests, "solution": solution, "entry": entry}
    return {key: tuple(names.split()) for key, names in columns.items()}


_COLUMNS: dict[str, Names] = {
    "humaneval": _names("prompt", "test", "canonical_solution", "entry_point"),
    "mbpp": _names("text prompt", "test_list", "code"),
    "livecodebench": _names("question_content", "public_test_cases", "solution"),
    "codecontests": _names("description", "public_tests", "solutions"),
    "apps": _names(
        "question problem",
        "input_output tests",
        "solutions solution",
        "metadata.func_name fn_name",
    ),
}
_READERS = {
    "humaneval": read_humaneval,
    "mbpp": read_mbpp,
    "livecodebench": read_livecodebench,
    "codecontests": read_codecontests,
    "apps": read_apps,
}


def code_rows(
    data: str, records: Records, layout: str, columns: dict[str, str]
) -> Iterator[CodeRow | Unusable]:
    """The rows of a code file; see `rows.load`. One that cannot be used is an `Unusable`."""
    check_layout(layout, get_args(CodeLayout), columns, _COLUMNS["apps"])
    names: Names | None = None
    for line, record in records:
        try:
            [(_, where, record)] = objects(data, [(line, record)])
            if names is None:
                fits = partial(_fits, record=record)
                layout, names = find_layout(where, record, layout, _COLUMNS, columns, fits)
            yield _row(where, line, record, names, _READERS[layout])
        except DataError as error:
            yield Unusable(line, str(error))


def _fits(name: str, names: Names, record: DataRecord) -> bool:
    # True if a record has the columns of a layout.
    telling = ("text", "tests", "entry") if name == "humaneval" else ("text", "tests")
    return all(first(record, names[key]) is not None for key in telling)


def _row(
    where: str, line: int, record: DataRecord, names: Names, reader: Callable[..., CodeRow]
) -> CodeRow:
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
        raise DataError(f"{where}: the problem's text is not Unicode text ({error}).") from None
    except UsageError as error:
        raise DataError(f"{error}.".replace("..", ".")) from None
    return row


def _statement(where: str, record: DataRecord, columns: tuple[str, ...]) -> str:
    value = first(record, columns)
    text = text_of(value) if isinstance(value, str | list) else None
    names = " or ".join(map(repr, columns))
    if text is None and value is not None:
        raise DataError(f"{where}: column {names} must hold a text, got {value!r:.80}.")
    if text is None or not text.strip():
        raise DataError(f"{where}: column {names} is missing or blank.")
    return text


# Most bytes of a program's output; the second if tests are code with unknown outputs.
LEAST_OUTPUT, CHECK_OUTPUT = 65_536, 24 * 2**20
SHOWN = 10  # lines that a warning names
_log = logging.getLogger("flowzoo.tasks")
_REMEDY = "To go on without such rows: skip_unusable=true (--skip-unusable)."


@lru_cache(maxsize=16)
def usable_source(
    data: str,
    layout: str,
    columns: Columns,
    digest: str,
    failing: tuple[Unusable, ...] = (),
    skip: bool = False,
) -> DataSource[CodeRow]:
    """The rows of a file that can be used."""
    source = data_source(data, code_rows, layout, columns, digest)
    unusable = (*source.unusable, *failing)
    if not unusable:
        return source
    rows = source.splits["all"]
    lines = {row.line for row in failing}
    splits = {
        split: tuple(row for row in part if row.line not in lines)
        for split, part in source.splits.items()
    }
    if not skip or not splits["all"]:
        raise unusable_rows(data, unusable, len(rows) + len(source.unusable), _REMEDY)
    return DataSource(source.name, source.digest, splits, unusable)


def longest_output(rows: Sequence[CodeRow]) -> tuple[int, int]:
    """Bytes of the longest known expected output, and its line."""
    longest = (0, 0)
    for row in rows:
        for test in (*row.public, *row.hidden):
            longest = max(longest, (least_output(test), row.line))
    return longest


def output_room(longest: int, rows: Sequence[CodeRow]) -> int:
    """Limit of the output in bytes if the longest expected output has `longest`."""
    is_code = any(isinstance(test, CheckTest) for row in rows for test in row.hidden)
    return min(max(CHECK_OUTPUT if is_code else LEAST_OUTPUT, 2 * longest), MOST_OUTPUT)


def failing_references(
    source: DataSource[CodeRow], sandbox: Sandbox, limits: Limits
) -> tuple[Unusable, ...]:
    """Rows whose reference solution fails its tests; rows without a reference are skipped."""
    rows = [row for row in source.splits["all"] if row.solution]
    programs = [Program(with_prelude(row.solution, row.prelude), row.entry) for row in rows]
    tests = [(*row.public, *row.hidden) if row.public_grade else row.hidden for row in rows]
    verdicts = judge_again(sandbox, programs, tests, [limits] * len(rows), stop=True)
    failing = []
    for row, verdict in zip(rows, verdicts, strict=True):
        if verdict.status != "AC":
            detail = next(case.detail for case in verdict.cases if case.status != "AC")
            why = f"{verdict.status}: {detail}" if detail else verdict.status
            reason = f"{source.name}, line {row.line}: the reference does not pass ({why})."
            failing.append(Unusable(row.line, reason))
    return tuple(failing)


def check_packages_of(source: DataSource[CodeRow], packages: str) -> tuple[Unusable, ...]:
    """Rows whose tests import packages that are not in the sandbox."""
    available = sys.stdlib_module_names | {*package_names(packages)}
    unusable = []
    for row in source.splits["all"]:
        missing = row.imports - available
        if not missing:
            continue
        reason = (
            f"the tests of {source.name}, line {row.line}, import {', '.join(sorted(missing))}, "
            f"which is not in the sandbox. {package_remedy(missing)}"
        )
        if missing <= {*PACKAGES}:
            raise UsageError(reason)
        unusable.append(Unusable(row.line, reason))
    return tuple(unusable)


def warn_of_vacuous(source: DataSource[CodeRow]) -> None:
    """Warn about rows whose tests pass for every return value."""
    lines = [str(row.line) for row in source.splits["all"] if not row.asserts]
    if lines:
        more = f" and {len(lines) - SHOWN} more" if len(lines) > SHOWN else ""
        _log.warning(
            "%s: the tests assert nothing, so every program without an error passes: line "
            "%s%s", source.name, ", ".join(lines[:SHOWN]), more,
        )  # fmt: skip
