"""The task `search`: questions over a knowledge base.

| | |
|---|---|
| Creation | `make_task("search", level=2)`, `make_task("search", data="nq.jsonl", corpus="wiki.jsonl")` |
| Problems | 1- to 3-hop questions over a generated knowledge base, or the rows of a file |
| Retriever | BM25 in this process, or a server (`retriever="http://.../retrieve"`) |
| Answer | the text between the last `<answer>` and `</answer>`; lenient: else the last line |
| Score | 1 if equal to a reference answer after SQuAD normalization, else 0 |

Every split has its own knowledge base with the same names: facts memorized on one split are wrong
on the others, and a guess has hundreds of possible answers. Every fact is in one passage; the ids
of the passages that a question needs are known (`gold_ids`).

Version history: v0, first release.
"""  # noqa: E501 - rows of a table

import http.client
import json
import random
import re
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple
from urllib.parse import urlsplit

import numpy as np

from flowzoo.envs.script import GradeResult, Passage, SearchResult
from flowzoo.envs.tasks.rows import (
    DataSource,
    DataTask,
    Records,
    RowPlace,
    data_source,
    listed,
    load,
    objects,
    reload,
)
from flowzoo.envs.tasks.task import Problem, is_in, number_by_first, read_levels
from flowzoo.envs.text import visible
from flowzoo.errors import (
    DataError,
    RetrieverError,
    UsageError,
    missing_extra,
    need_module,
)
from flowzoo.reward.text.qa import exact_match, f1, normalize
from flowzoo.seeding import key_rng

EntityKind = str


class Relation(NamedTuple):
    """A kind of fact: the kinds of its subject and target, and its wording."""

    name: str
    subject: EntityKind
    target: EntityKind
    sentence: str  # `{s}` is the subject, `{o}` the target
    phrase: str  # phrase that names the target in a question: `the birthplace of {s}`


RELATIONS: Mapping[str, Relation] = {
    relation.name: relation
    for relation in (
        Relation("birthplace", "person", "town", "{s} was born in {o}.", "the birthplace of {s}"),
        Relation("employer", "person", "firm", "{s} works for {o}.", "the employer of {s}"),
        Relation("teacher", "person", "person", "{s} studied under {o}.", "the teacher of {s}"),
        Relation("mayor", "town", "person", "The mayor of {s} is {o}.", "the mayor of {s}"),
        Relation("partner", "town", "town", "{s} sells most to {o}.", "the best customer of {s}"),
        Relation("author", "work", "person", "{s} was written by {o}.", "the author of {s}"),
        Relation("setting", "work", "town", "{s} is set in {o}.", "the setting of {s}"),
        Relation("founder", "firm", "person", "{s} was founded by {o}.", "the founder of {s}"),
        Relation("seat", "firm", "town", "{s} is based in {o}.", "the seat of {s}"),
    )
}
SHARES: Mapping[EntityKind, float] = {"person": 0.5, "town": 0.2, "work": 0.15, "firm": 0.15}
_ONSETS = ("b", "br", "c", "d", "dr", "f", "g", "h", "k", "l", "m", "n", "p", "r", "s", "t", "v")
_VOWELS = ("a", "e", "i", "o", "u")
_CODAS = ("l", "n", "r", "s", "m", "k")
_ENDINGS: Mapping[EntityKind, tuple[str, ...]] = {
    "town": ("ford", "ham", "by", "mouth", "wick", "stead"),
    "firm": ("works", "corp", "lines", "trade"),
}
_WORK_HEADS = ("Song", "Book", "Shadow", "House", "Winter", "Garden", "Letters", "River")


class World(NamedTuple):
    """The entities, the facts and the passages of one split."""

    entities: Mapping[EntityKind, tuple[str, ...]]
    facts: Mapping[tuple[str, str], str]  # (subject, relation) -> target
    kinds: Mapping[str, EntityKind]
    ids: Mapping[str, str]  # entity -> id of its passage
    passages: tuple[tuple[str, str], ...]  # (id, text), in the order of the index


def syllables(rng: random.Random, count: int) -> str:
    parts = [rng.choice(_ONSETS) + rng.choice(_VOWELS) for _ in range(count)]
    return "".join(parts)


def new_name(kind: EntityKind, rng: random.Random) -> str:
    """Draw a name whose form shows the kind of entity."""
    if kind == "person":
        first = syllables(rng, 1) + rng.choice(_CODAS)
        return f"{first} {syllables(rng, 2)}{rng.choice(_CODAS)}".title()
    if kind == "work":
        return f"{rng.choice(_WORK_HEADS)} of {syllables(rng, 2).title()}{rng.choice(_CODAS)}"
    return f"{syllables(rng, 2)}{rng.choice(_ENDINGS[kind])}".title()


