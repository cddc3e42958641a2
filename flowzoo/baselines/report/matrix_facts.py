"""Facts and findings of several runs, as plain values for their page."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from flowzoo.baselines.diagnostics.cliff import FELL
from flowzoo.baselines.matrix.failures import FailureMode
from flowzoo.baselines.matrix.jobs import TrainingJob
from flowzoo.baselines.matrix.parity import NEAR, training_cost
from flowzoo.baselines.report.cells import (
    FALSE_FALLS,
    JUDGED,
    RATE,
    CellData,
    CellFacts,
    Notes,
    cell_facts,
    group_cells,
    mark_discoveries,
)
from flowzoo.baselines.report.comparisons import against_controls, compared_budgets
from flowzoo.baselines.report.failures import failure_facts
from flowzoo.baselines.report.findings import Facts, Finding
from flowzoo.baselines.report.words import pluralize, points
from flowzoo.baselines.run.reading import RunData
from flowzoo.baselines.stats import mean_and_error, paired_gain
from flowzoo.errors import DataError

MOST_NAMED = 5  # cells that a sentence names; it counts more of them


def tables(runs: Sequence[TrainingJob]) -> Facts:
    """The tables of all finished runs, in the matrix's order, and the sum of their wall times."""
    finished = [run.data() for run in runs if run.state == "finished"]
    for data in finished:
        if len(data.evaluations) < 2:
            raise DataError(f"{data.folder / 'metrics.jsonl'} has fewer than two evaluations")
    order = list(dict.fromkeys(run.cell.name for run in runs))
    cells = sorted(group_cells(finished), key=lambda cell: order.index(cell.name))
    controls = against_controls(cells)
    return {
        "cells": list(map(_cell_row, cells)),
        "controls": controls,
        "parity": compared_budgets(cells, controls),
        "runs": len(finished),
        "minutes": sum(_minutes(data) for data in finished),
    }


def _cell_row(cell: CellData) -> Facts:
    # Accuracies and gains are fractions. All seeds have the same items, so an item's mean over
    # seeds is the paired unit. `se` is of the spread over seeds; costs are means over seeds.
    before, after = cell.item_means(slice(0, 1)), cell.item_means(slice(-1, None))
    gain = paired_gain(before.tolist(), after.tolist())
    cost = [training_cost(run) for run in cell.runs]
    return {
        "cell": cell.name, "seeds": len(cell.runs),
        "before": float(before.mean()), "after": float(after.mean()),
        "gain": gain.mean, "low": gain.low, "high": gain.high,
        "se": mean_and_error(np.array(cell.gains))[1] if len(cell.runs) > 1 else math.nan,
        "lowest": min(cell.gains), "items": gain.n,
        "tokens": round(float(np.mean([run.tokens for run in cost]))),
        "updates": float(np.mean([run.updates for run in cost])),
        "minutes": float(np.mean([_minutes(run) for run in cell.runs])),
    }  # fmt: skip


def as_text(tables: Facts) -> str:
    """The tables as Markdown; percentages and points."""
    parts = [_cell_lines(tables["cells"])]
    if tables["controls"]:
        parts.append(_control_lines(tables["controls"]))
    if tables["parity"]:
        parts.append(parity_lines(tables["parity"]))
    minutes = f"{tables['minutes']:.0f} minutes"
    parts.append([f"{tables['runs']} finished runs took {minutes} in all."])
    return "\n".join("\n".join(lines) + "\n" for lines in parts)


