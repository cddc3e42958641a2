"""Failures that a matrix is made to show: the runs that have them, and the remedies."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from flowzoo.baselines.matrix.failures import FILE, FailureMode, from_record
from flowzoo.baselines.report.cells import CellData, Notes
from flowzoo.baselines.report.findings import TEAM, Facts
from flowzoo.baselines.report.run_facts import CODES
from flowzoo.baselines.report.transcripts import run_moment
from flowzoo.baselines.run.reading import cell_label
from flowzoo.errors import DataError, unknown
from flowzoo.files import read_json


def read_failure_modes(paths: Sequence[Path]) -> list[FailureMode]:
    """Failures that the matrices at `paths` are made to show."""
    failures: list[FailureMode] = []
    for path in paths:
        file = path / FILE
        if file.is_file():
            try:
                failures += from_record(read_json(file))
            except (TypeError, KeyError, ValueError) as error:
                raise DataError(f"{file} is not a file of `flowzoo matrix`: {error}") from error
    return failures


def check_codes(failures: Sequence[FailureMode], where: str) -> None:
    """Check that findings of a run's page have the codes in `called_by`."""
    for failure in failures:
        for code in failure.called_by:
            if code not in CODES:
                raise unknown(f"finding in `called_by` of a failure in {where}", code, CODES)


def failure_facts(
    failures: Sequence[FailureMode], cells: Sequence[CellData], notes: Notes
) -> list[Facts]:
    """Every failure with the cells that have runs, and its moment in one run."""
    by_name = {cell_label(run.folder): cell for cell in cells for run in cell.runs}
    facts: list[Facts] = []
    for failure in failures:
        rows: list[Facts] = [
            {**_cell_counts(failure, by_name[name], notes), "label": label, "part": part}
            for name, label, part in failure.cells
            if name in by_name
        ]
        if rows:
            facts.append(
                {
                    "name": failure.name, "title": failure.title, "role": failure.role,
                    "metric": failure.metric, "rule": failure.rule,
                    "called_by": list(failure.called_by), "cells": rows,
                    "moment": _moment(failure, rows, by_name),
                }
            )  # fmt: skip
    return facts


def _cell_counts(failure: FailureMode, cell: CellData, notes: Notes) -> Facts:
    # Seeds in which the failure is there, is called, or neither.
    calling = {(role, code) for role in (TEAM, failure.role) for code in failure.called_by}
    there: list[int] = []
    called: list[int] = []
    untold: list[int] = []
    for seed, run in zip(cell.seeds, cell.runs, strict=True):
        holds = failure.there(run.evaluations)
        if holds is None:
            untold.append(seed)
        if holds:
            there.append(seed)
        if calling & {(role, code) for role, code in notes.get(run.name, {}).get("codes", ())}:
            called.append(seed)
    return {
        "cell": cell_label(cell.runs[0].folder), "seeds": cell.seeds,
        "there": there, "called": called, "untold": untold,
        "clean": [seed for seed in cell.seeds if seed not in {*there, *called, *untold}],
        "courses": [[row.get(failure.metric) for row in run.evaluations] for run in cell.runs],
        "steps": cell.runs[0].steps,
    }  # fmt: skip


def _moment(
    failure: FailureMode, rows: Sequence[Facts], cells: Mapping[str, CellData]
) -> Facts | None:
    runs = [run for row in rows if row["part"] == "shows" for run in cells[row["cell"]].runs]
    for run in runs:
        index = failure.since(run.evaluations)
        moment = None if index is None else run_moment(failure.role, run, index - 1, index)
        if index is not None and moment is not None:
            values = [row.get(failure.metric) for row in run.evaluations[index - 1 : index + 1]]
            return {**moment, "run": run.name, "values": values}
    return None
