"""Semaphores of `multiprocessing` for threads: programs have no processes and no shared memory."""

import sys
import threading
import types

_RECURSIVE = 0  # kind of a lock that its owner may acquire again; other kinds are semaphores


class SemLock:
    """The class of this name in `_multiprocessing`, within one process."""

    SEM_VALUE_MAX = 2**31 - 1
    handle, name = 0, None

    def __init__(self, kind: int, value: int, maxvalue: int, name: str, unlink: bool) -> None:
        self.kind, self.maxvalue = kind, maxvalue
        self._value, self._held, self._owner = value, 0, 0
        self._change = threading.Condition(threading.Lock())

    def acquire(self, block: bool = True, timeout: float | None = None) -> bool:
        """Wait until the value is greater than 0 and take one; False after the timeout."""
        seconds = None if block and timeout is None else max(0.0, timeout or 0.0) if block else 0.0
        with self._change:
            if self.kind == _RECURSIVE and self._is_mine():
                self._held += 1
                return True
            if not self._change.wait_for(lambda: self._value > 0, seconds):
                return False
            self._value -= 1
            self._held += 1
            self._owner = threading.get_ident()
            return True

    def release(self) -> None:
        """Give one back."""
        with self._change:
            if self.kind == _RECURSIVE:
                if not self._is_mine():
                    raise AssertionError("attempt to release recursive lock not owned by thread")
                if self._held > 1:
                    self._held -= 1
                    return
            elif self._value >= self.maxvalue:
                raise ValueError("semaphore or lock released too many times")
            self._value += 1
            self._held -= 1
            self._change.notify()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def _count(self) -> int:
        return self._held

    def _is_mine(self) -> bool:
        return self._held > 0 and self._owner == threading.get_ident()

    def _get_value(self) -> int:
        return self._value

    def _is_zero(self) -> bool:
        return self._value == 0

    def _after_fork(self) -> None:
        self._held = 0


def install() -> None:
    """Replace the module with the semaphores of the C library, which need shared memory."""
    module = types.ModuleType("_multiprocessing")
    module.SemLock, module.sem_unlink, module.flags = SemLock, lambda name: None, {}  # type: ignore[attr-defined]
    SemLock.__module__ = module.__name__
    sys.modules[module.__name__] = module
