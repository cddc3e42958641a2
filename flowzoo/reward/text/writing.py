"""The structure reward of a pair of texts by two writers, as published for MAGRPO.

Four levels; a failed level ends the sum. The highest total is 3.0.

| level | worth | criterion |
|---|---|---|
| lengths | 0.5 | both texts within a number of whitespace tokens |
| ratio | 1.0 | characters of the second over characters of the first |
| unique | 0.5 | distinct words of the second over distinct words of the first |
| style | 1.0 | 0.4 x transition words + 0.6 x overlap of the two vocabularies (Jaccard, capped) |

It does not depend on the source: word lists earn most of it. `grounding` is the factor that
corrects this.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Literal, NamedTuple

from flowzoo.reward.listed import names

_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")
_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")
_ENDINGS = ("ing", "ies", "ed", "es", "ly", "s", "e", "y")

# Words that must precede a noun or an adjective.
ARTICLES = names("a an the my your his our their its")

# Function words that may follow an article.
AFTER_ARTICLES = names(
    "same other more most few many own very only such two three first last next less least "
    "once much all both up on down off over out just even still not so"
)

PREPOSITIONS = names("of at from with into by for")
# Words that cannot follow one of `PREPOSITIONS`.
NEVER_AFTER_PREPOSITIONS = names(
    "of at from with into by for is am are was were be had has have do did will would could should "
    "i he she we they or but if because"
)

# Function words.
FUNCTION_WORDS = (
    ARTICLES
    | AFTER_ARTICLES
    | names(
        "i me we us you he him she her it they them this that these those who whom whose which "
        "what when where why how and or but nor yet for of in on at by to from with without "
        "into onto about after before between under through during against within across toward "
        "towards than then there here as if because since until while although though unless is "
        "am are was were be been being do does did done have has had having will would shall "
        "should can could may might must no any some each every another one also too again now "
        "already ever never however therefore thus while whether either neither let's it's i'm "
        "don't didn't can't couldn't wasn't isn't"
    )
)


def words(text: str) -> list[str]:
    """The words of `text` in lower case; numbers count as words."""
    return _WORD.findall(text.lower())


def sentences(text: str) -> list[str]:
    """The parts of `text` between full stops, question or exclamation marks and line ends."""
    return [part for part in _SENTENCE.split(text) if part.strip()]


@lru_cache(maxsize=65_536)
def stem(word: str) -> str:
    """Strip one common English ending of `word`."""
    word = word.removesuffix("'s").removesuffix("’s")[:64]
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            return word[: -len(ending)]
    return word


def content(tokens: list[str]) -> list[str]:
    """The stems of the content words, in order."""
    return [stem(word) for word in tokens if word not in FUNCTION_WORDS]


TRANSITIONS: Mapping[str, tuple[str, ...]] = {
    "addition": ("also", "in addition", "moreover", "furthermore", "besides"),
    "contrast": ("but", "however", "in contrast", "on the other hand", "yet"),
    "cause": ("because", "since", "due to", "owing to"),
    "result": ("therefore", "so", "thus", "as a result", "consequently"),
    "time": ("then", "after", "before", "meanwhile", "later"),
    "order": ("first", "second", "next", "finally"),
    "example": ("for example", "for instance", "such as"),
    "emphasis": ("indeed", "in fact", "above all", "especially"),
    "likeness": ("similarly", "likewise", "in the same way"),
    "condition": ("if", "unless", "provided that", "otherwise"),
    "concession": ("although", "even though", "despite", "still"),
    "summary": ("in short", "overall", "in conclusion", "to sum up"),
}
_WHOLE = {
    name: re.compile(rf"\b(?:{'|'.join(map(re.escape, phrases))})\b")
    for name, phrases in TRANSITIONS.items()
}


def transition_score(text: str, whole_words: bool = True) -> float:
    """0.4 for the first category of transition words in `text`, 0.05 for each further one.

    Args:
        text: one or several completions.
        whole_words: match phrases only at word boundaries; the published reward also finds "so" in
            "some".
    """
    text = " ".join(text.lower().split())
    if whole_words:
        hits = sum(pattern.search(text) is not None for pattern in _WHOLE.values())
    else:
        hits = sum(any(phrase in text for phrase in group) for group in TRANSITIONS.values())
    return 0.4 + 0.05 * (hits - 1) if hits else 0.0


Form = Literal["tldr", "expansion"]
HIGHEST = 3.0  # highest sum of `structure`


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
    """Requirements of a form on a pair."""

    shortest: int
    longest: int
    ratio: ScoreBand
    unique: ScoreBand
    jaccard: float
    both: bool
    """True if transition words are counted in both texts, else only in the second."""


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
    """The marks of a pair by level; levels after a failed one are 0.

    Args:
        first: the concise text (`tldr`) or the background (`expansion`).
        second: the detailed text, or the method.
        form: the requirements.
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
    first_words, second_words = set(words(first)), set(words(second))
    unique = shape.unique.mark(len(second_words) / len(first_words)) if first_words else None
    if unique is None:
        return marks
    marks["unique"] = 0.5 * unique
    overlap = len(first_words & second_words) / len(first_words | second_words)
    text = f"{first}\n{second}" if shape.both else second
    transitions = transition_score(text, whole_words)
    marks["style"] = 0.4 * transitions + 0.6 * min(overlap, shape.jaccard) / shape.jaccard
    return marks
