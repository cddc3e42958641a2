"""Parser of units, currencies, percent signs and scale words around a number."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction
from typing import Final, NamedTuple

from flowzoo.reward.listed import names
from flowzoo.reward.math.clean import table
from flowzoo.reward.math.tokens import MathToken
from flowzoo.reward.math.vocabulary import number_in_words

_NAMES: Final = table(
    "centimeter:cm centimetre:cm millimeter:mm millimetre:mm kilometer:km kilometre:km meter:m "
    "metre:m decimeter:dm kilogram:kg kilo:kg gram:g milligram:mg liter:l litre:l milliliter:ml "
    "foot:ft feet:ft inch:in inche:in mile:mi yard:yd pound:lb lb:lb ounce:oz ton:t tonne:t "
    "°:degree deg:degree degree:degree radian:rad $:dollar buck:dollar usd:dollar dollar:dollar "
    "cent:cent hour:h hr:h h:h minute:min min:min second:s sec:s day:day week:week month:month "
    "year:year €:euro euro:euro £:pound ¥:yen p.m.:pm a.m.:am mph:mph unit: units:"
)
_SHORT: Final = names(
    "mm cm dm km mg kg ml cl ft in yd mi oz lb lbs hr hrs min sec pm am of m² m³ pts"
)
_GLUED: Final = names("cm mm km kg mg ml lb lbs hr hrs mph cents pct")
_OVER: Final = names("m km cm mi ft g kg mg L l")
_UNDER: Final = names("s h hr min sec m cm L kg g day")  # units in a denominator
_MARKS: Final = {'"': "in", "'": "ft"}
_NO_UNITS: Final = names(
    "pi sin cos tan cot sec csc log ln exp sqrt mod and or but not nor plus minus times over "
    "squared cubed factorial choose divided is wrong incorrect false to by if than less more "
    "base inf infinity half halves third thirds quarter quarters root cube remainder "
    "approximately fold negative theta alpha beta gamma delta phi lambda sigma omega abs max "
    "min gcd lcm maybe perhaps possibly probably yes no none minimum maximum least most tens "
    "ones where with for when while then so because since cis bn mn k"
)
_JOINED: Final = {"mi h": "mph", "p m": "pm", "a m": "am"}
_SCALES: Final = {"dozen": 12, "hundred": 100, "thousand": 10**3, "million": 10**6,
                  "billion": 10**9, "trillion": 10**12}  # fmt: skip
_PERCENT: Final = names("percent pct percentage percents")
_CURRENCY: Final = {"\\$": "dollar", "$": "dollar", "€": "euro", "£": "pound", "¥": "yen"}
_WORD = re.compile(r"[^\W\d_]+(?:[.\-'][^\W\d_]*)*")
_ORDINALS = re.compile(r"(?:ten|hundred|thousand|million|f?if|six|seven|eigh|nin|twelf)ths?")
# Single letters that are units if typeset as text; `\mathrm{i}` is a number.
_LETTERS: Final = frozenset("mgslLhJNWVACKFTt")
# A digit in a text that is not the power of a unit, as in `m2`.
_COUNT = re.compile(r"(?<![mtn])\d|\d(?!\b)|[014-9]")
_VARIABLES = re.compile(r"[abcxyzpqr]{3}")


class Quantity(NamedTuple):
    """Bounds of the number of an answer, its unit and its factor."""

    start: int
    end: int
    unit: str
    factor: Fraction


def read_unit(tokens: Sequence[MathToken], start: int, end: int) -> Quantity:
    """The slice of the bare number, its unit (`%` for percent) and the factor of a scale word."""
    unit, factor = "", Fraction(1)
    first = start + 1 if tokens[start].text in ("-", "+") else start
    if first + 1 < end and tokens[first].text in _CURRENCY:
        unit = _CURRENCY[tokens[first].text]
        if first > start:  # `-$5`: the sign stays with the number
            return _after(
                tokens, first + 1, end, unit, Fraction(-1 if tokens[start].text == "-" else 1)
            )
        start = first + 1
    return _after(tokens, start, end, unit, factor)


def _after(
    tokens: Sequence[MathToken], start: int, end: int, unit: str, factor: Fraction
) -> Quantity:
    cut = _unit_start(tokens, start, end)
    if cut >= end:
        return Quantity(start, end, unit, factor)
    unit_words = _words(tokens[cut:end])
    if unit_words and unit_words[0] in _SCALES:
        factor *= _SCALES[unit_words.pop(0)]
        if unit_words and unit_words[0] == "of":
            unit_words.pop(0)
    if unit_words and (unit_words[0] in _PERCENT or unit_words == ["%"]):
        return Quantity(start, cut, "%", factor / 100)
    return Quantity(start, cut, unit or _name(unit_words), factor)


def _unit_start(tokens: Sequence[MathToken], start: int, end: int) -> int:
    # Start index of the trailing unit; `end` without one.
    cut = end
    while cut > start + 1:
        token = tokens[cut - 1]
        if _is_power(tokens, cut, start):
            cut -= 4 if token.text == "}" else 2
        elif (opened := _fraction_start(tokens, cut, start)) > start:
            cut = opened
        elif _is_unit_token(tokens, cut, start, end):
            cut -= 1
        else:
            break
    is_operand = tokens[cut - 1].kind in "nwct" or tokens[cut - 1].text in (")", "]", "}", "!", "|")
    if cut < end and not (is_operand and _starts_unit(tokens, cut, end)):
        return end
    return cut


def _is_unit_token(tokens: Sequence[MathToken], cut: int, start: int, end: int) -> bool:
    # True if the token before `cut` belongs to the unit at `cut`, or begins one.
    token, before = tokens[cut - 1], tokens[cut - 2]
    if token.kind == "t" and len(token.text) == 1 and token.text not in _LETTERS:
        return False
    if token.kind == "t" or token.text in ("°", "%") or token.text in _CURRENCY:
        return True
    if token.text in _MARKS:
        return cut == end and before.kind == "n"
    if cut < end and token.text == "/":
        if before.kind == "t" or before.text in _OVER:
            return cut - 2 > start
        return cut - 2 > start and _is_unit_word(before, tokens[cut - 3])
    if cut < end and token.text in (".", "-"):
        return before.kind in "wt"
    if token.kind != "w":
        return False
    is_over = cut < end and tokens[cut].text == "/" and token.text in _OVER
    return is_over or _is_unit_word(token, before)


def _fraction_start(tokens: Sequence[MathToken], cut: int, start: int) -> int:
    # Return the start of a fraction of units, as `\frac{m}{s^2}`, that ends at `cut`, else -1.
    begin = next(
        (i for i in range(cut - 1, max(cut - 16, start), -1) if tokens[i].text == "frac"), -1
    )
    if begin <= start or cut - begin < 3 or tokens[begin - 1].kind != "n":
        return -1
    unit_words = [t.text.strip() for t in tokens[begin + 1 : cut] if t.text not in "{}^"]
    units = [word for word in unit_words if word not in ("2", "3")]
    is_known = len(units) >= 2 and all(word in _OVER or word in _UNDER for word in units)
    return begin if is_known and units[-1] in _UNDER else -1


def _is_power(tokens: Sequence[MathToken], cut: int, start: int) -> bool:
    # True if `^2`, `^{2}` or `^3` of a unit ends before `cut`.
    braced = tokens[cut - 1].text == "}"
    caret = cut - 4 if braced else cut - 2
    if caret - 1 <= start or tokens[caret].text != "^":
        return False
    digit = tokens[cut - 2].text if braced else tokens[cut - 1].text
    before = tokens[caret - 1]
    if digit not in ("2", "3"):
        return False
    if before.kind == "t":
        return len(before.text) != 1 or before.text in _LETTERS
    return before.kind == "w" and _is_unit_word(before, tokens[caret - 2])


def _starts_unit(tokens: Sequence[MathToken], cut: int, end: int) -> bool:
    # True if the tokens from `cut` are a unit after a number.
    unit_words = _words(tokens[cut:end])
    if not 0 < len(unit_words) <= 5 or any(
        w in _NO_UNITS or _ORDINALS.fullmatch(w) for w in unit_words
    ):
        return False
    if any(t.kind == "t" and _COUNT.search(t.text) for t in tokens[cut:end]):
        return False  # another number
    if any(number_in_words(part) is not None for word in unit_words for part in word.split("-")):
        return False
    if not any(token.kind in "nc" for token in tokens[:cut]) and not all(
        map(_is_known, unit_words)
    ):
        return False  # a name, and another one
    if tokens[cut].text not in ("°", "%") or tokens[cut - 1].text in (")", "}", "]"):
        return True
    # The degrees in `\sin 30°` belong to the argument.
    return not any(
        t.kind in "wct" and len(t.text) > 1 and t.text in _NO_UNITS for t in tokens[:cut]
    )


def _is_known(word: str) -> bool:
    return word in _SHORT or word in _PERCENT or word.removesuffix("s") in _NAMES


def _is_unit_word(token: MathToken, before: MathToken) -> bool:
    word = token.text
    if token.kind != "w":
        return False
    if word.lower() in _NO_UNITS:
        return False
    if not token.spaced and before.text not in ("/", ".", "-"):
        return word in _GLUED or word.lower() in ("pm", "am") or len(word) >= 5
    if len(word) < 3:
        return word.lower() in _SHORT or (before.text == "/" and len(word) == 1)
    return _VARIABLES.fullmatch(word) is None


def _words(tokens: Sequence[MathToken]) -> list[str]:
    unit_words: list[str] = []
    for token in tokens:
        if token.kind in "wt":
            unit_words.extend(_WORD.findall(token.text.lower()) or [])
        elif token.text in _MARKS:
            unit_words.append(_MARKS[token.text])
        elif token.text in ("2", "3", "/", "°", "%") or token.text in _CURRENCY:
            unit_words.append(token.text.lstrip("\\"))
    return unit_words


def _name(unit_words: list[str]) -> str:
    # One spelling of a unit: singular, `square centimeters` as `cm 2`.
    parts: list[str] = []
    power = ""
    for word in unit_words:
        if word in ("square", "sq", "cubic"):
            power = "3" if word == "cubic" else "2"
            continue
        if word in ("of", "a", "an", "the", "per", "/"):
            continue
        if word.endswith("s") and len(word) > 2 and not word.endswith("ss"):
            word = word[:-1]
        parts.append(_NAMES.get(word, word))
        if power:
            parts.append(power)
            power = ""
    name = " ".join(part for part in parts if part)
    return _JOINED.get(name, name)
