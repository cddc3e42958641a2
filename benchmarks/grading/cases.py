"""Pairs of a reference answer and a reply whose truth is known, and their shrinking."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from benchmarks.grading import containers, figures, formulas, quantities, statements
from benchmarks.grading.rewrites import REPLIES, TEXT_REWRITES
from benchmarks.grading.sort import Sort

SORTS: Sequence[Sort] = (
    *figures.SORTS, *formulas.SORTS, *containers.SORTS, *quantities.SORTS, *statements.SORTS
)  # fmt: skip
TRIES = 200
"""Chains of rewrites that are drawn until all of one do something."""
DEPTH = 3
"""Rewrites of a respelling."""
REDRAWS = 60
"""Other values that are tried for a shorter pair that fails alike."""


def name_of(rewrite: Callable[..., Any]) -> str:
    """Name of a rewrite in tables."""
    return rewrite.__name__.replace("_", " ")


@dataclass(frozen=True)
class Case:
    """An answer, and a reply that respells it or misses it; the seed determines both."""

    sort: Sort
    seed: str
    rewrites: tuple[Callable[..., Any], ...] = ()
    """Moves, a spelling, rewrites of the text and a reply, in this order."""
    miss: str = ""
    """Kind of the near miss; empty for a respelling."""

    def gold(self) -> str:
        """Reference answer."""
        return self.sort.write(self._value())

    def answer(self) -> str | None:
        """LaTeX of the reply's answer; None if a rewrite does nothing or the miss is none."""
        value, text = self._meaning(), None
        if value is None:
            return None
        for rewrite in self.rewrites:
            rng = Random(f"{self.seed} {rewrite.__name__}")
            before: Any = value
            if rewrite in self.sort.moves:
                value = after = rewrite(value, rng)
            elif rewrite in self.sort.spellings:
                text = after = rewrite(value, rng)
            elif rewrite in TEXT_REWRITES:
                before = self.sort.write(value) if text is None else text
                text = after = rewrite(before, rng)
            else:
                continue
            if after is None or after == before:
                return None
        text = self.sort.write(value) if text is None else text
        return None if self.miss and text == self.gold() else text

    def reply(self) -> str | None:
        """Reply with the answer; the answer in a box if the case has no form of a reply."""
        text = self.answer()
        form = next((rewrite for rewrite in self.rewrites if rewrite in REPLIES), None)
        if text is None:
            return None
        return form(text, Random(self.seed)) if form else rf"$\boxed{{{text}}}$"

    def _value(self) -> Any:
        return self.sort.draw(Random(self.seed))

    def _meaning(self) -> Any:
        value = self._value()
        if not self.miss:
            return value
        other = self.sort.misses[self.miss](value, Random(f"{self.seed} {self.miss}"))
        return None if other is None or self.sort.same(value, other) else other


def chain(sort: Sort, rng: Random) -> tuple[Callable[..., Any], ...]:
    """Up to three rewrites: moves and rewrites of the text, one spelling, one reply at most."""
    stages = sort.moves, sort.spellings, TEXT_REWRITES, REPLIES
    most = (2, 1, 2, 1)
    count, counts = rng.randint(1, DEPTH), [0] * len(stages)
    while sum(counts) < count:
        idx = rng.choices(range(len(stages)), weights=(3, 4, 2, 2))[0]
        counts[idx] += counts[idx] < min(most[idx], len(stages[idx]))
    return tuple(rewrite for stage, n in zip(stages, counts, strict=True)
                 for rewrite in rng.sample(stage, n))  # fmt: skip


def draw_case(sort: Sort, seed: str, miss: str = "", salt: str = "") -> Case | None:
    """A case of a sort whose rewrites all do something; None if there is no such miss."""
    for attempt in range(TRIES):
        rng = Random(f"{seed} {miss}{salt} {attempt}")
        case = Case(sort, seed, chain(sort, rng), miss)
        if case.answer() is not None:
            return case
        if miss and replace(case, rewrites=()).answer() is None:
            return None
    return None


def shorter(case: Case) -> Iterator[Case]:
    """Cases with one rewrite less."""
    for idx in range(len(case.rewrites)):
        yield replace(case, rewrites=case.rewrites[:idx] + case.rewrites[idx + 1 :])


def shrunk(case: Case, fails: Callable[[Case], bool]) -> Case:
    """A case that fails alike with the fewest rewrites."""
    for smaller in shorter(case):
        if smaller.answer() is not None and fails(smaller):
            return shrunk(smaller, fails)
    return case


def redrawn(case: Case, fails: Callable[[Case], bool]) -> Case:
    """A case of another value that fails alike and has a shorter text."""
    values = [replace(case, seed=f"{case.seed}/{idx}") for idx in range(REDRAWS)]
    texts = [(len(other.gold()), idx) for idx, other in enumerate(values)]
    for length, idx in sorted(texts):
        if length >= len(case.gold()):
            break
        if values[idx].answer() is not None and fails(values[idx]):
            return values[idx]
    return case
