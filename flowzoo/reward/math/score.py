r"""Scores of mathematical answers: `score_batch(preds, golds)` and `equivalence_classes(answers)`.

A pair is decided in this order, cheapest first: equal plain numbers; exact comparison of the parsed
answers; numeric probing of two expressions at fixed points; and, only for the few undecided pairs,
sympy in a killable worker process. Text of a model is never evaluated as code.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import chain
from typing import Final, Literal, NamedTuple

from flowzoo.errors import UsageError
from flowzoo.reward.math.answer import CLOSED, read_answer, read_as_list, read_as_written
from flowzoo.reward.math.clean import clean, repaired, text_form
from flowzoo.reward.math.compare import is_rounding, relations_of, same, solves
from flowzoo.reward.math.copies import is_copied
from flowzoo.reward.math.extract import TAIL, boxed_percent, extract, last_box
from flowzoo.reward.math.judge import judge, warm
from flowzoo.reward.math.kernel import BATCH_ABOVE, judge_plain, pays_to_load, plain_gold
from flowzoo.reward.math.options import MathOptions
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
    for match in reversed(list(_MARKER.finditer(tail))):
        behind = _STANDING.match(tail, match.end())
        if behind:
            beside = _REASONED.split(tail[behind.end() :], maxsplit=1)[0]
            return "" if set(_STANDING.findall(beside)) - {behind[1]} else behind[1]
    first = _LEADING.match(tail) if len(text) <= _SCANNED else None
    if first:
        return first[1]
    clauses = _CLAUSE.split(tail) if DENIED.search(tail) else [tail]
    letters: dict[bool, set[str]] = {True: set(), False: set()}
    for clause in clauses:
        letters[DENIED.search(clause) is None].update(_STANDING.findall(_ARTICLE.sub(" ", clause)))
    # Beside a denial, the only letter in clauses without one: `D` in `for sure D, it can't be A`.
    is_sure = len(clauses) == 1 or (letters[False] and not letters[True] & letters[False])
    return letters[True].pop() if len(letters[True]) == 1 and is_sure else ""


PairOutcome = Literal["equal", "different", "open", "too_big"]

_SHORT: Final = 250


class ParsedGold(NamedTuple):
    """A gold that is parsed once for all its predictions."""

    source: str  # the extracted gold answer
    answer: ParsedAnswer | None  # None if it is blank or over the bounds
    choice: str  # letter of a gold that is a choice, else empty
    # True if a percent sign follows the gold's box, so both 20 and 20% are right.
    is_loose_percent: bool = False
    plain: tuple[int, int] | None = None  # mantissa and decimals of a short plain decimal


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


def compare(answer: str, gold: ParsedGold, options: MathOptions) -> PairOutcome:
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
        options = replace(options, percent="either")
    try:
        with bounded():
            verdict = same(parsed, gold.answer, options)
    except RecursionError:  # the caller's stack left too little room
        return "too_big"
    if verdict is None and parsed.kind == gold.answer.kind == "scalar":
        return "different"  # out of the range of doubles: algebra should not expand it
    value = rational(gold.answer.node) if gold.answer.node and not gold.answer.unit else None
    if verdict is False and parsed.unit == "%" and parsed.node and abs(value or 0) >= 1:
        # `20%` for a gold of 20, which datasets write without the sign; not `0.5%` for 0.5.
        number = parsed._replace(unit="", node=mul((num(100), parsed.node)))
        verdict = same(number, gold.answer, options)
    if verdict is False:
        verdict = _other_readings(answer, parsed, gold, options)
    if verdict is None or (verdict is False and _is_open(parsed, gold.answer)):
        return "open"
    return "equal" if verdict else "different"


def _other_readings(
    answer: str, parsed: ParsedAnswer, gold: ParsedGold, options: MathOptions
) -> bool | None:
    # The answer read as the gold's sort: commas that group digits or separate items, decimal
    # commas, an exact value for a decimal that rounds it, an unknown that the gold is solved for.
    assert gold.answer is not None
    if parsed.kind in ("list", "set") and (other := read_as_list(gold.source)):
        return same(parsed, other, options)
    if gold.answer.kind in ("list", "set") and (other := read_as_list(answer)):
        return same(other, gold.answer, options)
    if gold.answer.kind in ("text", "scalar") and (several := _several(gold.source)):
        return several == _several(answer)
    texts = parsed.text, gold.answer.text
    respelled = _with_points(answer, gold.answer)
    if any(text.startswith("statement:") for text in texts):
        forms = [statement_form(clean(text), is_stated=True) for text in (answer, gold.source)]
        return forms[0] == forms[1] is not None
    if respelled and (other := read_answer(respelled)) is not None:
        return same(other, gold.answer, options)
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

# A bound or a membership is not a value.
_BOUND = re.compile(r"[<>=:]|\\(?:leq|geq|neq|in|notin|not|cup|cap|setminus)(?![A-Za-z])")
_MOST_PAIRED: Final = 3  # bars that the parser pairs


def _is_open(parsed: ParsedAnswer, gold: ParsedAnswer) -> bool:
    # True if the judge may decide: for nested bars, which the parser does not read, and where a
    # relation may be solved to an interval or set. Other pairs were compared fully.
    kinds = {parsed.kind, gold.kind}
    if "text" in kinds:
        return kinds <= {"text", "scalar"} and all(map(_has_nested_bars, (parsed, gold)))
    if is_real_set(parsed) and is_real_set(gold) and same_real_set(parsed, gold) is not None:
        return False
    if kinds in ({"seq"}, {"scalar", "seq"}):
        return False
    if kinds & {"union", "seq", "set"} and (relations_of(parsed) or relations_of(gold)):
        return True
    return "relation" in kinds and kinds != {"relation"} and "scalar" not in kinds


def _has_nested_bars(answer: ParsedAnswer) -> bool:
    is_text = answer.kind == "text" and answer.shape != "broken"
    is_nested = answer.text.count("|") > _MOST_PAIRED and _BOUND.search(answer.text) is None
    return answer.kind == "scalar" or (is_text and is_nested)


# `too_big`: the answer exceeds the parser's bounds. `bad_gold`: the gold is blank or exceeds them,
# so the row is uninformative and can be masked. `timeout`, `crashed`: the judge ran out of time or
# memory, or died; the score is 0. `copied`: equal, but only a formula copied from the problem; the
# score is 0.
MathStatus = Literal[
    "equal", "different", "copied", "no_answer", "too_big", "timeout", "crashed", "bad_gold"
]


# Minimum number of rows for which the judge starts in advance, if a gold is not an integer.
_WARM_ROWS: Final = 32


class _Rows(NamedTuple):
    scores: list[float]
    statuses: list[MathStatus]


class Scores(_Rows):
    """`scores, statuses`: a score (1.0 or 0.0) and a status per row."""

    options: MathOptions = MathOptions()
    """Options of the comparison."""

    @classmethod
    def of(cls, statuses: list[MathStatus], options: MathOptions) -> "Scores":
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
    if options.judge == "pool" and len(preds) >= _WARM_ROWS and not all(map(str.isdigit, golds)):
        warm()
    plain = plain_statuses(preds, golds, options)
    parsed: dict[str, ParsedGold] = {}
    outcomes: dict[tuple[str, str], PairOutcome] = {}
    rows: list[MathStatus | tuple[str, str]] = []
    for idx, (pred, text) in enumerate(zip(preds, golds, strict=True)):
        if idx in plain:
            rows.append(plain[idx])
            continue
        gold = parsed.get(text)
        if gold is None:
            gold = parsed[text] = read_gold(text, options.read == "answer")
        if gold.answer is None:
            rows.append("bad_gold")
            continue
        answer = _reading(pred, gold, gold.answer, options) if isinstance(pred, str) else None
        if answer is None or not answer.strip():
            rows.append("no_answer")
            continue
        pair = (answer, gold.source)
        if pair not in outcomes:
            outcomes[pair] = compare(answer, gold, options)
        rows.append(pair)
    settled = _statuses(outcomes, options)
    statuses = [settled[row] if isinstance(row, tuple) else row for row in rows]
    if problems is not None:
        copied = cache(is_copied)
        for idx, (row, problem) in enumerate(zip(rows, problems, strict=True)):
            if statuses[idx] == "equal" and isinstance(row, tuple) and copied(*row, problem):
                statuses[idx] = "copied"
    return Scores.of(statuses, options)


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


def _reading(
    pred: str, gold: ParsedGold, meaning: ParsedAnswer, options: MathOptions
) -> str | None:
    # The answer of a prediction, read as the options say.
    read, order = options.read, options.order
    if read == "answer" and order is None:
        return pred
    if read in ("strict", "lenient") or order is not None:
        return extract(pred, "lenient" if read == "lenient" else "strict", order)
    if len(pred) <= 2 * len(gold.source) + 40 and text_form(clean(pred)) == meaning.text:
        return pred
    has_box = "boxed" in pred or "\\fbox" in pred
    if meaning.unit == "%" and has_box:
        return boxed_percent(pred)
    return (gold.choice and not has_box and spoken_choice(pred)) or extract(pred, "auto")


def _statuses(
    outcomes: dict[tuple[str, str], PairOutcome], options: MathOptions
) -> dict[tuple[str, str], MathStatus]:
    # The statuses of pairs, with the judge's verdicts on open ones.
    settled: dict[tuple[str, str], MathStatus] = {
        pair: outcome for pair, outcome in outcomes.items() if outcome != "open"
    }
    open_pairs = [pair for pair in outcomes if pair not in settled]
    is_judged = open_pairs and options.judge == "pool"
    verdicts = judge(open_pairs, options.deadline) if is_judged else ["different"] * len(open_pairs)
    return settled | dict(zip(open_pairs, verdicts, strict=True))


def is_gradable(gold: str) -> bool:
    """Return True if `gold` can be a reference answer: not blank and inside the bounds."""
    return bool(gold.strip()) and read_answer(gold) is not None


def equivalence_classes(answers: Sequence[str | None]) -> tuple[int, ...]:
    """Class ids of extracted answers, numbered from 0 by first appearance; -1 for None or blank.

    Answers are in one class if a chain of equal pairs joins them. Answers beyond the bounds are
    compared as strings. The judge is not used, so votes are cheap and reproducible.
    """
    distinct = dict.fromkeys(a.strip() for a in answers if a is not None and a.strip())
    meanings = {answer: read_answer(answer) for answer in distinct}
    options = MathOptions()

    def is_same(first: str, second: str) -> bool:
        a, b = meanings[first], meanings[second]
        return bool(a and b and same(a, b, options))

    firsts: dict[str, str] = {}  # the first of the answers of one text is compared
    first = {x: firsts.setdefault(a.text, x) if (a := meanings[x]) else x for x in distinct}
    classes: list[list[str]] = []
    for answer in dict.fromkeys(first.values()):
        joined = [members for members in classes if any(is_same(answer, x) for x in members)]
        classes = [members for members in classes if members not in joined]
        classes.append([*chain(*joined), answer])
    numbers = {answer: idx for idx, members in enumerate(classes) for answer in members}
    ids: dict[int, int] = {}
    return tuple(
        -1 if a is None or not a.strip() else ids.setdefault(numbers[first[a.strip()]], len(ids))
        for a in answers
    )


def _check(
    preds: Sequence[str | None], golds: Sequence[str], problems: Sequence[str] | None
) -> None:
    if isinstance(preds, str) or isinstance(golds, str) or len(preds) != len(golds):
        sizes = [repr(x) if isinstance(x, str) else f"{len(x)} entries" for x in (preds, golds)]
        raise UsageError(
            "score_batch(preds, golds) expects two sequences of equal length, got "
            f"preds: {sizes[0]}, golds: {sizes[1]}."
        )
    if problems is not None and (isinstance(problems, str) or len(problems) != len(golds)):
        size = repr(problems) if isinstance(problems, str) else f"{len(problems)} entries"
        raise UsageError(f"problems: expected a text for each of {len(golds)} rows, got {size}.")
    for name, texts in (("gold", golds), ("problem", () if problems is None else problems)):
        for idx, text in enumerate(texts):
            if not isinstance(text, str):
                kind = f"{type(text).__name__}: {text!r}"
                raise UsageError(f"{name} {idx}: expected a string, got {kind}.")
