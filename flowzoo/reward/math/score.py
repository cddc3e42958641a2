r"""Scores of mathematical answers: `score_batch(preds, golds)` and `equivalence_classes(answers)`.

A pair is decided in this order, cheapest first: equal plain numbers; exact comparison of the parsed
answers; numeric probing of two expressions at fixed points; and, only for the few undecided pairs,
sympy in a killable worker process. Text of a model is never evaluated as code.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from flowzoo.errors import UsageError, check_choice
from flowzoo.reward.math.answer import (
    CLOSED,
    is_list_like,
    read_answer,
    read_as_list,
    read_as_written,
)
from flowzoo.reward.math.clean import clean, is_one_group, repaired, text_form
from flowzoo.reward.math.compare import (
    ListRule,
    PercentRule,
    Rules,
    UnitRule,
    is_rounding,
    relations_of,
    same,
    solves,
)
from flowzoo.reward.math.copies import is_copied
from flowzoo.reward.math.extract import (
    TAIL,
    AnswerSource,
    ExtractMode,
    boxed_percent,
    extract,
    last_box,
)
from flowzoo.reward.math.judge import judge, warm
from flowzoo.reward.math.kernel import BATCH_ABOVE, judge_plain, pays_to_load, plain_gold
from flowzoo.reward.math.points import bounded
from flowzoo.reward.math.sets import is_real_set, same_real_set
from flowzoo.reward.math.statements import statement_form
from flowzoo.reward.math.tree import ParsedAnswer, mul, num, rational
from flowzoo.reward.math.vocabulary import DENIED

LETTERS: Final = "ABCDEFGHIJ"
_LETTER = re.compile(r"[A-Ja-j]")
_ALONE = re.compile(r"[(\[]?\s?([A-Ja-j])\s?[)\]]?[.:]?")
_LED = re.compile(r"(?:\(([A-J])\)|([A-J])[).:])\s?(?![A-J]\b).*", re.DOTALL)
_LABELED = re.compile(r"\(([A-J])\)[\w$\\]")
_NAMED = re.compile(r"([A-J]) [A-Z][a-z]{2,}")
_STANDING = re.compile(r"(?<![A-Za-z\d'\\$_^{=+*/-])\(?([A-J])\)?(?![A-Za-z\d'_^=+*/-])")
_LEADING = re.compile(r"\(?([A-J])\)?(?=[^\x00-\x7f])")
_ARTICLE = re.compile(r"\b[AI] (?=[a-z])")
_MARKER = re.compile(
    r"(?:answer|choice|option|réponse|respuesta|antwort|答案|选项?)\s?(?:is|est|es|ist|是|为|:|:)?"
    r"\s?(?:\*\*|\$|\\text\{)?\s?",
    re.IGNORECASE,
)
_CLAUSE = re.compile(r"[,;.:]\s|\b(?:but|since|because|and)\b")
# What follows a choice does not choose another.
_REASONED = re.compile(
    r"[.;:!?\n]|\b(?:but|since|because|as|non?|not|nicht|never|rather|instead|while|whereas)\b|n't"
)
_SCANNED = 400


def choice_of(gold: str) -> str:
    """The letter of a gold that is a choice: `C`, `(c)`, `(C) Cecile`, `C Cecile`; else empty."""
    if gold.isascii() and _LETTER.search(gold) is None:
        return ""
    cleaned_gold = clean(gold)
    cleaned = text_form(cleaned_gold)
    alone = _ALONE.fullmatch(cleaned)
    if alone:
        is_bare = len(cleaned) == 1
        return alone[1].upper() if not is_bare or cleaned in LETTERS else ""
    led = _LABELED.match(cleaned) or _NAMED.fullmatch(cleaned_gold)
    return led[1] if led else ""


def chosen(answer: str) -> str:
    """The letter of an extracted answer, alone or at its start; empty for none or several."""
    cleaned = clean(answer)
    alone = _ALONE.fullmatch(text_form(cleaned))
    if alone:
        return alone[1].upper()
    labeled = _LABELED.match(text_form(cleaned))
    led = labeled or _LED.fullmatch(cleaned)
    if led is None or len(set(_STANDING.findall(cleaned))) > 1:
        return ""
    return led[1] or (led[2] if led is not labeled else "")


def spoken_choice(text: str) -> str:
    """The letter that a sentence chooses, such as `D` in `The answer: D, not A`; else empty."""
    # The letter right after the last "answer" counts, else the only separate letter.
    tail = text[-_SCANNED:]
    is_negated = DENIED.search(tail) is not None
    for match in reversed(list(_MARKER.finditer(tail))):
        behind = _STANDING.match(tail, match.end())
        if behind:
            beside = _REASONED.split(tail[behind.end() :], maxsplit=1)[0]
            return "" if set(_STANDING.findall(beside)) - {behind[1]} else behind[1]
    first = _LEADING.match(tail) if len(text) <= _SCANNED else None
    if first:
        return first[1]
    if is_negated:
        return _read_affirmed(tail)
    letters = _STANDING.findall(_ARTICLE.sub(" ", tail))
    return letters[0] if len(set(letters)) == 1 else ""


def _read_affirmed(tail: str) -> str:
    # The only letter in clauses without a denial: `D` in `for sure D, it can't be A`.
    clauses = _CLAUSE.split(tail)
    plain = [clause for clause in clauses if not DENIED.search(clause)]
    denied = [clause for clause in clauses if DENIED.search(clause)]
    letters = {x for clause in plain for x in _STANDING.findall(_ARTICLE.sub(" ", clause))}
    refused = {x for clause in denied for x in _STANDING.findall(_ARTICLE.sub(" ", clause))}
    is_sure = len(letters) == 1 and refused and not letters & refused
    return letters.pop() if is_sure else ""


PairOutcome = Literal["equal", "different", "open", "too_big"]

_SHORT: Final = 250


class ParsedGold(NamedTuple):
    """A gold that is parsed once for all its predictions."""

    source: str  # the extracted gold answer
    answer: ParsedAnswer | None  # None if it is blank or over the bounds
    choice: str  # letter of a gold that is a choice, else empty
    # True if a percent sign follows the gold's box, so both 20 and 20% are right.
    is_loose_percent: bool = False
    plain: tuple[int, int] | None = None
    """Mantissa and decimals of a gold that is a short plain decimal."""


def read_gold(gold: str, as_given: bool) -> ParsedGold:
    """Read a reference answer; unless `as_given`, extract it from longer texts."""
    gold = repaired(gold[-TAIL:])
    source = gold.strip() if as_given else _gold_answer(gold)
    is_loose = not as_given and "box" in gold and last_box(gold, with_percent=True)[1] != source
    answer = read_answer(source) if source else None
    if answer is not None and answer.kind == "relation" and answer.items and not answer.label:
        answer = answer.items[0]._replace(text=answer.text)
    letter = choice_of(source) if answer is not None else ""
    plain = None if is_loose else plain_gold(source)
    return ParsedGold(source, answer, letter, is_loose and answer is not None, plain)


def _gold_answer(gold: str) -> str:
    if "box" in gold:
        has_box, inside = last_box(gold)
        if has_box:
            return inside or ""
    text = gold.strip()
    if "####" in text:
        return extract(text, order=("hashes",)) or text
    lines = text.splitlines()
    if len(text) <= _SHORT and len(lines) > 1 and all(_EQUATION.fullmatch(line) for line in lines):
        return text
    if len(text) <= _SHORT and "\n" not in text and not text.startswith(("Thus", "So ", "The ")):
        return text
    return extract(text, order=("phrase", "hashes", "whole", "span")) or text


def compare(answer: str, gold: ParsedGold, rules: Rules) -> PairOutcome:
    """Compare an extracted answer with a gold whose own answer is not None."""
    if gold.answer is None:
        return "different"
    if gold.plain is not None and (plain := plain_gold(answer)) is not None:
        return "equal" if plain == gold.plain else "different"
    literal, given = _LITERAL.fullmatch(gold.source), _LITERAL.fullmatch(answer.strip())
    if literal and given:
        return "equal" if literal[1] == given[1] else "different"
    if gold.choice and len(gold.source) < _SHORT:
        letter = chosen(answer)
        if letter:
            return "equal" if letter == gold.choice else "different"
    elif (letter_before := _LETTERED.match(answer)) and not _LETTERED.match(gold.source):
        answer = answer[letter_before.end() :]
    parsed = read_answer(answer)
    if parsed is None:
        return "too_big"
    if answer.strip() == gold.source or (parsed.text and parsed.text == gold.answer.text):
        return "equal"
    if gold.answer.label == CLOSED and gold.answer.relation:
        # `7 = 4 + 2 + 1` asks for a sum, of which a side of the answer has to be a spelling.
        sides = map(read_as_written, clean(answer).split("="))
        is_side = any(side and side.node == gold.answer.relation[1] for side in sides)
        return "equal" if is_side else "different"
    if gold.is_loose_percent:
        rules = rules._replace(percent="either")
    try:
        with bounded():
            verdict = same(parsed, gold.answer, rules)
    except RecursionError:  # the caller's stack left too little room
        return "too_big"
    if verdict is None and parsed.kind == gold.answer.kind == "scalar":
        return "different"  # out of the range of doubles: algebra should not expand it
    if verdict is False and parsed.unit == "%":
        verdict = _in_percent(parsed, gold.answer, rules)
    if verdict is False:
        verdict = _other_readings(answer, parsed, gold, rules)
    if verdict is None or (verdict is False and _is_open(parsed, gold.answer)):
        return "open"
    return "equal" if verdict else "different"


def _in_percent(parsed: ParsedAnswer, gold: ParsedAnswer, rules: Rules) -> bool | None:
    # `20%` for a gold of 20, which datasets write without the sign; not `0.5%` for 0.5.
    value = None if gold.node is None else rational(gold.node)
    if parsed.node is None or gold.unit or value is None or abs(value) < 1:
        return False
    return same(parsed._replace(unit="", node=mul((num(100), parsed.node))), gold, rules)


def _other_readings(
    answer: str, parsed: ParsedAnswer, gold: ParsedGold, rules: Rules
) -> bool | None:
    # The answer read as the gold's sort: commas that group digits or separate items, decimal
    # commas, an exact value for a decimal that rounds it, an unknown that the gold is solved for.
    assert gold.answer is not None
    if parsed.kind in ("list", "set") and is_list_like(gold.source):
        other = read_as_list(gold.source)
        if other is not None and other.kind in ("list", "set"):
            return same(parsed, other, rules)
    if gold.answer.kind in ("list", "set") and is_list_like(answer):
        other = read_as_list(answer)
        if other is not None and other.kind in ("list", "set"):
            return same(other, gold.answer, rules)
    if gold.answer.kind in ("text", "scalar") and (several := _several(gold.source)):
        return several == _several(answer)
    texts = parsed.text, gold.answer.text
    respelled = _with_points(answer, gold.answer)
    if any(text.startswith("statement:") for text in texts):
        forms = [statement_form(clean(text), is_stated=True) for text in (answer, gold.source)]
        return forms[0] == forms[1] is not None
    if respelled and (other := read_answer(respelled)) is not None:
        return same(other, gold.answer, rules)
    if gold.answer.kind == "relation" and gold.answer.relation is not None and parsed.node:
        return solves(parsed.node, gold.answer.relation[1])
    return gold.answer.digits >= _ROUNDED and is_rounding(gold.answer, parsed, _ROUNDED)


def _with_points(answer: str, gold: ParsedAnswer) -> str:
    # The answer with the commas of `0,5`, `1.000,99` or `12,34,567` as the gold's; or ''.
    text = answer.replace("{,}", ",").strip().strip("$")
    if gold.kind == "scalar" and _GROUPED_BY_DOTS.fullmatch(text):
        return text.replace(".", "")
    if gold.kind == "scalar" and _GROUPED.fullmatch(text):
        return text.replace(",", "")
    if gold.kind == "scalar" and gold.digits and (whole := _DECIMAL_COMMA.fullmatch(text)):
        return f"{whole[1].replace('.', '')}.{whole[2]}{whole[3] or ''}"
    is_listed = gold.kind in ("seq", "list", "set") and any(item.digits for item in gold.items)
    return _COMMA.sub(".", text) if is_listed and ";" in text else ""


_GROUPED_BY_DOTS = re.compile(r"-?\d{1,3}(?:\.\d{3}){2,}", re.ASCII)
_GROUPED = re.compile(r"-?\d{1,2}(?:,\d{2})+,\d{3}", re.ASCII)
_DECIMAL_COMMA = re.compile(r"(-?\d{1,3}(?:\.\d{3})+|-?\d{1,20}),(\d{1,20})(\D.*)?", re.ASCII)
_COMMA = re.compile(r"(?<=\d),(?=\d)")


# Quoted letters are a text, whose case counts.
_LITERAL = re.compile(r'"([^"]+)"')
_CHOICES = re.compile(r"[A-J](?:(?:,|;|and)?[A-J])+")


def _several(answer: str) -> str:
    # The letters of several choices, `ACD` or `A, C and D`; else empty.
    text = re.sub(r"\s", "", _WORDS_IN.sub(" ", clean(answer)))
    letters = re.sub("[^A-J]", "", text) if _CHOICES.fullmatch(text) else ""
    return letters if len(letters) > 2 and letters == "".join(sorted(set(letters))) else ""


_WORDS_IN = re.compile(r"\\text\s?|[{}]")


# Fewest digits of a decimal gold that an exact answer may round to.
_ROUNDED: Final = 3
# The letter before the value of a choice.
_LETTERED = re.compile(
    r"\s*(?:\\(?:text|textbf|textrm|mathrm|mathbf)\s*\{\s*)?\([A-J]\)[:.]?\s*\}?"
    r"(?:\\[ ,;:]|\s|~|:)*"
    r"(?=[\d$\\.(\[{-])"
)
_EQUATION = re.compile(r"[^=]{1,40}=[^=.]{1,80}")

# Expressions that only the judge may read: nested bars, relations, set notation.
_FORMULA = re.compile(
    r"\||[<>]|\\(?:leq|geq|neq|in|notin|not|cup|cap|setminus|begin|[{}])(?![A-Za-z])"
)
_BOUND = re.compile(r"[<>=:]|\\(?:leq|geq|neq|in|notin|not|cup|cap|setminus)(?![A-Za-z])")
_JUNK = re.compile(
    r"\\(?:[lc]?dots|boxed|fbox|write|input|begin\{a)|\.\.\.|__|[^\x20-\x7e]|^\d+-\d+-"
)
_PROSE = re.compile(r"[^\W\d_]{3,}")
_COMMANDS = re.compile(r"\\[A-Za-z]+")


def _is_open(parsed: ParsedAnswer, gold: ParsedAnswer) -> bool:
    # True if the judge may decide: both sides are formulas, one of which was not parsed.
    # A relation may be solved to an interval or set; other pairs were compared fully.
    kinds = {parsed.kind, gold.kind}
    if is_real_set(parsed) and is_real_set(gold) and same_real_set(parsed, gold) is not None:
        return False
    if "text" in kinds:
        if "scalar" in kinds:  # nested bars; a bound or a membership is not a value
            text = parsed.text if parsed.kind == "text" else gold.text
            if text.count("|") < 4 or _BOUND.search(text):
                return False
        return _is_formula(parsed) and _is_formula(gold)
    if parsed.kind == "seq" and gold.kind == "seq":
        return False
    if kinds == {"scalar", "seq"}:
        return False
    solvable = kinds & {"union", "seq", "set"} and (relations_of(parsed) or relations_of(gold))
    return bool(solvable) or (
        "relation" in kinds and kinds != {"relation"} and "scalar" not in kinds
    )


def _is_formula(answer: ParsedAnswer) -> bool:
    if answer.kind != "text" or answer.shape == "broken":
        return answer.shape != "broken"
    plain = _COMMANDS.sub(" ", answer.text)
    if _FORMULA.search(answer.text) is None or _JUNK.search(answer.text):
        return False
    return _PROSE.search(plain) is None and is_one_group(answer.text)


# `too_big`: the answer exceeds the parser's bounds. `bad_gold`: the gold is blank or exceeds them,
# so the row is uninformative and can be masked. `timeout`, `crashed`: the judge ran out of time or
# memory, or died; the score is 0. `copied`: equal, but only a formula copied from the problem; the
# score is 0.
MathStatus = Literal[
    "equal", "different", "copied", "no_answer", "too_big", "timeout", "crashed", "bad_gold"
]
MathReading = Literal["auto", "answer", "strict", "lenient"]
Judging = Literal["pool", "none"]


# Minimum number of rows for which the judge starts in advance, if a gold is not an integer.
_WARM_ROWS: Final = 32


@dataclass(frozen=True, slots=True)
class MathOptions:
    """Options of reading and comparing answers.

    Raises:
        UsageError: an unknown choice, or a number out of range.
    """

    read: MathReading = "auto"
    """`auto`: predictions are full replies or bare answers, read by box, `####`, answer phrase, as
    a whole if they are just an answer, or by the last formula or number of their last sentence.
    `answer`: predictions and golds are extracted answers, used unchanged. `strict` and `lenient`:
    predictions are full replies, read by `extract` in that mode."""
    order: tuple[AnswerSource, ...] | None = None
    """Sources of an answer in order, in place of `read`."""
    percent: PercentRule = "exact"
    """`exact`: 50% equals only 1/2. `either`: it also equals 50."""
    units: UnitRule = "optional"
    """`optional`: a unit may be missing on one side; two units must agree. `required`: both sides
    or none have a unit. `ignored`: units are not compared."""
    lists: ListRule = "free"
    """`free`: a bare list has no order. `strict`: its order counts. Tuples are always ordered, sets
    never."""
    digits: int = 6
    """Minimum number of significant digits of a decimal that equals the exact number, 1 to 40."""
    judge: Judging = "pool"
    """Judge of pairs that exact comparison and probing do not decide: sympy in the worker pool, or
    none, which means different."""
    deadline: float = 1.0
    """Most CPU seconds for a judged pair, up to 1.5; see `WorkerPool.run`."""

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
    """Options of the comparison."""

    @classmethod
    def of(cls, statuses: list[MathStatus], options: MathOptions) -> Scores:
        """Make scores from `statuses`."""
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

    With the texts of the problems, an answer that is only an unevaluated formula of its problem is
    `copied`, not `equal`.

    The order of the arguments matters. A prediction that is not a string (None) has no answer.
    Never raises on text. Results are reproducible, except for judged pairs close to the deadline.

    Raises:
        UsageError: the sequences differ in length, or a gold or a problem is not a string.

    Example:
        >>> score_batch([r"so \boxed{\frac{1}{2}}", "3"], ["0.5", "4"]).statuses
        ['equal', 'different']
    """
    _check(preds, golds, problems)
    options = options or MathOptions()
    scorer = _Scorer(options)
    if options.judge == "pool" and len(preds) >= _WARM_ROWS and not all(map(str.isdigit, golds)):
        warm()
    plain = plain_statuses(preds, golds, options)
    for idx, (pred, gold) in enumerate(zip(preds, golds, strict=True)):
        status = plain.get(idx)
        if status is None:
            scorer.add(pred if isinstance(pred, str) else None, gold)
        else:
            scorer.rows.append(status)
    return Scores.of(scorer.finish(problems), options)


