"""Waits: one that takes long is named in a line, and one that takes too long is given up.

    ANSWERS = WaitKind("the run ends")
    with ANSWERS.wait("policy 'solver'"):
        ...

docs/waits.md has all kinds with their lines and limits.
"""

import contextlib
import ctypes
import logging
import math
import os
import signal
import statistics
import sys
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby

from flowzoo.errors import FlowzooError

NAMED_AFTER_S = 60.0
"""Least seconds after which a wait is named, and again after twice, four times... as many."""
LIMIT_S = 3600.0
"""Least seconds after which a wait is given up, of kinds without another limit."""
FIRST_LIMIT_S = 24 * 3600.0
"""The same before any answer, when the usual time is unknown."""
_NAMED, _LIMIT = 10, 100
"""The same as multiples of the usual time."""
_LAST = 64
"""Answers that tell the usual time."""
_MOST_NAMES = 4
_LOOK_S = 1.0
_log = logging.getLogger("flowzoo")


class LateError(FlowzooError, RuntimeError):
    """No answer came within the limit, or a function did not end."""


class _LateCall(KeyboardInterrupt):
    """Ends a user's function, whose `except Exception` must not catch it."""


@dataclass(eq=False, slots=True)
class Wait:
    """A wait that has begun."""

    kind: "WaitKind"
    name: str
    of: str = ""
    """Part of the kind whose usual time it is compared with, such as a policy."""
    limit_s: float = math.inf
    give_up: Callable[[], object] | None = None
    """Called once at the limit, in another thread."""
    began: float = field(default_factory=time.monotonic)
    due: float = 0.0
    """Seconds after which it is named next; 0: as the kind says."""

    @property
    def ended(self) -> bool:
        """True after its end."""
        return self not in _open

    @property
    def seconds(self) -> float:
        """Seconds since it began, or since the last answer where that shows that all is well."""
        since = self.kind.last.get(self.of, 0.0) if self.kind.is_shared else 0.0
        return time.monotonic() - max(self.began, since)

    def end(self, answered: bool = True) -> None:
        """End the wait; an answer tells the usual time."""
        _open.pop(self, None)
        self.give_up = None  # which may hold what waits, and this
        if answered:
            now = time.monotonic()
            self.kind.answered[self.of].append(now - self.began)
            self.kind.last[self.of] = now


@dataclass(eq=False)
class WaitKind:
    """Waits of one kind, which are compared with each other."""

    then: str
    """Consequence of the limit, for the line."""
    floor_s: float = math.inf
    """In place of `NAMED_AFTER_S`, if it is less."""
    line: str = "no answer for {seconds:.0f} s from {names}"
    is_shared: bool = False
    """True if one answerer has many questions, so that any answer shows that it is well."""
    usual: Callable[[Iterable[float]], float] = statistics.median
    """The usual time of the last answers; `max` where they are to questions of many sizes."""
    last: dict[str, float] = field(default_factory=dict)
    """Time of the last answer, by part of the kind."""
    answered: defaultdict[str, deque[float]] = field(
        default_factory=lambda: defaultdict(lambda: deque(maxlen=_LAST))
    )
    """Seconds of the last waits that ended with an answer, by part of the kind."""

    def usual_s(self, of: str = "") -> float:
        """Usual time of the last answers; 0: none yet."""
        return self.usual(self.answered[of]) if self.answered[of] else 0.0

    def limit_s(self, of: str = "") -> float:
        """Seconds after which a wait without another limit is given up."""
        usual = self.usual_s(of)
        default = max(LIMIT_S, _LIMIT * usual) if usual else FIRST_LIMIT_S
        return LIMITS.wait_s or default

    def begin(
        self, name: str, of: str = "", *,
        limit_s: float = math.inf, give_up: Callable[[], object] | None = None,
    ) -> Wait:  # fmt: skip
        """Begin a wait, which its `end` must end.

        Args:
            name: who is waited for.
            of: see `Wait`.
            limit_s: most seconds; infinity: none is stated.
            give_up: see `Wait`.
        """
        _start_watching()
        wait = Wait(self, name, of, limit_s, give_up)
        _open[wait] = None
        return wait

    @contextmanager
    def wait(
        self, name: str, of: str = "", *,
        limit_s: float = math.inf, give_up: Callable[[], object] | None = None,
    ) -> Iterator[Wait]:  # fmt: skip
        """Wait until the block ends; see `begin`."""
        wait = self.begin(name, of, limit_s=limit_s, give_up=give_up)
        answered = False
        try:
            yield wait
            answered = True
        finally:
            wait.end(answered)

    def tell(self, waits: Iterable[Wait]) -> None:
        """Name in a line the `waits` that are due."""
        due = []
        for wait in waits:
            first = max(min(self.floor_s, NAMED_AFTER_S), _NAMED * self.usual_s(wait.of))
            if (wait.due or first) <= wait.seconds < wait.limit_s:
                wait.due = 2 * wait.seconds
                due.append(wait)
        if not due:
            return
        longest = min(due, key=lambda wait: wait.began)
        names = sorted({wait.name for wait in due})
        more = [f"{len(names) - _MOST_NAMES} others"] if len(names) > _MOST_NAMES else []
        text = self.line.format(
            seconds=longest.seconds, names=", ".join(names[:_MOST_NAMES] + more)
        )
        usual = self.usual_s(longest.of)
        after = f"after {longest.limit_s:.0f} s " if longest.limit_s < math.inf else ""
        compared = f" (usually {usual:.2g} s)" if usual else ""
        _log.warning("%s%s; %s%s", text, compared, after, self.then)


