"""The search task, its files and its retrievers."""

import json
import math
import pickle
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import numpy as np
import pytest

from flowzoo.envs.tasks import make_task
from flowzoo.envs.tasks.search import (
    RELATIONS,
    Bm25,
    SearchTask,
    ask_server,
    best_places,
    question_text,
    read_fact,
    tagged_answer,
    words,
    world,
)
from flowzoo.errors import DataError, RetrieverError, UsageError

SPLITS = ("pretrain", "train", "validation", "test")


def asked(task, split, count):
    return [task.problem(index, split) for index in range(count)]


def test_relations_are_drawn_anew_for_each_split_and_names_recur():
    first, second = (world(0, split, 1000) for split in ("train", "test"))
    assert first.entities == second.entities
    same = sum(first.facts[key] == second.facts[key] for key in first.facts)
    # By chance one fact in about 150 to 500 is the same.
    assert same < 0.02 * len(first.facts)


def test_every_fact_stands_in_the_passage_of_its_subject_alone():
    built = world(3, "train", 300)
    text = "\n".join(passage for _, passage in built.passages)
    for (subject, relation), target in built.facts.items():
        sentence = RELATIONS[relation].sentence.format(s=subject, o=target)
        assert text.count(sentence) == 1
        own_texts = dict(built.passages)[built.ids[subject]]
        assert sentence in own_texts
        assert read_fact(own_texts, subject, relation) == target


def test_the_gold_passages_lead_to_the_answer_and_the_question_does_not_name_it():
    task = SearchTask(passages=2000)
    texts = dict(world(0, "test", 2000).passages)
    for problem in asked(task, "test", 1000):
        here = problem.meta["start"]
        assert question_text(here, problem.meta["relations"]) == problem.text
        for relation, name in zip(problem.meta["relations"], problem.meta["gold_ids"], strict=True):
            here = read_fact(texts[name], here, relation)
            assert here is not None
        assert here == problem.gold
        assert problem.gold not in problem.text
    assert {len(p.meta["gold_ids"]) for p in asked(task, "test", 6)} == {1, 2, 3}


@pytest.mark.parametrize("passages", [200, 5000])
def test_an_answerer_that_cannot_search_scores_under_five_per_cent(passages):
    """Guessers that know the whole train split: by question, by start and relation, by prior."""
    task = SearchTask(passages=passages)
    expected = asked(task, "train", 4000)
    held = asked(task, "test", 2000)
    guessers = [
        lambda p: p.text,
        lambda p: (p.meta["start"], p.meta["relations"]),
        lambda p: (p.meta["start"], p.meta["relations"][-1]),
        lambda p: p.meta["start"],
        lambda p: p.meta["relations"][-1],
        lambda p: None,
    ]
    for key in guessers:
        seen: dict[object, Counter[str]] = {}
        for problem in expected:
            seen.setdefault(key(problem), Counter())[problem.gold] += 1
        best = {name: counts.most_common(1)[0][0] for name, counts in seen.items()}
        rate = sum(best.get(key(p)) == p.gold for p in held) / len(held)
        assert rate < 0.05


def test_reading_answers():
    assert tagged_answer("so <answer> Bal Sohak </answer>.") == "Bal Sohak"
    assert tagged_answer("<answer>a</answer> no, <answer>b</answer>") == "b"
    assert tagged_answer("<think><answer>a</answer></think> hm") is None
    assert tagged_answer("<answer>a</answer><think>") == "a"
    assert tagged_answer("<search>x <answer>a</answer></search>") is None
    assert tagged_answer("<search>x <answer>a</answer>") is None
    assert tagged_answer("<answer></answer>") is None
    assert tagged_answer("<answer>" + "x" * 600 + "</answer>") is None
    assert SearchTask().answer_lenient("It is clear.\nBal Sohak") == "Bal Sohak"
    assert SearchTask().answer_lenient("") is None


def test_grading_and_classes():
    task = SearchTask()
    problem = task.problem(0)
    right, wrong, none = task.grade_batch([problem] * 3, [f"the {problem.gold}!", "Nobody", None])
    assert (right.score, right.status, dict(right.parts)) == (1.0, "match", {"f1": 1.0})
    (half,) = task.grade_batch([problem], [f"{problem.gold} Smith Jones"])
    assert 0 < dict(half.parts)["f1"] < 1
    assert (wrong.score, wrong.status) == (0.0, "differs")
    assert (none.score, none.status) == (0.0, "none")
    assert task.classes(task.problem(0), ["The X", "x", None, "y"]) == (0, 0, -1, 1)


