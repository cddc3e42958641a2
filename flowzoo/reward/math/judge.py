r"""Sympy's verdict on pairs that the fast comparison does not decide, in killable workers.

Sympy objects are built from flowzoo's trees: no text reaches sympy's parser or `eval`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import product
from typing import TYPE_CHECKING, Any, Final, Literal

from flowzoo.reward.math.answer import read_answer
from flowzoo.reward.math.compare import relations_of
from flowzoo.reward.math.sets import has_interval, is_real_set
from flowzoo.reward.math.tree import ExprNode, ParsedAnswer, bits, rational, subtrees

if TYPE_CHECKING:
    from flowzoo.sandbox.pool import JobResult, WorkerPool

JudgeStatus = Literal["equal", "different", "timeout", "crashed"]

_MAX_CHARS: Final = 400
_MAX_BARS: Final = 10
_REMEMBERED: Final = 20_000
_MOST_BITS: Final = 128
_MOST_EXPONENT: Final = 99
_BAR = re.compile(r"\\left\s*\||\\right\s*\||\\[lr]vert(?![A-Za-z])|\|")
_verdicts: dict[tuple[str, str], tuple[JudgeStatus, float]] = {}  # with the deadline


def judge(pairs: Sequence[tuple[str, str]], deadline: float) -> list[JudgeStatus]:
    """Return the statuses of (answer, gold) pairs; verdicts and timeouts are cached by content."""
    distinct = dict.fromkeys(pairs)
    # A longer deadline may decide a pair that timed out.
    recalled = ((pair, *_verdicts.get(pair, ("timeout", 0.0))) for pair in distinct)
    statuses = {
        pair: status for pair, status, tried in recalled if status != "timeout" or deadline <= tried
    }
    short = [p for p in distinct if p not in statuses and max(map(len, p)) <= _MAX_CHARS]
    if short:
        statuses.update(zip(short, _ask(short, deadline), strict=True))
    # Pairs of long texts count as different.
    return [statuses.get(pair, "different") for pair in pairs]


def _remember(pair: tuple[str, str], status: JudgeStatus, deadline: float) -> None:
    if len(_verdicts) >= _REMEMBERED:
        with suppress(RuntimeError, StopIteration):  # another thread removed it
            _verdicts.pop(next(iter(_verdicts)), None)
    _verdicts[pair] = status, deadline


def sympy_pool(module: str, name: str) -> WorkerPool:
    """The pool of workers that run the `setup` of a module of this room."""
    from flowzoo.sandbox.pool import shared_pool

    # Pure-Python integers: with gmpy2 a huge power aborts the interpreter.
    env = (("MPMATH_NOGMPY", "1"), ("SYMPY_GROUND_TYPES", "python"))
    return shared_pool(f"flowzoo.reward.math.{module}:setup", env, name=name)


def _pool() -> WorkerPool:
    return sympy_pool("judge", "math")


def warm() -> None:
    """Start a worker without waiting, so that the first open pair does not wait for sympy."""
    _pool().warm()


def _ask(pairs: Sequence[tuple[str, str]], deadline: float) -> list[JudgeStatus]:
    jobs = [json.dumps(pair).encode() for pair in pairs]
    results = _pool().run(jobs, deadline)
    statuses = [status_of(result) for result in results]
    for pair, status, result in zip(pairs, statuses, results, strict=True):
        # The machine may be the cause of a process that died without an exception.
        if result.status != "crashed" or result.value:
            _remember(pair, status, deadline)
    return statuses


def status_of(result: JobResult) -> JudgeStatus:
    """The verdict of a worker that answers `1` or `0`."""
    if result.status == "ok":
        return "equal" if result.value == b"1" else "different"
    return "timeout" if result.status == "timeout" else "crashed"


def setup() -> Callable[[bytes], bytes]:
    """Import sympy; return the handler of a JSON list of answer and gold to `1` or `0`."""
    handle(b'["[-1, 1]", "x^2 \\\\le 1"]')  # imports the solvers
    return handle


def handle(job: bytes) -> bytes:
    """Return `1` if sympy finds an answer equal to its gold, else `0`."""
    answer, gold = json.loads(job)
    return b"1" if agree(answer, gold) else b"0"


class _NotConvertibleError(Exception):
    """An answer has a part without a counterpart in sympy, or one on which it may work for long."""


def agree(answer: str, gold: str) -> bool:
    """Return True if sympy shows that an answer equals its gold. Runs in a worker."""
    try:
        return _same_set(answer, gold) or _same_expression(answer, gold)
    except (_NotConvertibleError, NotImplementedError, ValueError, TypeError):
        return False


def _same_set(answer: str, gold: str) -> bool:
    # Compare the answer's set of real numbers with the gold's, or with the gold's solutions.
    # Only the gold is solved: an unsolved inequality is not an answer.
    written, reference = read_answer(answer), read_answer(gold)
    if written is None or reference is None or written.shape == ",":
        return False
    if not is_real_set(written) and written.kind not in ("seq", "set"):
        return False
    inequalities = relations_of(reference)
    if is_real_set(reference) and not (inequalities and reference.kind == "cap"):
        # An answer must compute operations on finite sets, as in `{1, 2} \\cap {2, 3}`.
        if not (has_interval(written) and has_interval(reference)):
            return False
        return bool(_set(written) == _set(reference))
    if not inequalities or any(operator not in ("<", "<=") for operator, _ in inequalities):
        return False
    letter, solutions = _solve(inequalities)
    return written.label in ("", letter) and bool(_set(written) == solutions)


def _solve(inequalities: Sequence[tuple[str, ExprNode]]) -> tuple[str, Any]:
    import sympy

    solutions: Any = sympy.S.Reals
    letter = None
    for operator, difference in inequalities:
        left = _expression(difference)
        letters = left.free_symbols
        if len(letters) != 1 or (letter is not None and letters != {letter}):
            raise _NotConvertibleError
        (letter,) = letters
        relation = left < 0 if operator == "<" else left <= 0
        part = sympy.solve_univariate_inequality(relation, letter, relational=False)
        solutions = solutions.intersect(part)
    return str(letter), solutions


def _set(answer: ParsedAnswer) -> Any:
    import sympy

    if answer.kind == "scalar" and answer.node is not None and not answer.unit:
        return sympy.FiniteSet(_expression(answer.node))
    if answer.kind == "seq":
        if len(answer.items) != 2 or len(answer.shape) != 2 or answer.shape == "{}":
            raise _NotConvertibleError
        ends = [item.node for item in answer.items]
        if ends[0] is None or ends[1] is None:
            raise _NotConvertibleError
        low, high = _expression(ends[0]), _expression(ends[1])
        return sympy.Interval(low, high, answer.shape[0] == "(", answer.shape[1] == ")")
    parts = [_set(item) for item in answer.items]
    if answer.kind == "cap" or answer.shape == "and":
        return sympy.Intersection(*parts)
    if answer.kind == "setminus":
        return sympy.Complement(*parts)
    if answer.kind in ("set", "union", "list"):
        return sympy.Union(*parts)
    raise _NotConvertibleError


def _same_expression(answer: str, gold: str) -> bool:
    import sympy

    return any(
        sympy.simplify(_expression(left) - _expression(right)) == 0
        for left, right in product(_readings(answer), _readings(gold))
    )


def _readings(text: str) -> Iterator[ExprNode]:
    # Yield the expression of a text; for nested bars, one for each way to pair them.
    answer = read_answer(text)
    if answer is not None and answer.node is not None and not answer.unit:
        yield answer.node
        return
    pieces = _BAR.split(text)
    if answer is None or answer.kind != "text" or not 4 <= len(pieces) - 1 <= _MAX_BARS:
        return
    for opens in product((True, False), repeat=len(pieces) - 1):
        bars = [r"\operatorname{abs}(" if is_open else ")" for is_open in opens]
        if sum(opens) * 2 != len(bars):
            continue
        pieced = "".join(piece + bar for piece, bar in zip(pieces, [*bars, ""], strict=True))
        reading = read_answer(pieced)
        if reading is not None and reading.node is not None and not reading.unit:
            yield reading.node


_SYMPY_NAMES: Final = {
    "abs": "Abs", "max": "Max", "min": "Min", "ln": "log", "ceil": "ceiling", "mod": "Mod",
    "arcsin": "asin", "arccos": "acos", "arctan": "atan", "arccot": "acot", "arcsec": "asec",
    "arccsc": "acsc", "arsinh": "asinh", "arcosh": "acosh", "artanh": "atanh",
    **{name: name for name in (
        "sin", "cos", "tan", "cot", "sec", "csc", "sinh", "cosh", "tanh", "coth", "sech", "csch",
        "floor", "sign", "gcd", "lcm", "erf", "erfc",
    )},
}  # fmt: skip


def _expression(node: ExprNode) -> Any:
    # Convert a tree to sympy, with real symbols; no towers of powers, no big numbers.
    import sympy

    op, args = node.op, node.args
    if op == "pow":
        size = rational(args[1])
        is_tower = any(part.op == "pow" for part in subtrees(args[1]))
        if is_tower or (size is not None and abs(size.numerator) > _MOST_EXPONENT):
            raise _NotConvertibleError
    if op == "num" and bits(args[0]) <= _MOST_BITS:
        return sympy.Rational(args[0].numerator, args[0].denominator)
    if op == "sym":
        return sympy.Symbol(args[0], real=True)
    if op == "const":
        return {"pi": sympy.pi, "e": sympy.E, "i": sympy.I, "inf": sympy.oo}[args[0]]
    if op == "call" and args[0] in _SYMPY_NAMES:
        return getattr(sympy, _SYMPY_NAMES[args[0]])(*map(_expression, args[1:]))
    if op in ("add", "mul", "pow"):
        function = {"add": sympy.Add, "mul": sympy.Mul, "pow": sympy.Pow}[op]
        return function(*map(_expression, args))
    raise _NotConvertibleError
