"""Shared against isolated policies, pair by pair: peak, terminal accuracy, cliffs, captures."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from flowzoo.baselines.diagnostics.cliff import FELL, LAST
from flowzoo.baselines.report.accuracy import ENOUGH, MIN_ITEMS
from flowzoo.baselines.report.cells import CellData, CellFacts, Notes, captures, same_problems
from flowzoo.baselines.report.comparisons import (
    MIN_SEEDS,
    Side,
    budgets,
    by_seed,
    difference,
    sharing_pairs,
)
from flowzoo.baselines.report.findings import Finding
from flowzoo.baselines.report.words import pluralize
from flowzoo.baselines.stats import bootstrap, halves, peak_and_terminal
from studies.paper.estimates import BootstrapSample, mean_difference

SPLITS = 8
RESAMPLES = 400
"""Sets of problems: the standard error that they give is known to 4 %."""


class CellSamples(NamedTuple):
    """Of the runs of one cell; the peak is cross-fitted in each run by itself."""

    peak: BootstrapSample
    terminal: BootstrapSample

    @property
    def drop(self) -> BootstrapSample:
        """Peak minus terminal."""
        draws = self.peak.draws - self.terminal.draws
        return BootstrapSample(self.peak.values - self.terminal.values, draws)


def cliff_counts(cell: CellData, notes: Notes) -> tuple[int, int]:
    """Number of runs of a cell that fell, and of runs with a verdict, each by itself."""
    verdicts = [notes[run.name]["cliff"]["verdict"] for run in cell.runs if run.name in notes]
    fell = sum(verdict in FELL for verdict in verdicts)
    return fell, fell + verdicts.count("no cliff")


def cell_samples(cell: CellData) -> CellSamples:
    """Samples of the runs of `cell`, which have `LAST` + 2 evaluations or more.

    Cells of one problem set are split and resampled alike, others independently.
    """
    seed = zlib.crc32(cell.runs[0].problem_set.encode("utf-8", "surrogatepass"))
    peaks, ends, peak_draws, end_draws = [], [], [], []
    for run in cell.runs:
        rng = np.random.default_rng(seed)
        scores = run.scores[None]
        masks = halves(scores.shape[2], SPLITS, rng)
        found = peak_and_terminal(scores, masks, [LAST])
        drawn = bootstrap(scores, masks, RESAMPLES, [LAST], rng)
        peaks.append(found.peak[0, 0])
        ends.append(found.terminal[0, 0, 0])
        peak_draws.append(drawn.peak[0])
        end_draws.append(drawn.terminal[0, 0])
    return CellSamples(
        BootstrapSample(np.array(peaks), np.array(peak_draws)),
        BootstrapSample(np.array(ends), np.array(end_draws)),
    )


class Pair(NamedTuple):
    """Two cells that differ in the sharing of policies alone, and may be claimed about."""

    shared: CellData
    isolated: CellData
    samples: tuple[CellSamples, CellSamples]
    """In this order."""


def claimable_pairs(cells: Sequence[CellData]) -> list[Pair]:
    """Pairs of cells with enough seeds, evaluations and problems for a claim."""
    return [
        Pair(shared, isolated, (cell_samples(shared), cell_samples(isolated)))
        for shared, isolated in sharing_pairs(cells)
        if not _too_few(shared, isolated)
    ]


def sharing_rows(
    cells: Sequence[CellData], pairs: Sequence[Pair], notes: Notes
) -> list[dict[str, Any]]:
    """Terminal accuracy, and of `pairs`, which may be claimed about, the peak; cliffs, captures.

    Where a run has too few evaluations for a terminal accuracy, its last one is compared.
    """
    return [_row(one, other, pairs, notes) for one, other in sharing_pairs(cells)]


def _row(one: CellData, other: CellData, pairs: Sequence[Pair], notes: Notes) -> dict[str, Any]:
    runs = [*one.runs, *other.runs]
    enough = all(len(run.steps) >= ENOUGH for run in runs)
    places = slice(-LAST if enough else -1, None)
    sides = [
        Side(cell.name, [run.scores[places].mean(axis=0) for run in cell.runs])
        for cell in (one, other)
    ]
    pair = next((pair for pair in pairs if pair.shared is one and pair.isolated is other), None)
    ends = [(left, right, -1) for left, right in by_seed(one, other)]
    caught = captures(one, notes)
    return {
        **difference(*sides, paired=same_problems(one, other)),
        "axes": [one.axis(name) for name in ("workflow", "task", "model")],
        "terminal": enough,
        "peak": pair and _estimate(*(samples.peak for samples in pair.samples)),
        "cliffs": [list(cliff_counts(cell, notes)) for cell in (one, other)],
        "captures": [_captured(caught), max((pair["tested"] for pair in caught), default=0)],
        "parity": budgets(ends),
    }


def _estimate(one: BootstrapSample, other: BootstrapSample) -> dict[str, Any]:
    estimate = mean_difference([(one, other)])
    levels = [float(np.mean(side.values)) for side in (one, other)]
    return {"mean": estimate.mean, "low": estimate.low, "high": estimate.high, "levels": levels}


def _captured(caught: Sequence[CellFacts]) -> int:
    """Runs in which the pair of roles that was captured most often was."""
    return max((pair["captured"] for pair in caught), default=0)


def _too_few(one: CellData, two: CellData) -> bool:
    """Reason against claims on a pair: too small, or evaluated on different problems."""
    runs = [*one.runs, *two.runs]
    return (
        min(len(one.runs), len(two.runs)) < MIN_SEEDS
        or not same_problems(one, two)
        or len({run.scores.shape[1] for run in runs}) > 1
        or min(len(run.steps) for run in runs) < ENOUGH
        or runs[0].scores.shape[1] < MIN_ITEMS
    )


def sharing_finding(pairs: Sequence[Mapping[str, Any]]) -> Finding:
    """The comparisons of all pairs in a sentence."""
    if not pairs:
        text = "No two cells differ in the sharing of policies alone."
        return Finding("unknown", "Shared and isolated policies were not compared", text)
    claims = [pair for pair in pairs if not pair["claim"].startswith("no claim")]
    if not claims:
        text = (
            f"{pluralize(len(pairs), 'pair')} of cells in which only the sharing differs, but none "
            f"has {MIN_SEEDS} seeds on both sides, so nothing is claimed."
        )
        return Finding("unknown", "Shared against isolated: too few seeds for a claim", text)
    counts = {
        word: sum(pair["claim"] == word for pair in claims)
        for word in ("higher", "lower", "cannot be told apart")
    }
    text = (
        f"Of {pluralize(len(claims), 'pair')} with {MIN_SEEDS} seeds or more on both sides, "
        f"isolated policies end higher in {counts['higher']}, lower in {counts['lower']}, and "
        f"cannot be told from shared ones in {counts['cannot be told apart']} (95 % t interval "
        "over seeds, pair by pair)."
    )
    return Finding("result", "Shared against isolated policies", text)
