"""Peak, terminal accuracy and drop of the runs of a cell, for differences between cells."""

from __future__ import annotations

import zlib
from typing import NamedTuple

import numpy as np

from flowzoo.baselines.diagnostics.cliff import LAST
from flowzoo.baselines.diagnostics.cross_fit import bootstrap, halves, peak_and_terminal
from flowzoo.baselines.report.cells import CellData
from flowzoo.baselines.report.claim_tests import BootstrapSample

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