def _names(kind: EntityKind, count: int, rng: random.Random) -> tuple[str, ...]:
    names: dict[str, None] = {}
    while len(names) < count:
        names[new_name(kind, rng)] = None
    return tuple(names)


def _text(subject: str, kind: EntityKind, facts: Mapping[tuple[str, str], str]) -> str:
    return " ".join(
        relation.sentence.format(s=subject, o=facts[subject, name])
        for name, relation in RELATIONS.items()
        if relation.subject == kind
    )


@lru_cache(maxsize=8)
def world(seed: int, split: str, passages: int) -> World:
    """The world of `split`: about `passages` entities, one passage each."""
    entities: dict[EntityKind, tuple[str, ...]] = {}
    for kind, share in SHARES.items():
        # The names are the same for all splits (key without split); the facts below are not.
        entities[kind] = _names(kind, round(passages * share), key_rng("names", seed, kind))
    rng = key_rng("world", seed, split, passages)
    facts: dict[tuple[str, str], str] = {}
    for relation in RELATIONS.values():
        targets = entities[relation.target]
        for subject in entities[relation.subject]:
            target = rng.choice(targets)
            while target == subject:
                target = rng.choice(targets)
            facts[subject, relation.name] = target
    order = [(name, kind) for kind, names in entities.items() for name in names]
    rng.shuffle(order)
    ids = {name: f"{split}-{position}" for position, (name, _) in enumerate(order)}
    texts = tuple((ids[name], _text(name, kind, facts)) for name, kind in order)
    return World(entities, facts, dict(order), ids, texts)


class Question(NamedTuple):
    """A chain of relations from a named entity to the answer."""

    text: str
    relations: tuple[str, ...]
    path: tuple[str, ...]  # the entities from the start on; the last one is the answer


def draw_question(world: World, hops: int, rng: random.Random) -> Question:
    """Draw a question of `hops` relations whose path visits no entity twice."""
    while True:
        kind = rng.choice(tuple(world.entities))
        path = [rng.choice(world.entities[kind])]
        names: list[str] = []
        for _ in range(hops):
            fitting = [name for name, rel in RELATIONS.items() if rel.subject == kind]
            names.append(rng.choice(fitting))
            kind = RELATIONS[names[-1]].target
            path.append(world.facts[path[-1], names[-1]])
        if len(set(path)) == len(path):
            return Question(question_text(path[0], names), tuple(names), tuple(path))


def question_text(start: str, relations: list[str] | tuple[str, ...]) -> str:
    """`Who is the mayor of the birthplace of Ana Brol?`."""
    phrase = start
    for name in relations:
        phrase = RELATIONS[name].phrase.format(s=phrase)
    word = "Who" if RELATIONS[relations[-1]].target == "person" else "What"
    return f"{word} is {phrase}?"


def read_fact(text: str, subject: str, relation: str) -> str | None:
    """Read the target of a fact in `text` (passages), or None."""
    pattern = re.escape(RELATIONS[relation].sentence)
    pattern = pattern.replace(r"\{s\}", re.escape(subject)).replace(r"\{o\}", r"([^.\n]+)")
    match = re.search(rf"(?<!\w){pattern}", text)
    return match[1] if match else None


_WORD = re.compile(r"\w+")
LONGEST_QUERY = 1_000  # characters of a query that a retriever uses


def words(text: str) -> list[str]:
    """The tokens of a passage or a query: lower-case words, no stop words, no stemming."""
    return _WORD.findall(text.lower())


def best_places(scores: np.ndarray, k: int) -> np.ndarray:
    """Indices of the `k` highest positive scores (shape (passages,)), best first, ties by index."""
    places = np.flatnonzero(scores > 0)
    if k < len(places):
        # A partition alone would break ties for the last rank arbitrarily.
        matching = scores[places]
        cut = len(places) - k
        places = places[matching >= np.partition(matching, cut)[cut]]
    return places[np.argsort(-scores[places], kind="stable")][:k]


