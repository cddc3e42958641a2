"""Questions and passages from files.

| file | columns |
|---|---|
| questions | `question`; `golden_answers`, `answers` or `answer` (text or list of texts); optional `gold_ids`, the ids of the passages that answer it |
| passages | `id`; `contents`, or `title` and `text` |
"""  # noqa: E501 - rows of a table

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from flowzoo.envs.tasks.rows import DataSource, data_source, listed, load, objects, reload
from flowzoo.envs.tasks.search.index import Bm25
from flowzoo.errors import DataError
from flowzoo.reward.text.qa import normalize

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
    """Reads questions; there is one layout, and its columns have fixed names.

    Raises:
        DataError: a bad row, with its line.
    """
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
    """Reads passages; there is one layout, and its columns have fixed names.

    Raises:
        DataError: a bad row, with its line.
    """
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


def questions(data: str, digest: str = "") -> DataSource[QuestionRow]:
    """The questions of `data`, which must have `digest` if one is given.

    Raises:
        DataError: a bad row, with its line, or another content.
    """
    return data_source(data, question_rows, digest=digest)


def corpus_digest(corpus: str) -> str:
    """The digest of a file of passages.

    Raises:
        DataError: a bad row, with its line.
    """
    return load(corpus, passage_rows).digest


@lru_cache(maxsize=2)
def corpus_index(corpus: str, digest: str) -> Bm25:
    """The BM25 index over a file of passages.

    Raises:
        DataError: another content than `digest`.
        MissingExtraError: `bm25s` is not installed.
    """
    return Bm25(reload(corpus, passage_rows, "auto", (), digest).splits["all"])
