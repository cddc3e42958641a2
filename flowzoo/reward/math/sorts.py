r"""Sorts of answers that have a normal form, which all spellings of one answer share.

`SORTS` is tried in order on a clean answer. A reader returns a number, which is compared as one, or
the normal form as a text, which equals only itself; None if the answer is of another sort. What no
sort and no grammar reads is a text, too, so nothing is multiplied that is not a product.
"""

import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Final, NamedTuple

from flowzoo.reward.math.clean import TEXT_COMMANDS
from flowzoo.reward.math.statements import statement_form
from flowzoo.reward.math.tree import AnswerKind, ParsedAnswer, num, scalars, sym
from flowzoo.reward.math.units import size_of, unit_name
from flowzoo.reward.math.vocabulary import date_form


class Sort(NamedTuple):
    """A sort of answers: its name, a pattern that its answers contain, and its reader."""

    name: str
    sign: re.Pattern[str]
    read: Callable[[str], ParsedAnswer | str | None]


def read_sort(cleaned: str) -> ParsedAnswer | None:
    """Return the meaning of an answer of one of `SORTS`, or None."""
    if len(cleaned) > _LONGEST:
        return None
    plain = " ".join(_TEXT.sub(r" \1 ", cleaned).split()) if "{" in cleaned else cleaned
    if _SIGNS.search(plain) is None:
        return None
    for sort in SORTS:
        if sort.sign.search(plain) and (form := sort.read(plain)):
            if isinstance(form, ParsedAnswer):
                return form
            return ParsedAnswer("text", f"{sort.name}: {form}")
    return None


_LONGEST: Final = 200
_TEXT = re.compile(
    rf"\\(?:{'|'.join(sorted(TEXT_COMMANDS - {'mathbb', 'mathcal'}))})\s?\{{([^{{}}\\]*)\}}"
)


def _form(
    pattern: re.Pattern[str], write: Callable[[re.Match[str]], str]
) -> Callable[[str], str | None]:
    # The reader of answers that a pattern fits.
    return lambda cleaned: write(match) if (match := pattern.fullmatch(cleaned)) else None


_LITERAL = re.compile(
    r"0[xX]([0-9A-Fa-f]+)|0[bB]([01]+)|0[oO]([0-7]+)|#([0-9A-Fa-f]{6}|[0-9A-Fa-f]{3})"
)
_BASED = re.compile(r"\(?([0-9A-Fa-f]+)\)? ?_ ?\{?\(?(\d{1,2})\)?\}?")


def _numeral(cleaned: str) -> ParsedAnswer | None:
    # `0x1F`, `1F_{16}`, `101_2`: digits with their base; no value, which the digits alone lack.
    if match := _LITERAL.fullmatch(cleaned):
        digits, base = match[match.lastindex or 0], (16, 2, 8, 16)[(match.lastindex or 1) - 1]
    elif (match := _BASED.fullmatch(cleaned)) and _is_numeral(match):
        digits, base = match[1], int(match[2])
    else:
        return None
    return ParsedAnswer("scalar", node=sym(f"{digits.upper()}_{base}"))


def _is_numeral(match: re.Match[str]) -> bool:
    # True unless letters may be a name with an index, as in `a_{12}` and `b2_3`.
    has_digit = any(char.isdigit() for char in match[1])
    return match[1].isdigit() or (int(match[2]) > 10 and (has_digit or match[0][0] == "("))


_PART: Final = r"(\d+(?:\.\d+)?) ?(°|'|\"|[A-Za-z]+)\.?"
_JOINT: Final = r" ?(?:,|and|, and)? ?"
_SUM = re.compile(rf"(-?){_PART}{_JOINT}{_PART}(?:{_JOINT}{_PART})?")
_PRIMES = re.compile(r"\^ ?\{? ?((?:\\prime ?)+)\}?")
_ARC: Final = {"'": "arcminute", '"': "arcsecond", "min": "arcminute", "s": "arcsecond"}


