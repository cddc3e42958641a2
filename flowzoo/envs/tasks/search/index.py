"""Retrievers: BM25 in this process, or a server that speaks the public `/retrieve` contract.

Both take a batch of queries and give, for each, passages with scores, best first. A retriever that
cannot answer raises `RetrieverError`: a failure is never an observation.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from flowzoo.envs.script import Found, Passage
from flowzoo.errors import UsageError, missing_extra

_WORD = re.compile(r"\w+")
LONGEST_QUERY = 1_000
"""Characters of a query that a retriever looks at."""


class Retriever(Protocol):
    """What a search task needs of a retriever."""

    def retrieve(self, queries: Sequence[str], k: int) -> list[Found]:
        """The `k` best passages for each query.

        Raises:
            RetrieverError: the retriever failed.
        """
        ...


def words(text: str) -> list[str]:
    """The tokens of a passage or a query: lower-case words, no stop words, no stemming."""
    return _WORD.findall(text.lower())


def best_places(scores: np.ndarray, k: int) -> np.ndarray:
    """Places of the `k` highest positive scores; equal ones in the order of the passages.

    Args:
        scores: (passages,) scores of one query.
        k: how many.

    Returns:
        (at most k,) places, best first.
    """
    places = np.flatnonzero(scores > 0)
    if k < len(places):
        # A partition alone would pick any of the passages that tie for the last place.
        matching = scores[places]
        cut = len(places) - k
        places = places[matching >= np.partition(matching, cut)[cut]]
    return places[np.argsort(-scores[places], kind="stable")][:k]


def score(value: float) -> float:
    """A score as it is logged: rounded, so that a transcript stays short."""
    return round(value, 4)


class Bm25:
    """Okapi BM25 (k1 1.5, b 0.75, Lucene's idf) over passages, through `bm25s`.

    Raises:
        MissingExtraError: `bm25s` is not installed.
        UsageError: there is no passage with a word.
    """

    def __init__(self, passages: Sequence[tuple[str, str]]) -> None:
        """Index `passages`, pairs (id, text)."""
        try:
            import bm25s
        except ImportError as error:
            raise missing_extra("bm25s", "search", "searching passages with BM25") from error
        self._passages = tuple(passages)
        self._index = bm25s.BM25(k1=1.5, b=0.75, method="lucene")
        tokens = [words(text) for _, text in self._passages]
        if not any(tokens):
            raise UsageError("there is nothing to search in: no passage has a word")
        self._index.index(tokens, show_progress=False)

    def retrieve(self, queries: Sequence[str], k: int) -> list[Found]:
        """The `k` best passages for each query; passages that share no word with it never come.

        Ties are broken by the order of the passages, so results are equal on every machine.
        """
        return [self._one(query[:LONGEST_QUERY], k) for query in queries]

    def _one(self, query: str, k: int) -> Found:
        known = self._index.vocab_dict
        tokens = [known[word] for word in words(query) if word in known]
        if not tokens:
            return Found(())
        scores = np.asarray(self._index.get_scores_from_ids(tokens))
        return Found(
            tuple(
                Passage(
                    self._passages[place][0], self._passages[place][1], score(scores[place].item())
                )
                for place in best_places(scores, k).tolist()
            )
        )
