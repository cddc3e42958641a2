r"""Comparison of two expressions as functions, by values at points.

Values in doubles that are far apart reject, if no digits were lost. All else is decided by values
at growing precision, where a zero difference shrinks with every digit and another one stays, so no
tolerance is needed.
"""

from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from itertools import chain, combinations, islice, pairwise, starmap
from typing import Any, Final

from flowzoo.reward.listed import names
from flowzoo.reward.math.matrices import is_matrix, rows_of
from flowzoo.reward.math.points import (
    COMPLEX,
    NEAR,
    WIDE,
    OffRealsError,
    ProbePoint,
    UnreliableValueError,
    bounded,
    is_spent,
    is_whole,
    whole_points,
)
from flowzoo.reward.math.precise import precise, rough
from flowzoo.reward.math.tree import (
    ONE,
    ZERO,
    ExprNode,
    add,
    applied_letters,
    mentions,
    mul,
    neg,
    num,
    rational,
    substitute,
    subtrees,
    symbols,
    unapply,
)

_MOST_EDGES: Final = 48
_MOST_POINTS: Final = 40
_SCAN: Final = sorted(
    [0.0] + [sign * scale * 10.0**power for sign in (1, -1) for scale in (1.37, 4.1)
             for power in range(-3, 16)]
)  # fmt: skip


def edges(*nodes: ExprNode) -> list[ExprNode]:
    """Return expressions that change sign where a node passes from one piece to another."""
    every = chain(*(_own_edges(part) for node in nodes for part in subtrees(node)))
    return list({edge.key: edge for edge in every if symbols(edge)}.values())[:_MOST_EDGES]


def _own_edges(node: ExprNode) -> list[ExprNode]:
    if node.op == "call":
        name, *args = node.args
        if name in ("max", "min"):
            return [add((a, neg(b))) for a, b in combinations(args[:6], 2)]
        if name == "mod":
            return [args[0], add((args[0], neg(args[1])))]
        if name in ("floor", "ceil"):
            return [add((args[0], shift)) for shift in (ZERO, ONE, neg(ONE))]
        return args[:1] if name in ("abs", "sign") else []
    return [node.args[0]] if _is_root(node) else []


def _is_root(node: ExprNode) -> bool:
    # True for a power with symbols whose exponent is no integer.
    if node.op != "pow" or not symbols(node.args[0]):
        return False
    exponent = rational(node.args[1])
    return exponent is None or exponent.denominator != 1


def kink_points(all_edges: list[ExprNode], base: ProbePoint) -> Iterator[ProbePoint]:
    """Points on every piece, along each symbol, the other symbols as at `base`."""
    names = sorted(symbols(*all_edges))
    count = 0
    for name in names:
        roots: set[float] = set()
        for edge in all_edges:
            if name in symbols(edge):
                roots.update(_zeros(edge, name, base))
        for at in _points_beside(sorted(roots)):
            count += 1
            if count > _MOST_POINTS:
                return
            fixed = {**base.fixed, name: _fraction(at)}
            yield ProbePoint(base.salt, base.signs, base.size, fixed)


def _fraction(value: float) -> Fraction:
    short = Fraction(value).limit_denominator(1024)
    return short if abs(float(short) - value) <= 1e-4 * abs(value) else Fraction(value)


def _points_beside(roots: list[float]) -> list[float]:
    if not roots:
        return []
    width = max(roots[-1] - roots[0], abs(roots[0]), abs(roots[-1]), 1.0)
    inner = [low + 0.43 * (high - low) for low, high in pairwise(roots)]
    low, high = roots[0], roots[-1]
    outer = [low - 0.31 * width, low - 7.3 * width, high + 0.31 * width, high + 7.3 * width]
    return [*outer, *inner]


def _zeros(edge: ExprNode, name: str, base: ProbePoint) -> list[float]:
    # Zeros of `edge` along one symbol, and where it touches zero without crossing.
    def at(value: float) -> float:
        point = ProbePoint(base.salt, base.signs, base.size, {**base.fixed, name: Fraction(value)})
        return rough(edge, point).value.real

    try:
        y = [at(float(t)) for t in (-1, 0, 1, 2)]
    except UnreliableValueError:
        return _scan(at)
    second = y[0] - 2 * y[1] + y[2]
    if abs(second - (y[1] - 2 * y[2] + y[3])) > 1e-9 * max(map(abs, y)):
        return _scan(at)
    slope, start = (y[2] - y[0]) / 2, y[1]
    curve = second / 2
    if abs(curve) <= 1e-13 * max(map(abs, y)):
        slope = y[2] - y[1]
        return [-start / slope] if slope else []
    vertex = -slope / (2 * curve)
    spread = slope * slope - 4 * curve * start
    if spread <= 0:
        return [vertex]
    reach = spread**0.5 / (2 * abs(curve))
    return [vertex - reach, vertex, vertex + reach]


