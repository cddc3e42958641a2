"""Time that a process waited for a processor, from the kernel's statistics of each thread."""

from __future__ import annotations

import contextlib
import os

OWN = "self"  # name in /proc of the observing process


class RunDelay:
    """Seconds that a process, or its monitor, waited for a processor.

    The thread that waited longest counts, so more threads do not give a program more time. It is 0
    if the kernel does not report it (no Linux, statistics off, no /proc).
    """

    def __init__(self, proc: int | None, pid: int) -> None:
        self._proc, self._pid = proc, pid
        self._start: dict[tuple[str, str], int] = {}

    def reset(self) -> None:
        """Start counting now."""
        self._start = self._read()

    def seconds(self) -> float:
        """Seconds of delay since `reset`, or since the process started."""
        waited = {OWN: 0, str(self._pid): 0}
        for (process, thread), total in self._read().items():
            more = total - self._start.get((process, thread), 0)
            waited[process] = max(waited[process], more)
        return sum(waited.values()) * 1e-9

    def _read(self) -> dict[tuple[str, str], int]:
        totals: dict[tuple[str, str], int] = {}
        if self._proc is None or not self._pid:
            return totals
        for process in (OWN, str(self._pid)):
            with contextlib.suppress(OSError):  # it has ended
                folder = os.open(f"{process}/task", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._proc)
                try:
                    for thread in os.listdir(folder):
                        totals[process, thread] = _read_delay(folder, thread)
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
