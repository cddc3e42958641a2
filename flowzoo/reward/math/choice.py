"""Multiple choice: which letter an answer or a sentence chooses, if it chooses exactly one."""

from __future__ import annotations

import re
from typing import Final

from flowzoo.reward.math.clean import clean, text_form

LETTERS: Final = "ABCDEFGHIJ"
_LETTER = re.compile(r"[A-Ja-j]")
_ALONE = re.compile(r"[(\[]?\s?([A-Ja-j])\s?[)\]]?[.:]?")
_LED = re.compile(r"(?:\(([A-J])\)|([A-J])[).:])\s?(?![A-J]\b).*", re.DOTALL)
_LABELLED = re.compile(r"\(([A-J])\)[\w$\\]")
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
    led = _LABELLED.match(cleaned) or _NAMED.fullmatch(cleaned_gold)
    return led[1] if led else ""


def chosen(answer: str) -> str:
    """The letter that an extracted answer consists of or begins with; empty if none or several."""
    cleaned = clean(answer)
    alone = _ALONE.fullmatch(text_form(cleaned))
    if alone:
        return alone[1].upper()
    labelled = _LABELLED.match(text_form(cleaned))
    led = labelled or _LED.fullmatch(cleaned)
    if led is None or len(set(_STANDING.findall(cleaned))) > 1:
        return ""
    return led[1] or (led[2] if led is not labelled else "")


def spoken_choice(text: str) -> str:
    """The letter that a sentence chooses, such as `D` in `The answer: D, not A`; empty if open.

    The letter right behind the last "answer" counts; else the only letter that stands alone.
    """
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
        return _affirmed(tail)
    letters = _STANDING.findall(_ARTICLE.sub(" ", tail))
    return letters[0] if len(set(letters)) == 1 else ""


def _affirmed(tail: str) -> str:
    """The one letter of the clauses that deny nothing: `D` in `for sure D, it can't be A`."""
    clauses = _CLAUSE.split(tail)
    plain = [clause for clause in clauses if not _NEGATION.search(clause)]
    denied = [clause for clause in clauses if _NEGATION.search(clause)]
    letters = {x for clause in plain for x in _STANDING.findall(_ARTICLE.sub(" ", clause))}
    refused = {x for clause in denied for x in _STANDING.findall(_ARTICLE.sub(" ", clause))}
    is_sure = len(letters) == 1 and refused and not letters & refused
    return letters.pop() if is_sure else ""
