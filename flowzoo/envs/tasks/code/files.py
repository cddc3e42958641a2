"""The layouts of code files.

| layout      | problem                 | reference            | tests                             |
|-------------|-------------------------|----------------------|-----------------------------------|
| `humaneval` | `prompt`, `entry_point` | `canonical_solution` | `test`: code that defines `check` |
| `mbpp`      | `text` or `prompt`      | `code`               | `test_list`, then challenge tests |
| `livecodebench` | `question_content`  | none                 | `public_test_cases`, private ones |
| `codecontests` | `description`        | first in Python 3    | `public_tests`, `private_tests` … |
| `apps`      | `question` or `problem` | first of `solutions` | `input_output` or `tests`         |

* `humaneval`: public are the examples of the docstring that can be read; they do not grade (some
  are wrong). What stands before the function (imports, helpers) is put before an answer. `check`
  is one test, so that `reward="fraction"` has only 0 and 1 to give.
* `mbpp`: the first assert is public and grades, too. A column `test` (MBPP+) is one more test.
  Objects of the program's own classes may be arguments: its name and arguments are transferred.
* `apps`, also the layouts of DeepCoder's sources: stdin style, or call style where a function's
  name is given. Tests that the statement shows are public and grade, too. JSON knows no tuples: a
  tuple equals a list of equal items there. Where a method of a class `Solution` is asked for, the
  modules that such problems take for granted (`List`, `deque`, `math` ...) are imported.
* `livecodebench`, `codecontests`: as `apps`, with a column of public tests; see `io`.

`columns` may name other columns for the keys `text`, `solution`, `tests` and `entry`.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, get_args

from flowzoo.envs.tasks.code.layouts import (
    CodeRow,
    Names,
    read_apps,
    read_codecontests,
    read_humaneval,
    read_livecodebench,
    read_mbpp,
    with_prelude,
)
from flowzoo.envs.tasks.rows import (
    Columns,
    DataSource,
    Unusable,
    check_layout,
    data_source,
    first,
    no_layout,
    objects,
    text_of,
    unusable_rows,
)
from flowzoo.errors import DataError, UsageError
from flowzoo.reward.code.score import judge_again
from flowzoo.sandbox.box.job import MOST_OUTPUT, check_test, least_output
from flowzoo.sandbox.packages import PACKAGES, package_names, package_remedy
from flowzoo.sandbox.program import CheckTest, Limits, Program

if TYPE_CHECKING:
    from flowzoo.sandbox.sandbox import Sandbox


CodeLayout = Literal["auto", "humaneval", "mbpp", "livecodebench", "codecontests", "apps"]


def _names(text: str, solution: str, tests: str, entry: str = "") -> Names:
    columns = {"text": text, "solution": solution, "tests": tests, "entry": entry}
    return {key: tuple(names.split()) for key, names in columns.items()}


_COLUMNS: dict[str, Names] = {
    "humaneval": _names("prompt", "canonical_solution", "test", "entry_point"),
    "mbpp": _names("text prompt", "code", "test_list"),
    "livecodebench": _names("question_content", "solution", "public_test_cases"),
    "codecontests": _names("description", "solutions", "public_tests"),
    "apps": _names(
        "question problem",
        "solutions solution",
        "input_output tests",
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
    data: str, records: Iterable[tuple[int, Any]], layout: str, columns: dict[str, str]
) -> Iterator[CodeRow | Unusable]:
    """The rows of a code file; see `rows.load`. One that cannot be used is an `Unusable`."""
    check_layout(layout, get_args(CodeLayout), columns, _COLUMNS["apps"])
    names: Names | None = None
    for line, record in records:
        try:
            [(_, where, record)] = objects(data, [(line, record)])
            if names is None:
                layout, names = _layout(where, record, layout, columns)
            yield _row(where, line, record, names, _READERS[layout])
        except DataError as error:
            yield Unusable(line, str(error))


def _row(
    where: str, line: int, record: dict[str, Any], names: Names, reader: Callable[..., CodeRow]
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
        raise DataError(f"{where}: the problem's text is no Unicode text ({error}).") from None
    except UsageError as error:
        raise DataError(f"{error}.".replace("..", ".")) from None
    return row


def _layout(
    where: str, record: dict[str, Any], layout: str, columns: dict[str, str]
) -> tuple[str, Names]:
    # The layout (told by the first record where it is `auto`) and its column names.
    renamed = {key: (name,) for key, name in columns.items()}
    for name in _COLUMNS if layout == "auto" else (layout,):
        names = {**_COLUMNS[name], **renamed}
        telling = ("text", "tests", "entry") if name == "humaneval" else ("text", "tests")
        if layout != "auto" or all(first(record, names[key]) is not None for key in telling):
            return name, names
    raise no_layout(where, record, _COLUMNS, ("text", "tests"))


def _statement(where: str, record: dict[str, Any], columns: tuple[str, ...]) -> str:
    value = first(record, columns)
    text = text_of(value) if isinstance(value, str | list) else None
    names = " or ".join(map(repr, columns))
    if text is None and value is not None:
        raise DataError(f"{where}: column {names} must hold a text, got {value!r:.80}.")
    if text is None or not text.strip():
        raise DataError(f"{where}: column {names} is missing or blank.")
    return text


# Bytes that a program may print; and where tests are code, whose expected outputs are unknown.
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
    """Bytes of the longest expected output that is known, and its line."""
    longest = (0, 0)
    for row in rows:
        for test in (*row.public, *row.hidden):
            longest = max(longest, (least_output(test), row.line))
    return longest


def output_room(longest: int, rows: Sequence[CodeRow]) -> int:
    """Bytes to allow where the longest expected output has this many."""
    is_code = any(isinstance(test, CheckTest) for row in rows for test in row.hidden)
    return min(max(CHECK_OUTPUT if is_code else LEAST_OUTPUT, 2 * longest), MOST_OUTPUT)


def failing_references(
    source: DataSource[CodeRow], sandbox: Sandbox, limits: Limits
) -> tuple[Unusable, ...]:
    """Rows whose reference solution does not pass its own tests; those without one are none."""
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
    """Rows whose tests import what no sandbox can have."""
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
    """Warn of rows whose tests pass for every return value."""
    lines = [str(row.line) for row in source.splits["all"] if not row.asserts]
    if lines:
        more = f" and {len(lines) - SHOWN} more" if len(lines) > SHOWN else ""
        _log.warning(
            "%s: the tests assert nothing, so that every program passes that does not fail: line "
            "%s%s", source.name, ", ".join(lines[:SHOWN]), more,
        )  # fmt: skip
