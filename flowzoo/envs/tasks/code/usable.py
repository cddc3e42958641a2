"""Which rows of a code file can be used, and what their tests need: room for outputs, modules."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from flowzoo.envs.tasks.code.files import code_rows
from flowzoo.envs.tasks.code.layouts import CodeRow, with_prelude
from flowzoo.envs.tasks.rows import Columns, DataSource, Unusable, data_source, unusable_rows
from flowzoo.errors import UsageError
from flowzoo.reward.code.score import judge_again
from flowzoo.sandbox.box.job import MOST_OUTPUT, least_output
from flowzoo.sandbox.packages import PACKAGES, package_names, package_remedy
from flowzoo.sandbox.program import CheckTest, Limits, Program

if TYPE_CHECKING:
    from flowzoo.sandbox.sandbox import Sandbox

LEAST_OUTPUT, CHECK_OUTPUT = 65_536, 24 * 2**20
"""Bytes that every program may print; and where tests are code, whose expectations nobody knows."""
SHOWN = 10
"""Lines that a warning names."""
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
    """The rows of a file that can be used.

    Args:
        data: path or id of the file.
        layout: of the file.
        columns: other names of its columns.
        digest: that its content must have.
        failing: rows that were found out to be of no use.
        skip: leave out what cannot be used.

    Raises:
        DataError: a row cannot be used, all are listed; or with `skip`, none can.
    """
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


def grading_of_row(row: CodeRow) -> tuple[object, ...]:
    """The tests of a row that grade."""
    return (*row.public, *row.hidden) if row.public_grade else row.hidden


def longest_output(rows: Sequence[CodeRow]) -> tuple[int, int]:
    """Bytes of the longest expected output that is known, and its line."""
    found = (0, 0)
    for row in rows:
        for test in (*row.public, *row.hidden):
            found = max(found, (least_output(test), row.line))
    return found


def output_room(longest: int, rows: Sequence[CodeRow]) -> int:
    """Bytes to allow where the longest expected output has this many."""
    is_code = any(isinstance(test, CheckTest) for row in rows for test in row.hidden)
    return min(max(CHECK_OUTPUT if is_code else LEAST_OUTPUT, 2 * longest), MOST_OUTPUT)


def failing_references(
    source: DataSource[CodeRow], sandbox: Sandbox, limits: Limits
) -> tuple[Unusable, ...]:
    """Rows whose reference solution does not pass its own tests; those without one are none."""
    rows = [row for row in source.splits["all"] if row.solution]
    verdicts = judge_again(
        sandbox,
        [Program(with_prelude(row.solution, row.prelude), row.entry) for row in rows],
        [grading_of_row(row) for row in rows],  # type: ignore[misc] - they are tests
        [limits] * len(rows),
        stop=True,
    )
    found = []
    for row, verdict in zip(rows, verdicts, strict=True):
        if verdict.status != "AC":
            detail = next(case.detail for case in verdict.cases if case.status != "AC")
            why = f"{verdict.status}: {detail}" if detail else verdict.status
            reason = f"{source.name}, line {row.line}: the reference does not pass ({why})."
            found.append(Unusable(row.line, reason))
    return tuple(found)


def check_packages_of(source: DataSource[CodeRow], packages: str) -> tuple[Unusable, ...]:
    """Rows whose tests import what no sandbox can have.

    Raises:
        UsageError: tests import what it can have, if it is asked for.
    """
    known = sys.stdlib_module_names | {*package_names(packages)}
    found = []
    for row in source.splits["all"]:
        missing = row.imports - known
        if not missing:
            continue
        reason = (
            f"the tests of {source.name}, line {row.line}, import {', '.join(sorted(missing))}, "
            f"which is not in the sandbox. {package_remedy(missing)}"
        )
        if missing <= {*PACKAGES}:
            raise UsageError(reason)
        found.append(Unusable(row.line, reason))
    return tuple(found)


def warn_of_vacuous(source: DataSource[CodeRow]) -> None:
    """Say which rows have tests that pass whatever a program returns."""
    lines = [str(row.line) for row in source.splits["all"] if not row.asserts]
    if lines:
        more = f" and {len(lines) - SHOWN} more" if len(lines) > SHOWN else ""
        _log.warning(
            "%s: the tests assert nothing, so that every program passes that does not fail: line "
            "%s%s", source.name, ", ".join(lines[:SHOWN]), more,
        )  # fmt: skip
