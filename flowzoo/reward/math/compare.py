r"""Whether two answers mean the same. The conventions of the math reward are here.

`same(answer, gold)` is True, False, or None where neither can be shown. Conventions:
a unit or a left-hand side that only one of the two has is ignored, different ones differ; `50%` is
1/2; a decimal of at least `digits` significant digits equals an exact number that rounds to it,
other decimals are exact; `(a, b)` is ordered, `\{a, b\}` and a bare list are not, and a bare list
in the same order may stand for a tuple; an interval may be written as an inequality.
"""

from __future__ import annotations

from collections.abc import Sequence

from flowzoo.reward.math.meaning import ParsedAnswer
from flowzoo.reward.math.numeric.probe import proportional, same_function
from flowzoo.reward.math.same.families import same_family
from flowzoo.reward.math.same.rules import Rules
from flowzoo.reward.math.same.scalars import all_same, column, rows_of, same_scalar
from flowzoo.reward.math.same.sets import is_real_set, same_real_set
from flowzoo.reward.math.tree import call, mul, num, power, rational


def same(answer: ParsedAnswer, gold: ParsedAnswer, rules: Rules) -> bool | None:
    """Whether the two mean the same; None if undecided. Symmetric."""
    if answer.label and gold.label and answer.label != gold.label:
        return _same_relation(answer, gold)
    if answer.relation and gold.relation and not (answer.label and gold.label):
        return _same_relation(answer, gold)
    verdict = _same_value(answer, gold, rules)
    if verdict is not True and answer.relation and gold.relation:
        return _same_relation(answer, gold) or verdict
    return verdict


def _same_value(a: ParsedAnswer, b: ParsedAnswer, rules: Rules) -> bool | None:
    if "list" in (a.kind, b.kind):
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
        return same_scalar(a, b, rules)
    if "scalar" in (a.kind, b.kind):
        return (
            _scalar_and_other(a, b, rules) if a.kind == "scalar" else _scalar_and_other(b, a, rules)
        )
    if a.kind == "ratio" or b.kind == "ratio":
        return a.kind == b.kind and _same_ratio(a, b, rules)
    if {a.kind, b.kind} <= {"list", "set"}:
        if rules.order == "strict" and a.kind == b.kind == "list":
            return _in_order(a.items, b.items, rules)
        for named, bare in ((a, b), (b, a)):  # `a = 3, b = 4` beside `3, 4`
            if _are_named(named.items) and bare.kind == "list" and not _labels(bare):
                as_written = _in_order(named.items, bare.items, rules)
                return as_written or _in_order(_by_name(named.items), bare.items, rules)
        return _unordered(a.items, b.items, rules)
    if {a.kind, b.kind} == {"list", "seq"}:
        seq, given = (a, b) if a.kind == "seq" else (b, a)
        if seq.shape != "()" or seq.is_range:
            return False
        return _in_order(seq.items, _by_name(given.items, seq.label), rules)
    if a.kind == "seq" and b.kind == "seq":
        return a.shape == b.shape and _in_order(a.items, b.items, rules)
    if {a.kind, b.kind} == {"union", "list"}:
        both = (*a.items, *b.items)
        are_sets = all(item.kind in ("seq", "set") for item in both)
        return _unordered(a.items, b.items, rules) if are_sets else False
    if a.kind == "union" and b.kind == "union":
        return _unordered(a.items, b.items, rules) or None
    if a.kind == b.kind:
        return _in_order(a.items, b.items, rules) or None
    # A set written with operations may equal one written out.
    return None if {a.kind, b.kind} & {"union", "cap", "setminus"} else False


def _labels(answer: ParsedAnswer) -> bool:
    return bool(answer.label) or any(item.label for item in answer.items)


def _are_named(items: Sequence[ParsedAnswer]) -> bool:
    """Whether the items are values of variables of different letters; roots `x_1, x_2` are not."""
    letters = {item.label[:1] for item in items}
    return len(items) > 1 and "" not in letters and len(letters) == len(items)


def _by_name(items: Sequence[ParsedAnswer], label: str = "") -> Sequence[ParsedAnswer]:
    """Values of different variables in the order of `label`, such as `(y,x)`, or the alphabet's."""
    if not _are_named(items):
        return items
    named = {item.label: item for item in items}
    order = label.strip("()").split(",")
    return [named[name] for name in (order if sorted(order) == sorted(named) else sorted(named))]


