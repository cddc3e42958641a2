r"""Scores of mathematical answers: `score_batch(preds, golds)` and `equivalence_classes(answers)`.

A pair is decided in this order, cheapest first: equal plain numbers; exact comparison of the parsed
answers; numeric probing of two expressions at fixed points; and, only for the few that stay open,
sympy in a killable worker process. Nothing that a model wrote is ever evaluated as code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from flowzoo.errors import UsageError, check_choice
from flowzoo.reward.math.answer import read_answer
from flowzoo.reward.math.clean import clean, text_form
from flowzoo.reward.math.compare import ListRule, PercentRule, Rules, UnitRule, same
from flowzoo.reward.math.copies import is_copied
from flowzoo.reward.math.extract import AnswerSource, ExtractMode, boxed_percent, extract
from flowzoo.reward.math.judge import judge, warm
from flowzoo.reward.math.kernel import MIN_ROWS, judge_plain, plain_gold
from flowzoo.reward.math.pairs import ParsedGold, compare, read_gold, sentence_choice

# `too_big`: the answer is over the bounds of the reader. `bad_gold`: the gold answer is blank or
# over them, so that the row says nothing about the reply and can be masked. `timeout`, `crashed`:
# the judge ran out of time or memory, or died; the score is 0. `copied`: equal, but only a formula
# copied from the problem; the score is 0.
MathStatus = Literal[
    "equal", "different", "copied", "no_answer", "too_big", "timeout", "crashed", "bad_gold"
]
MathReading = Literal["auto", "answer", "strict", "lenient"]
Judging = Literal["pool", "none"]


# From this many rows on, with a gold that is no whole number, the judge starts beforehand.
_WARM_ROWS: Final = 32


@dataclass(frozen=True, slots=True)
class MathOptions:
    """Options of reading and comparing answers.

    Raises:
        UsageError: an unknown choice, or a number out of its range.
    """

    read: MathReading = "auto"
    """`auto`: predictions are full replies or bare answers, read by box, `####`, answer phrase, as
    a whole if they are nothing but an answer, or by the last formula or number of their last
    sentence. `answer`: predictions and golds are extracted answers, taken as they are. `strict`
    and `lenient`: predictions are full replies, read by `extract` in that mode."""
    order: tuple[AnswerSource, ...] | None = None
    """Sources of an answer in order, instead of the ones of `read`."""
    percent: PercentRule = "exact"
    """`exact`: 50% is 1/2 only. `either`: it may be written 50 as well."""
    units: UnitRule = "optional"
    """`optional`: a unit may be missing on one side; two must agree. `required`: both sides or
    none. `ignored`: units are not compared."""
    lists: ListRule = "free"
    """True if the order of a bare list counts. Tuples are ordered and sets are not in any case."""
    digits: int = 6
    """Significant digits from which on a decimal equals the exact number it rounds, 1 to 40."""
    judge: Judging = "pool"
    """Judge of pairs that exact comparison and probing leave open: sympy in the worker pool, or
    none, so that they are different."""
    deadline: float = 1.0
    """Seconds of processor time for a pair that is judged, at most 1.5; see `WorkerPool.run`."""

    def __post_init__(self) -> None:
        check_choice("reading", self.read, MathReading)
        check_choice("percent rule", self.percent, PercentRule)
        check_choice("unit rule", self.units, UnitRule)
        check_choice("list rule", self.lists, ListRule)
        check_choice("judge", self.judge, Judging)
        for source in self.order or ():
            check_choice("answer source", source, AnswerSource)
        if not 1 <= self.digits <= 40:
            raise UsageError(f"digits: expected 1 to 40, got {self.digits!r}.")
        if not 0 < self.deadline <= 1.5:
            raise UsageError(f"deadline: expected seconds in (0, 1.5], got {self.deadline!r}.")


class _Rows(NamedTuple):
    scores: list[float]
    statuses: list[MathStatus]


class Scores(_Rows):
    """`scores, statuses`: a score (1.0 or 0.0) and a status per row."""

    options: MathOptions = MathOptions()
    """The options that they hold under."""

    @classmethod
    def of(cls, statuses: list[MathStatus], options: MathOptions) -> Scores:
        """The scores that go with `statuses`."""
        rows = cls([1.0 if status == "equal" else 0.0 for status in statuses], statuses)
        rows.options = options
        return rows


def score_batch(
    preds: Sequence[str | None],
    golds: Sequence[str],
    options: MathOptions | None = None,
    problems: Sequence[str] | None = None,
) -> Scores:
    r"""Compare `preds[i]`, a reply or an answer, with `golds[i]`, the reference answer.

    With the texts of the problems, an answer that is only a formula of its problem, with its
    operations still to be done, is `copied` and not `equal`.

    The order of the arguments matters. A prediction that is no string (None) has no answer. Never
    raises on text. The same rows get the same result, but for pairs that need the judge and are
    close to its deadline.

    Raises:
        UsageError: the sequences differ in length, or a gold or a problem is not a string.

    Example:
        >>> score_batch([r"so \boxed{\frac{1}{2}}", "3"], ["0.5", "4"]).statuses
        ['equal', 'different']
    """
    _check(preds, golds, problems)
    options = options or MathOptions()
    scorer = _Scorer(options)
    if options.judge == "pool" and len(preds) >= _WARM_ROWS and not all(map(_is_digits, golds)):
        warm()
    plain = plain_statuses(preds, golds, options) if len(preds) >= MIN_ROWS else {}
    for idx, (pred, gold) in enumerate(zip(preds, golds, strict=True)):
        status = plain.get(idx)
        if status is None:
            scorer.add(pred if isinstance(pred, str) else None, gold)
        else:
            scorer.rows.append(status)
    return Scores.of(scorer.finish(problems), options)


def _is_digits(gold: str) -> bool:
    return gold.isdigit()


def plain_statuses(
    preds: Sequence[str | None], golds: Sequence[str], options: MathOptions
) -> dict[int, MathStatus]:
    """Statuses by row of what the compiled kernel decides: plain numbers in a last box."""
    if options.order is not None or options.read == "answer":
        return {}
    rows: list[int] = []
    texts: list[str] = []
    expected: list[tuple[int, int]] = []
    numbers: dict[str, tuple[int, int] | None] = {}
    for idx, (pred, gold) in enumerate(zip(preds, golds, strict=True)):
        if gold not in numbers:
            numbers[gold] = plain_gold(gold)
        number = numbers[gold]
        if number is None or not isinstance(pred, str) or not pred.isascii() or "think>" in pred:
            continue
        rows.append(idx)
        texts.append(pred)
        expected.append(number)
    if len(rows) < MIN_ROWS:
        return {}
    verdicts = judge_plain(texts, expected)
    pairs = zip(rows, verdicts, strict=True)
    return {idx: ("equal" if verdict == 2 else "different") for idx, verdict in pairs if verdict}


def is_gradable(gold: str) -> bool:
    """Return True if `gold` can be a reference answer: not blank and inside the bounds."""
    return bool(gold.strip()) and read_answer(gold) is not None


def equivalence_classes(answers: Sequence[str | None]) -> tuple[int, ...]:
    """Class ids of extracted answers, numbered from 0 by first appearance; -1 for None or blank.

    Answers are in one class if a chain of equal pairs joins them. Answers over the bounds are
    compared as strings. Decided without the judge, so that votes are cheap and repeatable.
    """
    distinct = list(dict.fromkeys(a.strip() for a in answers if a is not None and a.strip()))
    parsed = [read_answer(answer) for answer in distinct]
    parent = list(range(len(distinct)))
    forms: dict[str, int] = {}
    leaders: list[int] = []
    rules = Rules()
    for i, value in enumerate(parsed):
        if value is None:
            continue
        leader = forms.setdefault(value.text, i)
        if leader != i:
            parent[i] = leader
            continue
        for j in leaders:
            other = parsed[j]
            if other is not None and same(value, other, rules):
                low, high = sorted((_root(parent, i), _root(parent, j)))
                parent[high] = low
        leaders.append(i)
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


class _Scorer:
    """Statuses of one batch: distinct golds are read once, distinct pairs compared once."""

    def __init__(self, options: MathOptions) -> None:
        self.options = options
        self.rules = Rules(options.percent, options.units, options.lists, options.digits)
        self.golds: dict[str, ParsedGold] = {}
        self.pairs: dict[tuple[str, str], MathStatus | Literal["open"]] = {}
        self.rows: list[MathStatus | tuple[str, str]] = []
        self.copies: dict[tuple[str, str, str], bool] = {}

    def add(self, pred: str | None, gold_text: str) -> None:
        gold = self.golds.get(gold_text)
        if gold is None:
            gold = self.golds[gold_text] = read_gold(gold_text, self.options.read == "answer")
        if gold.answer is None:
            self.rows.append("bad_gold")
            return
        answer = None if pred is None else self.read(pred, gold)
        if answer is None or not answer.strip():
            self.rows.append("no_answer")
            return
        pair = (answer, gold.source)
        if pair not in self.pairs:
            self.pairs[pair] = compare(answer, gold, self.rules)
        self.rows.append(pair)

    def read(self, pred: str, gold: ParsedGold) -> str | None:
        read, order = self.options.read, self.options.order
        if read == "answer" and order is None:
            return pred
        if read in ("strict", "lenient") or order is not None:
            mode: ExtractMode = "lenient" if read == "lenient" else "strict"
            return extract(pred, mode, order)
        if gold.answer is not None and len(pred) <= 2 * len(gold.source) + 40:
            is_gold = text_form(clean(pred)) == gold.answer.text
            if is_gold:
                return pred
        if gold.answer is not None and gold.answer.unit == "%" and _has_box(pred):
            return boxed_percent(pred)
        if gold.choice and not _has_box(pred):
            return sentence_choice(gold, pred) or extract(pred, "auto")
        return extract(pred, "auto")

    def finish(self, problems: Sequence[str] | None) -> list[MathStatus]:
        open_pairs = [pair for pair, status in self.pairs.items() if status == "open"]
        if open_pairs and self.options.judge == "pool":
            verdicts = judge(open_pairs, self.options.deadline)
        else:
            verdicts = ["different"] * len(open_pairs)
        settled: dict[tuple[str, str], MathStatus] = dict(zip(open_pairs, verdicts, strict=True))  # type: ignore[arg-type]
        for pair, status in self.pairs.items():
            if status != "open":
                settled[pair] = status
        statuses = [settled[row] if isinstance(row, tuple) else row for row in self.rows]
        if problems is None:
            return statuses
        rows = zip(statuses, self.rows, problems, strict=True)
        return [self.uncopied(status, row, problem) for status, row, problem in rows]

    def uncopied(
        self, status: MathStatus, row: MathStatus | tuple[str, str], problem: str
    ) -> MathStatus:
        # `copied` where an answer that is equal is only a formula of its problem.
        if status != "equal" or not isinstance(row, tuple) or row[0] == row[1]:
            return status
        key = (*row, problem)
        if key not in self.copies:
            self.copies[key] = is_copied(*key)
        return "copied" if self.copies[key] else status


def _has_box(text: str) -> bool:
    return "boxed" in text or "\\fbox" in text


def _check(
    preds: Sequence[str | None], golds: Sequence[str], problems: Sequence[str] | None
) -> None:
    if isinstance(preds, str) or isinstance(golds, str) or len(preds) != len(golds):
        sizes = [repr(x) if isinstance(x, str) else f"{len(x)} entries" for x in (preds, golds)]
        raise UsageError(
            "score_batch(preds, golds) expects two sequences of equal length, got "
            f"preds: {sizes[0]}, golds: {sizes[1]}."
        )
    for idx, gold in enumerate(golds):
        if not isinstance(gold, str):
            raise UsageError(f"gold {idx}: expected a string, got {type(gold).__name__}: {gold!r}.")
    if problems is None:
        return
    if isinstance(problems, str) or len(problems) != len(golds):
        size = repr(problems) if isinstance(problems, str) else f"{len(problems)} entries"
        raise UsageError(f"problems: expected a text for each of {len(golds)} rows, got {size}.")
    for idx, problem in enumerate(problems):
        if not isinstance(problem, str):
            raise UsageError(f"problem {idx}: expected a string, got {type(problem).__name__}.")
