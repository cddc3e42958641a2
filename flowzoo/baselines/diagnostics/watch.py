"""Watch over a run's evaluations: alarms with a bound on the chance of any false one.

A *fall* is a mean of two or four evaluations in a row that is `MARGIN` or more below an earlier
mean. Every measure has an e-process: the sum over evaluations of e-values against "no fall shows
here", whose weights add up to 1. Its expectation never exceeds 1 in a run without a fall, so by
Markov's inequality it ever reaches `measures / RATE` with probability `RATE / measures` or less,
and any measure does with `RATE` or less, however long the run is and however its evaluations depend
on each other. An e-value is a bet on the differences by problem (Waudby-Smith and Ramdas, J. R.
Stat. Soc. B 86 (2024) 1), averaged over stakes and earlier levels. It assumes that held-out
problems are independent draws which training does not see, and values from 0 to 1. An alarm also
needs both of the last two evaluations to be low by themselves, since one dip is no fall.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from flowzoo.aliases import Floats
from flowzoo.baselines.diagnostics.checkers import Row
from flowzoo.baselines.diagnostics.pay import has_pay
from flowzoo.baselines.stats import mean_and_error

RATE = 0.01
"""Largest chance of any alarm in a run without a fall."""
MARGIN = 0.02
"""Loss that is no fall."""
STAKES = (0.15, 0.4, 0.7, 0.95)
LEVELS = (1, 2, 4, 8)
"""Numbers of earlier evaluations whose mean is a level."""
ENDS = (2, 4)
"""Numbers of last evaluations whose mean is compared with it."""
LOW = 2.5
"""Standard errors by which each of the last two must be below a level."""
LOOK_BACK = 40
"""Earlier evaluations with which a new one is compared."""
FIRST_BLOCK = 32
"""Evaluations that share half of the weight; the next blocks are twice as long, with half of it."""
TEAM = ""
SCORES = "eval/scores"
EVENTS = "watch/events"
"""Metric of a step that showed falls: a table of each, see `FallAlarm.as_event`."""
ROLLBACK = "watch/rollback"
"""Metric of a step after which a run went back: the step whose weights it went on with."""
BY_PROBLEM = "eval/of_problem/"
"""Start of the metrics that have one value for every problem."""
_WORDS = {
    "role_score": "right replies", "strict": "readable replies",
    "any_correct": "problems with a right candidate",
    "evaluator_tpr": "right answers accepted", "evaluator_tnr": "wrong answers rejected",
    "verifier_tpr": "sufficient evidence accepted",
    "verifier_tnr": "insufficient evidence rejected",
}  # fmt: skip


class FallAlarm(NamedTuple):
    """A fall, with a bound on the chance of such an alarm in a run without one."""

    role: str
    """Role in which it shows; empty: the team, or its candidates."""
    measure: str
    since: int
    """Step of the first evaluation from which on all are below the earlier level."""
    step: int
    """Step of the evaluation that shows it."""
    best: int
    """Step of the evaluation, the last of its window, that is compared with."""
    before: float
    now: float
    chance: float
    """Bound on the chance of an alarm as clear as this in a run without a fall."""

    def as_event(self) -> dict[str, Any]:
        """The alarm as plain values, with its text."""
        return {**self._asdict(), "text": self.text}

    @property
    def text(self) -> str:
        """The alarm in one line."""
        what = f"{self.role}: {self.measure}" if self.role else self.measure
        odds = f"{min(1 / self.chance, 1e9):,.0f}" if self.chance else "1,000,000,000"
        return (
            f"a fall since step {self.since}: {what} from {100 * self.before:.1f} % at step "
            f"{self.best} to {100 * self.now:.1f} % at step {self.step} (a run without a fall "
            f"has such an alarm at most once in {odds})"
        )


class Watch:
    """Follows the evaluations of a run, given row by row, and says once what falls."""

    def __init__(self) -> None:
        self._measures: dict[str, list[Floats]] = {}
        """Values by measure, one array of problems for every evaluation."""
        self._logs: dict[str, float] = {}
        """Logarithm of every measure's e-process."""
        self._steps: list[int] = []
        self._told: set[tuple[str, bool]] = set()

    def add(self, row: Row) -> list[FallAlarm]:
        """Take the next row of metrics and return its new alarms, the clearest first."""
        alarms: list[FallAlarm] = []
        if row.get(SCORES) and not has_pay([row]):
            self._take(row)
            for name, course in self._measures.items():
                if len(course) == len(self._steps):
                    alarms += self._test(name, course)
        alarms.sort(key=lambda alarm: alarm.chance)
        # One alarm for the skill of a role, one for its form.
        by_kind = {(alarm.role, alarm.measure == _WORDS["strict"]): alarm for alarm in alarms[::-1]}
        new = [by_kind[kind] for kind in list(by_kind)[::-1] if kind not in self._told]
        self._told |= by_kind.keys()
        if ROLLBACK in row:
            self.restart()
        return new

    def restart(self) -> None:
        """Forget all evaluations: what follows begins at an earlier level."""
        for part in (self._measures, self._logs, self._steps, self._told):
            part.clear()

    def suspect(self) -> str:
        """The role whose measures speak most for a fall; empty: none does."""
        logs = {name: log for name, log in self._logs.items() if role_of_measure(name) and log > 0}
        return role_of_measure(max(logs, key=logs.__getitem__)) if logs else TEAM

    def _take(self, row: Row) -> None:
        values = {SCORES: row[SCORES]}
        values |= {name: row[name] for name in row if name.startswith(BY_PROBLEM)}
        if not self._steps:
            self._measures |= {name: [] for name in values}
            self._logs |= dict.fromkeys(values, -math.inf)
        self._steps.append(int(row["step"]))
        for name, course in self._measures.items():
            array = np.array(values.get(name, ()), np.float64)
            # A measure that another evaluation lacks, or that has other values, is left alone.
            usual = not course or course[0].shape == array.shape
            numbers = array[np.isfinite(array)]
            if usual and numbers.size and numbers.min() >= 0 and numbers.max() <= 1:
                course.append(array)

    def _test(self, name: str, course: Sequence[Floats]) -> list[FallAlarm]:
        logs: list[float] = []
        best: tuple[float, Floats, int] | None = None
        for count in ENDS:
            levels, ends = _levels(course[: len(course) - count])
            if not ends:
                continue
            end_means = np.mean(np.stack(course[-count:]), axis=0)  # NaN where one has no value
            evidence = _log_e_values(levels - end_means)
            logs.append(float(np.logaddexp.reduce(evidence)) - math.log(len(ends)))
            index = int(evidence.argmax())
            if best is None or evidence[index] > best[0]:
                best = float(evidence[index]), levels[index], ends[index]
        if best is None:
            return []
        _, level, end = best
        mixed = float(np.logaddexp.reduce(logs)) - math.log(len(logs))
        weighted = mixed + _log_weight(len(course) - 1)
        self._logs[name] = float(np.logaddexp(self._logs[name], weighted))
        log_chance = math.log(len(self._measures)) - self._logs[name]
        low = all(_is_low(level - values) for values in course[-2:])
        if log_chance > math.log(RATE) or not low:
            return []
        before, since = float(np.nanmean(level)), len(course) - 1
        while since - 1 > end and np.nanmean(course[since - 1]) <= before - MARGIN:
            since -= 1
        now = float(np.nanmean(course[-1]))
        kind = name.removeprefix(BY_PROBLEM).partition("/")[0]
        measure = "held-out accuracy" if name == SCORES else _WORDS.get(kind, kind)
        return [
            FallAlarm(
                role_of_measure(name), measure, self._steps[since], self._steps[-1],
                self._steps[end], before, now, math.exp(log_chance),
            )
        ]  # fmt: skip


