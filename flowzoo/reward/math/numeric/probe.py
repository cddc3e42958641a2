r"""Whether two expressions are the same function, by values at points.

Values in doubles that lie further apart than their own rounding reject; agreement is confirmed at
growing precision, where a difference that is zero shrinks with every digit and one that is not
stays: there is no tolerance. Points are complex with positive real part (every analytic identity
that holds for positive numbers holds there: `\sqrt{1/n} = 1/\sqrt{n}`) and real of either sign and
many magnitudes, also on every piece of `|x|`, `\max`, roots and steps; what leaves the reals at a
real point says nothing there. Letters that stand for whole numbers (n, k, m, ...) are whole where
that matters: floors, parities, sums to n, `\cos(\pi n)`. What cannot be computed is undecided.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from itertools import chain, islice, pairwise
from typing import Any, Final

from flowzoo.reward.listed import names
from flowzoo.reward.math.numeric.doubles import OffRealsError, approximate
from flowzoo.reward.math.numeric.kinks import edges, kink_points
from flowzoo.reward.math.numeric.points import (
    COMPLEX,
    NEAR,
    WIDE,
    ProbePoint,
    is_whole,
    whole_points,
)
from flowzoo.reward.math.numeric.precise import precise
from flowzoo.reward.math.numeric.reach import is_nothing, may_reach_far, points_beyond
from flowzoo.reward.math.numeric.work import Bounded, UnreliableValueError, is_spent
from flowzoo.reward.math.tree import (
    ExprNode,
    applied_letters,
    mentions,
    mul,
    num,
    rational,
    substitute,
    symbols,
    unapplied,
)

_DIGITS: Final = (20, 50, 120, 450, 900, 1300)
_SHRINKS: Final = -25
"""Powers of ten by which a difference that is zero shrinks at least from one precision to next."""
_SLACK: Final = 5
"""Last digits of a precision that rounding may touch."""
_ENOUGH: Final = 3
_STEPPED: Final = frozenset({"floor", "ceil", "mod", "gcd", "lcm", "sign"})
_KINKED: Final = frozenset({"abs", "max", "min"}) | _STEPPED
_BRANCHED: Final = names("ln arcsin arccos arctan arccot arcsec arccsc arsinh arcosh artanh erf")
_COUNTED: Final = frozenset({"factorial", "binom", "sum", "prod"}) | _STEPPED
_PERIODIC: Final = frozenset({"sin", "cos", "tan", "cot", "sec", "csc"})


def same_function(a: ExprNode, b: ExprNode) -> bool | None:
    """Whether `a` and `b` agree as functions of their symbols; None if that stays open."""
    if a.key == b.key:
        return True
    x, y = rational(a), rational(b)
    if x is not None and y is not None:
        return x == y
    if "inf" in (a.key[1:4], b.key[1:4]) and (a.op == "const" or b.op == "const"):
        return False
    with Bounded():
        return _same_function(a, b)


def _same_function(a: ExprNode, b: ExprNode) -> bool | None:
    if _is_matrix(a) or _is_matrix(b):
        return _same_cells(a, b)
    letters = symbols(a) | symbols(b)
    if not letters:
        return _same_constant(a, b)
    if "@" in a.key or "@" in b.key:
        # A letter that is a function on one side and a factor on the other is a factor.
        factors = (applied_letters(a) | applied_letters(b)) & letters
        if factors:
            return same_function(unapplied(a, factors), unapplied(b, factors))
    whole = frozenset(name for name in letters if is_whole(name))
    is_stepped = mentions(a, _STEPPED) or mentions(b, _STEPPED)
    verdict = None if is_stepped else _agree(a, b, _points(a, b))
    if verdict is not True and (is_stepped or (whole and (_is_counted(a) or _is_counted(b)))):
        verdict = _agree_in_steps(a, b, letters, whole)
    elif verdict is None and (_is_counted(a) or _is_counted(b)):  # a sum to x
        verdict = _agree_in_steps(a, b, letters, letters)
    return _agree_beyond(a, b) if verdict else verdict


def _agree_beyond(a: ExprNode, b: ExprNode) -> bool | None:
    """Agreement of functions that agree within the reach of the probes, beyond it."""
    if not may_reach_far(a.key + b.key):
        return True
    if is_nothing(a, b):
        return None
    verdicts = [_at(a, b, point) for point in points_beyond(a, b)]
    if False in verdicts:
        return False
    return True if all(verdicts[:1]) else None  # the second may leave the real numbers


def _is_matrix(node: ExprNode) -> bool:
    return node.op == "call" and node.args[0] == "matrix"


def _same_cells(a: ExprNode, b: ExprNode) -> bool | None:
    if not (_is_matrix(a) and _is_matrix(b)):
        return False
    rows = list(zip(a.args[1:], b.args[1:], strict=False))
    if len(a.args) != len(b.args) or any(len(x.args) != len(y.args) for x, y in rows):
        return False
    undecided = False
    for x, y in rows:
        for cell, other in zip(x.args[1:], y.args[1:], strict=True):
            verdict = same_function(cell, other)
            if verdict is False:
                return False
            undecided = undecided or verdict is None
    return None if undecided else True


def _same_constant(a: ExprNode, b: ExprNode) -> bool | None:
    """Whether two expressions without symbols have one value."""
    return _at(a, b, COMPLEX[0])


def proportional(a: ExprNode, b: ExprNode) -> float | None:
    """The constant `c` with `a = c * b` everywhere, or None. Both must not vanish.

    `c` is the ratio at one point; the sign is what a caller may rely on.
    """
    for point in (*NEAR[:1], *WIDE[:3], *COMPLEX[:1]):
        try:
            x, y = approximate(a, point), approximate(b, point)
        except UnreliableValueError:
            continue
        if abs(x.value) <= 8 * x.error + 1e-12 or abs(y.value) <= 8 * y.error + 1e-12:
            return None
        if not point.is_real:
            return None
        fixed = {name: num(point.real(name)) for name in symbols(a) | symbols(b)}
        left = mul((a, substitute(b, fixed)))
        right = mul((b, substitute(a, fixed)))
        ratio = x.value / y.value
        return ratio.real if same_function(left, right) else None
    return None


def constant(node: ExprNode) -> complex | None:
    """The value of a tree without symbols in doubles, or None; for sizes, never for equality."""
    exact = rational(node)
    if exact is not None:
        return complex(exact) if abs(exact) < 10**300 else None
    if symbols(node):
        return None
    try:
        return approximate(node, COMPLEX[0]).value
    except UnreliableValueError:
        pass
    try:
        found = complex(precise(node, COMPLEX[0], _DIGITS[0]))
    except (UnreliableValueError, OverflowError):
        return None
    return found if abs(found) < 1e300 else None


def decimal(node: ExprNode, digits: int) -> Fraction | None:
    """The real value of a tree without symbols, near enough to round to `digits` digits."""
    if symbols(node):
        return None
    try:
        found = precise(node, COMPLEX[0], digits + 15)
    except UnreliableValueError:
        return None
    if getattr(found, "imag", 0) != 0:
        return None
    sign, mantissa, exponent, _ = found.real._mpf_
    if abs(exponent) > 20_000:
        return None
    return Fraction(-int(mantissa) if sign else int(mantissa)) * Fraction(2) ** exponent


def _points(a: ExprNode, b: ExprNode) -> Iterable[ProbePoint]:
    """Points for a pair with symbols, the most telling first."""
    kinked = mentions(a, _KINKED) or mentions(b, _KINKED)
    if not kinked and not _has_branches(a) and not _has_branches(b):
        return (*COMPLEX, *NEAR)
    found = list({edge.key: edge for edge in chain(edges(a), edges(b))}.values())
    pieces = chain(*(kink_points(found, base) for base in (NEAR[0], NEAR[1], WIDE[1])))
    return chain(() if kinked else COMPLEX, NEAR, WIDE, pieces)


def _has_branches(node: ExprNode) -> bool:
    """Whether roots, logarithms or inverse functions of expressions with symbols occur."""
    if node.op == "call" and node.args[0] in _BRANCHED:
        return bool(symbols(node))
    if node.op == "pow" and symbols(node.args[0]):
        exponent = rational(node.args[1])
        if exponent is None or exponent.denominator != 1:
            return True
    return any(_has_branches(arg) for arg in node.args if isinstance(arg, ExprNode))


def _agree(a: ExprNode, b: ExprNode, points: Iterable[ProbePoint]) -> bool | None:
    """Agreement at `points`: in doubles at all, precisely at a few of them."""
    close: list[ProbePoint] = []
    unclear: list[ProbePoint] = []
    for point in points:
        try:
            x, y = approximate(a, point), approximate(b, point)
        except OffRealsError:
            continue
        except UnreliableValueError:
            unclear.append(point)
            continue
        off = x.error + y.error
        if abs(x.value - y.value) > 8 * off + 1e-300:
            return False
        is_sharp = off <= 1e-7 * max(abs(x.value), abs(y.value)) or x.value == y.value == 0
        (close if is_sharp else unclear).append(point)
    real = [point for point in close if point.is_real]
    other = [point for point in close if not point.is_real]
    first = [*real[:1], *other[:1], *real[1:2], *other[1:2]]
    confirmed, decided = 0, len(close)
    for point in chain(first[:2], unclear[:6], first[2:]):
        verdict = _at(a, b, point)
        if verdict is False:
            return False
        confirmed += bool(verdict)
        decided += bool(verdict) and point not in close
        if confirmed >= 2 and decided >= _ENOUGH and not _is_next(point, unclear[:6]):
            return True
    return None


def _is_next(point: ProbePoint, unclear: Sequence[ProbePoint]) -> bool:
    """Whether unclear points are still to be looked at."""
    return bool(unclear) and point is not unclear[-1]


def _at(a: ExprNode, b: ExprNode, point: ProbePoint) -> bool | None:
    """Whether the two have one value at a point: exactly, or at growing precision."""
    if point.is_real:
        fixed = {name: num(point.real(name)) for name in symbols(a) | symbols(b)}
        a, b = substitute(a, fixed), substitute(b, fixed)
        x, y = rational(a), rational(b)
        if x is not None and y is not None:
            return x == y
        if a.key == b.key:
            return _has_value(a, point)
    apart: list[Any] = []
    for digits in _DIGITS:
        try:
            first, second = precise(a, point, digits), precise(b, point, digits)
        except OffRealsError:
            return None
        except UnreliableValueError:
            if apart:
                break
            continue  # more digits may hold it
        apart.append((abs(first - second), max(abs(first), abs(second)), digits))
        if len(apart) > 1:
            verdict = _settled(apart[-2], apart[-1])
            if verdict is False or (verdict and len(apart) == _ENOUGH):
                return verdict
    verdicts = [_settled(coarse, fine) for coarse, fine in pairwise(apart)]
    return True if verdicts and all(verdicts) else None


def _has_value(node: ExprNode, point: ProbePoint) -> bool | None:
    try:
        precise(node, point, _DIGITS[0])
    except UnreliableValueError:
        return None
    return True


def _settled(coarse: tuple[Any, Any, int], fine: tuple[Any, Any, int]) -> bool | None:
    """Whether a difference went away with the rounding (True), or stayed (False)."""
    (before, _, _), (after, size, digits) = coarse, fine
    if after <= before * 10.0**_SHRINKS or after < size * 10.0 ** (_SLACK - digits):
        return True
    return False if abs(after - before) < after * 1e-3 else None


def _is_counted(node: ExprNode) -> bool:
    """Whether it matters that a letter is whole: counts, steps, parities, periods."""
    if mentions(node, _COUNTED | _PERIODIC):
        return True
    return _has_parity(node)


def _has_parity(node: ExprNode) -> bool:
    r"""Whether a negative or complex constant has an exponent with symbols, as in `(-1)^n`."""
    if node.op == "pow" and symbols(node.args[1]):
        base = rational(node.args[0])
        if (base is not None and base < 0) or "#i" in node.key:
            return True
    return any(_has_parity(arg) for arg in node.args if isinstance(arg, ExprNode))


def _agree_in_steps(
    a: ExprNode, b: ExprNode, letters: frozenset[str], whole: frozenset[str]
) -> bool | None:
    """Agreement where the letters `whole` are whole numbers, and, for other letters, everywhere."""
    decided = 0
    tested: Iterator[ProbePoint]
    found = list({edge.key: edge for edge in chain(edges(a), edges(b))}.values())
    near = [point for base in NEAR[:2] for point in kink_points(found, base)]
    if whole:
        around = {
            int(value) + step
            for point in near
            for name, value in point.fixed.items()
            if name in whole and abs(value) < 10**12
            for step in (-1, 0, 1)
        }
        tested = whole_points(whole, frozenset(islice(sorted(around), 60)))
        needed = 6
    else:
        # Steps are at whole numbers: there, and between them.
        tested = chain(NEAR, WIDE, near, whole_points(letters, frozenset()))
        needed = 12
    for point in tested:
        verdict = _at(a, b, point)
        if verdict is False:
            return False
        decided += bool(verdict)
    return True if decided >= needed and not is_spent() else None