def _scan(at: Callable[[float], float]) -> list[float]:
    values: list[tuple[float, float]] = []
    for t in _SCAN:
        try:
            values.append((t, at(t)))
        except UnreliableValueError:
            continue
    zeros: list[float] = []
    for (low, a), (high, b) in pairwise(values):
        if a == 0 or (a < 0) == (b < 0):
            continue
        for _ in range(40):
            middle = (low + high) / 2
            try:
                value = at(middle)
            except UnreliableValueError:
                break
            if (value < 0) == (a < 0):
                low = middle
            else:
                high = middle
        zeros.append((low + high) / 2)
    for (_, a), (middle, b), (_, c) in zip(values, values[1:], values[2:], strict=False):
        if abs(b) <= abs(a) and abs(b) <= abs(c):
            zeros.append(middle)
    return zeros[:12]


# Numbers or denominators of at least this size may move a function out of range.
_FAR: Final = 50
_BENT: Final = names("max min abs floor ceil sign mod binom factorial factorial2 gamma")


def points_beyond(a: ExprNode, b: ExprNode) -> list[ProbePoint]:
    """Points beyond numbers at which only one side has a bend or step."""
    far = max(_far(a, b), _far(b, a))
    if not far:
        return []
    letters = sorted(symbols(a, b))
    whole = [name for name in letters if is_whole(name)]
    size = min(8 * far, Fraction(10) ** 60)
    fixed = {name: Fraction(int(size) + 3 + idx) for idx, name in enumerate(whole)}
    return [ProbePoint(5, sign, float(size), fixed) for sign in ("plus", "minus")]


def _far(a: ExprNode, b: ExprNode) -> Fraction:
    # The largest number with a bend only in `a`; 0 without one.
    other = {name for name, _ in _bends(b)}
    bends = [part for name, part in _bends(a) if name not in other]
    numbers = {n for part in bends for n in _numbers(part) if max(n, n.denominator) >= _FAR}
    if numbers:
        numbers -= set(_numbers(b))
    return max((max(n, Fraction(n.denominator)) for n in numbers), default=Fraction(0))


def _bends(node: ExprNode) -> Iterator[tuple[str, ExprNode]]:
    # The functions in a tree that have edges or steps, by name; roots and powers of 0 too.
    for part in subtrees(node):
        if part.op == "call" and part.args[0] in _BENT and symbols(part):
            yield part.args[0], part
        if part.op == "pow" and rational(part.args[0]) == 0:
            yield "0^", part
        if _is_root(part) and rational(part.args[1]) is not None:
            yield "root", part


def _numbers(node: ExprNode) -> Iterator[Fraction]:
    return (abs(part.args[0]) for part in subtrees(node) if part.op == "num")


_DIGITS: Final = (20, 50, 120, 450, 900, 1300)
# Minimum power of ten by which a zero difference shrinks between precisions.
_SHRINKS: Final = -25
_SLACK: Final = 5  # last digits of a precision that rounding may affect
_ENOUGH: Final = 3
_NEAR: Final = 1e-12  # relative difference of doubles that rounding explains
_APART: Final = 1e-2  # one that it never explains without a loss of digits
_STEPPED: Final = frozenset({"floor", "ceil", "mod", "gcd", "lcm", "sign"})
_KINKED: Final = frozenset({"abs", "max", "min"}) | _STEPPED
_BRANCHED: Final = names("ln arcsin arccos arctan arccot arcsec arccsc arsinh arcosh artanh erf")
_COUNTED: Final = frozenset({"factorial", "factorial2", "binom", "sum", "prod"}) | _STEPPED
_PERIODIC: Final = frozenset({"sin", "cos", "tan", "cot", "sec", "csc"})


def same_function(a: ExprNode, b: ExprNode) -> bool | None:
    """Return True if `a` and `b` agree as functions of their symbols; None if undecided."""
    if a.key == b.key:
        return True
    x, y = rational(a), rational(b)
    if x is not None and y is not None:
        return x == y
    if "inf" in (a.key[1:4], b.key[1:4]) and (a.op == "const" or b.op == "const"):
        return False
    with bounded():
        return _same_function(a, b)


