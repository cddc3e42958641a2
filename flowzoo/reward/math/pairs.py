"""Comparison of an extracted answer with a gold: equal, different, or open for the judge."""

from __future__ import annotations

import re
from typing import Final, Literal, NamedTuple

from flowzoo.reward.math.answer import decimal_comma, is_list_like, read_answer, read_as_list
from flowzoo.reward.math.boxes import last_box
from flowzoo.reward.math.clean import clean, is_one_group, text_form
from flowzoo.reward.math.compare import Rules, same
from flowzoo.reward.math.extract import TAIL, extract
from flowzoo.reward.math.meaning import ParsedAnswer
from flowzoo.reward.math.numeric.doubles import Bounded
from flowzoo.reward.math.sets import is_real_set, same_real_set
from flowzoo.reward.math.tree import mul, num, rational

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
_NEGATION = re.compile(
    r"\bnot\b|n't\b|\b(?:cannot|never|neither|nor|except|wrong|incorrect|false|eliminate|exclude)",
    re.IGNORECASE,
)
_CLAUSE = re.compile(r"[,;.:]\s|\b(?:but|since|because|and)\b")
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
    """The letter that an extracted answer consists of or begins with; empty if none or several."""
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
    """The letter that a sentence chooses, such as `D` in `The answer: D, not A`; empty if open."""
    # The letter right behind the last "answer" counts; else the only letter that stands alone.
    tail = text[-_SCANNED:]
    is_negated = _NEGATION.search(tail) is not None
    for match in reversed(list(_MARKER.finditer(tail))):
        behind = _STANDING.match(tail, match.end())
        if behind:
            return "" if _STANDING.match(tail, behind.end() + 1) else behind[1]
    first = _LEADING.match(tail) if len(text) <= _SCANNED else None
    if first:
        return first[1]
    if is_negated:
        return _read_affirmed(tail)
    letters = _STANDING.findall(_ARTICLE.sub(" ", tail))
    return letters[0] if len(set(letters)) == 1 else ""


def _read_affirmed(tail: str) -> str:
    # The one letter of the clauses that deny nothing: `D` in `for sure D, it can't be A`.
    clauses = _CLAUSE.split(tail)
    plain = [clause for clause in clauses if not _NEGATION.search(clause)]
    denied = [clause for clause in clauses if _NEGATION.search(clause)]
    letters = {x for clause in plain for x in _STANDING.findall(_ARTICLE.sub(" ", clause))}
    refused = {x for clause in denied for x in _STANDING.findall(_ARTICLE.sub(" ", clause))}
    is_sure = len(letters) == 1 and refused and not letters & refused
    return letters.pop() if is_sure else ""


PairOutcome = Literal["equal", "different", "open", "too_big"]

_SHORT: Final = 250


class ParsedGold(NamedTuple):
    """A gold that was read once for all its predictions."""

    source: str  # the extracted gold answer
    answer: ParsedAnswer | None  # None if it is blank or over the bounds
    choice: str  # letter of a gold that is a choice, else empty
    # A percent sign follows the box of the gold, so that both 20 and 20% are right.
    is_loose_percent: bool = False


def read_gold(gold: str, as_given: bool) -> ParsedGold:
    """Read a reference answer; unless `as_given`, the answer is looked for in longer texts."""
    gold = gold[-TAIL:]
    source = gold.strip() if as_given else _gold_answer(gold)
    is_loose = not as_given and "box" in gold and last_box(gold, with_percent=True)[1] != source
    answer = read_answer(source) if source else None
    if answer is not None and answer.kind == "relation" and answer.items and _is_chain(answer):
        answer = answer.items[0]._replace(text=answer.text)
    letter = choice_of(source) if answer is not None else ""
    return ParsedGold(source, answer, letter, is_loose and answer is not None)


def _is_chain(answer: ParsedAnswer) -> bool:
    return answer.relation is None and not answer.label


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


def sentence_choice(gold: ParsedGold, reply: str) -> str | None:
    """Return the choice of a reply without a box if the gold is a choice, else None."""
    return (spoken_choice(reply) or None) if gold.choice else None


