"""The task `search`: questions that only a search can answer.

| | |
|---|---|
| Creation | `make_task("search", level=2)`, `make_task("search", data="nq.jsonl", corpus="wiki.jsonl")` |
| Problems | 1- to 3-hop questions over a generated knowledge base, or the rows of a file |
| Retriever | BM25 in this process, or a server (`retriever="http://.../retrieve"`) |
| Answer | what stands between the last `<answer>` and `</answer>`; lenient: else the last line |
| Score | 1 if equal to a reference answer after SQuAD normalization, else 0 |

The knowledge base is drawn anew for every split, from the same names: what was learned by heart on
one split is wrong on the others, and there are hundreds of possible answers to guess from. Every
fact is in one passage; the ids of the passages that a question needs are known (`gold_ids`).

Version history: v0, first release.
"""  # noqa: E501 - rows of a table

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import count
from typing import Any, ClassVar, NamedTuple

from flowzoo.envs.script import Found, Graded
from flowzoo.envs.tasks.rows import DataSource, DataTask, data_source, listed, load, objects, reload
from flowzoo.envs.tasks.search.retrievers import Bm25, Field, HttpRetriever, Retriever
from flowzoo.envs.tasks.search.world import Question, World, draw_question, world
from flowzoo.envs.tasks.task import Problem, is_in, levels_named, number_by_first
from flowzoo.envs.text import visible
from flowzoo.errors import DataError, UsageError, need_module
from flowzoo.reward.text.qa import exact_match, f1, normalize
from flowzoo.seeding import key_rng

_ANSWERS = ("golden_answers", "answers", "answer")
Records = Iterable[tuple[int, Any]]


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
    """Reads questions; there is one layout, and its columns have fixed names."""
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


