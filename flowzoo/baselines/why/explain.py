"""From a run to the settings that break it, and a change that was run and mends it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from flowzoo.baselines.diagnostics.cliff import THRESHOLD
from flowzoo.baselines.why.search import smallest_failing
from flowzoo.baselines.why.trials import Kept, Spent, Trials
from flowzoo.baselines.why.units import Unit

Verdict = Literal["sound", "explained", "not in the settings", "undecided"]


@dataclass(slots=True)
class Explanation:
    """What the reruns show."""

    verdict: Verdict = "undecided"
    fell: bool = False
    culprits: list[list[Unit]] = field(default_factory=list)
    """Smallest sets that each break a run by themselves."""
    change: list[Unit] = field(default_factory=list)
    """Settings to leave out, which was run and mended."""
    confirmed: bool = False
    """A second seed agrees with the culprits and with the change."""
    seeds: bool = True
    """The run fails under a second seed too."""
    remaining: list[Unit] = field(default_factory=list)
    """Settings that a search without an end has left."""
    parted: int | None = None
    """First step from which on the mended rerun is above the run."""


def explain(trials: Trials) -> Explanation:
    """Search within the budget of `trials`."""
    found, everything = Explanation(), frozenset(trials.case.units)
    found.remaining = list(trials.case.units)
    trials.run([(everything, trials.seed)])
    course = trials.ends(everything, trials.seed)
    assert course is not None  # `open_case` has looked
    found.fell = course.fell
    try:
        _explain(trials, found, everything)
    except Spent:
        found.verdict = "undecided"
    return found


def _explain(trials: Trials, found: Explanation, everything: Kept) -> None:
    seed, second = trials.seed, trials.seed + 1
    if not everything:
        found.verdict = "not in the settings" if found.fell else "sound"
        return
    trials.run([(frozenset(), seed)])
    if not trials.fails(everything, seed):
        found.verdict, found.remaining = "sound", []
        return
    if trials.fails(frozenset(), seed) is not False or _is_worse(trials, seed):
        found.verdict, found.remaining = "not in the settings", []
        return
    trials.run([(frozenset(), second), (everything, second)])
    found.seeds = bool(trials.fails(everything, second))
    if not found.seeds and not found.fell:
        found.verdict, found.remaining = "sound", []  # the lower end was the seed's
        return
    whole: list[Unit] = list(trials.case.units)
    while trials.fails(frozenset(whole), seed):  # causes may stand beside each other
        found.remaining = whole
        culprit = smallest_failing(
            whole, lambda sets: _failing(trials, sets, found), trials.workers
        )
        found.culprits.append(culprit)
        found.remaining = culprit
        change = _change(trials, whole, culprit)
        whole = [unit for unit in whole if unit not in change]
        found.change += change
        trials.run([(frozenset(whole), seed)])
    _confirm(trials, found, frozenset(whole), second)


def _is_worse(trials: Trials, seed: int) -> bool:
    whole = trials.gain(frozenset(), seed)
    return whole is not None and whole.high < -THRESHOLD


def _failing(trials: Trials, sets: list[list[Unit]], found: Explanation) -> list[bool]:
    trials.run([(frozenset(units), trials.seed) for units in sets])
    results = [trials.fails(frozenset(units), trials.seed) is True for units in sets]
    failed = [units for units, fails in zip(sets, results, strict=True) if fails]
    found.remaining = min([found.remaining, *failed], key=len)
    return results


def _change(trials: Trials, whole: Sequence[Unit], culprit: Sequence[Unit]) -> list[Unit]:
    """The first unit of a culprit whose absence mends, or the whole culprit."""
    rests = [frozenset(unit for unit in whole if unit != one) for one in culprit]
    trials.run([(rest, trials.seed) for rest in rests])
    for one, rest in zip(culprit, rests, strict=True):
        if trials.fails(rest, trials.seed) is False:
            return [one]
    return list(culprit)


def _confirm(trials: Trials, found: Explanation, mended: Kept, second: int) -> None:
    sets = [frozenset(culprit) for culprit in found.culprits]
    trials.run([(mended, second), *((kept, second) for kept in sets)])
    found.confirmed = trials.fails(mended, second) is False and all(
        trials.fails(kept, second) for kept in sets
    )
    found.verdict = "explained" if found.confirmed else "undecided"
    found.remaining = [] if found.confirmed else [one for units in found.culprits for one in units]
    found.parted = trials.part(mended, trials.seed)


def as_json(trials: Trials, found: Explanation) -> dict[str, Any]:
    """The explanation and every rerun as plain values."""
    rows: list[dict[str, Any]] = []
    for (kept, seed), course in trials.courses.items():
        gain = trials.gain(kept, seed)
        rows.append(
            {
                "left_out": [str(unit) for unit in trials.case.units if unit not in kept],
                "seed": seed,
                "fails": trials.fails(kept, seed),
                "fell": None if course is None else course.fell,
                "end": None if course is None else float(course.end.mean()),
                "gain": None if gain is None else gain._asdict(),
            }
        )
    facts: dict[str, Any] = dict(asdict(found))
    facts["culprits"] = [[str(unit) for unit in units] for units in found.culprits]
    for name in ("change", "remaining"):
        facts[name] = [str(unit) for unit in getattr(found, name)]
    return {**facts, "reruns": rows, "made": trials.made}
