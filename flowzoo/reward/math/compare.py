r"""Comparison of two answers, and the conventions of the math reward.

`same(answer, gold)` is True, False, or None if undecided.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import chain, pairwise, permutations
from typing import Final, NamedTuple

from flowzoo.reward.listed import names
from flowzoo.reward.math.families import same_family, same_residues
from flowzoo.reward.math.lists import are_claims, leaves
from flowzoo.reward.math.matrices import built, rows_of
from flowzoo.reward.math.options import MathOptions
from flowzoo.reward.math.probe import all_same, decimal, proportional, same_function
from flowzoo.reward.math.sets import (
    Linear,
    is_over_integers,
    is_real_set,
    linear,
    same_real_set,
)
from flowzoo.reward.math.tree import (
    ZERO,
    ExprNode,
    ParsedAnswer,
    add,
    call,
    const,
    divide,
    has_minus,
    mul,
    neg,
    num,
    rational,
    scalars,
    substitute,
    sym,
    symbols,
)
from flowzoo.reward.math.units import is_rate_of, size_of


def _column(scalar: ParsedAnswer) -> tuple[ParsedAnswer, ...]:
    # The cells of a matrix with one column or one row; none of others.
    rows = rows_of(scalar.node)
    return scalars(*chain(*rows)) if len(rows) == 1 or {*map(len, rows)} == {1} else ()


def same_scalar(a: ParsedAnswer, b: ParsedAnswer, options: MathOptions) -> bool | None:
    """Return True if two scalars are the same; None if undecided."""
    if {a.unit, b.unit} == {"degree", "rad"}:
        return _same_angle(a, b)
    if a.unit != b.unit and a.unit and b.unit and options.units != "ignored":
        a, b = _in_basic_units(a, b), _in_basic_units(b, a)
    if {a.shape, b.shape} == {"", "-"}:
        a, b = _sign_change(a, b), _sign_change(b, a)
    is_factor = a.shape != b.shape and "multiple" in (a.unit, b.unit)
    if is_factor or {a.shape, b.shape} == {"+", "-"}:  # an increase and a decrease
        return False
    if a.node is None or b.node is None or not _units_agree(a.unit, b.unit, options):
        return False
    verdict = same_function(a.node, b.node)
    for x, y in ((a, b), (b, a)):  # the letter of `12 m` may be the unit
        is_letter = verdict is False and len(x.unit) == 1 and x.unit.isalpha() and not y.unit
        if is_letter and symbols(y.node or ZERO) == {x.unit}:
            verdict = same_function(mul((x.node or ZERO, sym(x.unit))), y.node or ZERO)
    if verdict is False and {a.unit, b.unit} == {"degree", ""}:
        verdict = _same_angle(a, b)
    if verdict is not True and (a.digits or b.digits):
        is_rounded = is_rounding(a, b, options.digits) or is_rounding(b, a, options.digits)
        verdict = is_rounded or verdict
    if verdict is False and options.percent == "either":
        for x, y in ((a, b), (b, a)):
            if x.unit == "%" and y.unit != "%" and x.node is not None and y.node is not None:
                return same_function(mul((num(100), x.node)), y.node)
    return verdict


def _sign_change(change: ParsedAnswer, other: ParsedAnswer) -> ParsedAnswer:
    # A decrease as a negative number, if `other` is one: a loss of 5 dollars is -5 dollars.
    if change.shape != "-" or change.node is None or not (other.node and has_minus(other.node)):
        return change
    return change._replace(node=neg(change.node), shape="")


def _in_basic_units(quantity: ParsedAnswer, other: ParsedAnswer) -> ParsedAnswer:
    # A quantity in the basic units of its kind, if `other` is of that kind, too.
    size, of_other = size_of(quantity.unit), size_of(other.unit)
    if size is None or of_other is None or quantity.node is None or size.basic != of_other.basic:
        return quantity
    node = add((mul((num(size.factor), quantity.node)), num(size.start)))
    return quantity._replace(unit=size.basic, node=node, digits=0)


_CONSTANT = re.compile(r"[CcK]|[Cc]_\d|const(?:ant)?")
_COEFFICIENT = re.compile(r"[ABCD]|[ABCDcd]_\d")
_ARGUMENTS = re.compile(r"(\w+'*(?:\^-1)?)\(([\w,]+)\)|([A-Za-z])_([ijklmnr])")


_IMAGINARY = re.compile(r"#i(?!nf)")


def renamed(answer: ParsedAnswer, new: Mapping[str, ExprNode]) -> ParsedAnswer:
    """The answer with its letters replaced."""
    node = None if answer.node is None else substitute(answer.node, new)
    items = tuple(renamed(item, new) for item in answer.items)
    relation = answer.relation and (answer.relation[0], substitute(answer.relation[1], new))
    return answer._replace(node=node, items=items, relation=relation)


def _letters(answer: ParsedAnswer) -> frozenset[str]:
    nodes = [node for node in (answer.node, answer.relation and answer.relation[1]) if node]
    return symbols(*nodes).union(*map(_letters, answer.items))


def _named_as(answer: ParsedAnswer, gold: ParsedAnswer) -> ParsedAnswer:
    # `f(z) = z` with the letter of `f(x)`, `a_k = 2^k` with that of `a_n`, `(y, x) = (2, 1)` in the
    # order of `(x, y)`.
    if answer.label == gold.label or ("(" not in answer.label and "_" not in answer.label):
        return answer
    order, own_order = (x.label[1:-1].split(",") for x in (gold, answer))
    is_ordered = sorted(order) == sorted(own_order) and len(order) == len(answer.items)
    if answer.kind == "seq" and is_ordered:
        items = dict(zip(own_order, answer.items, strict=True))
        return answer._replace(items=tuple(items[name] for name in order), label=gold.label)
    given, other = _ARGUMENTS.fullmatch(answer.label), _ARGUMENTS.fullmatch(gold.label)
    if given is None or other is None or given.group(1, 3) != other.group(1, 3):
        return answer
    before, after = ((match[2] or match[4]).split(",") for match in (given, other))
    if given[3] and not set(before) <= _letters(answer):
        return answer  # `v_i = 3` is not `v_j = 3`
    is_free = not set(after) & (_letters(answer) - set(before))
    if len(before) != len(after) or not is_free or any(map(str.isdigit, (*before, *after))):
        return answer
    letters = {name: sym(new) for name, new in zip(before, after, strict=True)}
    return renamed(answer, letters)._replace(label=gold.label)


def _renamings(answer: ParsedAnswer, gold: ParsedAnswer) -> Iterator[dict[str, ExprNode]]:
    # The names that the free constants of an answer may have in the gold: of integration, or
    # coefficients of a solution with exponential or trigonometric terms.
    letters = _letters(gold)
    of_gold, of_answer = (
        x.node is not None and _IMAGINARY.search(x.node.key) for x in (gold, answer)
    )
    if of_gold and not of_answer and "j" not in letters:
        yield {"j": const("i")}  # the imaginary unit of engineers
    if arrows := _arrows(_letters(answer), letters):
        yield arrows
    free = [name for name in sorted(letters) if _CONSTANT.fullmatch(name)]
    if gold.label and gold.node is not None and re.search(r"#e|sin|cos", gold.node.key):
        free = [name for name in sorted(letters) if _COEFFICIENT.fullmatch(name) or name in free]
    if not gold.label:  # it is one of the terms
        terms = gold.node.args if gold.node is not None and gold.node.op == "add" else ()
        free = [name for name in free if sym(name) in terms]
    others = sorted(_letters(answer) - (letters - set(free))) if free else []
    if gold.kind in ("list", "seq") and (_labels(gold) or gold.label):
        first, second = (_letters(x) - {item.label for item in x.items} for x in (answer, gold))
        if len(first) == len(second) == 1 and first | second <= _PARAMETERS:
            yield {min(first): sym(min(second))}
    if 0 < len(free) == len(others) <= 3 and len(free) < len(letters):
        for order in permutations(free):
            yield {name: sym(new) for name, new in zip(others, order, strict=True)}


def _arrows(letters: frozenset[str], others: frozenset[str]) -> dict[str, ExprNode]:
    # `a` for `\vec{a}` and back, where only the other answer has arrows, or none.
    plain = {name: match[1] for name in letters ^ others if (match := _ARROW.fullmatch(name))}
    arrows = {name: letter for name, letter in plain.items() if name in letters}
    arrows = arrows or {letter: name for name, letter in plain.items()}
    is_free = arrows.keys() <= letters - others and set(arrows.values()) <= others - letters
    return {name: sym(new) for name, new in arrows.items()} if is_free else {}


_ARROW = re.compile(r"(?:vec|overrightarrow)\((\w)\)")


def _same_angle(a: ParsedAnswer, b: ParsedAnswer) -> bool | None:
    degrees, radians = (x.node or ZERO for x in ((a, b) if a.unit == "degree" else (b, a)))
    return same_function(mul((degrees, const("pi"), num(Fraction(1, 180)))), radians)


def _units_agree(a: str, b: str, options: MathOptions) -> bool:
    if options.units == "ignored" or a == b:
        return True
    if options.units == "required" or "K" in (a, b):  # `42 K` may be 42 thousand
        return False
    if is_rate_of(a, b) or is_rate_of(b, a):
        return True
    return not a or not b or (a == "%") != (b == "%")


def is_rounding(written: ParsedAnswer, exact: ParsedAnswer, digits: int) -> bool:
    """Return True if a decimal with at least `digits` digits rounds an exact value."""
    if exact.shape == "sum":
        return False
    if exact.kind == "ratio" and len(exact.items) == 2:
        exact = _quotient(exact)
    if written.node is None or exact.node is None or exact.digits or not written.digits >= digits:
        return False
    decimal_value, exact_value = rational(written.node), rational(exact.node)
    if decimal_value is None or not 1e-90 < abs(decimal_value) < 1e90:
        return False
    if exact_value is None:
        exact_value = decimal(exact.node, written.digits)
    elif pow(10, exact_value.denominator.bit_length(), exact_value.denominator) == 0:
        return False  # a decimal fraction needs no rounding
    if exact_value is None:
        return False
    # Of 16 or 17 digits that are the shortest form of the double nearest to a number; one more zero
    # than that form has claims a digit more than a double holds.
    form = repr(float(exact_value))
    form_digits = sum(map(str.isdigit, form.partition("e")[0].lstrip("-0.")))
    is_shortest = written.digits in (16, 17) and written.digits == form_digits
    if is_shortest and decimal_value == Fraction(form):
        return True
    exponent = math.floor(math.log10(abs(decimal_value))) + 1 - written.digits
    return abs(decimal_value - exact_value) <= Fraction(10) ** exponent / 2


def _quotient(ratio: ParsedAnswer) -> ParsedAnswer:
    top, bottom = (item.node or num(0) for item in ratio.items)
    return scalars(divide(top, bottom))[0]


def solves(value: ExprNode, difference: ExprNode) -> bool:
    """Return True if `value` is the unknown of an equation that is linear in one it lacks."""
    unknowns = symbols(difference) - symbols(value)
    if len(unknowns) != 1 or not symbols(value):
        return False
    name = min(unknowns)
    at = [substitute(difference, {name: add((value, num(shift)))}) for shift in (0, 1, 2)]
    steps = [add((b, mul((num(-1), a)))) for a, b in pairwise(at)]
    return same_function(at[0], num(0)) is True and same_function(*steps) is True


def same(answer: ParsedAnswer, gold: ParsedAnswer, options: MathOptions) -> bool | None:
    """Return True if the two mean the same; None if undecided. Symmetric."""
    answer = _named_as(answer, gold)
    if "list" in (answer.kind, gold.kind) and _has_integer_points(answer, gold):
        return _same_line(answer, gold)
    verdict = _same_as_named(answer, gold, options)
    if verdict is not False or (gold.node is not None and gold.node.op == "num"):
        return verdict
    for new in _renamings(answer, gold):
        other = renamed(answer, new)
        if _same_as_named(other, gold, options) or _same_up_to_constant(other, gold):
            return True
    return _same_line(answer, gold)


def _same_up_to_constant(answer: ParsedAnswer, gold: ParsedAnswer) -> bool:
    # True if two antiderivatives, `f(x) + C`, differ by a constant.
    if answer.node is None or gold.node is None or {answer.node.op, gold.node.op} != {"add"}:
        return False
    constants = [term for term in gold.node.args if _CONSTANT.fullmatch(term.key)]
    terms = [*answer.node.args, *map(neg, gold.node.args)]
    letters = sorted(symbols(gold.node) - {term.key for term in constants})
    if len(constants) != 1 or constants[0] not in terms:
        return False
    apart = add(x for x in terms if x not in (constants[0], neg(constants[0])))
    if _CONSTANT.fullmatch(min(symbols(apart), default="")):
        return False
    moved = {x: add((sym(x), num(Fraction(37 + i, 101)))) for i, x in enumerate(letters)}
    return bool(letters) and same_function(apart, substitute(apart, moved)) is True


def _same_as_named(answer: ParsedAnswer, gold: ParsedAnswer, options: MathOptions) -> bool | None:
    named = [": " in x.label for x in (answer, gold)]  # `maximum: x = 2` and `x = 2`
    if all(named) and answer.label != gold.label:
        return False
    if any(named):
        answer, gold = (x._replace(label=x.label.rpartition(": ")[2]) for x in (answer, gold))
    if answer.label and gold.label and answer.label != gold.label:
        return _same_relation(answer, gold)
    verdict = _same_value(answer, gold, options)
    if verdict is not True and answer.relation and gold.relation:
        return _same_relation(answer, gold) or verdict
    return verdict


def _same_value(a: ParsedAnswer, b: ParsedAnswer, options: MathOptions) -> bool | None:
    if any(x.shape == "mod" for x in (a, *a.items, b, *b.items)) and same_residues(a, b):
        return True
    if "list" in (a.kind, b.kind) or (a.label and b.kind == "scalar") or b.label:
        verdict = same_family(a, b)
        if verdict is not None:
            return verdict
    if (is_real_set(a) or is_real_set(b)) and "scalar" not in (a.kind, b.kind):
        verdict = same_real_set(a, b)
        if verdict is not None:
            return verdict
    if a.kind == "text" or b.kind == "text":
        return a.kind == b.kind and a.text == b.text != ""
    if a.kind == "relation" or b.kind == "relation":
        return a.kind == b.kind and a.text != "" and a.text == b.text
    if a.kind == "scalar" and b.kind == "scalar":
        return same_scalar(a, b, options)
    if "scalar" in (a.kind, b.kind):
        scalar, other = (a, b) if a.kind == "scalar" else (b, a)
        return _scalar_and_other(scalar, other, options)
    if a.kind == "ratio" or b.kind == "ratio":
        return a.kind == b.kind and _same_ratio(a, b, options)
    if {a.kind, b.kind} <= {"list", "set"}:
        if a.shape != b.shape and any(x.shape == "or" and are_claims(x.items) for x in (a, b)):
            return False
        are_verdicts = all(x.node is not None and x.node.key in _VERDICTS for x in a.items)
        is_ordered = options.lists == "strict" or (are_verdicts and not _labels(a))
        if is_ordered and a.kind == b.kind == "list":
            return _in_order(a.items, b.items, options)
        for parts, flat in ((a, b), (b, a)):  # lists with names, and all their members
            is_nested = all(part.kind == "list" for part in parts.items)
            if is_nested and len(parts.items) < len(flat.items):
                return _match_unordered(leaves(parts.items), flat.items, options)
        for named, bare in ((a, b), (b, a)):  # `a = 3, b = 4` and `3, 4`
            if _are_named(named.items) and bare.kind == "list" and not _labels(bare):
                as_written = _in_order(named.items, bare.items, options)
                if bare is b and all(len(item.label) > 2 for item in named.items):
                    # A gold of values alone does not ask whose they are.
                    return _match_unordered(named.items, bare.items, options)
                are_letters = all(len(item.label) < 3 for item in named.items)
                by_name = _by_name(named.items) if are_letters else named.items
                return as_written or _in_order(by_name, bare.items, options)
        if "set" in (a.kind, b.kind):  # a repeated member counts once
            a, b = (x._replace(items=_distinct(x.items)) if x.kind == "set" else x for x in (a, b))
        return _match_unordered(a.items, b.items, options)
    if {a.kind, b.kind} == {"list", "seq"}:
        seq, given = (a, b) if a.kind == "seq" else (b, a)
        order = sorted(seq.label[1:-1].split(","))
        if seq.label and _are_named(given.items) and order != sorted(x.label for x in given.items):
            return False
        if seq.shape != "()" or seq.is_range:
            return False
        return _in_order(seq.items, _by_name(given.items, seq.label), options)
    if a.kind == "seq" and b.kind == "seq":
        return a.shape == b.shape and _in_order(a.items, b.items, options)
    if {a.kind, b.kind} == {"union", "list"}:
        are_sets = all(item.kind in ("seq", "set") for item in (*a.items, *b.items))
        return _match_unordered(a.items, b.items, options) if are_sets else False
    if a.kind == b.kind:
        match = _match_unordered if a.kind == "union" else _in_order
        return match(a.items, b.items, options) or None
    # A set written with operations may equal one written out.
    return None if {a.kind, b.kind} & {"union", "cap", "setminus"} else False


# Words that are the verdicts on statements, in the order of these.
_VERDICTS: Final = names("T F True False true false Yes No yes no")


def _labels(answer: ParsedAnswer) -> bool:
    return bool(answer.label) or any(item.label for item in answer.items)


def _are_named(items: Sequence[ParsedAnswer]) -> bool:
    # True if the items are values of different letters, unlike roots `x_1, x_2`.
    of_words = (i.label for i in items)
    letters = {x if len(x) > 2 and (x.isalpha() or " " in x) else x[:1] for x in of_words}
    return len(items) > 1 and "" not in letters and len(letters) == len(items)


def _by_name(items: Sequence[ParsedAnswer], label: str = "") -> Sequence[ParsedAnswer]:
    # Values of different variables in the order of `label`, such as `(y,x)`, or the alphabet's.
    if not _are_named(items):
        return items
    named = {item.label: item for item in items}
    order = label[1:-1].split(",") if label.startswith("(") else []
    return [named[name] for name in (order if sorted(order) == sorted(named) else sorted(named))]


def _scalar_and_other(
    scalar: ParsedAnswer, other: ParsedAnswer, options: MathOptions
) -> bool | None:
    # A scalar and a container: a set of one, a ratio of two, a column and a tuple.
    if other.kind == "list" and other.items and not _are_named(other.items):
        # One value spelled twice is one value.
        return all_same(same(scalar, item, options) for item in other.items)
    if other.kind == "set" and len(other.items) == 1:
        return same(scalar, other.items[0], options)
    if other.shape == "mod":  # `x = 3` is one number, a bare 3 may be the residue
        return not scalar.label and same(scalar, other.items[0], options)
    if rows_of(scalar.node) and other.shape == "[]" and all(x.shape == "[]" for x in other.items):
        cells = [[cell.node for cell in row.items if cell.node is not None] for row in other.items]
        if list(map(len, cells)) != [len(row.items) for row in other.items]:
            return False
        return same_scalar(scalar, scalars(built(cells))[0], options)
    if other.kind == "seq" and other.shape in ("()", "[]") and (column := _column(scalar)):
        return _in_order(column, other.items, options)
    node = scalar.node
    if other.shape == "()" and node and node.op == "call" and re.fullmatch("@[A-Z]", node.args[0]):
        return _in_order(scalars(*node.args[1:]), other.items, options)  # a point, `P(1, 2)`
    if other.kind == "ratio" and len(other.items) == 2 and not _is_clock(other):
        if other.label == "odds" or scalar.unit == "%":
            return False  # odds of 3 to 4, and 3 of 4, are no ratio
        return same_scalar(scalar, _quotient(other), options)
    return False


def _same_ratio(a: ParsedAnswer, b: ParsedAnswer, options: MathOptions) -> bool | None:
    if len(a.items) != len(b.items):
        return False
    if a.shape != b.shape and len(a.items) == 2:  # a time without `am` or `pm`
        hour = rational((b if a.shape else a).items[0].node or num(0))
        if hour is not None and 0 < hour <= 12:
            a, b = _on_the_dial(a), _on_the_dial(b)
    if _is_clock(a) or _is_clock(b):
        return _in_order(a.items, b.items, options)
    left, right = ([item.node for item in part.items] for part in (a, b))
    first, other = left[0], right[0]
    if first is None or other is None or None in left or None in right:
        return False
    if "0" in (first.key, other.key):
        return _in_order(a.items, b.items, options)
    pairs = zip(left[1:], right[1:], strict=True)
    return all_same(
        same_function(mul((first, y)), mul((x, other)))
        for x, y in pairs
        if x is not None and y is not None
    )


def _on_the_dial(time: ParsedAnswer) -> ParsedAnswer:
    hour = call("mod", [time.items[0].node or num(0), num(12)])
    return time._replace(items=(*scalars(hour), *time.items[1:]))


def _is_clock(ratio: ParsedAnswer) -> bool:
    # True if `a:b` or `a:b:c` may be a time, which must not be reduced.
    hour, *others = (rational(item.node) if item.node else None for item in ratio.items)
    are_sixtieths = all(v is not None and (10 <= v < 60 or v == 0) for v in others)
    return len(others) < 3 and hour is not None and hour <= 24 and are_sixtieths


def _in_order(
    a: Sequence[ParsedAnswer], b: Sequence[ParsedAnswer], options: MathOptions
) -> bool | None:
    if len(a) != len(b):
        return False
    return all_same(same(x, y, options) for x, y in zip(a, b, strict=True))


def _match_unordered(
    a: Sequence[ParsedAnswer], b: Sequence[ParsedAnswer], options: MathOptions
) -> bool | None:
    if len(a) != len(b) and all(x.kind == "seq" for x in (*a, *b)):
        a, b = _distinct(a), _distinct(b)  # a repeated solution counts once
    if len(a) != len(b):
        return False
    a, b = _drop_numbers(a, b), _drop_numbers(b, a)
    left = list(b)
    undecided = False
    # Of the same names, a value belongs to its own: `5, x = 2` is not `2, x = 5`.
    is_named = sorted(x.label for x in a) == sorted(x.label for x in b)
    for item in a:
        verdicts = [
            (not is_named or item.label == other.label) and verdict
            for other, verdict in zip(left, _verdicts(item, left, options), strict=True)
        ]
        match = next((idx for idx, verdict in enumerate(verdicts) if verdict), -1)
        if match < 0:
            if not any(verdict is None for verdict in verdicts):
                return False
            undecided = True
            continue
        del left[match]
    return None if undecided else True


def _drop_numbers(
    items: Sequence[ParsedAnswer], others: Sequence[ParsedAnswer]
) -> Sequence[ParsedAnswer]:
    # Roots `x_1, x_2` as values of the one letter that all of the others have.
    letters = {item.label for item in others}
    bare = [re.sub(r"_\d+$", "", item.label) for item in items]
    if len(letters) != 1 or not min(letters) or letters != set(bare):
        return items
    return [item._replace(label=label) for item, label in zip(items, bare, strict=True)]


def _distinct(items: Sequence[ParsedAnswer]) -> tuple[ParsedAnswer, ...]:
    return tuple({item.node.key if item.node else item: item for item in items}.values())


def _verdicts(
    item: ParsedAnswer, others: Sequence[ParsedAnswer], options: MathOptions
) -> list[bool | None]:
    # Compare `item` with each; a bare 5 must not be matched instead of a labeled x = 5.
    if item.node is not None:
        exact = [
            other.node is not None
            and (other.node.key, other.label, other.unit) == (item.node.key, item.label, item.unit)
            for other in others
        ]
        if any(exact):
            return list(exact)
    # `{5}` alone equals 5, but not inside another set.
    kind = item.kind == "set"
    return [(other.kind == "set") == kind and same(item, other, options) for other in others]


_PARAMETERS: Final = names("t s k n m r u v lambda mu alpha theta phi")


class _Line(NamedTuple):
    start: list[Fraction]
    step: list[Fraction]
    domains: set[bool]
    """True if its letter is an integer, False if it is a real number; empty if none is said."""


def _line(answer: ParsedAnswer) -> _Line | None:
    # Points that depend on one letter: `(1 + t, 2)`, `x = 1 + t, y = 2`, `(1, 2) + t(1, 0)`.
    is_stated = bool(answer.label)
    items = tuple(x for x in answer.items if not (x.is_range and x.label in _PARAMETERS))
    domains = {is_over_integers(x) for x in answer.items if x not in items}
    if answer.kind == "list" and 0 < len(items) < len(answer.items):
        answer = items[0] if len(items) == 1 else answer._replace(items=items)
        is_stated = True
    cells = _column(answer) or (_by_name(answer.items) if answer.kind in ("seq", "list") else ())
    nodes = [cell.node for cell in cells if cell.node is not None]
    letters = symbols(*nodes)
    if len(nodes) != len(cells) or len(nodes) < 2 or len(letters) != 1 or answer.is_range:
        return None
    if not is_stated and min(letters) not in _PARAMETERS:
        return None
    lines = [linear(node) if symbols(node) else Linear("", Fraction(0), node) for node in nodes]
    start = [rational(line.rest) if line else None for line in lines]
    if None in start:
        return None
    steps = [line.slope for line in lines if line]
    return _Line([x or Fraction(0) for x in start], steps, domains)


def _has_integer_points(*answers: ParsedAnswer) -> bool:
    # True if one of the answers is a line whose letter is an integer, so its points count.
    return any(
        any(map(is_over_integers, x.items)) and _line(x) is not None
        for x in answers
        if x.kind == "list" and (x.items[0].kind == "seq" or _are_named(x.items))
    )


def _same_line(a: ParsedAnswer, b: ParsedAnswer) -> bool:
    # True for one line with two parameters; in the plane, for one family of points.
    second = _line(b)
    first = second and _line(a)
    if first is None or second is None or len(first.start) != len(second.start):
        return False
    domains = first.domains | second.domains
    if len(domains) > 1:
        return False
    ratio = _multiple(second.step, first.step)
    shift = _multiple([y - x for x, y in zip(first.start, second.start, strict=True)], first.step)
    if not ratio or shift is None:
        return False
    is_real = len(first.start) > 2 and True not in domains
    return is_real or (abs(ratio) == 1 and shift.denominator == 1)


def _multiple(of: Sequence[Fraction], step: Sequence[Fraction]) -> Fraction | None:
    ratios = {x / y for x, y in zip(of, step, strict=True) if y}
    is_one = len(ratios) == 1 and all(y or not x for x, y in zip(of, step, strict=True))
    return ratios.pop() if is_one else None


def relations_of(answer: ParsedAnswer) -> list[tuple[str, ExprNode]]:
    """The relation of an answer, or all relations of a chain; none if it is something else."""
    parts = answer.items if answer.kind == "cap" else (answer,)
    relations = [part.relation for part in parts if part.relation is not None]
    return relations if len(relations) == len(parts) else []


def _same_relation(a: ParsedAnswer, b: ParsedAnswer) -> bool | None:
    if not (a.relation and b.relation) or a.relation[0] != b.relation[0]:
        return False
    (op, left), (_, right) = a.relation, b.relation
    factor = 1.0 if left.key == right.key else proportional(left, right)
    return factor is not None and (factor > 0 or op not in ("<", "<="))
