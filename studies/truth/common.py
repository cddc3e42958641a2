"""Shared parts of the tables of `studies.truth_tables`."""

from __future__ import annotations

import math
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from scipy.stats import binomtest

from flowzoo.aliases import Floats

EVALUATIONS = 20
RESAMPLES = 200
PLANTED: dict[str, Any] = tomllib.loads(
    Path(__file__).with_name("truth.toml").read_text(encoding="utf-8")
)


Part = Literal[
    "cliff", "falls", "watch", "checkers", "dead", "blame", "spikes", "amplification", "capture",
]  # fmt: skip


@dataclass(frozen=True)
class Options:
    """Sizes of the simulations."""

    parts: tuple[Part, ...] = get_args(Part)
    """Tables to print."""
    simulations: int = 1000
    """Cells of each row of noise; runs of each row of the other tables."""
    power_simulations: int = 300
    """Cells of each other row of the cliff table."""
    blames: int = 20
    """Pairs of transcripts of each row of the table of blame; a second or two each."""
    items: tuple[int, ...] = (60, 160, 500, 1412)
    """Held-out items of the cliff table."""
    out: Path | None = None
    """Folder for a JSON file of every table."""
    seed: int = 0
    """Of everything random."""


def upper_bound(found: int, of: int) -> float:
    """Upper end of the exact two-sided 95 % interval of a rate."""
    return float(binomtest(found, of).proportion_ci(method="exact").high)


def error(values: Floats) -> str:
    """Mean with its standard error, in points."""
    return f"{100 * values.mean():+6.2f} +-{100 * values.std(ddof=1) / math.sqrt(len(values)):5.2f}"
