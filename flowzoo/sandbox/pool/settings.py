"""What a pool may be asked: its settings and jobs, checked where the user hands them over."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from flowzoo.errors import UsageError
from flowzoo.sandbox.pool.protocol import MAX_BYTES

LEAST_MEMORY = 2**25
"""Bytes of address space below which not even an empty interpreter starts."""

MOST_DEADLINE = 86_400
"""Seconds: the longest deadline of a job."""

_SETUP = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSettings:
    """What a pool runs and within which limits; callers with equal settings can share one pool.

    Raises:
        UsageError: a set-up of another form, or a number out of range.
    """

    setup: str
    """ "module:function", imported and called in the zygote; returns the handler."""
    workers: int
    """Most processes at a time."""
    deadline: float
    """Seconds a job may take from its dispatch to a free worker; a batch may bring its own."""
    memory_bytes: int
    """Address space of a worker."""
    cpu_seconds: int | None
    """CPU time of a job; None: the deadline, rounded up, and one second."""
    env: tuple[tuple[str, str], ...]
    """Variables added to the zygote's environment."""
    recycle_after: int
    """Jobs after which a worker is replaced."""
    name: str
    """Of the dispatcher's thread, and in messages."""

    def __post_init__(self) -> None:
        """Check every setting."""
        if not _SETUP.fullmatch(self.setup):
            raise UsageError(f"setup is 'module:function', importable by name, not {self.setup!r}")
        for label in ("workers", "recycle_after"):
            if getattr(self, label) < 1:
                raise UsageError(f"{label} is at least 1, not {getattr(self, label)}")
        seconds, memory = self.cpu_seconds, self.memory_bytes
        if seconds is not None and seconds < 1:
            raise UsageError(f"cpu_seconds is 1, 2, ... (the kernel counts so), not {seconds}")
        if memory < LEAST_MEMORY:
            raise UsageError(f"memory_bytes is at least {LEAST_MEMORY} (32 MiB), not {memory}")
        check_deadline(self.deadline)


def usable_cores() -> int:
    """Cores this process may run on."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def check_deadline(deadline: float) -> float:
    """`deadline`, which must be a positive number of seconds, a day at most."""
    if not 0 < deadline <= MOST_DEADLINE:
        raise UsageError(f"deadline is in (0, {MOST_DEADLINE}] seconds, not {deadline!r}")
    return deadline


def check_jobs(jobs: Sequence[bytes]) -> list[bytes]:
    """`jobs` as a list, each of them bytes of an allowed length."""
    if isinstance(jobs, bytes | bytearray | str):
        raise UsageError("jobs is a sequence of bytes objects, not one such object")
    checked = list(jobs)
    for idx, job in enumerate(checked):
        if type(job) is not bytes:
            raise UsageError(f"job {idx} is bytes, not {type(job).__name__}")
        if len(job) > MAX_BYTES:
            raise UsageError(f"job {idx} has {len(job)} bytes; at most {MAX_BYTES} are allowed")
    return checked
