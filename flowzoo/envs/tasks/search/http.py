"""A retriever behind the public `/retrieve` contract (Search-R1 and its descendants).

Request: `{"queries": [...], "topk": k, "return_scores": true}`; some servers take one `"query"` a
request instead. Response: `{"result": [[{"document": {"id", "contents"}, "score"}, ...], ...]}`.
Source: https://github.com/PeterGriffinJin/Search-R1.
"""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

from flowzoo.envs.script import Found, Passage
from flowzoo.envs.tasks.search.index import LONGEST_QUERY
from flowzoo.errors import RetrieverError, UsageError, check_choice

Field = Literal["queries", "query"]
BATCH = 256
"""Most queries of one request."""
_LARGEST = 64 * 2**20
"""Bytes of a response that are read."""
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def read_response(body: bytes, queries: int, k: int) -> list[Found]:
    """The passages of a response; at most `k` for each of `queries` queries.

    Raises:
        RetrieverError: the response does not have the form of the contract.
    """
    try:
        result = json.loads(body)["result"]
        found = [Found(tuple(_passage(entry) for entry in row[:k])) for row in result]
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise RetrieverError(
            f"the retriever's response is not of the form "
            f'{{"result": [[{{"document": {{"contents"}}, "score"}}]]}}: {error!r}; '
            f"it begins {body[:200]!r}"
        ) from error
    if len(found) != queries:
        raise RetrieverError(
            f"the retriever must return one list of passages per query: got {len(found)} for "
            f"{queries} queries"
        )
    return found


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
    """How often a request is made before its failure is raised."""
    pause_s: float = 0.5
    """Wait before the second attempt; it doubles from one to the next."""

    def __post_init__(self) -> None:
        """Check the settings."""
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
        found: list[Found] = []
        for start in range(0, len(clean), step):
            part = clean[start : start + step]
            asked = part if self.field == "queries" else part[0]
            body = json.dumps({self.field: asked, "topk": k, "return_scores": True})
            found += read_response(self._post(body.encode()), len(part), k)
        return found

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
        """Raise unless another attempt may help and is left."""
        code = error.code if isinstance(error, urllib.error.HTTPError) else None
        hopeless = code is not None and code < 500 and code != 429
        if not hopeless and attempt < self.attempts:
            return
        what = f"status {code}" if code is not None else repr(error)
        raise RetrieverError(
            f"the retriever at {self.url} failed {attempt} time(s), last with {what}. Check that "
            "the server runs and speaks the /retrieve contract."
        ) from error
