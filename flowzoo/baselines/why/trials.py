"""Reruns of a run with settings put back, subset on disk, and what each shows."""

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from flowzoo.agents.evaluation.intervals import Z
from flowzoo.aliases import Floats
from flowzoo.baselines.diagnostics.cliff import EARLIEST, FELL, LAST, THRESHOLD, find_cliff
from flowzoo.baselines.matrix.cell import Cell, cell_text
from flowzoo.baselines.matrix.jobs import TrainingJob
from flowzoo.baselines.matrix.run import execute
from flowzoo.baselines.run.directory import restart
from flowzoo.baselines.run.reading import RunData
from flowzoo.baselines.stats import Gain, mean_and_error, paired_gain
from flowzoo.baselines.why.units import ReversibleRun, Unit
from flowzoo.errors import DataError

Subset = frozenset[Unit]


class Spent(Exception):
    """The budget is spent."""


class Course(NamedTuple):
    """Held-out accuracies of one rerun."""

    fell: bool
    """True if it fell from the best before, by the rule of `diagnostics.cliff`."""
    end: Floats
    """Mean of the last evaluations by problem, (problems,)."""
    scores: Floats
    steps: Sequence[int]


def read_course(run: RunData) -> Course | None:
    """The course of a run; None if it has too few evaluations."""
    if len(run.steps) < EARLIEST:
        return None
    scores = run.scores
    last = LAST if len(scores) >= LAST + 2 else 1
    fell = find_cliff([scores], run.steps).verdict in FELL
    return Course(fell, scores[-last:].mean(axis=0), scores, run.steps)


@dataclass(slots=True)
class Trials:
    """Runs reruns within a budget; finished ones are read from `out`."""

    case: ReversibleRun
    out: Path
    workers: int
    runs: int
    minutes: float
    say: Callable[[str], None]
    began: float = field(default_factory=time.monotonic)
    count: int = 0
    """Reruns that this call has finished."""
    courses: dict[tuple[Subset, int], Course | None] = field(default_factory=dict)

    @property
    def seed(self) -> int:
        """Seed of the run itself."""
        return int(self.case.run.settings["seed"])

    def run(self, pairs: Sequence[tuple[Subset, int]]) -> None:
        """Run the `pairs` of units and seed that are not known, in parallel.

        Raises:
            Spent: the budget is spent before all have ended.
        """
        new = [key for key in dict.fromkeys(pairs) if key not in self.courses]
        jobs: dict[tuple[Subset, int], TrainingJob] = {}
        for key in new:
            if key[1] == self.seed and key[0] == frozenset(self.case.units):
                self.courses[key] = read_course(self.case.run)
            elif self.case.plan(key[0]) is None:
                self.courses[key] = None
            else:
                jobs[key] = self._job(*key)
        waiting = [job for job in jobs.values() if job.state == "waiting"]
        refused = self.count + len(waiting) > self.runs
        try:
            if not refused:
                for job in waiting:  # a rerun that a call has stopped begins anew
                    restart(job.folder)
                execute(list(jobs.values()), self.workers, self._check_time)
        finally:
            self.count += sum(job.state in ("finished", "failed") for job in waiting)
            for key, job in jobs.items():
                self._collect(key, job)
        if refused:
            raise Spent

    def _job(self, subset: Subset, seed: int) -> TrainingJob:
        config = self.case.config(subset, seed)
        name = hashlib.sha256(cell_text(config).encode()).hexdigest()[:12]
        job = TrainingJob(Cell(name, config), self.case.config(subset, seed, str(self.out / name)))
        try:
            job.state = "finished" if job.result.exists() and job.summary() else "waiting"
        except DataError:
            job.state = "waiting"  # its process repairs the summary, or reports the damage
        return job

    def _collect(self, key: tuple[Subset, int], job: TrainingJob) -> None:
        if job.state in ("finished", "failed"):
            self.courses[key] = read_course(job.data()) if job.state == "finished" else None
            self.say(f"{self.count} of at most {self.runs} reruns: {self.words(*key)}")

    def _check_time(self) -> None:
        if time.monotonic() - self.began > 60 * self.minutes:
            raise Spent

    def left_out(self, subset: Subset) -> list[str]:
        """The settings that a rerun leaves out."""
        return [str(unit) for unit in self.case.units if unit not in subset]

    def words(self, subset: Subset, seed: int) -> str:
        """A rerun and its result in words."""
        left_out = ", ".join(self.left_out(subset))
        course = self.courses.get((subset, seed))
        result = "cannot be run" if course is None else f"{100 * course.end.mean():.1f} %"
        fall = ", a fall" if course and course.fell else ""
        return f"{f'without {left_out}' if left_out else 'as it was'}, seed {seed}: {result}{fall}"

    def _with_whole(self, subset: Subset, seed: int) -> tuple[Course, Course] | None:
        # The courses of a rerun and of the run as it was under the same seed.
        course = self.courses.get((subset, seed))
        whole = self.courses.get((frozenset(self.case.units), seed))
        return None if course is None or whole is None else (course, whole)

    def gain(self, subset: Subset, seed: int) -> Gain | None:
        """End of a rerun minus that of the run as it was under the same seed, paired by problem."""
        courses = self._with_whole(subset, seed)
        if courses is None:
            return None
        course, whole = courses
        return paired_gain(whole.end.tolist(), course.end.tolist())

    def fails(self, subset: Subset, seed: int) -> bool | None:
        """True if it fails as the run did; None if it could not be run.

        A rerun fails if it falls by the rule of cliffs, or if it stays below the middle between the
        run and the rerun without all units, where these are `THRESHOLD` or more apart.
        """
        course, gain = self.courses.get((subset, seed)), self.gain(subset, seed)
        whole = self.gain(frozenset(), seed)
        if course is None:
            return None
        if course.fell or gain is None or whole is None:
            return course.fell
        return whole.mean >= THRESHOLD and whole.low > 0 and gain.mean < whole.mean / 2

    def part(self, subset: Subset, seed: int) -> int | None:
        """The first step from which on every evaluation is above that of the run as it was."""
        courses = self._with_whole(subset, seed)
        if courses is None:
            return None
        course, whole = courses
        first = None
        evaluations = list(zip(course.steps, course.scores, whole.scores, strict=False))
        for step, mended, broken in reversed(evaluations):
            gap, error = mean_and_error(mended - broken)
            if gap <= Z * error:
                break
            first = step
        return first
