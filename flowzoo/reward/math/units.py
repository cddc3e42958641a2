"""Parser of units, currencies, percent signs and scale words around a number."""

import re
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from typing import Final, NamedTuple

from flowzoo.reward.listed import names
from flowzoo.reward.math.clean import table
from flowzoo.reward.math.tokens import MathToken
from flowzoo.reward.math.vocabulary import HEDGED, number_in_words

# Units by name; a symbol of the SI keeps its case, and both take the prefixes of the SI.
_NAMES: Final = table(
    "meter:m metre:m gram:g gramme:g liter:L litre:L watt:W volt:V joule:J newton:N pascal:Pa "
    "ampere:A amp:A ohm:Ω hertz:Hz bit:b byte:B farad:F coulomb:C tesla:T henry:H kelvin "
    "mole:mol calorie:cal kilo:kg foot:ft ft feet:ft inch:in inche:in in mile:mi mi yard:yd yd "
    "pound:lb lb lbs:lb ounce:oz oz ton:t tonne:t °:degree deg:degree degree radian:rad rad "
    "$:dollar buck:dollar usd:dollar dollar cent cents:cent hour:h hr:h hrs:h h minute:min min "
    "second:s sec:s day week month year €:euro eur:euro euro £:pound gbp:pound ¥:yen yen "
    "₹:rupee rs:rupee rs.:rupee inr:rupee rupee p.m.:pm pm a.m.:am am unit: celsius:C "
    "KiB MiB GiB acre hectare:ha ha annum:year"
)
_UNITS: Final = frozenset(_NAMES.values())
_PREFIXES: Final = table(
    "kilo:k mega:M giga:G tera:T hecto:h deci:d centi:c milli:m micro:u nano:n pico:p femto:f"
)
_SYMBOL = re.compile(
    r"([PTGMkKhdcmuµμnpf]?)"
    r"(m|g|s|A|K|mol|cd|Hz|N|Pa|J|W|C|V|F|Ω|S|Wb|T|H|L|l|lm|lx|Bq|Gy|Sv|eV|B|b|bar|cal|Wh|bit|byte)"
)
_SPELLED: Final = table("l:L µ:u μ:u bit:b byte:B")
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
    "gcd lcm maybe perhaps possibly probably yes no none minimum maximum least most tens "
    "ones where with for when while then so because since cis bn mn k"
)
_JOINED: Final = {"mph": "mi / h", "kph": "km / h", "kmh": "km / h", "p m": "pm", "a m": "am",
                  "basis points": "bp", "basis point": "bp"}  # fmt: skip
_RATE = re.compile(r"^([kMGT]?[bB])ps$")
_SCALES: Final = {
    "dozen": 12, "hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9,
    "trillion": 10**12, "万": 10**4, "亿": 10**8, "lakh": 10**5, "crore": 10**7,
    "ppm": Fraction(1, 10**6), "bp": Fraction(1, 10**4),
}  # fmt: skip
_PERCENT: Final = names("percent pct percentage percents")
_CURRENCY: Final = names("\\$ $ € £ ¥ ₹ usd eur gbp inr rs rs.")
_RISES: Final = names("increase rise gain growth profit more higher up")
_FALLS: Final = names("decrease fall loss drop reduction decline discount less lower down")
_WORD = re.compile(r"[^\W\d_]+(?:[.\-'][^\W\d_]*)*")
_PART = re.compile(rf"{_WORD.pattern}|/|%|°|(?<=[^\W\d_^{{])-?[123]|(?<=\^)\{{?-?[123]")
_ORDINALS = re.compile(r"(?:ten|hundred|thousand|million|f?if|six|seven|eigh|nin|twelf)ths?")
# Single letters that are units if typeset as text; `\mathrm{i}` is a number.
_LETTERS: Final = frozenset("mgslLhJNWVACKFTtM")
# A digit in a text that is not the power of a unit, as in `m2`.
_COUNT = re.compile(r"(?<![mtn])\d|\d(?!\b)|[014-9]")
_POWER = re.compile(r"\^(?:[123]|\{-?[123]\})")
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
    first = start + (tokens[start].text in ("-", "+"))
    if first + 1 < end and _is_currency(tokens[first]):
        unit = unit_name(tokens[first].text.strip("\\ "))
        factor *= -1 if tokens[start].text == "-" else 1  # `-$5`: the sign stays with the number
        while first + 2 < end and tokens[first + 1].text == ".":
            first += 1
        start = first + 1
    cut = _unit_start(tokens, start, end)
    if cut >= end:
        return Quantity(start, end, unit, factor)
    unit_words = _words(tokens[cut:end])
    unit_words = _JOINED.get(" ".join(unit_words).lower(), "").split() or [
        part for word in unit_words for part in _RATE.sub(r"\1 / s", word).split()
    ]
    if unit_words and unit_words[0].lower() in _SCALES:
        factor *= _SCALES[unit_words.pop(0).lower()]
    if unit_words and unit_words[0].lower() in (*_PERCENT, "%"):
        unit, factor, unit_words = "%", factor / 100, unit_words[1:]
    if unit and unit_words[-2:-1] not in (["per"], ["/"]):
        return Quantity(start, cut, unit, factor)
    return Quantity(start, cut, _name([unit, *unit_words] if unit else unit_words), factor)