def _texts(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    if isinstance(value, Sequence) and all(isinstance(part, str | int) for part in value):
        return tuple(str(part) for part in value)
    return ()


def passage_rows(
    data: str, records: Records, layout: str, columns: dict[str, str]
) -> Iterator[PassageRow]:
    """Reads passages; there is one layout, and its columns have fixed names."""
    for _, where, record in objects(data, records):
        text, name = _passage_text(record), record.get("id")
        if text is None or not isinstance(name, str | int):
            raise DataError(f"{where}: expected `id` and `contents` (or `title` and `text`).")
        yield PassageRow(str(name), text)


def _passage_text(record: Mapping[str, Any]) -> str | None:
    if isinstance(record.get("contents"), str):
        return record["contents"]
    if isinstance(record.get("text"), str):
        return f"{record.get('title', '')}\n{record['text']}".strip()
    return None


@lru_cache(maxsize=2)
def corpus_index(corpus: str, digest: str) -> Bm25:
    """The BM25 index over a file of passages."""
    return Bm25(reload(corpus, passage_rows, "auto", (), digest).splits["all"])


INSTRUCTION = "Put the answer between <answer> and </answer>."
SMALLEST, LARGEST = 200, 20_000
_ANSWER = re.compile(r"<answer>((?:(?!<answer>).){0,500}?)</answer>", re.DOTALL)
_SEARCH = re.compile(r"<search>.*?(?:</search>|\Z)", re.DOTALL)
_LONGEST = 500


def parse_hops(level: int | str) -> tuple[int, ...]:
    """Numbers of hops named by `level`: 2, "2", or a range such as "1-3"."""
    hops = levels_named(level, 3)
    if hops:
        return hops
    raise UsageError(f"level {level!r}: expected 1, 2 or 3 hops, or a range such as '1-3'.")


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
    """Questions with a knowledge base to search in.

    A problem's `meta` has `golds` (all accepted answers), `gold_ids` (passages that are needed, in
    order of the hops; empty if a file does not say), `solution`, and for generated problems
    `start`, `relations` and `level`.

    Raises:
        UsageError: a bad option, options of generated problems together with a file, or a file
            without anything to search in.
        DataError: a broken file, with the line.
        MissingExtraError: BM25 without the extra `search`.
    """

    name: ClassVar[str] = "search"
    kind: ClassVar[str] = "search"
    instruction: ClassVar[str] = INSTRUCTION
    home: ClassVar[str] = "search_team_v0"

    level: int | str | None = None
    """Hops of generated questions: 1 to 3, or a range such as "1-3" (default), which take turns."""
    passages: int | None = None
    """Passages of the generated knowledge base, 200 to 20,000 (default 5,000)."""
    data: str | None = None
    """File (or Hugging Face id) of questions with the columns above."""
    corpus: str | None = None
    """File of passages that BM25 searches in, for `data`."""
    retriever: str = "bm25"
    """`bm25`, or the URL of a server that speaks the public `/retrieve` contract."""
    retriever_field: Field = "queries"
    """Request field of that server: `queries` (a batch) or `query` (one a request)."""
    seed: int = 0
    digest: str = field(default="", repr=False)
    """Digests that `data` and `corpus` must have; default: taken when the task is made."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.retriever != "bm25":
            HttpRetriever(self.retriever, self.retriever_field)
        elif self.retriever_field != "queries":
            raise UsageError("retriever_field describes a server: give retriever=URL as well.")
        else:
            need_module("bm25s", "searching passages with BM25")  # now, not in mid-episode
        if self.data is None:
            self._check_generated()
        else:
            self._check_file()

    def _check_generated(self) -> None:
        if self.corpus is not None or self.digest:
            raise UsageError("corpus and digest belong to a file of questions: give data as well.")
        object.__setattr__(self, "level", "1-3" if self.level is None else self.level)
        object.__setattr__(self, "passages", 5_000 if self.passages is None else self.passages)
        parse_hops(self.level or 0)
        size = self.passages
        if isinstance(size, bool) or not isinstance(size, int) or not SMALLEST <= size <= LARGEST:
            raise UsageError(
                f"passages: expected a whole number from {SMALLEST} (fewer could be guessed) to "
                f"{LARGEST}, got {size!r}."
            )

    def _check_file(self) -> None:
        if self.level is not None or self.passages is not None:
            raise UsageError("level and passages choose generated problems, data a file: one only.")
        if (self.corpus is None) == (self.retriever == "bm25"):
            raise UsageError(
                "questions from a file need one thing to search in: corpus=FILE for BM25, or "
                f"retriever=URL; got corpus={self.corpus!r} and retriever={self.retriever!r}."
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

    def _of_row(self, row: QuestionRow, index: int, split: str, where: dict[str, Any]) -> Problem:
        meta = {**where, "golds": row.golds, "gold_ids": row.gold_ids}
        return Problem(self.name, split, self.seed, index, row.text, row.golds[0], meta)

    def _source(self) -> DataSource[QuestionRow]:
        digest = self.digest.partition(":")[0]
        return data_source(str(self.data), question_rows, digest=digest)

    def _generated(self, index: int, split: str) -> Problem:
        # Draw until the question belongs to `split` by its hash, as everywhere.
        hops = parse_hops(self.level or 0)
        level, world = hops[index % len(hops)], self._world(split)
        for draw in count():
            rng = key_rng("task", self.name, level, split, self.seed, index, draw)
            question = draw_question(world, level, rng)
            if is_in(split, question.text):
                return self._asked(question, world, level, split, index)
        raise AssertionError("unreachable")

    def _asked(
        self, question: Question, world: World, level: int, split: str, index: int
    ) -> Problem:
        gold = question.path[-1]
        meta = {
            "source": f"level-{self.level}-{self.passages}",
            "level": level,
            "golds": (gold,),
            "gold_ids": tuple(world.ids[name] for name in question.path[:-1]),
            "start": question.start,
            "relations": question.relations,
            "solution": f"<answer>{gold}</answer>",
        }
        return Problem(self.name, split, self.seed, index, question.text, gold, meta)

    def _world(self, split: str) -> World:
        return world(self.seed, split, self.passages or 0)

    def prompt(self, problem: Problem) -> str:
        return f"{problem.text}\n{self.instruction}"

    def answer(self, text: str) -> str | None:
        return tagged_answer(text)

    def answer_lenient(self, text: str) -> str | None:
        tagged = tagged_answer(text)
        if tagged is not None:
            return tagged
        last = visible(text).rpartition("\n")[2][-_LONGEST:]
        return re.sub(r"<[^<>]*>", " ", last).strip() or None

    def grade_batch(
        self, problems: Sequence[Problem], answers: Sequence[str | None]
    ) -> list[Graded]:
        """1 for an exact match with a reference answer; the part `f1` is the best token F1.

        Status: `match`, `differs` or `none` (no answer).
        """
        return [
            self._grade(problem, answer) for problem, answer in zip(problems, answers, strict=True)
        ]

    def _grade(self, problem: Problem, answer: str | None) -> Graded:
        if answer is None:
            return Graded(0.0, "none", (("f1", 0.0),))
        golds = {problem.gold, *problem.meta.get("golds", ())}
        match = exact_match(answer, golds)
        return Graded(float(match), "match" if match else "differs", (("f1", f1(answer, golds)),))

    def classes(self, problem: Problem, answers: Sequence[str | None]) -> tuple[int, ...]:
        return number_by_first(a if a is None else normalize(a) for a in answers)

    def search_batch(
        self, problems: Sequence[Problem], queries: Sequence[str], k: int
    ) -> list[Found]:
        if self.retriever != "bm25":
            return HttpRetriever(self.retriever, self.retriever_field).retrieve(queries, k)
        results: list[Found] = [Found(())] * len(queries)
        for split in dict.fromkeys(problem.split for problem in problems):
            places = [i for i, problem in enumerate(problems) if problem.split == split]
            part = self.index(split).retrieve([queries[i] for i in places], k)
            for position, result in zip(places, part, strict=True):
                results[position] = result
        return results

    def index(self, split: str) -> Retriever:
        if self.corpus is not None:
            return corpus_index(self.corpus, self.digest.partition(":")[2])
        return world_index(self.seed, split, self.passages or 0)

    def solve(self, problem: Problem, rng: random.Random, right: bool) -> str:
        """The tagged answer; if not `right`, another name of the same kind."""
        if right:
            return f"<answer>{problem.gold}</answer>"
        return f"<answer>{self.other_answer(problem, rng)}</answer>"

    def other_answer(self, problem: Problem, rng: random.Random) -> str:
        """A plausible answer that is graded 0."""
        if self.data is not None:
            return "Atlantis" if not exact_match("Atlantis", problem.meta["golds"]) else "Utopia"
        world = self._world(problem.split)
        names = world.entities[world.kinds[problem.gold]]
        position = rng.randrange(len(names))
        return names[position] if names[position] != problem.gold else names[position - 1]

    def samples(self) -> tuple[str, ...]:
        return ("<answer>Rehaford</answer>", "The answer is Bal Sohak.", "<answer>")