def plain_statuses(
    preds: Sequence[str | None], golds: Sequence[str], options: MathOptions
) -> dict[int, MathStatus]:
    """Statuses by row that the compiled kernel decides: plain numbers in a last box."""
    if options.order is not None or options.read == "answer" or not pays_to_load(len(preds)):
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
    if len(rows) < BATCH_ABOVE:
        return {}
    verdicts = judge_plain(texts, expected)
    pairs = zip(rows, verdicts, strict=True)
    return {idx: ("equal" if verdict == 2 else "different") for idx, verdict in pairs if verdict}


def is_gradable(gold: str) -> bool:
    """Return True if `gold` can be a reference answer: not blank and inside the bounds."""
    return bool(gold.strip()) and read_answer(gold) is not None


def equivalence_classes(answers: Sequence[str | None]) -> tuple[int, ...]:
    """Class ids of extracted answers, numbered from 0 by first appearance; -1 for None or blank.

    Answers are in one class if a chain of equal pairs joins them. Answers beyond the bounds are
    compared as strings. The judge is not used, so votes are cheap and reproducible.
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
    """Statuses of one batch: distinct golds are parsed once, distinct pairs compared once."""

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
        assert gold.answer is not None
        is_short = len(pred) <= 2 * len(gold.source) + 40
        if is_short and text_form(clean(pred)) == gold.answer.text:
            return pred
        has_box = "boxed" in pred or "\\fbox" in pred
        if gold.answer.unit == "%" and has_box:
            return boxed_percent(pred)
        if gold.choice and not has_box:
            return spoken_choice(pred) or extract(pred, "auto")
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
        # `copied` if an equal answer is only a formula of its problem.
        if status != "equal" or not isinstance(row, tuple) or row[0] == row[1]:
            return status
        key = (*row, problem)
        if key not in self.copies:
            self.copies[key] = is_copied(*key)
        return "copied" if self.copies[key] else status


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