def _same_function(a: ExprNode, b: ExprNode) -> bool | None:
    if is_matrix(a) or is_matrix(b):
        return _same_cells(a, b)
    letters = symbols(a, b)
    if not letters:
        return _agree_at(a, b, COMPLEX[0])
    if "@" in a.key or "@" in b.key:
        # A letter that is a function on one side and a factor on the other counts as a factor.
        factors = (applied_letters(a) | applied_letters(b)) & letters
        if factors:
            return same_function(unapply(a, factors), unapply(b, factors))
    whole = frozenset(name for name in letters if is_whole(name))
    is_stepped = mentions(a, _STEPPED) or mentions(b, _STEPPED)
    verdict = None if is_stepped else _agree(a, b, _points(a, b))
    if verdict is not True and (is_stepped or (whole and (_is_counted(a) or _is_counted(b)))):
        verdict = _agree_in_steps(a, b, letters, whole)
    elif verdict is None and (_is_counted(a) or _is_counted(b)):  # a sum to x
        verdict = _agree_in_steps(a, b, letters, letters)
    return _agree_beyond(a, b) if verdict else verdict


def _agree_beyond(a: ExprNode, b: ExprNode) -> bool | None:
    if len({any(name == "0^" for name, _ in _bends(x)) for x in (a, b)}) > 1:
        return None  # a power of 0, which is 1 at a single point
    verdicts = [_agree_at(a, b, point) for point in points_beyond(a, b)]
    if False in verdicts:
        return False
    return True if all(verdicts[:1]) else None  # the second may leave the real numbers


def _same_cells(a: ExprNode, b: ExprNode) -> bool | None:
    first, second = rows_of(a), rows_of(b)
    if list(map(len, first)) != list(map(len, second)):
        return False
    cells = zip(chain(*first), chain(*second), strict=True)
    return all_same(starmap(same_function, cells))


def all_same(verdicts: Iterable[bool | None]) -> bool | None:
    """True if all are, False if one is, else undecided."""
    undecided = False
    for verdict in verdicts:
        if verdict is False:
            return False
        undecided = undecided or verdict is None
    return None if undecided else True


def proportional(a: ExprNode, b: ExprNode) -> float | None:
    """The constant `c` with `a = c * b` everywhere, or None. Both must not vanish."""
    # `c` is the ratio at one point; callers may rely only on its sign.
    for point in (*NEAR[:1], *WIDE[:3], *COMPLEX[:1]):
        try:
            x, y = rough(a, point), rough(b, point)
        except UnreliableValueError:
            continue
        if min(abs(x.value), abs(y.value)) <= 1e-12 or not (x.is_sharp and y.is_sharp):
            return None
        if not point.is_real:
            return None
        fixed = {name: num(point.real(name)) for name in symbols(a, b)}
        left = mul((a, substitute(b, fixed)))
        right = mul((b, substitute(a, fixed)))
        ratio = x.value / y.value
        return ratio.real if same_function(left, right) else None
    return None


def constant(node: ExprNode) -> complex | None:
    """The value of a tree without symbols as a double, or None; for sizes, never for equality."""
    exact = rational(node)
    if exact is not None:
        return complex(exact) if abs(exact) < 10**300 else None
    if symbols(node):
        return None
    try:
        value = complex(precise(node, COMPLEX[0], _DIGITS[0]))
    except (UnreliableValueError, OverflowError):
        return None
    return value if abs(value) < 1e300 else None


def decimal(node: ExprNode, digits: int) -> Fraction | None:
    """The real value of a tree without symbols, accurate enough for `digits` digits."""
    if symbols(node):
        return None
    try:
        value = precise(node, COMPLEX[0], digits + 15)
    except UnreliableValueError:
        return None
    if getattr(value, "imag", 0) != 0:
        return None
    sign, mantissa, exponent, _ = value.real._mpf_
    if abs(exponent) > 20_000:
        return None
    return Fraction(-int(mantissa) if sign else int(mantissa)) * Fraction(2) ** exponent


def _points(a: ExprNode, b: ExprNode) -> Iterable[ProbePoint]:
    # Complex points have a positive real part, where every analytic identity holds that holds for
    # positive numbers. Real ones are of either sign and many magnitudes, also on every piece of
    # `|x|`, `\max`, roots and steps; values outside the reals are inconclusive.
    kinked = mentions(a, _KINKED) or mentions(b, _KINKED)
    if not kinked and not _has_branches(a) and not _has_branches(b):
        return (*COMPLEX, *NEAR)
    all_edges = edges(a, b)
    pieces = chain(*(kink_points(all_edges, base) for base in (NEAR[0], NEAR[1], WIDE[1])))
    return chain(() if kinked else COMPLEX, NEAR, WIDE, pieces)


