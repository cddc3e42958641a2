r"""Spellings that models write and the parser has no grammar for, as those that it has.

Repeating decimals, open intervals in outward brackets, bases in brackets, binomials as `C_n^k`,
families of whole numbers in words, colors and sizes, words that introduce a value. Each rewriting
is bounded by the length of the text, and happens before commands get their one spelling.
"""

from __future__ import annotations

import re
from typing import Final

_FULL_WIDTH: Final = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)}
_COLOR = re.compile(r"\\(?:text)?color\s*(?:\[[A-Za-z]*\])?\s*\{[\w!. ]*\}\s*")
_ROW_GAP = re.compile(r"\\\\\s*\[\s*-?[\d.]+\s*(?:pt|em|ex|mm|cm|in)\s*\]")
_THUS = re.compile(r"(?:=(?!=)>?|∴|\\therefore(?![A-Za-z]))\s*(?=\S)")
_INTRODUCTION = re.compile(
    r"\\(?:text|textbf|textrm|mathrm|mbox)\s*\{(?P<words>[A-Za-z' ]{0,60}(?:[:=]|\bis|\bare))\s*\}"
    r"(?:\\[ ,;:]|[\s~])*(?=\S)|(?:final )?answer\s*:\s*(?=[^\s:])",
    re.IGNORECASE,
)
_RESERVED = re.compile(
    r"\b(?:not|never|no|less|more|least|most|than|about|between|or|either|maybe|approximately)\b|n't",
    re.IGNORECASE,
)
_NOT = re.compile(r"\\not\s*(?:=|\\eq(?![A-Za-z]))")
_NOT_IN = re.compile(r"\\not\s*\\in(?![A-Za-z])")
_DIGIT = r"\{?\s*(\d)\s*\}?"
_DOTTED = re.compile(rf"(\d*\.\d*)\\dot\s*{_DIGIT}(\d*)\\dot\s*{_DIGIT}")
_BARRED = re.compile(r"(\d*\.\d*)\\(?:bar|dot|overline|overbar)\s*(?:\{\s*(\d{1,40})\s*\}|(\d))")
_PERIOD = re.compile(r"([-+]?\d*\.\d{0,40})\((\d{1,40})\)")
_GOES_ON = re.compile(
    r"([-+]?\d*\.\d{0,40}?)(?:(\d)\2{2,40}|(\d{2,12}?)\3{1,12})\s*(?:\\l?dots|\\cdots|\.\.\.|…)"
)
_BARRED_ON = re.compile(r"(\\overline\s*\{\d+\})\s*(?:\\l?dots|\\cdots|\.\.\.|…)")
_BASE = re.compile(
    r"\(?(?:\\(?:text|mathrm)\s*\{)?\(?(\d[0-9A-Fa-f]*|[A-Fa-f]+\d[0-9A-Fa-f]*)\)?\}?\)?"
    r"\s*_\s*\{?\(?(\d{1,2})\)?\}?"
)
_ARG = r"\{?\s*(\w{1,6})\s*\}?"
_CHOSEN = re.compile(
    rf"(?<![\w}})])(?:\{{\s*\}})?[\^_]{_ARG}\s*(?:\\(?:text|mathrm)\s*\{{C\}}|C)\s*_{_ARG}"
)
_CHOSEN_BELOW = re.compile(rf"(?<![\w\\}}])C\s*_{_ARG}\s*\^{_ARG}")
_CHOSEN_OF = re.compile(r"(?<![\w\\])C\s*\(\s*(\w{1,6})\s*,\s*(\w{1,6})\s*\)")
_UNIT_VECTOR = re.compile(
    r"\\(?:hat|mathbf|vec|widehat|boldsymbol|bm)\s*"
    r"(?:\{\s*\\?([ijk])(?:math)?\s*\}|\\([ijk])math(?![A-Za-z])|([ijk])(?![A-Za-z]))"
)
_RATIO = re.compile(r"(\d{1,12})\s*(?:\\(?:text|mathrm)\s*\{\s*to\s*\}|\sto\s)\s*(\d{1,12})")
_WHOLE = r"\\in\s*(?:\\(?:mathbb|mathbf|Bbb)\s*(?:\{\s*Z\s*\}|Z(?![A-Za-z]))|ℤ)"
_GAP = r"(?:\\[ ,;:]|\\q?quad(?![A-Za-z])|[\s,;~]){0,6}"
_TEXT_OPEN = r"\\(?:text|textrm|mbox|mathrm)\s*\{\s*,?\s*"
_FAMILY = (
    re.compile(
        rf"{_GAP}\(?{_GAP}(?:{_TEXT_OPEN}(?:,|where|for|with)?(?: all| any| some| every)?\s*\}})?"
        rf"{_GAP}([A-Za-z])\s*{_WHOLE}{_GAP}\)?$"
    ),
    re.compile(
        rf"{_GAP}\(?{_GAP}(?:{_TEXT_OPEN}(?:where|for|with)\s*\}})?{_GAP}([A-Za-z])\s*"
        rf"{_TEXT_OPEN}(?:is|being)?\s*(?:an|any|some)?\s*(?:integer|whole number)\s*\}}{_GAP}\)?$"
    ),
    re.compile(
        rf"{_GAP}\(?{_GAP}{_TEXT_OPEN}(?:where|for|with)?(?: all| any| some| every| an)?\s*"
        rf"integers?\s*\}}{_GAP}([A-Za-z]){_GAP}\)?$"
    ),
)
_BUILT = re.compile(r"\\\{|\\lbrace|\\left\s*\\\{")
_OUTWARD = re.compile(r"(?P<open>[\[\](])(?P<inside>[^\[\](),;]*[,;][^\[\]()]*)(?P<close>[\[\])])")
_OUTWARDS = re.compile(
    r"(?:\w\s*\\in\s*)?(?:[\[\](][^\[\](),;]*[,;][^\[\]()]*[\[\])]\s*(?:\\(?:big)?cup|∪)?\s*)+"
)
_EXCEPT = re.compile(
    r"(\\(?:mathbb|Bbb)\s*(?:\{\s*R\s*\}|R(?![A-Za-z])))\s*(?:-|−)\s*(?=\\\{|\\left\s*\\\{|\\lbrace)"
)
_OVER = re.compile(r"\\over(?![A-Za-z])")


