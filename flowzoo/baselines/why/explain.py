"""From a run to the settings that break it, and a change that was run and mends it."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from flowzoo.aliases import T
from flowzoo.baselines.diagnostics.cliff import THRESHOLD
from flowzoo.baselines.run.reading import read_run
from flowzoo.baselines.why.trials import Spent, Subset, Trials
from flowzoo.baselines.why.units import Unit, open_case
from flowzoo.files import write_json

Verdict = Literal["sound", "explained", "not in the settings", "undecided"]


@dataclass(slots=True)
class Explanation:
    """Verdict of the reruns, with its evidence."""

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


def explain_run(
    folder: Path, out: Path, *, workers: int, runs: int, minutes: float, say: Callable[[str], None]
) -> dict[str, Any]:
    """Explain the run in `folder` by reruns in `out`, and write the result as `why.json` there.

    Args:
        folder: a finished run; nothing in it is changed.
        out: keeps finished reruns, which later calls read.
        workers: number of reruns at once.
        runs: most reruns of this call.
        minutes: most minutes of this call.
        say: gets a line for every rerun that has ended.

    Raises:
        UsageError: the run cannot be explained here; the message says what can be done.
    """
    case = open_case(read_run(folder, str(folder)))
    trials = Trials(case, out, workers, runs, minutes, say)
    explanation = explain(trials)
    spent = round((time.monotonic() - trials.began) / 60, 1)
    facts = {"run": str(folder), **as_json(trials, explanation), "minutes": spent}
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / "why.json", facts)
    return facts


def explain(trials: Trials) -> Explanation:
    """Search within the budget of `trials`."""
    explanation, everything = Explanation(), frozenset(trials.case.units)
    explanation.remaining = list(trials.case.units)
    trials.run([(everything, trials.seed)])
    course = trials.courses[everything, trials.seed]
    assert course is not None  # `open_case` has looked
    explanation.fell = course.fell
    try:
        explanation.verdict = _explain(trials, explanation, everything)
    except Spent:
        return explanation
    if explanation.verdict != "undecided":
        explanation.remaining = []
    return explanation


def _explain(trials: Trials, explanation: Explanation, everything: Subset) -> Verdict:
    nothing: Subset = frozenset()
    seed, second = trials.seed, trials.seed + 1
    if not everything:
        return "not in the settings" if explanation.fell else "sound"
    trials.run([(nothing, seed)])
    if not trials.fails(everything, seed):
        return "sound"
    whole_gain = trials.gain(nothing, seed)
    worse = whole_gain is not None and whole_gain.high < -THRESHOLD
    if trials.fails(nothing, seed) is not False or worse:
        return "not in the settings"
    trials.run([(nothing, second), (everything, second)])
    explanation.seeds = bool(trials.fails(everything, second))
    if not explanation.seeds and not explanation.fell:
        return "sound"  # the lower end was the seed's
    whole: list[Unit] = list(trials.case.units)
    while trials.fails(frozenset(whole), seed):  # causes may stand beside each other
        explanation.remaining = whole
        culprit = smallest_failing(
            whole, lambda sets: _failing(trials, sets, explanation), trials.workers
        )
        explanation.culprits.append(culprit)
        explanation.remaining = culprit
        change = _change(trials, whole, culprit)
        whole = [unit for unit in whole if unit not in change]
        explanation.change += change
        trials.run([(frozenset(whole), seed)])
    mended, sets = frozenset(whole), list(map(frozenset, explanation.culprits))
    trials.run([(mended, second), *((subset, second) for subset in sets)])
    explanation.confirmed = trials.fails(mended, second) is False and all(
        trials.fails(subset, second) for subset in sets
    )
    explanation.remaining = [unit for units in explanation.culprits for unit in units]
    explanation.parted = trials.part(mended, seed)
    return "explained" if explanation.confirmed else "undecided"


def smallest_failing(
    items: Sequence[T], failing: Callable[[list[list[T]]], list[bool]], parallel: int = 1
) -> list[T]:
    """Reduce a set that fails until none of its items can be left out: delta debugging.

    After A. Zeller and R. Hildebrandt, IEEE Trans. Softw. Eng. 28 (2002) 183, and U. Junker, AAAI
    2004, 167. Sets of settings take the place of lines of input; what cannot be run counts as not
    failing.

    Each item of the result ends the shortest start of `items` that fails with those before
    it. `failing` tests up to `parallel` sets at once; that no item fails is known.
    """
    result: list[T] = []
    left = list(items)
    while left and not (result and failing([result])[0]):
        low, high = 0, len(left)  # a start of `high` items fails, one of `low` does not
        while high - low > 1:
            count = min(parallel, high - low - 1)
            cuts = [low + (high - low) * (i + 1) // (count + 1) for i in range(count)]
            results = failing([[*left[:cut], *result] for cut in cuts])
            high = min((cut for cut, fails in zip(cuts, results, strict=True) if fails),
                       default=high)  # fmt: skip
            low = max((cut for cut in cuts if cut < high), default=low)
        result = [left[high - 1], *result]
        left = left[: high - 1]
    return result


def _failing(trials: Trials, sets: list[list[Unit]], explanation: Explanation) -> list[bool]:
    trials.run([(frozenset(units), trials.seed) for units in sets])
    results = [trials.fails(frozenset(units), trials.seed) is True for units in sets]
    failed = [units for units, fails in zip(sets, results, strict=True) if fails]
    explanation.remaining = min([explanation.remaining, *failed], key=len)
    return results


def _change(trials: Trials, whole: Sequence[Unit], culprit: Sequence[Unit]) -> list[Unit]:
    """The first unit of a culprit whose absence mends, or the whole culprit."""
    rests = [frozenset(unit for unit in whole if unit != member) for member in culprit]
    trials.run([(rest, trials.seed) for rest in rests])
    for member, rest in zip(culprit, rests, strict=True):
        if trials.fails(rest, trials.seed) is False:
            return [member]
    return list(culprit)


def as_json(trials: Trials, explanation: Explanation) -> dict[str, Any]:
    """The explanation and every rerun as plain values."""
    rows: list[dict[str, Any]] = []
    for (subset, seed), course in trials.courses.items():
        gain = trials.gain(subset, seed)
        rows.append(
            {
                "left_out": trials.left_out(subset),
                "seed": seed,
                "fails": trials.fails(subset, seed),
                "fell": None if course is None else course.fell,
                "end": None if course is None else float(course.end.mean()),
                "gain": None if gain is None else gain._asdict(),
            }
        )
    names = {name: list(map(str, getattr(explanation, name))) for name in ("change", "remaining")}
    culprits = [list(map(str, units)) for units in explanation.culprits]
    facts = asdict(explanation) | names | {"culprits": culprits}
    return {**facts, "reruns": rows, "made": trials.count}
