"""Collapse of a run, tested on its metrics after every evaluation while it trains."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from flowzoo.aliases import Floats

Row = Mapping[str, Any]
CollapseKind = Literal["fall", "checker", "candidates", "form"]

FALL = 0.10
BLIND, SEEING = 0.2, 0.4
LOST = 0.25
Z_LOOKS = 3.5
"""Standard errors that a change must have: one-sided 2.3e-4 a comparison, of which a run of 20
evaluations makes some hundred."""
Z_FALL = 3.0
"""Standard errors of each of two evaluations that must both show a fall: one-sided 1.3e-3 if one is
truly low and the other is not, and far less if neither is."""
FEWEST_CASES = 10  # cases below which a share of one evaluation is not looked at
_CHECKED = {
    "evaluator_tpr": ("evaluator", "of the right answers it accepts"),
    "evaluator_tnr": ("evaluator", "of the wrong answers it rejects"),
    "verifier_tpr": ("verifier", "of the sufficient evidence it accepts"),
    "verifier_tnr": ("verifier", "of the insufficient evidence it rejects"),
}


class Collapse(NamedTuple):
    """A collapse and its evidence."""

    kind: CollapseKind
    what: str  # the team, or the role
    since: int  # step of the first of the two evaluations that show it
    step: int  # step of the last evaluation, at which it was found
    text: str  # one line


def find_collapse(rows: Sequence[Row]) -> Collapse | None:
    """The first collapse that the last of `rows` shows, which are the metrics of a run so far."""
    # It is asked again and again, so it needs more than a report does: the last two evaluations
    # must agree.
    if not rows or not rows[-1].get("eval/scores"):
        return None
    evaluations = [row for row in rows if row.get("eval/scores")]
    if len(evaluations) < 3:
        return None
    return next(_find_each(evaluations), None)


def _find_each(evaluations: Sequence[Row]) -> Iterator[Collapse]:
    yield from _falls(evaluations)
    for name, (role, phrase) in _CHECKED.items():
        yield from _blind(evaluations, name, role, phrase)
    yield from _find_loss(evaluations, "eval/share/any_correct", "candidates", "the candidates",
                     "of the episodes have a right one")  # fmt: skip
    start = "eval/strict/"
    for name in evaluations[-1]:
        if name.startswith(start):
            phrase = "of its replies are read by the strict parser"
            yield from _find_loss(evaluations, name, "form", name.removeprefix(start), phrase)


def _falls(evaluations: Sequence[Row]) -> Iterator[Collapse]:
    # Judged by the mean of two, a run whose dip is over would be called: one low value will do.
    if len({len(row["eval/scores"]) for row in evaluations}) > 1:
        return
    scores = np.array([row["eval/scores"] for row in evaluations], np.float64)
    means = scores.mean(axis=1)
    best = int(means[:-2].argmax())
    gaps = scores[best] - scores[-2:].mean(axis=0)
    fall, error = float(gaps.mean()), _error(gaps)
    both = [scores[best] - gap for gap in scores[-2:]]
    if all(gap.mean() >= FALL and gap.mean() > Z_FALL * _error(gap) for gap in both):
        text = f"{_change(evaluations, best, means[best], means[-2:].mean())}: a fall of "
        text += f"{100 * fall:.1f} points, standard error {100 * error:.1f}"
        yield _collapse(evaluations, "fall", "the team", f"the held-out accuracy went {text}")


def _blind(evaluations: Sequence[Row], name: str, role: str, phrase: str) -> Iterator[Collapse]:
    share, cases = _shares(evaluations, f"eval/share/{name}")
    ends, weights = share[-2:], cases[-2:]
    if not np.isfinite(ends).all() or weights.min() < FEWEST_CASES or ends.max() > BLIND:
        return
    earlier = np.where(cases[:-2] >= FEWEST_CASES, share[:-2], np.nan)
    if not np.isfinite(earlier).any() or np.nanmax(earlier) < SEEING:
        return
    best = int(np.nanargmax(earlier))
    end = float((ends * weights).sum() / weights.sum())
    if _apart(float(earlier[best]), cases[best], end, weights.max()):
        phrase = f"the {role} gives one verdict: {phrase} {100 * end:.1f} %"
        text = (
            f"{phrase}, where it was {100 * earlier[best]:.1f} % at step {_step(evaluations, best)}"
        )
        yield _collapse(evaluations, "checker", role, text)


def _find_loss(
    evaluations: Sequence[Row], name: str, kind: CollapseKind, what: str, phrase: str
) -> Iterator[Collapse]:
    share, cases = _shares(evaluations, name)
    if not np.isfinite(share[-2:]).all() or not np.isfinite(share[:-2]).any():
        return
    best = int(np.nanargmax(share[:-2]))
    top, end = float(share[best]), float(share[-2:].mean())
    low = max(share[-2:]) <= top / 2 and top - max(share[-2:]) >= LOST
    if low and _apart(top, cases[best], end, cases[-2:].min()):
        text = f"{what}: {100 * end:.1f} % {phrase}, where it was {100 * top:.1f} % at step "
        yield _collapse(evaluations, kind, what, f"{text}{_step(evaluations, best)}")


def _shares(evaluations: Sequence[Row], name: str) -> tuple[Floats, Floats]:
    of = name.replace("eval/share/", "eval/share_of/")
    share = [row.get(name, math.nan) for row in evaluations]
    items = [len(row["eval/scores"]) for row in evaluations]
    cases = [
        min(row.get(of, 0), most) if of != name else most
        for row, most in zip(evaluations, items, strict=True)
    ]
    return np.array(share, np.float64), np.array(cases, np.float64)


def _apart(first: float, first_of: float, second: float, second_of: float) -> bool:
    # One case more of either kind in both, so that shares of 0 and 1 have an error too.
    error = 0.0
    for share, cases in ((first, first_of), (second, second_of)):
        smoothed = (share * cases + 1) / (cases + 2)
        error += smoothed * (1 - smoothed) / (cases + 2)
    return abs(first - second) > Z_LOOKS * math.sqrt(error)


def _error(gaps: Floats) -> float:
    return float(gaps.std(ddof=1)) / math.sqrt(len(gaps)) if len(gaps) > 1 else math.inf


def _change(evaluations: Sequence[Row], best: int, top: float, end: float) -> str:
    pair = f"steps {_step(evaluations, -2)} and {_step(evaluations, -1)}"
    return (
        f"from {100 * top:.1f} % at step {_step(evaluations, best)} to {100 * end:.1f} % ({pair})"
    )


def _step(evaluations: Sequence[Row], index: int) -> int:
    return int(evaluations[index]["step"])


def _collapse(evaluations: Sequence[Row], kind: CollapseKind, what: str, text: str) -> Collapse:
    return Collapse(kind, what, _step(evaluations, -2), _step(evaluations, -1), text)