def _sum_of_units(cleaned: str) -> ParsedAnswer | None:
    # `5 ft 10 in`, `1 hour and 30 minutes`, `37° 30'`: a multiple of the first unit.
    plain = _PRIMES.sub(lambda m: "'" * m[1].count("p"), cleaned)
    match = _SUM.fullmatch(plain.replace("''", '"'))
    if match is None:
        return None
    written = [(match[i], match[i + 1]) for i in (2, 4, 6) if match[i]]
    marks = _ARC if unit_name(written[0][1]) == "degree" else {"'": "ft", '"': "in"}
    parts = [(Fraction(n), marks.get(unit_name(unit)) or unit_name(unit)) for n, unit in written]
    sizes = [size_of(unit) for _, unit in parts]
    if any(size is None or size.basic != (sizes[0] or size).basic for size in sizes):
        return None
    factors = [size.factor for size in sizes if size is not None]
    if any(small >= large for large, small in pairwise(factors)):
        return None
    value = sum(count * factor for (count, _), factor in zip(parts, factors, strict=True))
    value *= -1 if match[1] else 1
    return ParsedAnswer("scalar", node=num(value / factors[0]), unit=parts[0][1], shape="sum")


_CLOCK = re.compile(r"(\d{1,2}) ?: ?(\d\d) ?([ap])m\.?", re.IGNORECASE)


def _clock(cleaned: str) -> ParsedAnswer | None:
    # `3:30 PM` in 24 hours.
    match = _CLOCK.fullmatch(cleaned)
    if match is None or not 0 < int(match[1]) <= 12:
        return None
    hour = int(match[1]) % 12 + (12 if match[3] in "pP" else 0)
    return ParsedAnswer("ratio", items=scalars(num(hour), num(int(match[2]))), shape="clock")


_CYCLES = re.compile(r"(?:\( ?\d+(?: \d+)+ ?\) ?)+|(?:\(\d{2,9}\) ?){2,}")


def _permutation(cleaned: str) -> str | None:
    # `(1 2 3)(4 5)`: cycles from their smallest number, disjoint ones in order.
    if _CYCLES.fullmatch(cleaned) is None:
        return None
    groups = re.findall(r"\(([\d ]+)\)", cleaned)
    cycles = [group.split() if " " in group.strip() else list(group) for group in groups]
    numbers = [number for cycle in cycles for number in cycle]
    if any(len(set(cycle)) < len(cycle) for cycle in cycles):
        return None
    turned = []
    for cycle in cycles:
        start = cycle.index(min(cycle, key=int))
        turned.append(" ".join([*cycle[start:], *cycle[:start]]))
    return str(sorted(turned) if len(set(numbers)) == len(numbers) else turned)


_DOTS = re.compile(r" ?(?:\\ldots|\\cdots) ?")
_TERM = re.compile(r"-?\d{1,9}(?:\.\d{1,9}|/\d{1,9})?")


def _progression(cleaned: str) -> ParsedAnswer | str | None:
    # `1, 2, 3, \\ldots, n`: the first term, the step and the last term; all terms up to a number.
    head, dots, tail = (
        part.strip(" ,") for part in re.split(rf"({_DOTS.pattern})", cleaned, maxsplit=1)
    )
    opening = head[:2] if head[:2] == "\\{" else head[:1] if head[:1] in "([" else ""
    terms = [term.strip() for term in head[len(opening) :].split(",")]
    if not all(map(_TERM.fullmatch, terms)) or not dots or _DOTS.search(tail):
        return None
    values = [Fraction(term) for term in terms if not term.endswith("/0")]
    steps = {b - a for a, b in pairwise(values)}
    ratios = {b / a for a, b in pairwise(values) if a}
    if not 1 < len(values) == len(terms) or (len(steps) > 1 and len(ratios) > 1):
        return None
    if len(values) == 2 and steps not in ({1}, {-1}):
        return None
    last = re.sub(r"\s", "", tail.rpartition(",")[2])
    kind, closing = _BRACKETS.get(opening, (None, ""))
    end = last.removesuffix(closing)
    if kind and last.endswith(closing) and _TERM.fullmatch(end) and not end.endswith("/0"):
        every = _terms(values, Fraction(end), steps, ratios)
        items = scalars(*map(num, every))
        shape = "()" if kind == "seq" else ""
        return ParsedAnswer(kind, items=items, shape=shape) if items else None
    step = f"+{steps.pop()}" if len(steps) == 1 else f"*{ratios.pop()}"
    return f"{opening} {values[0]} {step} {last}"


