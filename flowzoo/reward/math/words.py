"""Answers in words: numbers, dates, the real line."""

from __future__ import annotations

import re
from typing import Final

_ONES: Final = {
    word: value
    for value, word in enumerate(
        "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen "
        "fifteen sixteen seventeen eighteen nineteen".split()
    )
}
_TENS: Final = {
    word: 10 * value
    for value, word in enumerate(
        "twenty thirty forty fifty sixty seventy eighty ninety".split(), start=2
    )
}
_MONTHS: Final = {
    name: month
    for month, spelled in enumerate(
        "january:jan february:feb march:mar april:apr may:may june:jun july:jul august:aug "
        "september:sep october:oct november:nov december:dec".split(),
        start=1,
    )
    for name in spelled.split(":")
} | {"sept": 9}
_NUMBER = re.compile(r"[A-Za-z]+(?:[ -][A-Za-z]+){0,5}")
_DATE = re.compile(
    r"(?:(?P<m>[A-Za-z]{3,9})\.? (?:the )?(?P<d>\d{1,2})(?:st|nd|rd|th)?"
    r"|(?:the )?(?P<d2>\d{1,2})(?:st|nd|rd|th)? (?:of )?(?P<m2>[A-Za-z]{3,9})\.?)"
    r"(?:,? (?P<y>\d{4}))?"
)
_LINE = re.compile(
    r"(?:(?:the )?set of )?(?:all|any) reals?(?: numbers?)?|(?:the )?real numbers|(?:the )?reals",
    re.IGNORECASE,
)
_NOTHING = re.compile(r"(?:the )?empty set|(?:there are )?no (?:real )?solutions?", re.IGNORECASE)
REAL_LINE: Final = r"(-\infty ,\infty )"


def number_in_words(text: str) -> int | None:
    """The whole number below a million that a text spells, or None."""
    if _NUMBER.fullmatch(text) is None:
        return None
    total = part = 0
    last = 1_000
    for word in re.split(r"[ -]", text.lower()):
        if word == "and" and part >= 100:
            continue
        if word in _ONES and (last > 90 or (last >= 20 and 0 < _ONES[word] < 10)):
            part += _ONES[word]
            last = 1
        elif word in _TENS and last > 90:
            part += _TENS[word]
            last = 20
        elif word == "hundred" and 0 < part < 10:
            part, last = 100 * part, 100
        elif word == "thousand" and 0 < part < 1_000 and not total:
            total, part, last = 1_000 * part, 0, 1_000
        else:
            return None
    return total + part


def spelled_out(cleaned: str) -> str:
    """A clean text with words for numbers, the real line and no solutions in symbols."""
    if not cleaned[:1].isalpha():
        return cleaned
    number = number_in_words(cleaned)
    if number is not None:
        return str(number)
    if _LINE.fullmatch(cleaned):
        return REAL_LINE
    return r"\varnothing " if _NOTHING.fullmatch(cleaned) else cleaned


def date_form(cleaned: str) -> str | None:
    """One spelling of a date with a month in words, or None."""
    found = _DATE.fullmatch(cleaned)
    if found is None:
        return None
    month = _MONTHS.get((found["m"] or found["m2"]).lower())
    day = int(found["d"] or found["d2"])
    return f"{month}/{day}/{found['y'] or ''}" if month and 1 <= day <= 31 else None