def _unit_start(tokens: Sequence[MathToken], start: int, end: int) -> int:
    # Start index of the trailing unit; `end` without one.
    cut = end
    while cut > start + 1:
        if (caret := _power_start(tokens, cut, start)) > start:
            cut = caret
        elif (opened := _fraction_start(tokens, cut, start)) > start:
            cut = opened
        elif _is_unit_token(tokens, cut, start, end):
            cut -= 1
        else:
            break
    is_operand = tokens[cut - 1].kind in "nwct" or tokens[cut - 1].text in (")", "]", "}", "!", "|")
    if cut < end and not (is_operand and _starts_unit(tokens, start, cut, end)):
        return end
    return cut


def _is_unit_token(tokens: Sequence[MathToken], cut: int, start: int, end: int) -> bool:
    # True if the token before `cut` belongs to the unit at `cut`, or begins one.
    token, before = tokens[cut - 1], tokens[cut - 2]
    if token.text in ("°", "%") or _is_currency(token):
        return True
    if token.kind == "t":
        return len(token.text) > 1 or token.text in _LETTERS or token.text in _SCALES
    if token.text in _MARKS:
        return cut == end and before.kind == "n"
    if cut < end and token.text == "/":
        if before.kind == "t" or before.text in _OVER:
            return cut - 2 > start
        return cut - 2 > start and _is_unit_word(before, tokens[cut - 3])
    if cut < end and token.text in (".", "-", "cdot"):
        return before.kind in ("wt" if token.kind == "p" else "t")
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
    units = [t for t in tokens[begin + 1 : cut] if t.text not in ("{", "}", "^", "2", "3")]
    is_known = all(t.kind == "t" or t.text in _OVER | _UNDER for t in units)
    return begin if is_known and len(units) >= 2 else -1


def _power_start(tokens: Sequence[MathToken], cut: int, start: int) -> int:
    # Index of the caret of a power of a unit, `^2` or `^{-1}`, that ends at `cut`, else -1.
    if tokens[cut - 1].text not in ("}", "1", "2", "3"):
        return -1
    caret = next((i for i in range(cut - 2, max(cut - 6, start), -1) if tokens[i].text == "^"), -1)
    written = "".join(token.text for token in tokens[caret + 1 : cut])
    if caret <= start + 1 or written.strip("{}").removeprefix("-") not in ("1", "2", "3"):
        return -1
    before = tokens[caret - 1]
    is_unit = before.kind == "t" and (len(before.text) != 1 or before.text in _LETTERS)
    return caret if is_unit or _is_unit_word(before, tokens[caret - 2]) else -1


