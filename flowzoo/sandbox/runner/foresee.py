"""Prediction of a test's calls by running its code with stand-ins for the results.

A wrong prediction only costs time: each call of the test is compared with it.
"""

import ast
import random
import resource
import signal
import sys
import time
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

MOST_CALLS = 20_000  # most calls predicted at a time
# Calls that are sent together: the first number and the maximum, doubling. The program works on
# them while more are predicted.
AT_ONCE, MOST_AT_ONCE = 64, 1024
MOST_SOURCE = 200_000  # most bytes of a test that is parsed to a tree; more take seconds
# CPU seconds of a prediction in addition to the test's so far; their maximum; and until the next
# interrupt if the code catches the first one.
_CPU_S, _MOST_CPU_S, _AGAIN_S = 0.1, 0.5, 0.05

# Encodes the call in this frame; raises if an argument is not plain data, such as a stand-in.
Call = Callable[[tuple[Any, ...], dict[str, Any], types.FrameType], bytes]
# Reads the answer to a call with these arguments: returns a result or raises an exception. The last
# argument returns the answer to a message.
Read = Callable[[bytes, bytes, "tuple[Any, ...]", "dict[str, Any]", Callable[[bytes], bytes]], Any]
Tell = Callable[[list[bytes]], None]  # receives predicted calls
# Runs the test's code in a fresh namespace with this entry; the flag means to ignore failures.
Run = Callable[[Callable[..., Any], bool], None]


class _EnoughError(BaseException):
    """Ends a prediction."""


class StandIn:
    """Stand-in for an unknown result that satisfies every operation."""

    def __getattr__(self, name: str) -> "StandIn":
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __len__(self) -> int:
        return 1

    __int__ = __index__ = __hash__ = __len__

    def __float__(self) -> float:
        return 1.0

    def __complex__(self) -> complex:
        return 1 + 0j

    def __bool__(self) -> bool:
        return True

    def __str__(self) -> str:
        return "?"

    def __iter__(self) -> "Iterator[StandIn]":
        return iter((self,))


def _agree(self: StandIn, *args: object, **kwargs: object) -> bool:
    return True


def _stay(self: StandIn, *args: object, **kwargs: object) -> StandIn:
    return self


_ARITHMETIC = (
    "add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "divmod", "pow", "lshift",
    "rshift", "and", "xor", "or",
)  # fmt: skip
for _name in ("eq", "ne", "lt", "le", "gt", "ge", "contains"):
    setattr(StandIn, f"__{_name}__", _agree)
for _name in (
    "neg", "pos", "abs", "invert", "round", "call", "getitem", "setitem", "delitem", "reversed",
    "enter", "exit", *_ARITHMETIC, *(f"r{name}" for name in _ARITHMETIC),
):  # fmt: skip
    setattr(StandIn, f"__{_name}__", _stay)


_STAND_IN = StandIn()


def mortal_stand_in(uses: int) -> StandIn:
    """Make a stand-in that ends the prediction after a number of uses."""
    left = uses

    def counted(method: Callable[..., object]) -> Callable[..., Any]:
        def use(*args: object, **kwargs: object) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                raise _EnoughError
            return method(*args, **kwargs)

        return use

    methods = {name: counted(what) for name, what in vars(StandIn).items() if callable(what)}
    return type("StandIn", (StandIn,), methods)()


