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

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, get_args

from flowzoo.envs.tasks.code.layouts import (
    CodeRow,
    Names,
    read_apps,
    read_codecontests,
    read_humaneval,
    read_livecodebench,
    read_mbpp,
)
from flowzoo.envs.tasks.rows import Unusable, check_layout, first, no_layout, objects, text_of
from flowzoo.errors import DataError, UsageError
from flowzoo.sandbox.box.job import check_test

CodeLayout = Literal["auto", "humaneval", "mbpp", "livecodebench", "codecontests", "apps"]

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


def code_rows(
    data: str, records: Iterable[tuple[int, Any]], layout: str, columns: dict[str, str]
) -> Iterator[CodeRow | Unusable]:
    """The rows of a code file; see `rows.load`. One that cannot be used is an `Unusable`.

    Raises:
        UsageError: unknown layout or column key.
    """
    check_layout(layout, get_args(CodeLayout), columns, _COLUMNS["apps"])
    readers = {
        "humaneval": read_humaneval,
        "mbpp": read_mbpp,
        "livecodebench": read_livecodebench,
        "codecontests": read_codecontests,
        "apps": read_apps,
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
    raise no_layout(where, record, _COLUMNS, ("text", "tests"))


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