def parity_lines(rows: Sequence[Facts]) -> list[str]:
    """The budgets of compared cells as Markdown."""
    lines = [
        f"Budgets of compared cells; ! where a ratio is further from 1 than {100 * NEAR:g} %:",
        "",
        "| first | second | seeds | tokens | ratio | optimizer steps per policy | ratio |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        tokens, updates = row["tokens"], row["updates"]
        marks = [" !" if name in row["flags"] else "" for name in ("tokens", "optimizer steps")]
        lines.append(
            f"| {row['one']} | {row['other']} | {row['seeds']} | {tokens[0]:,.0f} / "
            f"{tokens[1]:,.0f} | {row['ratios'][0]:.3f}{marks[0]} | {updates[0]:.1f} / "
            f"{updates[1]:.1f} | {row['ratios'][1]:.3f}{marks[1]} |"
        )
    return lines


def _cell_lines(rows: Sequence[Facts]) -> list[str]:
    return [
        "| cell | seeds | before | after | gain | 95 % interval | s.e. over seeds | lowest | items "
        "| tokens | optimizer steps per policy | minutes |",
        "|---|---:|---:|---:|---:|---|---:|---:|---:|---:|---:|---:|",
        *(
            f"| {row['cell']} | {row['seeds']} | {100 * row['before']:.1f} % | "
            f"{100 * row['after']:.1f} % | {100 * row['gain']:+.1f} | "
            f"{_interval(row['low'], row['high'])} | {100 * row['se']:.1f} | "
            f"{100 * row['lowest']:+.1f} | {row['items']} | {row['tokens']:,} | "
            f"{row['updates']:.1f} | {row['minutes']:.1f} |"
            for row in rows
        ),
    ]


def _control_lines(rows: Sequence[Facts]) -> list[str]:
    lines = [
        "Workflow minus control at the last evaluation, in points:",
        "",
        "| cell | control | equal | seeds | cell | control | difference | 95 % interval | votes |",
        "|---|---|---|---:|---:|---:|---:|---|---:|",
    ]
    for row in rows:
        control, cell = row["levels"]
        votes = "" if row["votes"] is None else f"{row['votes']:g}"
        low, high = row["low"], row["high"]
        interval = "" if low is None or high is None else _interval(low, high)
        lines.append(
            f"| {row['other']} | {row['one']} | {row['equal']} | {row['seeds'][1]} | "
            f"{100 * cell:.1f} % | {100 * control:.1f} % | {100 * row['mean']:+.1f} | "
            f"{interval} | {votes} |"
        )
    return lines


def _interval(low: float, high: float) -> str:
    return f"{100 * low:+.1f} to {100 * high:+.1f}"


def _minutes(run: RunData) -> float:
    return run.rows[-1]["time/total"] / 60


def matrix_facts(
    runs: Sequence[RunData],
    pages: Mapping[str, str],
    notes: Notes,
    failures: Sequence[FailureMode] = (),
) -> Facts:
    """The facts of several runs; `pages` and `notes` have addresses and facts by name."""
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
    findings = _failures(failure_rows)
    findings += [_gains(facts), _cliffs(facts, judged), _captures(facts)]
    unfinished = sum(len(cell.unfinished) for cell in cells)
    if unfinished:
        text = (
            f"{pluralize(unfinished, 'unfinished run')} left out of all figures here; their own "
            "pages show them."
        )
        findings.append(Finding("warn", "The matrix is not complete", text))
    return {
        "cells": facts,
        "pays": all(run.pays for run in runs),
        "failures": failure_rows,
        "judged": judged,
        "rate": RATE,
        "controls": controls,
        "budgets": compared_budgets(cells, controls),
        "protocols": _protocols(cells),
        "findings": [finding.as_facts() for finding in findings],
    }  # fmt: skip


def _gains(cells: Sequence[CellFacts]) -> Finding:
    finished = [cell for cell in cells if cell["gain"] is not None]
    if not finished:
        return Finding("unknown", "No finished cell", "There are no results yet.")
    up = sum(cell["gain"]["low"] > 0 for cell in finished)
    down = sum(cell["gain"]["high"] < 0 for cell in finished)
    best = max(finished, key=lambda cell: cell["gain"]["mean"])
    text = (
        f"Of {pluralize(len(finished), 'cell')}, {up} ended above step 0 and {down} below it with "
        f"a 95 % interval over problems that excludes 0; for the other {len(finished) - up - down} "
        "the gain is not significant. These intervals hold one by one, not together. The largest "
        f"gain, {points(best['gain']['mean'], sign=True)} points, is that of {best['name']}; being "
        "the largest, it is biased upwards."
    )
    return Finding("bad" if down else "good", "Gains over step 0", text)


def _cliffs(cells: Sequence[CellFacts], judged: int) -> Finding:
    fell = [cell["name"] for cell in cells if cell["cliff"]["verdict"] in FELL]
    stay = [cell["name"] for cell in cells if cell["cliff"].get("discovery")]
    verdicts = [cell["cliff"] for cell in cells if cell["cliff"]["verdict"] not in JUDGED]
    reasons = "; ".join(dict.fromkeys(verdict["why"] or verdict["verdict"] for verdict in verdicts))
    without = f"No verdict for {pluralize(len(verdicts), 'cell')}: {reasons}."
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


def _single_falls(cells: Sequence[CellFacts]) -> tuple[str, bool]:
    fell = [cell for cell in cells if cell["fell"]["runs"]]
    if not fell:
        return "", False
    counts = [f"{cell['fell']['runs']} of {cell['fell']['of']} in {cell['name']}" for cell in fell]
    if len(counts) > MOST_NAMED:
        runs, of = (sum(cell["fell"][part] for cell in fell) for part in ("runs", "of"))
        counts = [f"{runs} of {of} in {pluralize(len(fell), 'cell')}"]
    tested = sum(bool(cell["fell"]["of"]) for cell in cells)
    certain = [cell["name"] for cell in fell if cell["fell"]["p_value"] * tested <= FALSE_FALLS]
    text = f"Runs that fell, each judged by itself: {', '.join(counts)}."
    if certain:
        few = len(certain) <= MOST_NAMED
        names = ", ".join(certain) if few else pluralize(len(certain), "cell")
        text += (
            f" More than a false alarm in {100 * FALSE_FALLS:g} % of runs would give "
            f"(binomial, 5 % over all cells): {names}."
        )
    return text, bool(certain)


def _failures(failures: Sequence[Facts]) -> list[Finding]:
    if not failures:
        return []
    rows = [(failure["name"], row) for failure in failures for row in failure["cells"]]
    there = [(name, row, seed) for name, row in rows for seed in row["there"]]
    called = [seed for _, row, seed in there if seed in row["called"]]
    parts = [
        f"{failure['name']} {sum(len(row['there']) for row in failure['cells'])}"
        for failure in failures
    ]
    remedies = [(name, row) for name, row in rows if row["part"] == "remedies"]
    weak = {
        row["label"]: f"{row['label']} of {name} ({len(row['clean'])} of {len(row['seeds'])})"
        for name, row in remedies
        if len(row["clean"]) * 6 < len(row["seeds"]) * 5
    }
    # A cell may be the remedy of two failures, and is one remedy.
    count = len({row["label"] for _, row in remedies})
    text = (
        f"By the rules of its file, failures are present {len(there)} times ({'; '.join(parts)}), "
        f"and the pages of these runs call them {len(called)} times. Of {count} remedies "
        f"{count - len(weak)} are clean of their own failure in five of six seeds or more"
    )
    text += f"; not so {', '.join(weak.values())}." if weak else "."
    return [Finding("result", "Failures and remedies", text)]


def _captures(cells: Sequence[CellFacts]) -> Finding:
    pairs = [(cell["name"], pair) for cell in cells for pair in cell["captures"]]
    if not pairs:
        text = (
            "No run has a shared policy whose roles' gradients were measured over enough steps "
            "(train with --role-gradients)."
        )
        return Finding("unknown", "Capture not tested", text)
    tested = f"{pluralize(len(pairs), 'pair')} of roles"
    captured = [
        f"{pair['by']} captured {pair['of']} in {pair['captured']} of {pair['tested']} runs of "
        f"{name}" for name, pair in pairs if pair["captured"]
    ]  # fmt: skip
    if not captured:
        return Finding("good", "No capture found", f"None in {tested} that share a policy.")
    text = (
        f"{'; '.join(captured)}. Tested: {tested}, each at a level of 5 % and without control over "
        "pairs."
    )
    return Finding("bad", "Captured roles", text)


def _protocols(cells: Sequence[CellData]) -> list[str]:
    # With more than one, not all cells are comparable.
    settings = [cell.settings.get for cell in cells]
    protocols = (
        f"{take('eval_problems')} {take('eval_split')} problems, one attempt each, temperature "
        f"{take('eval_temperature')}, at most {take('eval_max_tokens') or take('max_tokens')} "
        "tokens a reply"
        for take in settings
    )
    return list(dict.fromkeys(protocols))
