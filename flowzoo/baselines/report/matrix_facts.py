"""Everything the page of several runs shows, as plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flowzoo.baselines.diagnostics.cliff import FELL
from flowzoo.baselines.matrix.failures import FailureMode
from flowzoo.baselines.report.budgets import compared_budgets
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
from flowzoo.baselines.report.control_comparison import against_controls
from flowzoo.baselines.report.failures.counts import failure_facts
from flowzoo.baselines.report.findings import Finding, counted, points
from flowzoo.baselines.run.reading import RunData

MOST_NAMED = 5
"""Cells that a sentence names; of more it says how many, and tables below have their names."""


def matrix_facts(
    runs: Sequence[RunData],
    pages: Mapping[str, str],
    notes: Notes,
    failures: Sequence[FailureMode] = (),
) -> dict[str, Any]:
    """The facts of several runs.

    By the name of a run, `pages` has the address of its own page, if it has one, and
    `notes` its facts. `failures` are what their matrix is made to show.
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
    shown = failure_facts(failures, cells, notes)
    return {
        "cells": facts,
        "failures": shown,
        "judged": judged,
        "rate": RATE,
        "controls": controls,
        "budgets": compared_budgets(cells, controls),
        "protocols": _protocols(cells),
        "findings": [
            finding._asdict()
            for finding in (
                *_shown(shown), _gains(facts), _cliffs(facts, judged), _captures(facts),
                *_unfinished(facts),
            )
        ],
    }  # fmt: skip


def _gains(cells: Sequence[dict[str, Any]]) -> Finding:
    known = [cell for cell in cells if cell["gain"] is not None]
    if not known:
        return Finding("unknown", "No finished cell", "Nothing can be said yet.")
    up = sum(cell["gain"]["low"] > 0 for cell in known)
    down = sum(cell["gain"]["high"] < 0 for cell in known)
    best = max(known, key=lambda cell: cell["gain"]["mean"])
    text = (
        f"Of {counted(len(known), 'cell')}, {up} ended above step 0 and {down} below it with a "
        f"95 % interval over problems that excludes 0; the other {len(known) - up - down} cannot "
        f"be told from chance. These intervals hold one by one, not together. The largest gain, "
        f"{points(best['gain']['mean'], sign=True)} points, is that of {best['name']}; being the "
        "largest, it is biased upwards."
    )
    return Finding("bad" if down else "good", "Gains over step 0", text)


def _cliffs(cells: Sequence[dict[str, Any]], judged: int) -> Finding:
    found = [cell["name"] for cell in cells if cell["cliff"]["verdict"] in FELL]
    stay = [cell["name"] for cell in cells if cell["cliff"].get("discovery")]
    verdicts = [cell["cliff"] for cell in cells if cell["cliff"]["verdict"] not in JUDGED]
    reasons = "; ".join(dict.fromkeys(one["why"] or one["verdict"] for one in verdicts))
    without = f"No verdict for {counted(len(verdicts), 'cell')}: {reasons}."
    single, several = _single_falls(cells)
    if not judged:
        if several:
            return Finding("bad", "Runs fell", f"{single} {without}")
        return Finding("unknown", "No cliff verdicts", f"{single} {without}".strip())
    text = (
        f"{len(found)} of {judged} judged cells fell by themselves (mean of their runs' own falls, "
        f"cliffs and falls in progress); {len(stay)} stay with the false-discovery rate over cells "
        f"held at {100 * RATE:g} %"
        + (f": {', '.join(stay)}." if 0 < len(stay) <= MOST_NAMED else ".")
    )
    text += f" {single}" if single else ""
    if verdicts:
        text += f" {without}"
    title = "Cliffs" if stay else "Runs fell" if several else "No cliff found"
    if found and not stay and not several:
        title = "No cliff survives the false-discovery control"
    return Finding("bad" if stay or several else "good", title, text)


def _single_falls(cells: Sequence[dict[str, Any]]) -> tuple[str, bool]:
    """Falls of single runs in words, and whether some cell has more than mistakes would give."""
    fell = [cell for cell in cells if cell["fell"]["runs"]]
    if not fell:
        return "", False
    said = [f"{one['fell']['runs']} of {one['fell']['of']} in {one['name']}" for one in fell]
    if len(said) > MOST_NAMED:
        runs, of = (sum(one["fell"][part] for one in fell) for part in ("runs", "of"))
        said = [f"{runs} of {of} in {counted(len(fell), 'cell')}"]
    tested = sum(bool(cell["fell"]["of"]) for cell in cells)
    certain = [one["name"] for one in fell if one["fell"]["p_value"] * tested <= FALSE_FALLS]
    text = f"Runs that fell, each judged by itself: {', '.join(said)}."
    if certain:
        text += (
            f" More than a false alarm in {100 * FALSE_FALLS:g} % of runs would give "
            f"(binomial, 5 % over all cells): {_named(certain)}."
        )
    return text, bool(certain)


def _named(names: Sequence[str]) -> str:
    """The names of cells, or how many they are where they would fill a paragraph."""
    return ", ".join(names) if len(names) <= MOST_NAMED else counted(len(names), "cell")


def _shown(failures: Sequence[Mapping[str, Any]]) -> list[Finding]:
    """In how many runs the failures are that the matrix is made to show, and what mends them."""
    if not failures:
        return []
    rows = [(failure["name"], row) for failure in failures for row in failure["cells"]]
    there = [(name, row, seed) for name, row in rows for seed in row["there"]]
    called = [one for one in there if one[2] in one[1]["called"]]
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
        f"By the rules of its file, failures are there {len(there)} times ({'; '.join(parts)}), "
        f"and the pages of these runs call them {len(called)} times. Of {len(remedies)} remedies "
        f"{len(remedies) - len(weak)} are clean in five of six seeds or more"
    )
    text += f"; not so {', '.join(weak)}." if weak else "."
    return [Finding("result", "Failures and what mends them", text)]


def _captures(cells: Sequence[dict[str, Any]]) -> Finding:
    pairs = [(cell["name"], pair) for cell in cells for pair in cell["captures"]]
    if not pairs:
        text = (
            "No run has a shared policy whose roles' gradients were measured over enough steps "
            "(train with --role-gradients)."
        )
        return Finding("unknown", "Capture was not tested", text)
    caught = [
        f"{pair['by']} captured {pair['of']} in {pair['captured']} of {pair['tested']} runs of "
        f"{name}" for name, pair in pairs if pair["captured"]
    ]  # fmt: skip
    if not caught:
        text = f"None in {counted(len(pairs), 'pair')} of roles that share a policy."
        return Finding("good", "No capture found", text)
    text = (
        "; ".join(caught) + f". Tested: {counted(len(pairs), 'pair')} of roles, each at a level of "
        "5 % and without control over pairs."
    )
    return Finding("bad", "Captured roles", text)


def _unfinished(cells: Sequence[dict[str, Any]]) -> list[Finding]:
    count = sum(cell["unfinished"] for cell in cells)
    if not count:
        return []
    text = (
        f"Not finished, and counted nowhere here: {counted(count, 'run')}. Their own pages show "
        "them."
    )
    return [Finding("warn", "The matrix is not complete", text)]


def _protocols(cells: Sequence[CellData]) -> list[str]:
    """The protocols in use, in words; more than one means that cells are not all comparable."""
    found: dict[str, None] = {}
    for cell in cells:
        take = cell.settings.get
        found.setdefault(
            f"{take('eval_problems')} {take('eval_split')} problems, one attempt each, temperature "
            f"{take('eval_temperature')}, at most {take('max_tokens')} tokens a reply"
        )
    return list(found)
