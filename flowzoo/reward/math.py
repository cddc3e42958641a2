r"""Scores of mathematical answers: `score_batch(preds, golds)` and `equivalence_classes(answers)`.

Everything is decided by exact comparison of bounded values (`math_values`), nothing is ever
evaluated: equal rationals in any notation are equal, containers element by element, all else by its
normalised LaTeX. Two expressions that need algebra to be seen equal count as different.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

from flowzoo.errors import UsageError, unknown
from flowzoo.reward.math_extract import extract, read_any
from flowzoo.reward.math_values import read_value, same

Status = Literal["equal", "different", "no_answer", "too_big", "bad_gold"]
"""`too_big`: the answer is over the bounds of `math_values`. `bad_gold`: the gold answer is blank
or over them, so that the row says nothing about the reply and can be masked."""
Reading = Literal["auto", "answer", "strict", "lenient"]


@dataclass(frozen=True, slots=True)
class MathOptions:
    """How predictions are read.

    Raises:
        UsageError: unknown `read`.
    """

    read: Reading = "auto"
    """`auto`: predictions are full replies or bare answers, read by box, answer phrase, formula or,
    if short, as a whole. `answer`: they are extracted answers, taken as they are. `strict` and
    `lenient`: they are full replies, read by `extract` in that mode."""

    def __post_init__(self) -> None:
        """Check the choice."""
        if self.read not in get_args(Reading):
            raise unknown("reading", self.read, get_args(Reading))


class Scores(NamedTuple):
    """One score (1.0 or 0.0) and one status per row."""

    scores: list[float]
    statuses: list[str]


def score_batch(
    preds: Sequence[str | None], golds: Sequence[str], options: MathOptions | None = None
) -> Scores:
    r"""Compare `preds[i]`, a reply or an answer, with `golds[i]`, the reference answer.

    The order of the arguments matters: only predictions are searched for an answer. A prediction
    that is no string (None) has no answer. Deterministic; bounded time; never raises on text.

    Raises:
        UsageError: the two differ in length, or a gold is not a string.

    Example:
        >>> score_batch([r"so \boxed{\frac{1}{2}}", "3"], ["0.5", "4"])
        Scores(scores=[1.0, 0.0], statuses=['equal', 'different'])
    """
    _check(preds, golds)
    read = _reader((options or MathOptions()).read)
    known: dict[tuple[str | None, str], Status] = {}
    statuses: list[str] = []
    for pred, gold in zip(preds, golds, strict=True):
        pair = (pred if isinstance(pred, str) else None, gold)
        status = known.get(pair)
        if status is None:
            status = known[pair] = _status(None if pair[0] is None else read(pair[0]), gold)
        statuses.append(status)
    return Scores([1.0 if status == "equal" else 0.0 for status in statuses], statuses)


def is_gradable(gold: str) -> bool:
    """Whether `gold` can be a reference answer: not blank and inside the bounds."""
    return bool(gold.strip()) and read_value(gold) is not None


def equivalence_classes(answers: Sequence[str | None]) -> tuple[int, ...]:
    """Class ids of extracted answers, numbered from 0 by first appearance; -1 for None or blank.

    Answers are in one class if a chain of equal pairs joins them. Answers over the bounds are
    compared as strings.
    """
    distinct = list(dict.fromkeys(a.strip() for a in answers if a is not None and a.strip()))
    values = [read_value(answer) for answer in distinct]
    parent = list(range(len(distinct)))
    for i, value in enumerate(values):
        for j in range(i):
            other = values[j]
            if value is not None and other is not None and same(value, other):
                low, high = sorted((_root(parent, i), _root(parent, j)))
                parent[high] = low
    roots = {answer: _root(parent, i) for i, answer in enumerate(distinct)}
    ids: dict[int, int] = {}
    return tuple(
        -1 if a is None or not a.strip() else ids.setdefault(roots[a.strip()], len(ids))
        for a in answers
    )


def _root(parent: list[int], node: int) -> int:
    while parent[node] != node:
        node = parent[node]
    return node


def _status(answer: str | None, gold: str) -> Status:
    expected = read_value(gold) if gold.strip() else None
    if expected is None:
        return "bad_gold"
    if answer is None or not answer.strip():
        return "no_answer"
    value = read_value(answer)
    if value is None:
        return "too_big"
    return "equal" if same(value, expected) else "different"


def _reader(read: Reading) -> Callable[[str], str | None]:
    if read == "answer":
        return str
    if read == "auto":
        return read_any
    return lambda text: extract(text, read)


def _check(preds: Sequence[str | None], golds: Sequence[str]) -> None:
    if isinstance(preds, str) or isinstance(golds, str) or len(preds) != len(golds):
        sizes = [repr(x) if isinstance(x, str) else f"{len(x)} entries" for x in (preds, golds)]
        raise UsageError(
            "score_batch(preds, golds) expects two sequences of equal length, got "
            f"preds: {sizes[0]}, golds: {sizes[1]}."
        )
    for idx, gold in enumerate(golds):
        if not isinstance(gold, str):
            raise UsageError(f"gold {idx}: expected a string, got {type(gold).__name__}: {gold!r}.")