def compare(answer: str, gold: ParsedGold, rules: Rules) -> PairOutcome:
    """Compare an extracted answer with a gold whose own answer is not None."""
    if gold.answer is None:
        return "different"
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
    if gold.is_loose_percent:
        rules = rules._replace(percent="either")
    try:
        with Bounded():
            verdict = same(parsed, gold.answer, rules)
    except RecursionError:  # the caller's own stack left too little room
        return "too_big"
    if verdict is None and parsed.kind == gold.answer.kind == "scalar":
        return "different"  # out of the range of doubles: nothing that algebra should expand
    if verdict is False and parsed.unit == "%":
        verdict = _in_percent(parsed, gold.answer, rules)
    if verdict is False:
        verdict = _other_readings(answer, parsed, gold, rules)
    if verdict is None or (verdict is False and _is_open(parsed, gold.answer)):
        return "open"
    return "equal" if verdict else "different"


def _in_percent(parsed: ParsedAnswer, gold: ParsedAnswer, rules: Rules) -> bool | None:
    # `20%` for a gold of 20, which data sets write without the sign; not `0.5%` for 0.5.
    value = None if gold.node is None else rational(gold.node)
    if parsed.node is None or gold.unit or value is None or abs(value) < 1:
        return False
    return same(parsed._replace(unit="", node=mul((num(100), parsed.node))), gold, rules)


def _other_readings(
    answer: str, parsed: ParsedAnswer, gold: ParsedGold, rules: Rules
) -> bool | None:
    # Commas that group thousands on one side and separate items on the other; decimal commas.
    assert gold.answer is not None
    if parsed.kind in ("list", "set") and is_list_like(gold.source):
        other = read_as_list(gold.source)
        if other is not None and other.kind in ("list", "set"):
            return same(parsed, other, rules)
    if gold.answer.kind in ("list", "set") and is_list_like(answer):
        other = read_as_list(answer)
        if other is not None and other.kind in ("list", "set"):
            return same(other, gold.answer, rules)
    if gold.answer.kind == "scalar" and gold.answer.digits:
        number = decimal_comma(answer)
        return number is not None and same(number, gold.answer, rules)
    return False


# The letter in front of the value of a choice.
_LETTERED = re.compile(
    r"\s*(?:\\(?:text|textbf|textrm|mathrm|mathbf)\s*\{\s*)?\([A-J]\)[:.]?\s*\}?"
    r"(?:\\[ ,;:]|\s|~|:)*"
    r"(?=[\d$\\.(\[{-])"
)
_EQUATION = re.compile(r"[^=]{1,40}=[^=.]{1,80}")

# What the parser here does not read and the judge might: bars inside bars, relations, set notation.
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
    # True if the judge could see more: a formula on both sides that one side's parser left.
    # A relation beside an interval or a set may be solved; everything else was compared in full.
    kinds = {parsed.kind, gold.kind}
    if is_real_set(parsed) and is_real_set(gold) and same_real_set(parsed, gold) is not None:
        return False
    if "text" in kinds:
        if "scalar" in kinds:  # bars in bars; a bound or a membership is no value
            text = parsed.text if parsed.kind == "text" else gold.text
            if text.count("|") < 4 or _BOUND.search(text):
                return False
        return _is_formula(parsed) and _is_formula(gold)
    if parsed.kind == "seq" and gold.kind == "seq":
        return False
    if kinds == {"scalar", "seq"}:
        return False
    solvable = bool(kinds & {"union", "seq", "set"}) and bool(parsed.relation or gold.relation)
    return solvable or ("relation" in kinds and kinds != {"relation"} and "scalar" not in kinds)


def _is_formula(answer: ParsedAnswer) -> bool:
    if answer.kind != "text" or answer.shape == "broken":
        return answer.shape != "broken"
    plain = _COMMANDS.sub(" ", answer.text)
    if _FORMULA.search(answer.text) is None or _JUNK.search(answer.text):
        return False
    return _PROSE.search(plain) is None and is_one_group(answer.text)