def _terms(
    values: Sequence[Fraction], end: Fraction, steps: set[Fraction], ratios: set[Fraction]
) -> list[Fraction]:
    # All terms up to `end`, if only a sum or only a product leads there; else none.
    sums, products = list(values), list(values)
    while len(steps) == 1 and sums[-1] != end and len(sums) < _MOST_TERMS:
        sums.append(sums[-1] + min(steps))
    while len(ratios) == 1 and products[-1] != end and len(products) < _MOST_TERMS:
        products.append(products[-1] * min(ratios))
    ways = [way for way in (sums, products) if way[-1] == end]
    return ways[0] if len(ways) == 1 or (ways and steps in ({1}, {-1})) else []


_MOST_TERMS: Final = 100
_BRACKETS: Final[dict[str, tuple[AnswerKind, str]]] = {
    "": ("list", ""), "(": ("seq", ")"), "\\{": ("set", "\\}"),
}  # fmt: skip


_CODE = re.compile(r"0\d*[A-Z]\w*|(?:([A-Za-z])(?i:\1)){2,}", re.ASCII)
_NUMBERED = re.compile(r"\d{1,4}([-/])\d{1,2}\1\d{1,4}", re.ASCII)


def _date(cleaned: str) -> str | None:
    if _NUMBERED.fullmatch(cleaned):
        year, _, day = cleaned.partition("-")
        month, _, day = day.partition("-")
        return f"{int(month)}/{int(day)}/{year}" if len(year) == 4 and day else cleaned
    return date_form(cleaned) if len(cleaned) < 60 and cleaned[0].isalnum() else None


_FIELD = re.compile(
    r"(?:\\mathbb ?(?:\{ ?F ?\}|F) ?_|GF ?\() ?"
    r"\{? ?(\d{1,6})(?: ?\^ ?\{? ?(\d{1,2}) ?\}?)? ?[})]?"
)


_TYPESETTING = re.compile(r"\\ce ?(?=\{)|[\s_{}$]|\\(?=[#&])")
_ARROW = re.compile(r"\\(?:x?rightarrow|longrightarrow|rightleftharpoons)|<?=?-?->|<=>")
_SPECIES = re.compile(r"\d*(?:[A-Z][a-z]?|[()\[\]\d^+-])+(?:\((?:aq|s|l|g)\))?")


def _reaction(cleaned: str) -> str | None:
    # `2H_2 + O_2 \rightarrow 2H_2O`: the substances of both sides, in any order.
    sides = _ARROW.split(_TYPESETTING.sub("", cleaned))
    parts = [re.split(r"\+(?=\d*[A-Z])", side) for side in sides]
    is_read = all(_SPECIES.fullmatch(part) for side in parts for part in side)
    is_chemical = len(sides) > 1 or "\\ce" in cleaned
    return str([sorted(side) for side in parts]) if is_read and is_chemical else None


_MATCHED = re.compile(r"([A-Z]|\d{1,2})(?:-|:|\\rightarrow)([A-Z]|\d{1,2})")


def _matching(cleaned: str) -> str | None:
    # `A-2, B-3`: pairs of letters and numbers, in any order.
    plain = _TYPESETTING.sub("", cleaned)
    parts = [_MATCHED.fullmatch(part) for part in re.split("[,;]", plain)]
    pairs = sorted(part.groups() for part in parts if part)
    is_read = 1 < len(pairs) == len(parts) and all(a.isalpha() != b.isalpha() for a, b in pairs)
    return str(pairs) if is_read else None