@pytest.fixture
def files(tmp_path):
    rows = [
        {"question": f"Who owns house {n}?", "golden_answers": [f"Owner {n}", f"Mr {n}"]}
        for n in range(60)
    ]
    rows[0]["gold_ids"] = [0]
    passages = [{"id": n, "contents": f"House {n} belongs to Owner {n}."} for n in range(60)]
    passages[1] = {"id": 1, "title": "House 1", "text": "House 1 belongs to Mr 1."}
    paths = tmp_path / "questions.jsonl", tmp_path / "passages.jsonl"
    for path, part in zip(paths, (rows, passages), strict=True):
        path.write_text("".join(json.dumps(row) + "\n" for row in part))
    return tuple(map(str, paths))


def test_questions_and_passages_from_files(files):
    task = make_task("search", data=files[0], corpus=files[1])
    assert sum(task.size(split) or 0 for split in SPLITS) == task.size("all") == 60
    problem = task.problem(0, "all")
    assert (problem.gold, problem.meta["gold_ids"]) == ("Owner 0", ("0",))
    assert problem.id == "search/all/0/questions.jsonl:0"
    assert [g.score for g in task.grade_batch([problem] * 2, ["mr 0", "Owner 1"])] == [1.0, 0.0]
    thawed = pickle.loads(pickle.dumps(task))
    results = thawed.search_batch([problem, problem], ["owns house 5", "Mr 1"], 2)
    assert [part.passages[0].id for part in results] == ["5", "1"]
    with pytest.raises(UsageError, match="below 60"):
        task.problem(60, "all")


def test_a_file_that_changes_is_noticed(files):
    task = make_task("search", data=files[0], corpus=files[1])
    with open(files[1], "a") as file:
        file.write('{"id": 99, "contents": "more"}\n')
    with pytest.raises(DataError, match="content has changed"):
        SearchTask(data=files[0], corpus=files[1], digest=task.digest[:-1] + "x")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"question": " ", "answer": "x"}, "'question' is missing"),
        ({"question": "q", "answer": []}, "golden_answers, answers, answer"),
        ({"question": "q", "answer": ["the"]}, "a word in each"),
        ([1], "expected an object"),
    ],
)
def test_a_bad_row_names_its_line(files, row, message):
    with open(files[0], "a") as file:
        file.write(json.dumps(row) + "\n")
    with pytest.raises(DataError, match=rf"line 61: .*{message}"):
        make_task("search", data=files[0], corpus=files[1])


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
        rows = [[self.entry(q, n) for n in range(body["topk"] + 1)] for q in body["queries"]]
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
        results = ask_server(url, ["red", "blue\ud800\x00"], 2)
    assert [[p.text for p in part.passages] for part in results] == [
        ["red 0", "red 1"],
        ["blue?  0", "blue?  1"],
    ]
    assert results[0].passages[1].id == "1"
    assert results[0].passages[1].score == 0.5
    assert server.requests == [{"queries": ["red", "blue? "], "topk": 2, "return_scores": True}]


def test_large_batches_are_cut():
    with serving() as (url, server):
        assert len(ask_server(url, ["q"] * 300, 1)) == 300
        assert [len(request["queries"]) for request in server.requests] == [256, 44]


def test_passing_failures_are_tried_again_and_lasting_ones_raised(monkeypatch):
    monkeypatch.setattr("flowzoo.envs.tasks.search.PAUSE_S", 0.01)
    with serving(failures=2) as (url, server):
        assert ask_server(url, ["a"], 1)[0].passages[0].text == "a 0"
        assert len(server.requests) == 3
    with (
        serving(failures=9) as (url, server),
        pytest.raises(RetrieverError, match=r"failed 3 time\(s\), last with status 503"),
    ):
        ask_server(url, ["a"], 1)
    with socket.socket() as silent:  # keeps its port from others, and does not listen
        silent.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/retrieve"
        with pytest.raises(RetrieverError, match=r"failed 3 time\(s\), last with .*refused"):
            ask_server(url, ["a"], 1)


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
        ask_server(url, ["a"], 1)


def test_the_task_searches_through_a_server():
    with serving() as (url, _):
        task = SearchTask(passages=200, retriever=url)
        problem = task.problem(0)
        assert task.search_batch([problem], ["red"], 1)[0].passages[0].text == "red 0"