def _starts_unit(tokens: Sequence[MathToken], start: int, cut: int, end: int) -> bool:
    # True if the tokens from `cut` are a unit after a number.
    unit_words = _words(tokens[cut:end])
    lower = [word.lower() for word in unit_words]
    counts = [i for i in range(start, cut) if tokens[i].kind == "n"]
    exponents = [i for i in counts if any(t.text == "^" for t in tokens[max(i - 3, start) : i])]
    if max(map(len, lower), default=0) < 2 and counts == exponents != []:
        return False  # `\mathbf{B}^{-1} \mathbf{C}`
    blocked = [word for word in unit_words if word not in ("K", "MN", "mN")]
    if not 0 < len(lower) <= 6 or any(
        w.lower() in _NO_UNITS or _ORDINALS.fullmatch(w.lower()) for w in blocked
    ):
        return False
    if any(t.kind == "t" and _COUNT.search(_POWER.sub("", t.text)) for t in tokens[cut:end]):
        return False  # another number
    if HEDGED.search(" ".join(lower)):
        return False
    if any(number_in_words(part) is not None for word in lower for part in word.split("-")):
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
    name = unit_name(word)
    is_unit = name in _UNITS or _SYMBOL.fullmatch(name) is not None
    return len(word) > 1 and (is_unit or word.lower() in (*_SHORT, *_PERCENT, *_JOINED))


def _is_unit_word(token: MathToken, before: MathToken) -> bool:
    word = token.text
    if token.kind != "w":
        return False
    if before.text == "°" and word in ("C", "F"):
        return True
    if word.lower() in _NO_UNITS:
        return False
    if not token.spaced and before.text not in ("/", ".", "-"):
        return word in _GLUED or word.lower() in ("pm", "am") or len(word) >= 5
    if len(word) < 3:
        is_mixed = word[-1].isupper() != word[0].isupper() or word in ("Hz", "Pa")
        is_symbol = is_mixed and _SYMBOL.fullmatch(word) is not None
        return is_symbol or word.lower() in _SHORT or (before.text == "/" and len(word) == 1)
    return _VARIABLES.fullmatch(word) is None


def _is_currency(token: MathToken) -> bool:
    return token.text.strip().lower() in _CURRENCY


def direction(tokens: Sequence[MathToken]) -> str:
    """`+` for words of an increase, `-` for words of a decrease, else empty."""
    used = {word.lower() for t in tokens if t.kind in "wt" for word in _WORD.findall(t.text)}
    rises, falls = bool(used & _RISES), bool(used & _FALLS)
    return "" if rises == falls else "+" if rises else "-"


def _words(tokens: Sequence[MathToken]) -> list[str]:
    unit_words: list[str] = []
    for before, token in pairwise((tokens[0], *tokens)):
        if token.text == "{" and (before.text == "}" or before.kind in "wt"):
            unit_words.append("/")
        elif token.kind in "wt":
            unit_words.extend(_PART.findall(token.text))
        elif token.text in _MARKS:
            unit_words.append(_MARKS[token.text])
        elif token.text in ("-", "1", "2", "3", "/", "°", "%") or _is_currency(token):
            unit_words.append(token.text.lstrip("\\"))
    return unit_words


def unit_name(word: str) -> str:
    """The symbol of a unit by its name or symbol; other words in lower case, singular."""
    if word in _NAMES:
        return _NAMES[word]
    if symbol := _SYMBOL.fullmatch(word):
        prefix, base = symbol.groups()
        return ("k" if prefix == "K" else _SPELLED.get(prefix, prefix)) + _SPELLED.get(base, base)
    lower = word.lower()
    if word != lower and _SYMBOL.fullmatch(lower) and (word[0].islower() or lower not in _SHORT):
        return word  # `kG` and `Nm` are no `kg` and `nm`, while `KG` is
    word = lower
    if word.endswith("s") and len(word) > 2 and not word.endswith("ss") and word != "celsius":
        word = word[:-1]
    for prefix, sign in _PREFIXES.items():
        if word.startswith(prefix) and (base := _NAMES.get(word.removeprefix(prefix))):
            return sign + base
    return _NAMES.get(word, word)


def is_rate_of(rate: str, unit: str) -> bool:
    """Return True for money or percent per something, which may be missing."""
    parts = rate.split()
    return unit in _PRICED and unit in parts and all(x == unit or "-" in x for x in parts)