def plain_width(text: str) -> str:
    """`text` with full-width letters, digits and signs in their usual width."""
    return text.translate(_FULL_WIDTH)


def respelled(text: str) -> str:
    """`text` with the rewritings of this module."""
    if text[0] in "=∴\\AaFf":
        thus = _THUS.match(text)
        text = _introduced(text[thus.end() :] if thus else text)
    if "\\" in text:
        text = _commands(text)
    if "C" in text:
        text = _CHOSEN.sub(r"\\binom{\1}{\2}", text)
        text = _CHOSEN_BELOW.sub(r"\\binom{\1}{\2}", text)
        text = _CHOSEN_OF.sub(r"\\binom{\1}{\2}", text)
    if "." in text:
        text = _decimals(text)
    if "_" in text and (base := _BASE.fullmatch(text)):
        return _in_base(base)
    if "to" in text and (ratio := _RATIO.fullmatch(text)):
        return f"{ratio[1]}:{ratio[2]}"
    if ("[" in text or "]" in text) and "sqrt" not in text:
        text = _inward(text)
    return text


def _introduced(text: str) -> str:
    r"""`text` without words such as `\text{The total is}` in front of its value."""
    match = _INTRODUCTION.match(text)
    if match is None or _RESERVED.search(match["words"] or ""):
        return text
    return text[match.end() :]


def _commands(text: str) -> str:
    text = _COLOR.sub("", text) if "color" in text else text
    text = _ROW_GAP.sub(r"\\\\", text) if "\\\\" in text else text
    if "\\not" in text:
        text = _NOT_IN.sub(r"\\notin ", _NOT.sub(r"\\neq ", text))
    if "R" in text and "{" in text:
        text = _EXCEPT.sub(r"\1\\setminus ", text)
    is_vector = "hat" in text or "vec" in text or "b" in text
    vectors = _UNIT_VECTOR.findall(text) if is_vector else []
    if any("j" in letters or "k" in letters for letters in vectors):
        text = _UNIT_VECTOR.sub(lambda m: f"\\hat{{{m[1] or m[2] or m[3]}}}", text)
    if ("Z" in text or "ℤ" in text or "integer" in text or "whole" in text) and not _BUILT.match(
        text
    ):
        text = _family(text)
    if "\\over" in text and _OVER.search(text) and _is_outside(text):
        text = f"{{{text}}}"
    return text


def _family(text: str) -> str:
    r"""A family with the condition on its letter as `, k \in \mathbb{Z}`."""
    for pattern in _FAMILY:
        match = pattern.search(text)
        if match and match.start() > 0:
            return f"{text[: match.start()]}, {match[1]} \\in \\mathbb{{Z}}"
    return text


def _is_outside(text: str) -> bool:
    r"""Whether an `\over` stands outside all braces."""
    at = _OVER.search(text)
    while at:
        if text.count("{", 0, at.start()) == text.count("}", 0, at.start()):
            return True
        at = _OVER.search(text, at.end())
    return False


def _decimals(text: str) -> str:
    """Repeating decimals with a bar over their period."""
    if "overline" in text or "bar" in text or "dot" in text:
        text = _DOTTED.sub(r"\1\\overline{\2\3\4}", text)
        text = _BARRED.sub(lambda m: f"{m[1]}\\overline{{{m[2] or m[3]}}}", text)
        text = _BARRED_ON.sub(r"\1", text)
    if text[-1] == ")" and (whole := _PERIOD.fullmatch(text)):
        return f"{whole[1]}\\overline{{{whole[2]}}}"
    whole = _GOES_ON.fullmatch(text) if text[-1] in "s.…" else None
    return f"{whole[1]}\\overline{{{whole[2] or whole[3]}}}" if whole else text


def _in_base(match: re.Match[str]) -> str:
    """A number in a base without brackets, its letters in capitals."""
    digits, base = match[1].upper(), int(match[2])
    return f"{digits}_{{{base}}}" if digits.isdigit() or base > 10 else match[0]


def _inward(text: str) -> str:
    """Intervals in outward brackets, `]2, 5[`, in round ones."""
    if _OUTWARDS.fullmatch(text) is None:
        return text
    parts = list(_OUTWARD.finditer(text))
    if not any(part["open"] == "]" or part["close"] == "[" for part in parts):
        return text
    return _OUTWARD.sub(
        lambda m: (
            f"{m['open'].replace(']', '(')}{m['inside'].replace(';', ',')}"
            f"{m['close'].replace('[', ')')}"
        ),
        text,
    )