def _has_branches(node: ExprNode) -> bool:
    calls = (x for x in subtrees(node) if x.op == "call" and x.args[0] in _BRANCHED)
    return any(map(symbols, calls)) or any(map(_is_root, subtrees(node)))


def _agree(a: ExprNode, b: ExprNode, points: Iterable[ProbePoint]) -> bool | None:
    # Agreement at `points`: in doubles at all of them, precisely at a few.
    close: list[ProbePoint] = []
    unclear: list[ProbePoint] = []
    for point in points:
        try:
            x, y = rough(a, point), rough(b, point)
        except OffRealsError:
            continue
        except UnreliableValueError:
            unclear.append(point)
            continue
        apart = abs(x.value - y.value) / (max(abs(x.value), abs(y.value)) or 1)
        is_sharp = x.is_sharp and y.is_sharp
        if (apart > _APART and is_sharp) or (apart > _NEAR and _agree_at(a, b, point) is False):
            return False
        (close if apart <= _NEAR and is_sharp else unclear).append(point)
    real = [point for point in close if point.is_real]
    other = [point for point in close if not point.is_real]
    first = [*real[:1], *other[:1], *real[1:2], *other[1:2]]
    confirmed, decided = 0, len(close)
    for point in chain(first[:2], unclear[:6], first[2:]):
        verdict = _agree_at(a, b, point)
        if verdict is False:
            return False
        confirmed += bool(verdict)
        decided += bool(verdict) and point not in close
        goes_on = bool(unclear) and point is not unclear[:6][-1]
        if confirmed >= 2 and decided >= _ENOUGH and not goes_on:
            return True
    return None


def _agree_at(a: ExprNode, b: ExprNode, point: ProbePoint) -> bool | None:
    # True if the two have one value at a point: exactly, or at growing precision.
    if point.is_real:
        fixed = {name: num(point.real(name)) for name in symbols(a, b)}
        a, b = substitute(a, fixed), substitute(b, fixed)
        x, y = rational(a), rational(b)
        if x is not None and y is not None:
            return x == y
    apart: list[Any] = []
    for digits in _DIGITS:
        try:
            first, second = precise(a, point, digits), precise(b, point, digits)
        except OffRealsError:
            return None
        except UnreliableValueError:
            if apart:
                break
            continue  # more digits may suffice
        apart.append((abs(first - second), max(abs(first), abs(second)), digits))
        if len(apart) > 1:
            verdict = _settle(apart[-2], apart[-1])
            if verdict is False or (verdict and len(apart) == _ENOUGH):
                return verdict
    verdicts = [_settle(coarse, fine) for coarse, fine in pairwise(apart)]
    return True if verdicts and all(verdicts) else None


def _settle(coarse: tuple[Any, Any, int], fine: tuple[Any, Any, int]) -> bool | None:
    (before, _, _), (after, size, digits) = coarse, fine
    if after <= before * 10.0**_SHRINKS or after < size * 10.0 ** (_SLACK - digits):
        return True
    return False if abs(after - before) < after * 1e-3 else None


def _is_counted(node: ExprNode) -> bool:
    # True if it matters that a letter is an integer: counts, steps, parities, periods.
    if mentions(node, _COUNTED | _PERIODIC):
        return True
    # A negative or complex constant with a symbolic exponent, as in `(-1)^n`.
    powers = (x for x in subtrees(node) if x.op == "pow" and symbols(x.args[1]))
    return any("#i" in x.key or (rational(x.args[0]) or 0) < 0 for x in powers)


def _agree_in_steps(
    a: ExprNode, b: ExprNode, letters: frozenset[str], whole: frozenset[str]
) -> bool | None:
    # Agreement at integers for the letters `whole`, and everywhere for other letters.
    decided = 0
    tested: Iterator[ProbePoint]
    all_edges = edges(a, b)
    near = [point for base in NEAR[:2] for point in kink_points(all_edges, base)]
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
        # Steps are at integers: test at integers and between them.
        tested = chain(NEAR, WIDE, near, whole_points(letters, frozenset()))
        needed = 12
    for point in tested:
        verdict = _agree_at(a, b, point)
        if verdict is False:
            return False
        decided += bool(verdict)
    return True if decided >= needed and not is_spent() else None
