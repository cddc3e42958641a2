r"""Where an expression passes from one of its pieces to the next, and points on all of them.

`|x - 30|`, `\min(n, 6)`, `\sqrt{x^2 - 20x + 100}` and `\lfloor t / 9 \rfloor` agree with another
expression on one side of a point and not on the other. The arguments of such functions are solved
for their zeros: exactly in effect where they are linear or quadratic in a symbol, by a scan over
all magnitudes otherwise. Each piece between two zeros is then probed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import combinations, pairwise
from typing import Final

from flowzoo.reward.math.numeric.doubles import approximate
from flowzoo.reward.math.numeric.points import ProbePoint
from flowzoo.reward.math.numeric.work import UnreliableValueError
from flowzoo.reward.math.tree import ONE, ExprNode, add, neg, rational, symbols

_STEPS: Final = frozenset({"floor", "ceil", "mod", "sign"})
_MOST_EDGES: Final = 24
_MOST_POINTS: Final = 40
_SCAN: Final = sorted(
    [0.0] + [sign * scale * 10.0**power for sign in (1, -1) for scale in (1.37, 4.1)
             for power in range(-3, 16)]
)  # fmt: skip


def edges(node: ExprNode) -> list[ExprNode]:
    """What changes its sign where `node` passes from one piece to another."""
    found: dict[str, ExprNode] = {}
    _collect(node, found)
    return list(found.values())[:_MOST_EDGES]


def _collect(node: ExprNode, found: dict[str, ExprNode]) -> None:
    new: list[ExprNode] = []
    if node.op == "call":
        name, *args = node.args
        if name in ("max", "min"):
            new = [add((a, neg(b))) for a, b in combinations(args[:6], 2)]
        elif name == "abs" or name in _STEPS:
            new = args[:1]
            if name in ("floor", "ceil"):
                new += [add((args[0], sign)) for sign in (ONE, neg(ONE))]
            if name == "mod":
                new.append(add((args[0], neg(args[1]))))
    elif node.op == "pow" and symbols(node.args[0]):
        exponent = rational(node.args[1])
        if exponent is None or exponent.denominator != 1:
            new = [node.args[0]]
    for edge in new:
        if symbols(edge):
            found.setdefault(edge.key, edge)
    for arg in node.args:
        if isinstance(arg, ExprNode):
            _collect(arg, found)


def kink_points(found: list[ExprNode], base: ProbePoint) -> Iterator[ProbePoint]:
    """Points on every piece, along each symbol, the other symbols as at `base`."""
    names = sorted(frozenset[str]().union(*(symbols(edge) for edge in found)))
    count = 0
    for name in names:
        roots: set[float] = set()
        for edge in found:
            if name in symbols(edge):
                roots.update(_zeros(edge, name, base))
        for at in _between(sorted(roots)):
            count += 1
            if count > _MOST_POINTS:
                return
            fixed = {**base.fixed, name: _fraction(at)}
            yield ProbePoint(base.salt, base.signs, base.size, fixed)


def _fraction(value: float) -> Fraction:
    """A fraction near a point, of few digits where that is near enough."""
    short = Fraction(value).limit_denominator(1024)
    return short if abs(float(short) - value) <= 1e-4 * abs(value) else Fraction(value)


def _between(roots: list[float]) -> list[float]:
    """A point in every gap between roots, and two outside, one of them far."""
    if not roots:
        return []
    width = max(roots[-1] - roots[0], abs(roots[0]), abs(roots[-1]), 1.0)
    inner = [low + 0.43 * (high - low) for low, high in pairwise(roots)]
    low, high = roots[0], roots[-1]
    outer = [low - 0.31 * width, low - 7.3 * width, high + 0.31 * width, high + 7.3 * width]
    return [*outer, *inner]


def _zeros(edge: ExprNode, name: str, base: ProbePoint) -> list[float]:
    """Zeros of `edge` along one symbol, and where it touches zero without crossing."""

    def at(value: float) -> float:
        point = ProbePoint(base.salt, base.signs, base.size, {**base.fixed, name: Fraction(value)})
        return approximate(edge, point).value.real

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
    """Changes of sign over all magnitudes, by bisection, and the lowest places between them."""
    values: list[tuple[float, float]] = []
    for t in _SCAN:
        try:
            values.append((t, at(t)))
        except UnreliableValueError:
            continue
    found: list[float] = []
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
        found.append((low + high) / 2)
    for (_, a), (middle, b), (_, c) in zip(values, values[1:], values[2:], strict=False):
        if abs(b) <= abs(a) and abs(b) <= abs(c):
            found.append(middle)
    return found[:12]
