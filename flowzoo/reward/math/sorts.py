r"""Sorts of answers that have a normal form, which all spellings of one answer share.

`SORTS` is tried in order on a clean answer. A reader returns a number, which is compared as one, or
the normal form as a text, which equals only itself; None if the answer is of another sort. What no
sort and no grammar reads is a text, too, so nothing is multiplied that is not a product.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import groupby, pairwise, permutations
from typing import Final, NamedTuple

from flowzoo.reward.math.tree import AnswerKind, ParsedAnswer, num, sym
from flowzoo.reward.math.units import size_of, unit_name
from flowzoo.reward.math.vocabulary import date_form


class Sort(NamedTuple):
    """A sort of answers: its name, a pattern that its answers contain, and its reader."""

    name: str
    sign: re.Pattern[str]
    read: Callable[[str], ParsedAnswer | str | None]


def read_sort(cleaned: str) -> ParsedAnswer | None:
    """Return the meaning of an answer of one of `SORTS`, or None."""
    if len(cleaned) > _LONGEST or _SIGNS.search(cleaned) is None:
        return None
    for sort in SORTS:
        if sort.sign.search(cleaned) and (form := sort.read(cleaned)):
            if isinstance(form, ParsedAnswer):
                return form
            return ParsedAnswer("text", f"{sort.name}: {form}")
    return None


_LONGEST: Final = 200
_LITERAL = re.compile(
    r"0[xX]([0-9A-Fa-f]+)|0[bB]([01]+)|0[oO]([0-7]+)|#([0-9A-Fa-f]{6}|[0-9A-Fa-f]{3})"
)
_BASED = re.compile(
    r"\(?(?:\\(?:text|mathrm) ?\{)?\(?([0-9A-Fa-f]+)\)?\}?\)? ?_ ?\{?\(?(\d{1,2})\)?\}?"
)


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
_TYPESET = re.compile(r"\\(?:text|textrm|mathrm)\s?\{([^{}]*)\}|\^ ?\{? ?((?:\\prime ?)+)\}?")
_ARC: Final = {"'": "arcminute", '"': "arcsecond", "min": "arcminute", "s": "arcsecond"}


def _sum_of_units(cleaned: str) -> ParsedAnswer | None:
    # `5 ft 10 in`, `1 hour and 30 minutes`, `37° 30'`: a multiple of the first unit.
    plain = _TYPESET.sub(lambda m: m[1] or "'" * (m[2] or "").count("p"), cleaned)
    match = _SUM.fullmatch(re.sub(r"\s+", " ", plain.replace("''", '"')).strip())
    if match is None:
        return None
    written = [(match[i], match[i + 1]) for i in (2, 4, 6) if match[i]]
    marks = _ARC if unit_name(written[0][1]) == "degree" else {"'": "ft", '"': "in"}
    parts = [(Fraction(n), marks.get(unit_name(unit)) or unit_name(unit)) for n, unit in written]
    sizes = [size_of(unit) for _, unit in parts]
    if any(size is None or size[0] != (sizes[0] or size)[0] for size in sizes):
        return None
    factors = [size[1] for size in sizes if size is not None]
    if any(small >= large for large, small in pairwise(factors)):
        return None
    value = sum(count * factor for (count, _), factor in zip(parts, factors, strict=True))
    value *= -1 if match[1] else 1
    return ParsedAnswer("scalar", node=num(value / factors[0]), unit=parts[0][1], shape="sum")


_CLOCK = re.compile(r"(\d{1,2}) ?: ?(\d\d) ?(?:\\text ?\{ ?)?([ap])m\.? ?\}?", re.IGNORECASE)


def _clock(cleaned: str) -> ParsedAnswer | None:
    # `3:30 PM` in 24 hours.
    match = _CLOCK.fullmatch(cleaned)
    if match is None or not 0 < int(match[1]) <= 12:
        return None
    hour = int(match[1]) % 12 + (12 if match[3] in "pP" else 0)
    items = [ParsedAnswer("scalar", node=num(part)) for part in (hour, int(match[2]))]
    return ParsedAnswer("ratio", items=tuple(items), shape="clock")


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
        items = tuple(ParsedAnswer("scalar", node=num(value)) for value in every)
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


# Signs of propositions and of sets, by meaning, with how tightly they bind.
_MEANING: Final = {
    "land": "and", "cap": "and", "lor": "or", "cup": "or", "oplus": "xor", "triangle": "xor",
    "Delta": "xor", "setminus": "minus", "rightarrow": "if", "Rightarrow": "if",
    "leftrightarrow": "iff", "Leftrightarrow": "iff", "lnot": "not", "overline": "not",
    "sim": "not", "varnothing": "never",
}  # fmt: skip
_BINDS: Final = {"iff": 0, "if": 1, "or": 2, "xor": 2, "minus": 3, "and": 3}
_MOST_ATOMS: Final = 8
_CONNECTIVE: Final = "|".join(sorted(_MEANING, key=len, reverse=True))
_LOGIC = re.compile(
    rf"\\(?P<sign>{_CONNECTIVE})(?![A-Za-z])|\\text ?\{{ ?(?P<word>(?i:and|or|not|xor)) ?\}}"
    r"|(?P<post>'|\^ ?\{? ?(?:\\(?:mathsf|mathrm|text) ?\{ ?[cC] ?\}|[cC](?![A-Za-z])"
    r"|\\(?:complement|prime) ?)\}?)"
    r"|(?P<bracket>[()\[\]{}])|(?P<atom>[A-Za-z](?:_(?:\w|\{\w+\}))?(?![A-Za-z\d(,|]))|(?P<space>\s+)"
)
_RELATED = re.compile(
    r"(?<![A-Za-z\\])[A-Za-z](?:_\w)? ?(?:=|<|>|\\(?:in|notin|leq|geq|neq|subset|subseteq) ?) ?"
    r"(?:-?\d+(?:\.\d+)?|[A-Za-z])(?![A-Za-z\d(^+*/_.,-])"
)


def _formula(cleaned: str) -> str | None:
    # Propositions and sets by the rows of their truth table: the atoms that matter, and where the
    # formula holds. Relations that `and` or `or` only join are read as a list.
    names: dict[str, str] = {}
    related = _RELATED.sub(
        lambda m: names.setdefault(re.sub(r"\s", "", m[0]), f"R_{{{len(names)}}}"), cleaned
    )
    matches = list(_LOGIC.finditer(related))
    if sum(len(m[0]) for m in matches) != len(related):
        return None
    tokens = [
        (m["sign"] and _MEANING[m["sign"]])
        or (m["word"] or "").lower()
        or (m["post"] and "post")
        or m[0]
        for m in matches
        if not m["space"]
    ]
    back = {name: text for text, name in names.items()}
    atoms = sorted({m["atom"] for m in matches if m["atom"]}, key=lambda a: back.get(a, a))
    signs = {token for token in tokens if token in _BINDS or token in ("not", "post")}
    is_list = all(a in back and "\\in" not in back[a] for a in atoms) and signs <= {"and", "or"}
    is_words = not any(m["sign"] for m in matches) and len(signs) < 2 and "xor" not in signs
    if not signs or not atoms or is_list or is_words or len(atoms) > _MOST_ATOMS:
        return None
    rows = 2 ** len(atoms)
    columns = {a: sum(1 << r for r in range(rows) if r >> i & 1) for i, a in enumerate(atoms)}
    try:
        reader = _Formula(tokens, columns, (1 << rows) - 1)
        holds = reader.read(0)
    except (IndexError, KeyError, RecursionError):
        return None
    if reader.tokens:
        return None
    table = [holds >> r & 1 for r in range(rows)]
    vital = [
        i for i in range(len(atoms)) if any(table[r] != table[r ^ 1 << i] for r in range(rows))
    ]
    true = {tuple(r >> i & 1 for i in vital) for r in range(rows) if table[r]}
    return f"{[back.get(atoms[i], atoms[i]) for i in vital]} {sorted(true)}"


class _Formula:
    """Reader of a formula by precedence; its value is a column of the truth table, as bits."""

    def __init__(self, tokens: Sequence[str], columns: dict[str, int], every: int) -> None:
        self.tokens, self.columns, self.every = list(reversed(tokens)), columns, every

    def read(self, least: int) -> int:
        left = self.factor()
        while self.tokens and _BINDS.get(self.tokens[-1], -1) >= least:
            sign = self.tokens.pop()
            right = self.read(_BINDS[sign] + (sign != "if"))
            left = self.joined(sign, left, right)
        return left

    def joined(self, sign: str, left: int, right: int) -> int:
        if sign == "and":
            return left & right
        if sign == "or":
            return left | right
        if sign == "minus":
            return left & ~right
        if sign == "if":
            return self.every & ~left | right
        return left ^ right if sign == "xor" else self.every & ~(left ^ right)

    def factor(self) -> int:
        token = self.tokens.pop()
        if token == "not":
            value = self.every & ~self.factor()
        elif token in ("(", "[", "{"):
            value = self.read(0)
            if self.tokens.pop() not in (")", "]", "}"):
                raise KeyError(token)
        else:
            value = 0 if token == "never" else self.columns[token]
        while self.tokens and self.tokens[-1] == "post":
            self.tokens.pop()
            value = self.every & ~value
        return value


_ABSTRACTION = re.compile(r"\(? ?\\lambda ?([a-z]{1,4}) ?\. ?")


def _abstraction(cleaned: str) -> str | None:
    # `\lambda x. \lambda y. x`, up to its letters.
    letters, at = "", 0
    while match := _ABSTRACTION.match(cleaned, at):
        letters, at = letters + match[1], match.end()
    if not letters or len(set(letters)) < len(letters):
        return None
    places = {name: f"#{i}" for i, name in enumerate(letters)}
    return f"{len(letters)} {_renamed(cleaned[at:], places)}"


_BINDER = re.compile(r"\\(forall|exists) ?([a-z])(?![A-Za-z_]) ?[,:.;]? ?")
_SIDES = re.compile(r" ?(=|<|>|\\leq|\\geq|\\neq|\\mid|\||\+) ?(?![A-Za-z]*\\)")
_FLIPPED: Final = {">": "<", "\\geq": "\\leq"}


def _quantified(cleaned: str) -> str | None:
    # `\forall x\, \exists y: x < y`, up to its letters and the order of like quantifiers.
    binders, at = list[tuple[str, str]](), 0
    while match := _BINDER.match(cleaned, at):
        binders.append((match[1], match[2]))
        at = match.end()
    sides = _SIDES.split(cleaned[at:])
    if (
        not 0 < len(binders) <= 4
        or len(sides) != 3
        or len({name for _, name in binders}) < len(binders)
    ):
        return None
    left, sign, right = (side.strip() for side in sides)
    if sign in _FLIPPED:
        left, sign, right = right, _FLIPPED[sign], left
    kinds = [kind for kind, _ in binders]
    forms = []
    for order in permutations(binders):
        if [kind for kind, _ in order] == kinds and _blocks(order) == _blocks(binders):
            places = {name: f"#{i}" for i, (_, name) in enumerate(order)}
            ends = [_renamed(end, places) for end in (left, right)]
            forms.append(f"{kinds} {sign} {sorted(ends) if sign in ('=', _UNEQUAL) else ends}")
    return min(forms)


_UNEQUAL: Final = "\\neq"
_VARIABLE = re.compile(r"(?<![A-Za-z\\])[a-z](?![A-Za-z])")


def _renamed(text: str, places: dict[str, str]) -> str:
    return _VARIABLE.sub(lambda match: places.get(match[0], match[0]), text)


def _blocks(binders: Sequence[tuple[str, str]]) -> list[set[str]]:
    groups = groupby(binders, key=lambda binder: binder[0])
    return [{name for _, name in group} for _, group in groups]


_DIVISION = re.compile(r"(\d+) ?(?:\\text ?\{ ?)?(?:remainder|rem|R|r)\.? ?\}? ?(\d+)(?: ?\})?")


def _division(cleaned: str) -> str | None:
    # `3 R 2`: a quotient with its remainder.
    match = _DIVISION.fullmatch(cleaned)
    return f"{match[1]} {match[2]}" if match else None


_CODE = re.compile(r"0\d*[A-Z]\w*", re.ASCII)
_PAIRS = re.compile(r"(?:([a-z])\1){2,}", re.ASCII)
_NUMBERED = re.compile(r"\d{1,4}([-/])\d{1,2}\1\d{1,4}", re.ASCII)


def _word(cleaned: str) -> str | None:
    # A zero before letters begins a code; in a genotype, `AaBb`, the case of letters counts.
    is_code = _CODE.fullmatch(cleaned) or _PAIRS.fullmatch(cleaned.lower())
    return cleaned if is_code else None


def _date(cleaned: str) -> str | None:
    if _NUMBERED.fullmatch(cleaned):
        year, _, day = cleaned.partition("-")
        month, _, day = day.partition("-")
        return f"{int(month)}/{int(day)}/{year}" if len(year) == 4 and day else cleaned
    return date_form(cleaned) if len(cleaned) < 60 and cleaned[0].isalnum() else None


_FIELD = re.compile(
    r"(?:\\mathbb ?(?:\{ ?F ?\}|F) ?_|(?:\\(?:mathrm|text|operatorname) ?\{ ?GF ?\}|GF) ?\() ?"
    r"\{? ?(\d{1,6})(?: ?\^ ?\{? ?(\d{1,2}) ?\}?)? ?[})]?"
)


def _field(cleaned: str) -> str | None:
    # `\mathbb{F}_{3^2}`, `\mathrm{GF}(9)`: a finite field by its order.
    match = _FIELD.fullmatch(cleaned)
    return str(int(match[1]) ** int(match[2] or 1)) if match else None


_TYPESETTING = re.compile(r"\\(?:ce|text|mathrm|mathbf|mathsf) ?(?=\{)|[\s_{}$]|\\(?=[#&])")
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
_DISTRIBUTION = re.compile(
    r"([A-Z]) ?\\sim ?(?:\\[a-z]+ ?)?\{? ?([A-Za-z]+) ?\}? ?\(([^()]+)\)", re.DOTALL
)


def _distribution(cleaned: str) -> str | None:
    # `X \sim \mathrm{Bin}(10, 0.3)`, with the full name.
    match = _DISTRIBUTION.fullmatch(cleaned)
    if match is None:
        return None
    name = _NAMED.get(match[2], match[2].lower())
    values = re.sub(r"[\s{}]", "", match[3])
    return f"{match[1]} {name} {values}"


_BY: Final = r" ?(?:\\times|by|\\text ?\{ ?by ?\}) ?"
_SHAPE = re.compile(rf"(\d+(?:{_BY}\d+)+) ?(?:\\(?:text|mathrm) ?\{{)? ?([A-Za-z]{{3,}}) ?\}}?")


def _shape(cleaned: str) -> str | None:
    # `2 \times 3 matrix`: rows and columns of a thing, whose product is no number of such things.
    match = _SHAPE.fullmatch(_ARTICLE.sub("", cleaned))
    if match is None or size_of(unit_name(match[2])):
        return None
    return f"{re.findall('[0-9]+', match[1])} {unit_name(match[2])}"


_ARTICLE = re.compile(r"^(?:\\text ?\{ ?)?an? ?\}? ?(?=\d)")
SORTS: Final = (
    Sort("numeral", re.compile(r"^0[xXbBoO]|^#|_ ?\{?\(?\d"), _numeral),
    Sort("shape", re.compile(rf"\d{_BY}\d.*[A-Za-z]{{3}}"), _shape),
    Sort("code", re.compile(r"^0\d*[A-Z]|^[A-Za-z]{4,}$"), _word),
    Sort("date", re.compile(r"^\d+[-/]\d|^(?=\w).*[A-Za-z]{3}"), _date),
    Sort("clock", re.compile(r"^\d\d? ?: ?\d\d ?(?:\\text|[apAP])"), _clock),
    Sort("sum of units", re.compile(r"^-?\d.*(?:[A-Za-z]|°|').*\d"), _sum_of_units),
    Sort("field", re.compile(r"^\\mathbb ?\{? ?F|GF"), _field),
    Sort("reaction", re.compile(r"\\ce|[A-Z].*(?:arrow|harpoons|->|=>).*[A-Z]"), _reaction),
    Sort("matching", re.compile(r"[A-Z\d}] ?(?:-|:|\\rightarrow).*[,;]"), _matching),
    Sort("distribution", re.compile(r"^[A-Z] ?\\sim"), _distribution),
    Sort("division", re.compile(r"^\d.*[rR].*\d"), _division),
    Sort("permutation", re.compile(r"^\(.*\d.*\)$"), _permutation),
    Sort("progression", _DOTS, _progression),
    Sort("abstraction", re.compile(r"\\lambda ?[a-z]+ ?\."), _abstraction),
    Sort("statement", re.compile(r"^\\(?:forall|exists)"), _quantified),
    Sort("formula", re.compile(rf"\\(?:{_CONNECTIVE})(?![A-Za-z])|\b(?i:and|x?or)\b"), _formula),
)
_SIGNS = re.compile("|".join(f"(?:{sort.sign.pattern})" for sort in SORTS))
