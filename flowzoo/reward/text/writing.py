"""The structure reward of a pair of texts by two writers, as published for MAGRPO.

Four levels, each a gate: one that fails stops the sum there. At most 3.0.

| level | worth | looks at |
|---|---|---|
| lengths | 0.5 | both texts within a number of whitespace tokens |
| ratio | 1.0 | characters of the second over those of the first |
| unique | 0.5 | distinct words of the second over those of the first |
| style | 1.0 | 0.4 x transition words + 0.6 x overlap of the two vocabularies (Jaccard, capped) |

Alone it can be met without reading the source: word lists earn most of it. `grounding` says how much
of it a text deserves.
"""  # noqa: E501 - one long line reads better

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from flowzoo.reward.text.prose import words
from flowzoo.reward.text.transitions import transition_score

Form = Literal["tldr", "expansion"]
HIGHEST = 3.0
"""The most that `structure` adds up to."""


class ScoreBand(NamedTuple):
    """Full marks within [low, high], linear ramps down to the floors, a failure beyond them."""

    floor: float
    low: float
    high: float
    ceiling: float

    def mark(self, value: float) -> float | None:
        """1 inside the band, less on the ramps, None outside."""
        if not self.floor <= value <= self.ceiling:
            return None
        if value < self.low:
            return (value - self.floor) / (self.low - self.floor)
        if value > self.high:
            return (self.ceiling - value) / (self.ceiling - self.high)
        return 1.0


class FormRequirements(NamedTuple):
    """What a form asks of a pair."""

    shortest: int
    longest: int
    ratio: ScoreBand
    unique: ScoreBand
    jaccard: float
    both: bool
    """Transition words are looked for in both texts, or in the second only."""


_NO_LIMIT = float("inf")
REQUIREMENTS: Mapping[Form, FormRequirements] = {
    "tldr": FormRequirements(
        shortest=8,
        longest=256,
        ratio=ScoreBand(1.1, 1.6, 3.2, 5.0),
        unique=ScoreBand(1.3, 2.0, _NO_LIMIT, _NO_LIMIT),
        jaccard=0.03,
        both=False,
    ),
    "expansion": FormRequirements(
        shortest=128,
        longest=256,
        ratio=ScoreBand(0.8, 1.3, 1.6, 2.0),
        unique=ScoreBand(0.5, 0.7, 1.3, 1.7),
        jaccard=0.23,
        both=True,
    ),
}


def structure(first: str, second: str, form: Form, whole_words: bool = True) -> dict[str, float]:
    """The marks of a pair by level; levels behind a failed gate are 0.

    Args:
        first: the concise text (`tldr`) or the background (`expansion`).
        second: the detailed text, or the method.
        form: which shape is asked for.
        whole_words: see `transition_score`.
    """
    shape = REQUIREMENTS[form]
    marks = {"lengths": 0.0, "ratio": 0.0, "unique": 0.0, "style": 0.0}
    if not all(shape.shortest <= len(t.split()) <= shape.longest for t in (first, second)):
        return marks
    marks["lengths"] = 0.5
    ratio = shape.ratio.mark(len(second) / len(first))
    if ratio is None:
        return marks
    marks["ratio"] = ratio
    one, two = set(words(first)), set(words(second))
    unique = shape.unique.mark(len(two) / len(one)) if one else None
    if unique is None:
        return marks
    marks["unique"] = 0.5 * unique
    overlap = len(one & two) / len(one | two)
    text = f"{first}\n{second}" if shape.both else second
    transitions = transition_score(text, whole_words)
    marks["style"] = 0.4 * transitions + 0.6 * min(overlap, shape.jaccard) / shape.jaccard
    return marks
