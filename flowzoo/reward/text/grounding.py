"""Grounding of a text in its source: a factor in [0, 1] for the writing reward.

The factor is the product of checks, each 1 for ordinary abstractive prose and 0 for a way of
cheating:

| check | catches |
|---|---|
| `precision` | words that the source never uses (nonsense, another subject) |
| `order` | words of the source in arbitrary order (ROUGE-L against the source) |
| `relations` | words used together that the source does not use together |
| `own_words` | the source copied, whole or in long pieces, verbatim or reordered |
| `variety` | repetition |
| `function_words` | lists of words without the words that make sentences |
| `grammar` | shuffled words: articles and prepositions before what cannot follow them |

`relations`, `own_words` and `grammar` use the worst part of a text. ROUGE-L is the longest
common subsequence over the words of the text (precision), computed by `rapidfuzz`; Lin, "ROUGE: A
Package for Automatic Evaluation of Summaries", 2004. The factor cannot detect a fluent text that
contradicts the source.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from flowzoo.errors import missing_extra
from flowzoo.reward.text.writing import (
    AFTER_ARTICLES,
    ARTICLES,
    FUNCTION_WORDS,
    NEVER_AFTER_PREPOSITIONS,
    PREPOSITIONS,
    Form,
    content,
    sentences,
    words,
)

MOST_WORDS = 1_000  # most words of a text that are read
_RUN = 4  # words in a row that count as copied; likewise content words with anything in between
_PART = 60  # approximate number of words per comparison with the source's order
_REACH = 2  # most content words between two words that count as used together
# Words in a row of a text, and of the source, that are compared in any order.
_WINDOW, _WITHIN = 8, 12
# Fraction of distinct words of such a piece that makes it a copy of the source.
_SAME = 0.85


def ramp(value: float, empty: float, full: float) -> float:
    """Linear ramp from 0 at `empty` to 1 at `full`, constant beyond; either may be larger."""
    return min(1.0, max(0.0, (value - empty) / (full - empty)))


class GroundingThresholds(NamedTuple):
    """Bounds of the checks that depend on the form (0 at the first, 1 at the second)."""

    precision: tuple[float, float]
    order: tuple[float, float]
    relations: tuple[float, float]
    followed: tuple[float, float]
    part: int
    """Number of words per part; the worst part counts, so a good half cannot hide a bad one."""


THRESHOLDS: dict[Form, GroundingThresholds] = {
    "tldr": GroundingThresholds((0.45, 0.65), (0.28, 0.42), (0.12, 0.32), (0.985, 0.93), 30),
    # An expansion adds content and words to its source.
    "expansion": GroundingThresholds((0.15, 0.3), (0.1, 0.2), (0.2, 0.4), (0.8, 0.65), 60),
}


class SourceText(NamedTuple):
    """Features of a source for the checks."""

    tokens: list[str]
    vocabulary: frozenset[str]
    content: frozenset[str]
    runs: frozenset[tuple[str, ...]]
    content_runs: frozenset[tuple[str, ...]]
    sentences: dict[str, frozenset[int]]
    """Indices of the sentences by content word."""
    bits: dict[str, int]
    """A bit for every word."""
    windows: frozenset[int]
    """Bits of `_WITHIN` words in a row."""


def read_source(text: str) -> SourceText:
    """Compute the features of a source once for all texts about it."""
    places: dict[str, set[int]] = {}
    for number, sentence in enumerate(sentences(text)):
        for word in content(words(sentence)):
            places.setdefault(word, set()).add(number)
    tokens = words(text)
    bits = {word: 1 << number for number, word in enumerate(dict.fromkeys(tokens))}
    windows = frozenset(_mask(window, bits) for window in _windows(tokens, _WITHIN))
    return SourceText(
        tokens,
        frozenset(tokens),
        frozenset(places),
        frozenset(_runs(tokens)),
        frozenset(_runs(content(tokens))),
        {word: frozenset(indices) for word, indices in places.items()},
        bits,
        windows,
    )


def _windows(tokens: list[str], size: int) -> Iterator[list[str]]:
    # All pieces of `size` words in a row; the whole if there are fewer.
    for start in range(max(1, len(tokens) - size + 1)):
        yield tokens[start : start + size]


def _mask(window: Sequence[str], bits: Mapping[str, int]) -> int:
    mask = 0
    for word in window:
        mask |= bits.get(word, 0)
    return mask


def _runs(items: list[str]) -> list[tuple[str, ...]]:
    return list(zip(*(items[i:] for i in range(_RUN)), strict=False))


def grounding(text: str, source: SourceText, form: Form) -> dict[str, float]:
    """The checks of `text` by name, each in [0, 1], and their product as `grounding`.

    Raises:
        MissingExtraError: `rapidfuzz` is not installed.
    """
    tokens = words(text)[:MOST_WORDS]
    content_words = content(tokens)
    limits = THRESHOLDS[form]
    if len(tokens) < 3 or not content_words:
        return {"grounding": 0.0}
    followed = _subsequence(tokens, source.tokens) / len(tokens)
    parts = _parts(tokens, max(1, len(tokens) // limits.part))
    checks = {
        "precision": ramp(
            sum(w in source.content for w in content_words) / len(content_words), *limits.precision
        ),
        "order": ramp(followed, *limits.order),
        "relations": min(
            ramp(_share_related(content(p), source), *limits.relations) for p in parts
        ),
        "own_words": min(
            ramp(_share_copied(tokens, source.runs), 0.75, 0.5),
            ramp(_share_copied(content_words, source.content_runs), 0.8, 0.55),
            ramp(_share_followed(tokens, source), *limits.followed),
            *(ramp(_share_moved(part, source), 0.75, 0.45) for part in parts),
        ),
        "variety": _variety(tokens, content_words),
        "function_words": _function_words(tokens),
        "grammar": min(ramp(_share_misplaced(part), 0.35, 0.15) for part in parts),
    }
    product = 1.0
    for value in checks.values():
        product *= value
    return {**checks, "grounding": product}


def pair_grounding(
    first: str, second: str, source: SourceText, form: Form
) -> tuple[float, dict[str, float]]:
    """Return the factor of a pair's structure reward, and its components.

    It is the smaller of `grounding_0` and `grounding_1`, times `apart`: 0 for two equal texts, 1 if
    at most half of the second is in the first.

    Raises:
        MissingExtraError: `rapidfuzz` is not installed.
    """
    grounds = [grounding(text, source, form)["grounding"] for text in (first, second)]
    first_words, second_words = words(first)[:MOST_WORDS], words(second)[:MOST_WORDS]
    repeated = _share_copied(second_words, frozenset(_runs(first_words))) if second_words else 1.0
    parts = {
        "grounding_0": grounds[0],
        "grounding_1": grounds[1],
        "apart": ramp(repeated, 0.85, 0.55),
    }
    return min(grounds) * parts["apart"], parts


def _parts(tokens: list[str], count: int) -> list[list[str]]:
    bounds = [len(tokens) * index // count for index in range(count + 1)]
    return [tokens[start:end] for start, end in pairwise(bounds)]


def _subsequence(tokens: list[str], source: list[str]) -> int:
    try:
        from rapidfuzz.distance import LCSseq
    except ImportError as error:
        raise missing_extra("rapidfuzz", "writing", "the grounded writing reward") from error
    return LCSseq.similarity(tokens, source)


def _share_followed(tokens: list[str], source: SourceText) -> float:
    # Fraction of the text's source words in the source's order. It is computed by part, so a text
    # that repeats the source is also in order.
    followed = pairs_in_source = 0
    for words_of_part in _parts(tokens, max(1, round(len(tokens) / _PART))):
        part = [word for word in words_of_part if word in source.vocabulary]
        pairs_in_source += len(part)
        followed += _subsequence(part, source.tokens)
    return followed / pairs_in_source if pairs_in_source else 0.0


def _share_moved(tokens: list[str], source: SourceText) -> float:
    pieces = moved = 0
    for window in _windows(tokens, _WINDOW):
        pieces += 1
        mask, expected = _mask(window, source.bits), _SAME * len(set(window))
        if mask.bit_count() >= expected:
            moved += any((mask & other).bit_count() >= expected for other in source.windows)
    return moved / pieces


def _share_related(content_words: list[str], source: SourceText) -> float:
    pairs = together = 0
    for reach in range(1, _REACH + 1):
        for word, next_word in zip(content_words, content_words[reach:], strict=False):
            places, others = source.sentences.get(word), source.sentences.get(next_word)
            if word == next_word or places is None or others is None:
                continue
            pairs += 1
            together += not places.isdisjoint(others)
    return together / pairs if pairs else 0.0


def _share_copied(items: list[str], grams: frozenset[tuple[str, ...]]) -> float:
    # Fraction of the items that are in a run of `_RUN` items of the source.
    covered = [False] * len(items)
    for start, run in enumerate(_runs(items)):
        if run in grams:
            covered[start : start + _RUN] = [True] * _RUN
    return sum(covered) / len(items)


def _function_words(tokens: list[str]) -> float:
    used = Counter(word for word in tokens if word in FUNCTION_WORDS)
    if not used:
        return 0.0
    commonest = max(used.values()) / used.total()
    return ramp(used.total() / len(tokens), 0.15, 0.28) * ramp(commonest, 0.6, 0.45)


def _variety(tokens: list[str], content_words: list[str]) -> float:
    pairs = list(pairwise(tokens))
    distinct = len(set(pairs)) / len(pairs)
    commonest = Counter(content_words).most_common(1)[0][1] / len(content_words)
    return ramp(distinct, 0.55, 0.8) * ramp(commonest, 0.4, 0.25 + 1 / len(content_words))


def _share_misplaced(tokens: list[str]) -> float:
    wrong = total = 0
    for word, after in zip(tokens, [*tokens[1:], "of"], strict=True):
        if word in ARTICLES:
            total += 1
            wrong += after in FUNCTION_WORDS and after not in AFTER_ARTICLES
        elif word in PREPOSITIONS:
            total += 1
            wrong += after in NEVER_AFTER_PREPOSITIONS
    return wrong / total if total else 0.0