_PRICED: Final = {"%", *(unit_name(sign.strip("\\")) for sign in _CURRENCY)}
# Units as multiples of others; a symbol of the SI takes its prefixes.
_SIZES: Final = {
    "dollar": (100, "cent"), "week": (604_800, "s"), "day": (86_400, "s"), "h": (3600, "s"),
    "min": (60, "s"), "degree": (3600, "arcsecond"), "arcminute": (60, "arcsecond"),
    "arcsecond": (1, ""),
    "yd": (36, "in"), "ft": (12, "in"), "mi": (63_360, "in"), "lb": (16, "oz"),
    "year": (12, "month"), "t": (10**6, "g"), "L": (Fraction(1, 1000), "m3"),
    "M": (1000, "mol m-3"), "bar": (10**5, "Pa"), "Wh": (3600, "J"), "B": (8, "b"),
    "Pa": (1000, "g m-1 s-2"), "N": (1000, "g m s-2"), "J": (1000, "g m2 s-2"),
    "W": (1000, "g m2 s-3"), "Hz": (1, "s-1"), "C": (1, "A s"), "V": (1, "J A-1 s-1"),
    "Ω": (1, "V A-1"), "S": (1, "A V-1"), "F": (1, "C V-1"), "Wb": (1, "V s"), "T": (1, "Wb m-2"),
    "H": (1, "Wb A-1"), "KiB": (1024, "B"), "MiB": (1024, "KiB"), "GiB": (1024, "MiB"),
    "kelvin": (1, "K"), "acre": (43_560, "ft2"), "ha": (10_000, "m2"),
}  # fmt: skip
_POWERS_OF_TEN: Final = {
    "P": 15, "T": 12, "G": 9, "M": 6, "k": 3, "h": 2, "d": -1, "c": -2, "m": -3, "u": -6, "µ": -6,
    "μ": -6, "n": -9, "p": -12, "f": -15,
}  # fmt: skip
_FACTOR = re.compile(r"(.+?)(-?\d+)?")


class Size(NamedTuple):
    """A unit in basic units; a temperature of 0 may be `start` of them."""

    basic: str
    factor: Fraction
    start: Fraction = Fraction(0)


_TEMPERATURES: Final = {
    "C degree": Size("K1", Fraction(1), Fraction("273.15")),
    "F degree": Size("K1", Fraction(5, 9), Fraction("459.67") * 5 / 9),
}  # fmt: skip


@lru_cache(maxsize=512)
def size_of(unit: str) -> Size | None:
    """The size of a unit, or None."""
    if unit in _TEMPERATURES:
        return _TEMPERATURES[unit]
    basic: dict[str, int] = {}
    size = Fraction(1)
    for part in unit.split():
        match = _FACTOR.fullmatch(part)
        name, power = (match[1], int(match[2] or 1)) if match else (part, 1)
        symbol = _SYMBOL.fullmatch(name)
        if name not in _SIZES and symbol and symbol[1]:
            size *= Fraction(10) ** (_POWERS_OF_TEN[symbol[1]] * power)
            name = symbol[2]
        elif name not in _SIZES and name not in _UNITS and not symbol:
            return None
        factor, rest = _SIZES.get(name, (1, ""))
        inner = size_of(rest) if rest else None
        size *= (Fraction(factor) * (inner.factor if inner else 1)) ** power
        for of in (inner.basic if inner else name).split():
            base = _FACTOR.fullmatch(of)
            key, count = (base[1], int(base[2] or 1)) if base else (of, 1)
            basic[key] = basic.get(key, 0) + count * power
    return Size(" ".join(f"{key}{count}" for key, count in sorted(basic.items()) if count), size)


def _name(unit_words: list[str]) -> str:
    # One spelling of a unit, with its powers: `square centimeters` as `cm2`, `m/s^2` as `m s-2`.
    powers: dict[str, int] = {}
    sign = power = 1
    last = ""
    for word in unit_words:
        lower = word.lower()
        if lower in ("square", "sq", "cubic"):
            power = 3 if lower == "cubic" else 2
        elif lower in ("per", "/"):
            sign = -1
        elif (exponent := word.lstrip("{-")).isdigit() and last:
            powers[last] *= -int(exponent) if "-" in word else int(exponent)
        elif word == "-" and last:
            powers[last] = -powers[last]
        elif word not in ("of", "a", "an", "the", "each", "-") and (last := unit_name(word)):
            powers[last] = powers.get(last, 0) + sign * power
            power = 1
    return " ".join(
        f"{unit}{power if power != 1 else ''}" for unit, power in sorted(powers.items())
    )
