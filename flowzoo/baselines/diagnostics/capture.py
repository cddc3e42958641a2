"""Capture: has one role taken over the policy that it shares with others?

The definition is flowzoo's; that of arXiv 2605.24202 is not public.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from flowzoo.aliases import Floats
from flowzoo.baselines.diagnostics.forms import distances
from flowzoo.errors import UsageError

WINDOW = 10
ODDS = 3.0  # as three voters of 0.75 of the tokens that have 0.9 of the mass
FIRST = 5
CLOSER = 0.5
LEVEL = 0.05  # largest p-value of a move that counts
APART = 0.01
"""Largest p-value of roles that were apart. It bounds the rate of false alarms for roles alike: two
roles that seem apart by chance come closer by chance, too."""


@dataclass(frozen=True, slots=True)
class Capture:
    """Role `by` beside role `of`; `captured` needs both halves of the definition."""

    by: str
    of: str
    captured: bool
    dominant: bool  # the first half: mass
    from_step: int | None  # first step of the first window in which `by` dominated
    moved: bool  # the second half: form
    apart_p: float
    """p-value of the two roles' first replies being of one form; large: they were alike."""
    distance_before: float
    distance_after: float
    p_value: float


def dominance(
    mass: Sequence[float], tokens: Sequence[float], steps: Sequence[int]
) -> tuple[bool, int | None]:
    """Test if a role's `mass` shares dominate over a window, and return the first such step."""
    # An absolute threshold would be wrong: three voters beside one aggregator have 0.63 of the mass
    # from noise alone. So would a difference of shares: twelve voters have 0.92 of the tokens.
    if not len(mass) == len(tokens) == len(steps):
        raise UsageError(
            f"shares and steps must be equally long, got {len(mass)}, {len(tokens)}, {len(steps)}"
        )
    mass_odds, token_odds = _log_odds(mass), _log_odds(tokens)
    if len(mass_odds) < WINDOW:
        return False, None
    first = min(mass_odds[0], mass_odds[:FIRST].mean())
    above = mass_odds - np.maximum(token_odds, first)
    # A share that was not logged is NaN, which is above nothing.
    reached = np.flatnonzero(sliding_window_view(above, WINDOW).mean(axis=1) >= math.log(ODDS))
    return (True, steps[reached[0]]) if reached.size else (False, None)


def _log_odds(shares: Sequence[float]) -> Floats:
    clipped = np.clip(np.asarray(shares, np.float64), 1e-4, 1 - 1e-4)
    return np.log(clipped / (1 - clipped))


def _relabel(rows: Floats, first_rows: int, draws: int, seed: int) -> tuple[Floats, Floats]:
    rng = np.random.default_rng(seed)
    labels = np.zeros((draws, len(rows)))
    labels[:, :first_rows] = 1
    sums = rng.permuted(labels, axis=1) @ rows
    return sums / first_rows, (rows.sum(axis=0) - sums) / (len(rows) - first_rows)


def _p_value(relabeled: Floats, real: float) -> float:
    # Rounding must not part a relabeling from the real labels that it repeats.
    return (1 + int(np.sum(relabeled >= real - 1e-9))) / (1 + len(relabeled))


def _separation(first: Floats, second: Floats, scale: Floats, draws: int) -> float:
    (far,) = distances(first.mean(axis=0)[None], second.mean(axis=0), scale)
    ones, twos = _relabel(np.concatenate([first, second]), len(first), draws, 1)
    return _p_value(distances(ones - twos, np.zeros_like(scale), scale), far)


def movement(
    before: Floats, after: Floats, target: Floats, scale: Floats, *, draws: int = 2000
) -> tuple[float, float, float]:
    """Movement of a role's replies to a signature: distance before, after, and a p-value."""
    # One-sided: how often relabeled replies come as much closer as the real ones did.
    ends = np.stack([before.mean(axis=0), after.mean(axis=0)])
    far, near = distances(ends, target, scale).tolist()
    ones, twos = _relabel(np.concatenate([before, after]), len(before), draws, 0)
    closer = distances(ones, target, scale) - distances(twos, target, scale)
    return far, near, _p_value(closer, far - near)


def find_captures(
    mass: Mapping[str, Sequence[float]],
    tokens: Mapping[str, Sequence[float]],
    steps: Sequence[int],
    before: Mapping[str, Floats],
    after: Mapping[str, Floats],
    *,
    draws: int = 2000,
) -> list[Capture]:
    """Every ordered pair of roles of one shared policy."""
    # Roles must have been apart: half of a distance that is itself noise is soon crossed, and a
    # role that always sounded like another has nothing to lose to it.
    scale = np.concatenate(list(before.values())).std(axis=0)
    apart = {
        frozenset((role, other)): _separation(before[role], before[other], scale, draws)
        for role, other in combinations(mass, 2)
    }
    heavy = {role: dominance(mass[role], tokens[role], steps) for role in mass}
    captures: list[Capture] = []
    for by, of in permutations(mass, 2):
        target = before[by].mean(axis=0)
        far, near, p_value = movement(before[of], after[of], target, scale, draws=draws)
        apart_p = apart[frozenset((by, of))]
        moved = apart_p <= APART and near <= CLOSER * far and p_value <= LEVEL
        dominant, start = heavy[by]
        captures.append(
            Capture(by, of, dominant and moved, dominant, start, moved, apart_p, far, near, p_value)
        )
    return captures
