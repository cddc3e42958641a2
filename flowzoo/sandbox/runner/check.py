"""Run of a test's code in a box, with calls of the program in another box."""

import builtins
import os
import sys
import types
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import codec
import wire
from answers import give_up, read_answer
from calls import hear
from changes import is_for_effect, mark_shared
from foresee import MOST_SOURCE, Foresight, Listener, lenient_code, mortal_stand_in
from inside import PROGRAM, SAYS, compile_program, one_line, print_trace, say

# Number of single calls of a test before calls are predicted; many tests have no more.
ALONE = 1


# Most uses of results by a test that runs alone: a loop with more uses hangs because of them.
MOST_USES = 100_000
SCALARS = frozenset((int, str))  # types of arguments that no call changes


def run_test(blobs: list[bytes], entry: str, scope: dict[str, Any], style: str) -> None:
    """Run a test's setup, code and call, with a proxy as the program's entry."""
    codes = [compile_program(blob) for blob in blobs]
    if any(code is None for code in codes):
        return
    say(b"C")
    say(b"L")
    ready = dict(scope)
    name = entry.rpartition(".")[2]

    def run(names: dict[str, Any], parts: list[types.CodeType], ask: Callable[..., object]) -> None:
        setup, code, call = parts
        exec(setup, names)
        names["candidate"] = names[name] = ask
        for missing in missing_names((code, call), names):
            names[missing] = sys.modules.get(missing) or codec.Remote(missing)
        exec(code, names)
        exec(call, names)

    def run_ahead(ask: Callable[..., object], lenient: bool) -> None:
        parts = [lenient_code(blob, PROGRAM) for blob in blobs] if lenient else codes
        run(dict(ready), parts, ask)  # type: ignore[arg-type] - none of them is None

    if style == "alone":
        result = mortal_stand_in(MOST_USES)
        listener = Listener((), encode_call, read_answer, len, result)  # type: ignore[arg-type]
        try:
            run_ahead(listener, len(blobs[1]) <= MOST_SOURCE)
        except MemoryError:
            say(b"M")
        except BaseException:
            say(b"R")
        else:
            say(b"R")
        return
    caller = Caller(Foresight(run_ahead, encode_call, read_answer) if style == "check" else None)
    try:
        run(scope, codes, caller)  # type: ignore[arg-type] - none of them is None
    except BaseException as error:
        print_trace(error)
        say(b"M" if isinstance(error, MemoryError) else b"E", one_line(error))
    else:
        say(b"R")


def missing_names(codes: Iterable[types.CodeType], names: dict[str, Any]) -> set[str]:
    """Names that code uses without defining them: modules or classes of the program."""
    missing: set[str] = set()
    waiting = list(codes)
    while waiting:
        code = waiting.pop()
        missing.update(code.co_names)
        waiting += [part for part in code.co_consts if isinstance(part, types.CodeType)]
    return {name for name in missing if name not in names and not hasattr(builtins, name)}


class Caller:
    """Calls the program's entry in the other box and raises its builtin exceptions again."""

    def __init__(self, foresight: Foresight | None) -> None:
        self._foresight = foresight
        self._known: list[tuple[bytes, bytes]] = []
        self._sent: deque[bytes] = deque()  # calls with pending answers
        self._alone, self._patience = 0, ALONE

    def __call__(self, *args: object, **kwargs: object) -> Any:
        """Return the result of the program's entry for these arguments, or raise what it raised."""
        try:
            call = encode_call(args, kwargs, sys._getframe(1))
        except codec.UnsupportedTypeError as error:
            raise TypeError(f"an argument is no plain data: {error}") from None
        return read_answer(self.ask(call), call, args, kwargs, self.ask)

    def ask(self, call: bytes) -> bytes:
        """Send a call unless it was predicted, and return the answer."""
        if not self._sent:
            self._send(call)
        if self._sent.popleft() != call:
            give_up(wire.DEPARTED)
        answer = hear()
        if answer == wire.NO_MORE:
            os._exit(0)
        if self._foresight is not None:
            self._known.append((call, answer))
        return answer

    def _send(self, call: bytes) -> None:
        self._alone += 1
        if self._foresight is not None and self._alone > self._patience:
            # Predicting only a few calls at a time does not pay.
            self._alone, self._patience = 0, 2 * self._patience
            self._foresight.look(self._known, self._send_calls)
        if not self._sent or self._sent[0] != call:
            self._send_calls([call])

    def _send_calls(self, calls: list[bytes]) -> None:
        self._sent.extend(calls)
        data = memoryview(wire.pack_messages(calls))
        while data:
            data = data[os.write(SAYS, data) :]


def encode_call(args: tuple[object, ...], kwargs: dict[str, Any], frame: types.FrameType) -> bytes:
    """Message of the call in `frame`."""
    if not kwargs and SCALARS.issuperset(map(type, args)):  # a tenth of the time of many calls
        return wire.CALL + codec.encode(args)
    kind = wire.EFFECT if is_for_effect(args, kwargs, frame) else wire.CALL
    args = mark_shared(args)
    return kind + codec.encode([args, kwargs] if kwargs else args)