@dataclass
class WaitLimits:
    """The user's limits of this process, in seconds; 0: the defaults."""

    wait_s: float = 0.0
    """Limit of an answer."""
    function_s: float = 0.0
    """Limit of a call of a user's function."""
    abandoned: bool = False
    """True if a thread was given up, for which the end of the process must not wait."""

    def put(self, wait_s: float, function_s: float) -> None:
        """Set both limits."""
        self.wait_s, self.function_s = wait_s, function_s


LIMITS = WaitLimits()
"""Limits of this process."""
FUNCTIONS = WaitKind(
    "it is ended (--function-limit), or by Ctrl-C", line="{names} has run for {seconds:.0f} s"
)
"""Calls of users' functions."""
LOCKS = WaitKind("the command ends", 5.0)
"""Locks of files, which other processes or the file system hold."""

_open: dict[Wait, None] = {}
_calls: dict[int, Wait] = {}
"""Innermost call of a user's function, by thread."""
_ending = threading.Lock()
_watcher: threading.Thread | None = None


@contextmanager
def function_call(name: str) -> Iterator[None]:
    """Let a user's function run in the block, at most for `LIMITS.function_s`.

    What it prints goes to stderr.

    Raises:
        LateError: it took longer.
    """
    limit, thread = LIMITS.function_s or math.inf, threading.get_ident()
    in_main = threading.current_thread() is threading.main_thread()
    if limit < math.inf and in_main:
        signal.signal(signal.SIGALRM, _raise_late)
    outer = _calls.get(thread)
    wait = _calls[thread] = FUNCTIONS.begin(name, limit_s=limit)
    late = threading.Thread(target=_end_call, args=(wait, thread), daemon=True)
    wait.give_up = late.start
    if outer is not None:
        outer.due = math.inf  # the inner call is named
    try:
        # In other threads a redirection could outlive the call.
        with contextlib.redirect_stdout(sys.stderr) if in_main else contextlib.nullcontext():
            yield
        _forget_call(wait, outer, thread)
    except _LateCall:
        raise LateError(
            f"{name} has not ended in {limit:g} s (--function-limit): mend it, or raise the limit"
        ) from None
    finally:
        _forget_call(wait, outer, thread)


def _forget_call(wait: Wait, outer: Wait | None, thread: int) -> None:
    with _ending:
        if _calls.get(thread) is not wait:
            return
        wait.end()
        if outer is None:
            del _calls[thread]
        else:
            _calls[thread], outer.due = outer, 0.0
        # What was raised and has not come yet would end something else.
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), None)


def _end_call(wait: Wait, thread: int) -> None:
    # A signal ends a sleep, too, but only the main thread gets one. The function may swallow what
    # is raised, so this is repeated until the call has ended.
    in_main = thread == threading.main_thread().ident
    while True:
        with _ending:
            if wait.ended:
                return
            if _calls.get(thread) is not wait:
                pass  # an inner call is ended at its own limit
            elif in_main:
                signal.pthread_kill(thread, signal.SIGALRM)
            else:
                raised = ctypes.c_ulong(thread), ctypes.py_object(_LateCall)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(*raised)
        time.sleep(_LOOK_S)


def _raise_late(number: int, frame: object) -> None:
    wait = _calls.get(threading.get_ident())
    if wait is not None and wait.seconds >= wait.limit_s:  # else the call has just ended
        raise _LateCall


def _forget_all() -> None:
    global _ending
    _open.clear()
    _ending = threading.Lock()  # which a thread may have held


os.register_at_fork(after_in_child=_forget_all)


def _start_watching() -> None:
    global _watcher
    if _watcher is None or not _watcher.is_alive():  # a fork has no threads
        _watcher = threading.Thread(target=_watch, name="waits", daemon=True)
        _watcher.start()


def _watch() -> None:
    while True:
        time.sleep(min(_LOOK_S, NAMED_AFTER_S / 4))
        waits = sorted(_open.copy(), key=lambda wait: id(wait.kind))
        for kind, group in groupby(waits, key=lambda wait: wait.kind):
            kind.tell(group)
        for wait in waits:
            give_up = wait.give_up
            if wait.seconds >= wait.limit_s and give_up is not None and wait in _open:
                wait.give_up = None
                give_up()
