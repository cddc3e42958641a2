"""Facts and findings of several runs, as plain values for their page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flowzoo.baselines.diagnostics.cliff import FELL
from flowzoo.baselines.matrix.failures import FailureMode
from flowzoo.baselines.report.cells import (
    FALSE_FALLS,
    JUDGED,
    RATE,
    CellData,
    Notes,
    cell_facts,
    group_cells,
    mark_discoveries,
)
from flowzoo.baselines.report.comparisons import against_controls, compared_budgets
from flowzoo.baselines.report.failures import failure_facts
from flowzoo.baselines.report.findings import Finding, counted, points
from flowzoo.baselines.run.reading import RunData

MOST_NAMED = 5
"""Cells that a sentence names; it counts more of them."""


def matrix_facts(
    runs: Sequence[RunData],
    pages: Mapping[str, str],
    notes: Notes,
    failures: Sequence[FailureMode] = (),
) -> dict[str, Any]:
    """The facts of several runs.

    Args:
        runs: all runs.
        pages: address of a run's own page by its name.
        notes: facts of the runs by name.
        failures: of the matrix, if it is made to show some.
    """
    cells = group_cells(runs)
    facts = [cell_facts(cell, notes) for cell in cells]
    for cell, fact in zip(cells, facts, strict=True):
        fact["pages"] = {
            str(run.settings.get("seed", 0)): pages.get(run.name)
            for run in (*cell.runs, *cell.unfinished)
        }
    judged = mark_discoveries(facts)
    controls = against_controls(cells)
    failure_rows = failure_facts(failures, cells, notes)
    return {
        "cells": facts,
        "failures": failure_rows,
        "judged": judged,
        "rate": RATE,
        "controls": controls,
        "budgets": compared_budgets(cells, controls),
        "protocols": _protocols(cells),
        "findings": [
            finding.as_facts()
            for finding in (
                *_failures(failure_rows), _gains(facts), _cliffs(facts, judged), _captures(facts),
                *_unfinished(facts),
            )
        ],
    }  # fmt: skip


def _gains(cells: Sequence[dict[str, Any]]) -> Finding:
    finished = [cell for cell in cells if cell["gain"] is not None]
    if not finished:
        return Finding("unknown", "No finished cell", "There are no results yet.")
    up = sum(cell["gain"]["low"] > 0 for cell in finished)
    down = sum(cell["gain"]["high"] < 0 for cell in finished)
    best = max(finished, key=lambda cell: cell["gain"]["mean"])
    text = (
        f"Of {counted(len(finished), 'cell')}, {up} ended above step 0 and {down} below it with a "
        f"95 % interval over problems that excludes 0; for the other {len(finished) - up - down} "
        "the gain is not significant. These intervals hold one by one, not together. The largest "
        f"gain, {points(best['gain']['mean'], sign=True)} points, is that of {best['name']}; being "
        "the largest, it is biased upwards."
    )
    return Finding("bad" if down else "good", "Gains over step 0", text)


def _cliffs(cells: Sequence[dict[str, Any]], judged: int) -> Finding:
    fell = [cell["name"] for cell in cells if cell["cliff"]["verdict"] in FELL]
    stay = [cell["name"] for cell in cells if cell["cliff"].get("discovery")]
    verdicts = [cell["cliff"] for cell in cells if cell["cliff"]["verdict"] not in JUDGED]
    reasons = "; ".join(dict.fromkeys(verdict["why"] or verdict["verdict"] for verdict in verdicts))
    without = f"No verdict for {counted(len(verdicts), 'cell')}: {reasons}."
    single, several = _single_falls(cells)
    if not judged:
        if several:
            return Finding("bad", "Runs fell", f"{single} {without}")
        return Finding("unknown", "No cliff verdicts", f"{single} {without}".strip())
    text = (
        f"{len(fell)} of {judged} judged cells fell by themselves (mean of their runs' own falls, "
        f"cliffs and falls in progress); {len(stay)} pass with the false-discovery rate over cells "
        f"held at {100 * RATE:g} %"
        + (f": {', '.join(stay)}." if 0 < len(stay) <= MOST_NAMED else ".")
    )
    text += f" {single}" if single else ""
    if verdicts:
        text += f" {without}"
    title = "Cliffs" if stay else "Runs fell" if several else "No cliff found"
    if fell and not stay and not several:
        title = "No cliff passes the false-discovery control"
    return Finding("bad" if stay or several else "good", title, text)


def _single_falls(cells: Sequence[dict[str, Any]]) -> tuple[str, bool]:
    """Sentences on falls of single runs; True if a cell has more than false alarms would give."""
    fell = [cell for cell in cells if cell["fell"]["runs"]]
    if not fell:
        return "", False
    counts = [f"{cell['fell']['runs']} of {cell['fell']['of']} in {cell['name']}" for cell in fell]
    if len(counts) > MOST_NAMED:
        runs, of = (sum(cell["fell"][part] for cell in fell) for part in ("runs", "of"))
        counts = [f"{runs} of {of} in {counted(len(fell), 'cell')}"]
    tested = sum(bool(cell["fell"]["of"]) for cell in cells)
    certain = [cell["name"] for cell in fell if cell["fell"]["p_value"] * tested <= FALSE_FALLS]
    text = f"Runs that fell, each judged by itself: {', '.join(counts)}."
    if certain:
        text += (
            f" More than a false alarm in {100 * FALSE_FALLS:g} % of runs would give "
            f"(binomial, 5 % over all cells): {_named(certain)}."
        )
    return text, bool(certain)


def _named(names: Sequence[str]) -> str:
    """The names of cells, or their number if there are many."""
    return ", ".join(names) if len(names) <= MOST_NAMED else counted(len(names), "cell")


def _failures(failures: Sequence[Mapping[str, Any]]) -> list[Finding]:
    """Number of runs with the failures that the matrix is made to show, and the remedies."""
    if not failures:
        return []
    rows = [(failure["name"], row) for failure in failures for row in failure["cells"]]
    there = [(name, row, seed) for name, row in rows for seed in row["there"]]
    called = [seed for _, row, seed in there if seed in row["called"]]
    parts = [
        f"{failure['name']} {sum(len(row['there']) for row in failure['cells'])}"
        for failure in failures
    ]
    remedies = [(name, row) for name, row in rows if row["part"] == "mends"]
    weak = [
        f"{row['label']} of {name} ({len(row['clean'])} of {len(row['seeds'])})"
        for name, row in remedies
        if len(row["clean"]) * 6 < len(row["seeds"]) * 5
    ]
    text = (
        f"By the rules of its file, failures are present {len(there)} times ({'; '.join(parts)}), "
        f"and the pages of these runs call them {len(called)} times. Of {len(remedies)} remedies "
        f"{len(remedies) - len(weak)} are clean in five of six seeds or more"
    )
    text += f"; not so {', '.join(weak)}." if weak else "."
    return [Finding("result", "Failures and remedies", text)]


def _captures(cells: Sequence[dict[str, Any]]) -> Finding:
    pairs = [(cell["name"], pair) for cell in cells for pair in cell["captures"]]
    if not pairs:
        text = (
            "No run has a shared policy whose roles' gradients were measured over enough steps "
            "(train with --role-gradients)."
        )
        return Finding("unknown", "Capture not tested", text)
    captured = [
        f"{pair['by']} captured {pair['of']} in {pair['captured']} of {pair['tested']} runs of "
        f"{name}" for name, pair in pairs if pair["captured"]
    ]  # fmt: skip
    if not captured:
        text = f"None in {counted(len(pairs), 'pair')} of roles that share a policy."
        return Finding("good", "No capture found", text)
    text = (
        "; ".join(captured)
        + f". Tested: {counted(len(pairs), 'pair')} of roles, each at a level of "
        "5 % and without control over pairs."
    )
    return Finding("bad", "Captured roles", text)


def _unfinished(cells: Sequence[dict[str, Any]]) -> list[Finding]:
    count = sum(cell["unfinished"] for cell in cells)
    if not count:
        return []
    text = (
        f"{counted(count, 'unfinished run')} left out of all figures here; their own pages show "
        "them."
    )
    return [Finding("warn", "The matrix is not complete", text)]


def _protocols(cells: Sequence[CellData]) -> list[str]:
    """Protocols in use; with more than one, not all cells are comparable."""
    protocols: dict[str, None] = {}
    for cell in cells:
        take = cell.settings.get
        protocols.setdefault(
            f"{take('eval_problems')} {take('eval_split')} problems, one attempt each, temperature "
            f"{take('eval_temperature')}, at most {take('max_tokens')} tokens a reply"
        )
    return list(protocols)