class Bm25:
    """Okapi BM25 (k1 1.5, b 0.75, Lucene's idf) over passages, through `bm25s`.

    Raises:
        MissingExtraError: `bm25s` is not installed.
        UsageError: no passage contains a word.
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
            raise UsageError("the corpus is empty: no passage contains a word")
        self._index.index(tokens, show_progress=False)

    def retrieve(self, queries: Sequence[str], k: int) -> list[SearchResult]:
        """The `k` best passages for each query, only passages that share a word with it.

        Ties are broken by the order of the passages, so results are equal on every machine.
        """
        return [self._search_query(query[:LONGEST_QUERY], k) for query in queries]

    def _search_query(self, query: str, k: int) -> SearchResult:
        vocabulary = self._index.vocab_dict
        tokens = [vocabulary[word] for word in words(query) if word in vocabulary]
        if not tokens:
            return SearchResult(())
        scores = np.asarray(self._index.get_scores_from_ids(tokens))
        return SearchResult(
            tuple(
                Passage(*self._passages[int(position)], round(scores[position].item(), 4))
                for position in best_places(scores, k)
            )
        )


BATCH = 256  # most queries per request
TIMEOUT_S, ATTEMPTS = 30.0, 3  # of a request
PAUSE_S = 0.5  # before the second attempt; doubled after each attempt
_LARGEST = 64 * 2**20  # bytes of a response that are read
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def read_response(body: bytes, queries: int, k: int) -> list[SearchResult]:
    """The passages of a response; at most `k` for each of `queries` queries."""
    try:  # a failure is an error of the run, not an observation
        result = json.loads(body)["result"]
        results = [SearchResult(tuple(_passage(entry) for entry in row[:k])) for row in result]
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


def check_url(url: str) -> None:
    """Raise `UsageError` unless `url` is one such as `http://127.0.0.1:8000/retrieve`."""
    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
        raise UsageError(f"retriever {url!r}: expected a URL such as http://host/retrieve")


def ask_server(url: str, queries: Sequence[str], k: int) -> list[SearchResult]:
    """The `k` best passages of a server for each query, in its order; proxies are not used.

    Raises:
        RetrieverError: the server refuses, fails or violates the `/retrieve` contract.
    """
    # JSON has no lone surrogates, and a server may fail on NUL.
    clean = [
        query[:LONGEST_QUERY].encode("utf-8", "replace").decode().replace("\x00", " ")
        for query in queries
    ]
    results: list[SearchResult] = []
    for start in range(0, len(clean), BATCH):
        part = clean[start : start + BATCH]
        body = json.dumps({"queries": part, "topk": k, "return_scores": True})
        results += read_response(_post(url, body.encode()), len(part), k)
    return results


def _post(url: str, body: bytes) -> bytes:
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"}, method="POST")
    for attempt in range(1, ATTEMPTS + 1):
        try:
            with _OPENER.open(request, timeout=TIMEOUT_S) as response:
                raw = response.read(_LARGEST + 1)
            if len(raw) > _LARGEST:
                raise RetrieverError(f"{url}: a response of over {_LARGEST} bytes")
            return raw
        except (OSError, http.client.HTTPException) as error:
            code = error.code if isinstance(error, urllib.error.HTTPError) else None
            is_final = code is not None and code < 500 and code != 429
            if is_final or attempt == ATTEMPTS:
                what = f"status {code}" if code is not None else repr(error)
                raise RetrieverError(
                    f"the retriever at {url} failed {attempt} time(s), last with {what}. "
                    "Check that the server runs and follows the /retrieve contract."
                ) from error
            time.sleep(PAUSE_S * 2 ** (attempt - 1))
    raise AssertionError("the last attempt returns or raises")


_ANSWERS = ("golden_answers", "answers", "answer")


class QuestionRow(NamedTuple):
    """One question of a file."""

    line: int
    text: str
    golds: tuple[str, ...]
    gold_ids: tuple[str, ...]


class PassageRow(NamedTuple):
    """One passage of a file."""

    id: str
    text: str


def question_rows(
    data: str, records: Records, layout: str, columns: dict[str, str]
) -> Iterator[QuestionRow]:
    """Read questions; the only layout has fixed column names."""
    for line, where, record in objects(data, records):
        text = record.get("question")
        if not isinstance(text, str) or not text.strip():
            raise DataError(f"{where}: column 'question' is missing or blank.")
        name = next((name for name in _ANSWERS if record.get(name) is not None), None)
        given = None if name is None else record[name]
        golds = _texts(given if name == "answer" else listed(given))
        if not golds or not all(map(normalize, golds)):
            raise DataError(
                f"{where}: expected a text or a list of texts in one of {', '.join(_ANSWERS)}, "
                f"with a word in each; got {given!r:.100}."
            )
        yield QuestionRow(line, text.strip(), golds, _texts(listed(record.get("gold_ids"))))


def _texts(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    if isinstance(value, Sequence) and all(isinstance(part, str | int) for part in value):
        return tuple(str(part) for part in value)
    return ()


def passage_rows(
    data: str, records: Records, layout: str, columns: dict[str, str]
) -> Iterator[PassageRow]:
    """Read passages; the only layout has fixed column names."""
    for _, where, record in objects(data, records):
        text, name = record.get("contents"), record.get("id")
        if not isinstance(text, str) and isinstance(record.get("text"), str):
            text = f"{record.get('title', '')}\n{record['text']}".strip()
        if not isinstance(text, str) or not isinstance(name, str | int):
            raise DataError(f"{where}: expected `id` and `contents` (or `title` and `text`).")
        yield PassageRow(str(name), text)


@lru_cache(maxsize=2)
def corpus_index(corpus: str, digest: str) -> Bm25:
    """The BM25 index over a file of passages."""
    return Bm25(reload(corpus, passage_rows, "auto", (), digest).splits["all"])


INSTRUCTION = "Put the answer between <answer> and </answer>."
SMALLEST, LARGEST = 200, 20_000
HOPS = 1, 2, 3
_ANSWER = re.compile(r"<answer>((?:(?!<answer>).){0,500}?)</answer>", re.DOTALL)
_SEARCH = re.compile(r"<search>.*?(?:</search>|\Z)", re.DOTALL)
_LONGEST = 500


def tagged_answer(text: str) -> str | None:
    """The last non-empty `<answer>` of a reply, outside its thoughts and its queries, or None."""
    reply = visible(text)
    if "</answer>" not in reply:  # most long texts need no search
        return None
    answers = _ANSWER.findall(_SEARCH.sub(" ", reply))
    return answers[-1].strip() or None if answers else None


@lru_cache(maxsize=8)
def world_index(seed: int, split: str, passages: int) -> Bm25:
    return Bm25(world(seed, split, passages).passages)


@dataclass(frozen=True)
class SearchTask(DataTask[QuestionRow]):
    """Questions with a knowledge base to search.

    A problem's `meta` has `golds` (all accepted answers), `gold_ids` (required passages in order of
    the hops; empty if a file has none), `solution`, and for generated problems `start`, `relations`
    and `level`.

    Raises:
        UsageError: an invalid option, options of generated problems together with a file, or a file
            without a corpus or retriever.
        DataError: a broken file, with the line.
        MissingExtraError: BM25 without the extra `search`.
    """

    name: ClassVar[str] = "search"
    kind: ClassVar[str] = "search"
    instruction: ClassVar[str] = INSTRUCTION
    home: ClassVar[str] = "search_team_v0"
    drawn_by: ClassVar[tuple[str, ...]] = ("level", "passages")
    of_file: ClassVar[tuple[str, ...]] = ("digest",)

    level: int | str | None = None
    """Hops of generated questions: 1 to 3, or a range such as "1-3" (default), cycled by index."""
    passages: int | None = None
    """Passages of the generated knowledge base, 200 to 20,000 (default 5,000)."""
    corpus: str | None = None
    """File of passages for BM25, with `data`."""
    retriever: str = "bm25"
    """`bm25`, or the URL of a server with the public `/retrieve` contract."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.retriever != "bm25":
            check_url(self.retriever)
        else:
            need_module("bm25s", "searching passages with BM25")  # at creation, not in an episode
        if self.data is None:
            self._check_generated()
        else:
            self._check_file()

    def _check_generated(self) -> None:
        if self.corpus is not None:
            raise UsageError("corpus belongs to a file of questions: give data as well.")
        object.__setattr__(self, "level", "1-3" if self.level is None else self.level)
        object.__setattr__(self, "passages", 5_000 if self.passages is None else self.passages)
        read_levels(self.level or 0, HOPS)
        size = self.passages
        if isinstance(size, bool) or not isinstance(size, int) or not SMALLEST <= size <= LARGEST:
            raise UsageError(
                f"passages: expected a whole number from {SMALLEST} (fewer could be guessed) to "
                f"{LARGEST}, got {size!r}."
            )

    def _check_file(self) -> None:
        if (self.corpus is None) == (self.retriever == "bm25"):
            raise UsageError(
                "questions from a file need exactly one of corpus=FILE (BM25) and retriever=URL; "
                f"got corpus={self.corpus!r} and retriever={self.retriever!r}."
            )
        digests = [load(str(self.data), question_rows).digest]
        if self.corpus is not None:
            object.__setattr__(self, "corpus", str(self.corpus))
            digests.append(load(str(self.corpus), passage_rows).digest)
        digest = ":".join(digests)
        if self.digest and self.digest != digest:
            raise DataError(
                f"{self.data}: the content has changed since the task was made (digest {digest}, "
                f"expected {self.digest}). Make the task anew."
            )
        object.__setattr__(self, "digest", digest)

    def _of_row(self, row: QuestionRow, index: int, split: str, where: RowPlace) -> Problem:
        meta = {**where, "golds": row.golds, "gold_ids": row.gold_ids}
        return Problem(self.name, split, self.seed, index, row.text, row.golds[0], meta)

    def _source(self) -> DataSource[QuestionRow]:
        digest = self.digest.partition(":")[0]
        return data_source(str(self.data), question_rows, digest=digest)

    def _draw_key(self, index: int) -> tuple[int | str, ...]:
        levels = read_levels(self.level or 0, HOPS)
        return (levels[index % len(levels)],)

    def _draw(self, rng: random.Random, index: int, split: str, number: int) -> Problem | None:
        [level], world = self._draw_key(index), self._world(split)
        question = draw_question(world, int(level), rng)
        if not is_in(split, question.text):
            return None
        gold = question.path[-1]
        meta = {
            "source": f"level-{self.level}-{self.passages}",
            "level": level,
            "golds": (gold,),
            "gold_ids": tuple(world.ids[name] for name in question.path[:-1]),
            "start": question.path[0],
            "relations": question.relations,
            "solution": f"<answer>{gold}</answer>",
        }
        return Problem(self.name, split, self.seed, index, question.text, gold, meta)

    def _world(self, split: str) -> World:
        return world(self.seed, split, self.passages or 0)

    def answer(self, text: str) -> str | None:
        return tagged_answer(text)

    def answer_lenient(self, text: str) -> str | None:
        tagged = tagged_answer(text)
        if tagged is not None:
            return tagged
        last = visible(text).rpartition("\n")[2][-_LONGEST:]
        return re.sub(r"<[^<>]*>", " ", last).strip() or None

    def grade(self, problem: Problem, answer: str | None) -> GradeResult:
        """1 for an exact match with a reference answer; the part `f1` is the best token F1.

        Status: `match`, `differs` or `none` (no answer).
        """
        if answer is None:
            return GradeResult(0.0, "none", (("f1", 0.0),))
        golds = {problem.gold, *problem.meta.get("golds", ())}
        match = exact_match(answer, golds)
        return GradeResult(
            float(match), "match" if match else "differs", (("f1", f1(answer, golds)),)
        )

    def classes(self, problem: Problem, answers: Sequence[str | None]) -> tuple[int, ...]:
        return number_by_first(a if a is None else normalize(a) for a in answers)

    def search_batch(
        self, problems: Sequence[Problem], queries: Sequence[str], k: int
    ) -> list[SearchResult]:
        if self.retriever != "bm25":
            return ask_server(self.retriever, queries, k)
        results: list[SearchResult] = [SearchResult(())] * len(queries)
        for split in dict.fromkeys(problem.split for problem in problems):
            places = [i for i, problem in enumerate(problems) if problem.split == split]
            part = self.index(split).retrieve([queries[i] for i in places], k)
            for position, result in zip(places, part, strict=True):
                results[position] = result
        return results

    def index(self, split: str) -> Bm25:
        if self.corpus is not None:
            return corpus_index(self.corpus, self.digest.partition(":")[2])
        return world_index(self.seed, split, self.passages or 0)

    def solve(self, problem: Problem, rng: random.Random, right: bool) -> str:
        """The tagged answer; if not `right`, another name of the same kind."""
        if right:
            return f"<answer>{problem.gold}</answer>"
        return f"<answer>{self.other_answer(problem, rng)}</answer>"

    def other_answer(self, problem: Problem, rng: random.Random) -> str:
        """A plausible answer with grade 0."""
        if self.data is not None:
            return "Atlantis" if not exact_match("Atlantis", problem.meta["golds"]) else "Utopia"
        world = self._world(problem.split)
        names = world.entities[world.kinds[problem.gold]]
        position = rng.randrange(len(names))
        return names[position] if names[position] != problem.gold else names[position - 1]

    def samples(self) -> tuple[str, ...]:
        return ("<answer>Rehaford</answer>", "The answer is Bal Sohak.", "<answer>")
