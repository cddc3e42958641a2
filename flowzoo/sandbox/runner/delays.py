"""Time that a process waited for a processor, from the kernel's statistics of each thread."""

import contextlib
import os

OWN = "self"  # name in /proc of the observing process


class RunDelay:
    """Seconds that a process and its monitor, which has one thread, waited for a processor.

    The thread that waited longest counts, so more threads do not give a program more time. It is 0
    if the kernel does not report it (no Linux, statistics off, no /proc).
    """

    def __init__(self, proc: int | None) -> None:
        self._proc, self._process = proc, ""
        self._own = self._own_total()
        self._threads: dict[str, int] = {}

    def follow(self, pid: int) -> None:
        """Count the waiting of the process with this id in /proc, since its start; 0: unknown."""
        self._process = str(pid) if pid and self._proc is not None else ""

    def reset(self) -> None:
        """Start counting now."""
        self._own, self._threads = self._own_total(), self._thread_totals()

    def seconds(self) -> float:
        """Seconds since `reset`, or since this object was made and the process started."""
        if not self._process:
            return 0.0
        threads = self._thread_totals().items()
        longest = max(
            (total - self._threads.get(thread, 0) for thread, total in threads), default=0
        )
        return (self._own_total() - self._own + longest) * 1e-9

    def _own_total(self) -> int:
        return 0 if self._proc is None else _read_delay(self._proc, OWN)

    def _thread_totals(self) -> dict[str, int]:
        totals: dict[str, int] = {}
        if not self._process:
            return totals
        with contextlib.suppress(OSError):  # it has ended
            name = f"{self._process}/task"
            folder = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._proc)
            try:
                for thread in os.listdir(folder):
                    totals[thread] = _read_delay(folder, thread)
            finally:
                os.close(folder)
        return totals


def _read_delay(folder: int, thread: str) -> int:
    try:
        file = os.open(f"{thread}/schedstat", os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        return 0
    try:
        return int(os.read(file, 64).split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    finally:
        os.close(file)


def own_number(proc: int | None) -> int:
    """The id of this process in a /proc; 0 without one."""
    if proc is None:
        return 0
    try:
        return int(os.readlink(OWN, dir_fd=proc))
    except (OSError, ValueError):
        return 0