def fall_alarms(rows: Iterable[Row]) -> list[FallAlarm]:
    """All alarms of a run's rows of metrics, in their order."""
    watch = Watch()
    return [alarm for row in rows for alarm in watch.add(row)]


def role_of_measure(name: str) -> str:
    """The role that a metric by problem is about; empty: the team."""
    if name == SCORES:
        return TEAM
    kind, _, role = name.removeprefix(BY_PROBLEM).partition("/")
    return role or (kind.partition("_")[0] if kind.endswith(("_tpr", "_tnr")) else TEAM)


def _log_weight(index: int) -> float:
    """Logarithm of the weight of an evaluation; the weights of all add up to 1."""
    block, length, start = 1, FIRST_BLOCK, 0
    while index >= start + length:
        start, block, length = start + length, block + 1, 2 * length
    return -block * math.log(2) - math.log(length)


def _levels(course: Sequence[Floats]) -> tuple[Floats, list[int]]:
    """Means by problem of some evaluations in a row, and the last evaluation of each."""
    first = max(0, len(course) - LOOK_BACK)
    earlier = np.stack(course[first:]) if course else np.empty((0, 0))
    counts = [count for count in LEVELS if count <= len(earlier)]
    means = [sliding_window_view(earlier, count, axis=0).mean(axis=-1) for count in counts]
    ends = [end for count in counts for end in range(first + count - 1, len(course))]
    return (np.concatenate(means) if means else earlier), ends


def _log_e_values(gaps: Floats) -> Floats:
    """Logarithm of the e-value of every row of differences against a mean of `MARGIN` or less."""
    bets = np.where(np.isfinite(gaps), gaps - MARGIN, 0.0)  # none on a problem without a value
    # Products of 64 factors, each from 0.03 to 2, have a finite logarithm: one for 64 problems.
    bets = np.pad(bets, ((0, 0), (0, -bets.shape[1] % 64))).reshape(len(bets), -1, 64)
    logs = np.stack([np.log((1 + stake * bets).prod(axis=-1)).sum(axis=-1) for stake in STAKES])
    return np.logaddexp.reduce(logs, axis=0) - math.log(len(STAKES))


def _is_low(gaps: Floats) -> bool:
    pairs = gaps[np.isfinite(gaps)]
    if len(pairs) < 2:
        return False
    mean, error = mean_and_error(pairs)
    return mean >= max(MARGIN, LOW * error)
