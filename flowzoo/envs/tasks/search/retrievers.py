"""Retrievers: BM25 in this process, or a server that speaks the public `/retrieve` contract."""

from __future__ import annotations

import http.client
import json
import re
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol
from urllib.parse import urlsplit

import numpy as np

from flowzoo.envs.script import Found, Passage
from flowzoo.errors import RetrieverError, UsageError, check_choice, missing_extra

_WORD = re.compile(r"\w+")
LONGEST_QUERY = 1_000  # characters of a query that a retriever looks at


class Retriever(Protocol):
    """Interface of a retriever."""

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
    """Indices of the `k` highest positive scores (shape (passages,)), best first, ties by index."""
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
        vocabulary = self._index.vocab_dict
        tokens = [vocabulary[word] for word in words(query) if word in vocabulary]
        if not tokens:
            return Found(())
        scores = np.asarray(self._index.get_scores_from_ids(tokens))
        return Found(
            tuple(
                Passage(
                    self._passages[position][0],
                    self._passages[position][1],
                    score(scores[position].item()),
                )
                for position in best_places(scores, k).tolist()
            )
        )


Field = Literal["queries", "query"]
BATCH = 256  # most queries of one request
_LARGEST = 64 * 2**20  # bytes of a response that are read
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def read_response(body: bytes, queries: int, k: int) -> list[Found]:
    """The passages of a response; at most `k` for each of `queries` queries."""
    try:  # a failure is an error of the run, never an observation
        result = json.loads(body)["result"]
        results = [Found(tuple(_passage(entry) for entry in row[:k])) for row in result]
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise RetrieverError(
            f"the retriever's response is not of the form "
            f'{{"result": [[{{"document": {{"contents"}}, "score"}}]]}}: {error!r}; '
            f"it begins {body[:200]!r}"
        ) from error
    if len(results) != queries:
        raise RetrieverError(
            f"the retriever must return one list of passages per query: got {len(results)} for "
            f"{queries} queries"
        )
    return results


def _passage(entry: Any) -> Passage:
    document = entry["document"]
    text = document["contents"]
    if not isinstance(text, str):
        raise TypeError(f"contents must be a string, got {type(text).__name__}")
    return Passage(str(document.get("id", "")), text, float(entry["score"]))


@dataclass(frozen=True, slots=True)
class HttpRetriever:
    """Asks a server; transient failures are tried again, then raised.

    Raises:
        UsageError: a URL that is not http(s), an unknown field, or a number out of range.
    """

    url: str
    """Full address, e.g. `http://127.0.0.1:8000/retrieve`; asked directly, never by a proxy."""
    field: Field = "queries"
    """`queries`: up to 256 queries a request. `query`: one a request, for servers that want it."""
    timeout_s: float = 30.0
    """Longest silence of the server."""
    attempts: int = 3
    """Number of attempts before a failure is raised."""
    pause_s: float = 0.5
    """Wait before the second attempt; it doubles from one to the next."""

    def __post_init__(self) -> None:
        if urlsplit(self.url).scheme not in ("http", "https") or not urlsplit(self.url).hostname:
            raise UsageError(f"retriever {self.url!r}: expected a URL such as http://host/retrieve")
        check_choice("field of a retriever", self.field, Field)
        if self.timeout_s <= 0 or self.attempts < 1 or self.pause_s < 0:
            raise UsageError(
                f"retriever: timeout_s > 0, attempts >= 1 and pause_s >= 0 are needed, got "
                f"{self.timeout_s}, {self.attempts} and {self.pause_s}"
            )

    def retrieve(self, queries: Sequence[str], k: int) -> list[Found]:
        """The server's `k` best passages for each query, in its order.

        Raises:
            RetrieverError: the server refuses, fails, or does not speak the contract.
        """
        # JSON has no lone surrogates, and a server may choke on NUL.
        clean = [
            query[:LONGEST_QUERY].encode("utf-8", "replace").decode().replace("\x00", " ")
            for query in queries
        ]
        step = BATCH if self.field == "queries" else 1
        results: list[Found] = []
        for start in range(0, len(clean), step):
            part = clean[start : start + step]
            payload = part if self.field == "queries" else part[0]
            body = json.dumps({self.field: payload, "topk": k, "return_scores": True})
            results += read_response(self._post(body.encode()), len(part), k)
        return results

    def _post(self, body: bytes) -> bytes:
        request = urllib.request.Request(
            self.url, body, {"Content-Type": "application/json"}, method="POST"
        )
        for attempt in range(1, self.attempts + 1):
            try:
                with _OPENER.open(request, timeout=self.timeout_s) as response:
                    raw = response.read(_LARGEST + 1)
                if len(raw) > _LARGEST:
                    raise RetrieverError(f"{self.url}: a response of over {_LARGEST} bytes")
                return raw
            except (OSError, http.client.HTTPException) as error:
                self._check_transient(error, attempt)
                time.sleep(self.pause_s * 2 ** (attempt - 1))
        raise AssertionError("the last attempt returns or raises")

    def _check_transient(self, error: Exception, attempt: int) -> None:
        code = error.code if isinstance(error, urllib.error.HTTPError) else None
        is_final = code is not None and code < 500 and code != 429
        if not is_final and attempt < self.attempts:
            return
        what = f"status {code}" if code is not None else repr(error)
        raise RetrieverError(
            f"the retriever at {self.url} failed {attempt} time(s), last with {what}. Check that "
            "the server runs and speaks the /retrieve contract."
        ) from error