_NAMED: Final = {
    "B": "binomial", "Bin": "binomial", "Binom": "binomial", "Po": "poisson", "Pois": "poisson",
    "N": "normal", "U": "uniform", "Unif": "uniform", "Exp": "exponential",
    "Geo": "geometric", "Geom": "geometric", "Ber": "bernoulli", "Bern": "bernoulli",
}  # fmt: skip
_DISTRIBUTION = re.compile(r"([A-Z]) ?\\sim ?([A-Za-z]+) ?\(([^()]+)\)", re.DOTALL)


_BY: Final = r" ?(?:\\times|by) ?"
_SHAPE = re.compile(rf"(\d+(?:{_BY}\d+)+) ?([A-Za-z]{{3,}})")


def _shape(cleaned: str) -> str | None:
    # `2 \times 3 matrix`: rows and columns of a thing, whose product is no number of such things.
    match = _SHAPE.fullmatch(_ARTICLE.sub("", cleaned))
    if match is None or size_of(unit_name(match[2])):
        return None
    return f"{re.findall('[0-9]+', match[1])} {unit_name(match[2])}"


_ARTICLE = re.compile(r"^an? ?(?=\d)")
_LOGIC = re.compile(
    r"\\(?:land|lor|cap|cup|oplus|triangle|Delta|setminus|lnot|overline|sim|varnothing|forall|exists|lambda"
    r"|(?:left)?rightarrow|(?:Left)?[Rr]ightarrow|leftrightarrow)(?![A-Za-z])|\b(?i:and|x?or)\b"
)
SORTS: Final = (
    Sort("numeral", re.compile(r"^0[xXbBoO]|^#|_ ?\{?\(?\d"), _numeral),
    Sort("shape", re.compile(rf"\d{_BY}\d.*[A-Za-z]{{3}}"), _shape),
    # A zero before letters begins a code; in a genotype, `AaBb`, the case of letters counts.
    Sort("code", re.compile(r"^0\d*[A-Z]|^[A-Za-z]{4,}$"), _form(_CODE, lambda match: match[0])),
    Sort("date", re.compile(r"^\d+[-/]\d|^(?=\w).*[A-Za-z]{3}"), _date),
    Sort("clock", re.compile(r"^\d\d? ?: ?\d\d ?(?:\\text|[apAP])"), _clock),
    Sort("sum of units", re.compile(r"^-?\d.*(?:[A-Za-z]|°|').*\d"), _sum_of_units),
    # `\mathbb{F}_{3^2}`, `\mathrm{GF}(9)`: a finite field by its order.
    Sort("field", re.compile(r"^\\mathbb ?\{? ?F|GF"),
         _form(_FIELD, lambda match: str(int(match[1]) ** int(match[2] or 1)))),
    Sort("reaction", re.compile(r"\\ce|[A-Z].*(?:arrow|harpoons|->|=>).*[A-Z]"), _reaction),
    Sort("matching", re.compile(r"[A-Z\d}] ?(?:-|:|\\rightarrow).*[,;]"), _matching),
    # `X \sim \mathrm{Bin}(10, 0.3)`, with the full name.
    Sort("distribution", re.compile(r"^[A-Z] ?\\sim"),
         _form(_DISTRIBUTION, lambda match: " ".join((
             match[1], _NAMED.get(match[2], match[2].lower()), re.sub(r"[\s{}]", "", match[3]))))),
    Sort("permutation", re.compile(r"^\(.*\d.*\)$"), _permutation),
    Sort("progression", _DOTS, _progression),
    Sort("statement", _LOGIC, statement_form),
)  # fmt: skip
_SIGNS = re.compile("|".join(f"(?:{sort.sign.pattern})" for sort in SORTS))
