"""BM25 against its formula, ties, and the HTTP retriever against a server on this machine."""

import json
import math
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import numpy as np
import pytest

from flowzoo.envs.tasks.search import Bm25, HttpRetriever, SearchTask, best_places, words
from flowzoo.errors import RetrieverError, UsageError

DOCUMENTS = [
    ("a", "the red fox"),
    ("b", "the red red hen and a fox"),
    ("c", "a blue bird"),
    ("d", "the red fox"),
]


def bm25(query: str, text: str, k1: float = 1.5, b: float = 0.75) -> float:
    """Robertson's formula with Lucene's idf."""
    texts = [words(t) for _, t in DOCUMENTS]
    mean = sum(map(len, texts)) / len(texts)
    score = 0.0
    for word in words(query):
        holding = sum(word in t for t in texts)
        idf = math.log(1 + (len(texts) - holding + 0.5) / (holding + 0.5))
        tf = words(text).count(word)
        score += idf * tf / (tf + k1 * (1 - b + b * len(words(text)) / mean))
    return score


def test_scores_follow_the_formula_and_ties_the_order_of_the_passages():
    index = Bm25(DOCUMENTS)
    for query in ("red fox", "RED hen!", "blue", "red red"):
        (results,) = index.retrieve([query], 4)
        expected = sorted(
            ((name, text, bm25(query, text)) for name, text in DOCUMENTS), key=lambda row: -row[2]
        )
        expected = [row for row in expected if row[2] > 0]
        assert [p.id for p in results.passages] == [row[0] for row in expected]
        assert [p.score for p in results.passages] == pytest.approx(
            [row[2] for row in expected], abs=1e-3
        )
    assert [p.id for p in index.retrieve(["red fox"], 1)[0].passages] == ["a"]


@pytest.mark.parametrize("query", ["", "zebra", "\x00\ud800", "?" * 10_000, "9" * 100_000])
def test_what_matches_nothing_finds_nothing(query):
    assert Bm25(DOCUMENTS).retrieve([query], 3)[0].passages == ()


def test_the_best_places_break_ties_by_place():
    rng = np.random.default_rng(0)
    for _ in range(300):
        scores = rng.integers(0, 4, size=rng.integers(1, 12)).astype(np.float32)
        k = int(rng.integers(1, 14))
        expected = sorted(np.flatnonzero(scores > 0), key=lambda i: (-scores[i], i))[:k]
        assert best_places(scores, k).tolist() == expected


def test_passages_without_a_word_are_refused():
    with pytest.raises(UsageError, match="the corpus is empty"):
        Bm25([("a", "..."), ("b", "")])


class Server(BaseHTTPRequestHandler):
    """Speaks the contract over DOCUMENTS; `mode` breaks it."""

    mode = "good"
    requests: list[dict[str, Any]] = []  # noqa: RUF012 - set anew by `serving`
    failures = 0

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        kind = type(self)
        kind.requests.append(body)
        if kind.failures:
            kind.failures -= 1
            self.send_error(503)
            return
        if kind.mode == "refuses":
            self.send_error(422)
            return
        queries = body["queries"] if "queries" in body else [body["query"]]
        rows = [[self.entry(q, n) for n in range(body["topk"] + 1)] for q in queries]
        texts = {
            "good": json.dumps({"result": rows}),
            "short": json.dumps({"result": rows[1:]}),
            "shape": json.dumps({"result": [["no document"]]}),
            "html": "<html>",
        }
        raw = texts[kind.mode].encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def entry(self, query: str, rank: int) -> dict[str, Any]:
        return {"document": {"id": rank, "contents": f"{query} {rank}"}, "score": 1 / (1 + rank)}

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def serving(mode: str = "good", failures: int = 0) -> Iterator[tuple[str, type[Server]]]:
    kind = type("Own", (Server,), {"mode": mode, "requests": [], "failures": failures})
    server = HTTPServer(("127.0.0.1", 0), kind)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/retrieve", kind
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_batch_is_one_request_and_results_come_in_order():
    with serving() as (url, server):
        results = HttpRetriever(url).retrieve(["red", "blue\ud800\x00"], 2)
    assert [[p.text for p in part.passages] for part in results] == [
        ["red 0", "red 1"],
        ["blue?  0", "blue?  1"],
    ]
    assert results[0].passages[1].id == "1"
    assert results[0].passages[1].score == 0.5
    assert server.requests == [{"queries": ["red", "blue? "], "topk": 2, "return_scores": True}]


def test_large_batches_are_cut_and_single_query_servers_asked_one_by_one():
    with serving() as (url, server):
        assert len(HttpRetriever(url).retrieve(["q"] * 300, 1)) == 300
        assert [len(request["queries"]) for request in server.requests] == [256, 44]
        HttpRetriever(url, "query").retrieve(["a", "b"], 1)
        assert [request["query"] for request in server.requests[2:]] == ["a", "b"]


def test_passing_failures_are_tried_again_and_lasting_ones_raised(monkeypatch):
    monkeypatch.setattr("flowzoo.envs.tasks.search.PAUSE_S", 0.01)
    with serving(failures=2) as (url, server):
        assert HttpRetriever(url).retrieve(["a"], 1)[0].passages[0].text == "a 0"
        assert len(server.requests) == 3
    with (
        serving(failures=9) as (url, server),
        pytest.raises(RetrieverError, match=r"failed 3 time\(s\), last with status 503"),
    ):
        HttpRetriever(url).retrieve(["a"], 1)
    with socket.socket() as silent:  # keeps its port from others, and does not listen
        silent.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/retrieve"
        with pytest.raises(RetrieverError, match=r"failed 3 time\(s\), last with .*refused"):
            HttpRetriever(url).retrieve(["a"], 1)


@pytest.mark.parametrize(
    ("mode", "message"),
    [
        ("refuses", r"failed 1 time\(s\), last with status 422"),
        ("short", "got 0 for 1 queries"),
        ("shape", "not of the form"),
        ("html", "not of the form.*<html>"),
    ],
)
def test_a_server_that_breaks_the_contract_is_an_error(mode, message):
    with serving(mode) as (url, _), pytest.raises(RetrieverError, match=message):
        HttpRetriever(url).retrieve(["a"], 1)


def test_the_task_searches_through_a_server():
    with serving() as (url, _):
        task = SearchTask(passages=200, retriever=url)
        problem = task.problem(0)
        assert task.search_batch([problem], ["red"], 1)[0].passages[0].text == "red 0"