def _scalar_and_other(scalar: ParsedAnswer, other: ParsedAnswer, rules: Rules) -> bool | None:
    """A scalar beside a container: a set of one, a ratio of two, a column beside a tuple."""
    if other.kind == "list" and other.items:  # one value spelled twice is one value
        return all_same(same(scalar, item, rules) for item in other.items)
    if other.kind == "set" and len(other.items) == 1:
        return same(scalar, other.items[0], rules)
    rows = rows_of(scalar.node)
    is_table = other.shape == "[]" and other.items and other.items[0].kind == "seq"
    if rows is not None and other.kind == "seq" and is_table:
        return _same_rows(scalar, other, rules)
    cells = column(scalar)
    if other.kind == "seq" and other.shape in ("()", "[]") and cells is not None:
        return _in_order(cells, other.items, rules)
    if other.kind == "ratio" and len(other.items) == 2 and not _is_clock(other):
        top, bottom = other.items[0].node, other.items[1].node
        if top is None or bottom is None:
            return False
        quotient = ParsedAnswer("scalar", node=mul((top, power(bottom, num(-1)))))
        return same_scalar(scalar, quotient, rules)
    return False


def _same_rows(matrix: ParsedAnswer, other: ParsedAnswer, rules: Rules) -> bool | None:
    """A matrix beside rows in brackets, `[[1, 2], [3, 4]]`."""
    rows = [item.items for item in other.items]
    if any(item.kind != "seq" or item.shape != "[]" for item in other.items):
        return False
    cells = [[cell.node for cell in row] for row in rows]
    if not all(cell is not None for row in cells for cell in row):
        return False
    built = [call("row", [cell for cell in row if cell is not None]) for row in cells]
    return same_scalar(matrix, ParsedAnswer("scalar", node=call("matrix", built)), rules)


def _same_ratio(a: ParsedAnswer, b: ParsedAnswer, rules: Rules) -> bool | None:
    if len(a.items) != len(b.items):
        return False
    if _is_clock(a) or _is_clock(b):
        return _in_order(a.items, b.items, rules)
    left, right = ([item.node for item in part.items] for part in (a, b))
    first, other = left[0], right[0]
    if first is None or other is None or None in left or None in right:
        return False
    if "0" in (first.key, other.key):
        return _in_order(a.items, b.items, rules)
    pairs = zip(left[1:], right[1:], strict=True)
    return all_same(
        same_function(mul((first, y)), mul((x, other)))
        for x, y in pairs
        if x is not None and y is not None
    )


def _is_clock(ratio: ParsedAnswer) -> bool:
    """Whether `a:b` or `a:b:c` may be a time, which no factor may be taken out of."""
    values = [None if item.node is None else rational(item.node) for item in ratio.items]
    if len(values) == 3:
        return all(v is not None and 0 <= v < 60 for v in values) and all(
            v is not None and (v >= 10 or v == 0) for v in values[1:]
        )
    first, second = values[0], values[1]
    return (
        first is not None and second is not None and first <= 24 and (second >= 10 or second == 0)
    )


def _in_order(a: Sequence[ParsedAnswer], b: Sequence[ParsedAnswer], rules: Rules) -> bool | None:
    if len(a) != len(b):
        return False
    return all_same(same(x, y, rules) for x, y in zip(a, b, strict=True))


def _unordered(a: Sequence[ParsedAnswer], b: Sequence[ParsedAnswer], rules: Rules) -> bool | None:
    """Each item of one is matched with its own item of the other, exact matches first."""
    if len(a) != len(b):
        a, b = _distinct(a), _distinct(b)
        if len(a) != len(b):
            return False
    left = list(b)
    undecided = False
    for item in a:
        verdicts = _verdicts(item, left, rules)
        found = next((idx for idx, verdict in enumerate(verdicts) if verdict), -1)
        if found < 0:
            if not any(verdict is None for verdict in verdicts):
                return False
            undecided = True
            continue
        del left[found]
    return None if undecided else True


def _distinct(items: Sequence[ParsedAnswer]) -> Sequence[ParsedAnswer]:
    """The items without repeated tuples: a solution that is named twice is one solution."""
    if any(item.kind != "seq" for item in items):
        return items
    return list(dict.fromkeys(items))


def _verdicts(
    item: ParsedAnswer, others: Sequence[ParsedAnswer], rules: Rules
) -> list[bool | None]:
    """How `item` compares with each; a bare 5 must not take the place of a labelled x = 5."""
    if item.node is not None:
        exact = [
            other.node is not None
            and (other.node.key, other.label, other.unit) == (item.node.key, item.label, item.unit)
            for other in others
        ]
        if any(exact):
            return list(exact)
    # `{5}` alone may stand for 5, but not inside another set.
    kind = item.kind == "set"
    return [(other.kind == "set") == kind and same(item, other, rules) for other in others]


_SIGNED = ("<", "<=")


def _same_relation(a: ParsedAnswer, b: ParsedAnswer) -> bool | None:
    """Whether two relations have the same operator and proportional differences."""
    if a.relation is None or b.relation is None:
        return False
    (op, left), (other, right) = a.relation, b.relation
    if op != other:
        return False
    if left.key == right.key:
        return True
    factor = proportional(left, right)
    if factor is None:
        return False
    return factor > 0 or op not in _SIGNED
