"""Failures that a matrix is made to show: the runs that have them, and the remedies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypedDict

from flowzoo.baselines.matrix.failures import FILE, FailureMode, from_record
from flowzoo.baselines.report.cells import CellData, Notes
from flowzoo.baselines.report.findings import TEAM
from flowzoo.baselines.report.moments import Moment, run_moment
from flowzoo.baselines.report.run_facts import CODES
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


class FailureCounts(TypedDict):
    """Seeds of a cell in which a failure is there, is called, or neither."""

    cell: str
    seeds: list[int]
    there: list[int]
    called: list[int]
    untold: list[int]
    clean: list[int]
    courses: list[list[float | None]]
    steps: list[int]


class FailureCell(FailureCounts):
    """A cell's counts with its part in the failure."""

    label: str
    part: str


class FailureMoment(Moment):
    """One problem before and after, with the metric of the failure."""

    run: str
    values: list[float | None]


class FailureFacts(TypedDict):
    """A failure with the cells that have runs, and its moment in one run."""

    name: str
    title: str
    role: str
    metric: str
    rule: str
    called_by: list[str]
    cells: list[FailureCell]
    moment: FailureMoment | None


def failure_facts(
    failures: Sequence[FailureMode], cells: Sequence[CellData], notes: Notes
) -> list[FailureFacts]:
    """Every failure with the cells that have runs, and its moment in one run."""
    by_name = {cell_label(run.folder): cell for cell in cells for run in cell.runs}
    facts: list[FailureFacts] = []
    for failure in failures:
        rows: list[FailureCell] = [
            {**_cell_counts(failure, by_name[name], notes), "label": label, "part": part}
            for name, label, part in failure.cells
            if name in by_name
        ]
        if rows:
            facts.append(
                {
                    "name": failure.name,
                    "title": failure.title,
                    "role": failure.role,
                    "metric": failure.metric,
                    "rule": failure.rule,
                    "called_by": list(failure.called_by),
                    "cells": rows,
                    "moment": _moment(failure, rows, by_name),
                }
            )
    return facts


def _cell_counts(failure: FailureMode, cell: CellData, notes: Notes) -> FailureCounts:
    there: list[int] = []
    called: list[int] = []
    untold: list[int] = []
    ends: list[list[float | None]] = []
    for run in cell.runs:
        seed, rows = int(run.settings.get("seed", 0)), run.evaluations
        holds = failure.there(rows)
        if holds is None:
            untold.append(seed)
        if holds:
            there.append(seed)
        codes = {(role, code) for role, code in notes.get(run.name, {}).get("codes", ())}
        calling = {(role, code) for role in (TEAM, failure.role) for code in failure.called_by}
        if codes & calling:
            called.append(seed)
        ends.append([row.get(failure.metric) for row in rows])
    seeds = cell.seeds
    clean = [seed for seed in seeds if seed not in {*there, *called, *untold}]
    return {
        "cell": cell_label(cell.runs[0].folder),
        "seeds": seeds,
        "there": there,
        "called": called,
        "untold": untold,
        "clean": clean,
        "courses": ends,
        "steps": cell.runs[0].steps,
    }


def _moment(
    failure: FailureMode, rows: Sequence[FailureCell], cells: Mapping[str, CellData]
) -> FailureMoment | None:
    for row in rows:
        if row["part"] != "shows":
            continue
        for run in cells[row["cell"]].runs:
            index = failure.since(run.evaluations)
            if index is None:
                continue
            moment = run_moment(failure.role, run, index - 1, index)
            if moment is not None:
                values = [evaluation.get(failure.metric) for evaluation in run.evaluations]
                return FailureMoment(**moment, run=run.name, values=values[index - 1 : index + 1])
    return None