class Listener:
    """Stand-in for the program's entry that records calls."""

    def __init__(
        self, results: Sequence[tuple[bytes, bytes]], encode: Call, read: Read, tell: Tell,
        result: StandIn = _STAND_IN,
    ) -> None:  # fmt: skip
        self.known, self.encode, self.read, self.tell = results, encode, read, tell
        self.calls: list[bytes] = []
        self.result = result
        self.told = self.start = len(results)
        self.ended = False
        self._at_once = AT_ONCE

    def __call__(self, *args: object, **kwargs: object) -> Any:
        """Record the call; return its known result, or a stand-in."""
        index = len(self.calls)
        if self.ended or index >= self.start + MOST_CALLS:
            raise _EnoughError
        try:
            call = self.encode(args, kwargs, sys._getframe(1))
        except BaseException:
            self.ended = True
            raise _EnoughError from None
        if index < self.start:
            return self.read(self.recall(call), call, args, kwargs, self.recall)
        self.calls.append(call)
        if index >= self.told + self._at_once:
            self.tell_rest()
            self._at_once = min(2 * self._at_once, MOST_AT_ONCE)
        return self.result

    def recall(self, call: bytes) -> bytes:
        """Return the known answer to a call; end the prediction if there is none."""
        index = len(self.calls)
        if index >= self.start or self.known[index][0] != call:
            self.ended = True
            raise _EnoughError
        self.calls.append(call)
        return self.known[index][1]

    def tell_rest(self) -> None:
        """Pass on the calls found since the last time."""
        fresh, self.told = self.calls[self.told :], len(self.calls)
        self.tell(fresh)


class Foresight:
    """Predictor of calls, made before the test's code first runs."""

    def __init__(self, run: Run, encode: Call, read: Read) -> None:
        self.run, self.encode, self.read = run, encode, read
        self._start = _random_states()

    def look(self, results: Sequence[tuple[bytes, bytes]], tell: Tell) -> None:
        """Find the calls after the `known` ones."""
        now, sleep = _random_states(), time.sleep
        time.sleep = _do_not_sleep
        keys: list[bytes] = []

        clock = _Clock()

        def tell_new(fresh: list[bytes]) -> None:
            rings, clock.rings = clock.rings, False  # interrupting a message would be worse
            keys.extend(fresh)
            tell(fresh)
            clock.rings = rings

        for lenient in (False, True):
            for restore, state in self._start:
                restore(state)
            listener = Listener(results, self.encode, self.read, tell_new)
            if lenient:  # skip calls that were already passed on
                listener.told += len(keys)
            clock.rings = True
            try:
                try:
                    clock.start()
                    self.run(listener, lenient)
                finally:
                    clock.rings = False
                clock.stop()
                ended = True
            except BaseException:
                clock.stop()
                ended = False
            if listener.calls[len(results) :][: len(keys)] == keys:
                listener.tell_rest()
            if ended:
                break
        time.sleep = sleep
        for restore, state in now:
            restore(state)


def _do_not_sleep(_: object, /) -> None:
    """Replacement of `time.sleep`, since the wall clock keeps running during a prediction."""


class _Clock:
    def __init__(self) -> None:
        self.rings = True
        self._before: Any = signal.getsignal(signal.SIGPROF)

    def start(self) -> None:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        seconds = min(_MOST_CPU_S, _CPU_S + usage.ru_utime + usage.ru_stime)
        signal.signal(signal.SIGPROF, self._ring)
        signal.setitimer(signal.ITIMER_PROF, seconds, _AGAIN_S)

    def stop(self) -> None:
        # Retry, in case the timer fired while it was being switched off.
        self.rings = False
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, self._before)

    def _ring(self, *_: object) -> None:
        if self.rings:
            raise _EnoughError


def lenient_code(source: bytes, name: str) -> types.CodeType:
    """The code of a test with assertions and call statements that cannot fail."""
    if len(source) > MOST_SOURCE:
        raise ValueError(f"{len(source)} bytes")
    tree = _Lenient().visit(ast.parse(source))
    return compile(ast.fix_missing_locations(tree), name, "exec", dont_inherit=True)


class _Lenient(ast.NodeTransformer):
    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        return _wrap(ast.Assert(node.test))

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        return _wrap(node) if isinstance(node.value, ast.Call) else node


def _wrap(node: ast.stmt) -> ast.Try:
    handler = ast.ExceptHandler(ast.Name("Exception", ast.Load()), None, [ast.Pass()])
    return ast.Try([node], [handler], [], [])


def _random_states() -> list[tuple[Callable[[Any], None], Any]]:
    states: list[tuple[Callable[[Any], None], object]] = [(random.setstate, random.getstate())]
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        states.append((numpy.set_state, numpy.get_state()))
    return states
