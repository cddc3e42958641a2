"""Protocols of sandbox backends, which start boxes, and of connections to boxes.

A box is a process that runs the runner (`flowzoo/sandbox/runner`) and speaks its frames.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Protocol

from flowzoo.errors import FlowzooError, UsageError
from flowzoo.sandbox.program import Limits

LocalTier = Literal["namespaces", "landlock", "unsafe"]

RUNNER = Path(__file__).parent / "runner"
# Flags of the interpreter: as -I, which would also ignore PYTHONHASHSEED.
FLAGS = ("-s", "-P", "-S", "-B")
READ_BYTES = 1 << 16
LEAST_MEMORY_MB = 32
STDERR_BYTES = 4096  # bytes kept of what a box says on stderr; it says nothing unless it breaks

# All that a box finds in its environment: nothing of the caller's, which may be secret.
ENVIRONMENT = {
    "PYTHONHASHSEED": "0",
    "PYTHONUTF8": "1",
    "PATH": "/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "MALLOC_ARENA_MAX": "1",
    "LD_BIND_NOW": "1",  # once in the runner, not in each process forked from it
}


class BoxError(FlowzooError):
    """A box could not be started, broke, hung or vanished: never the fault of a verdict."""


class BoxRefusedError(BoxError):
    """A box said itself why it cannot be made here: another one would say the same."""


class KilledError(BoxError):
    """A signal that others send ended a process; only asking again tells whose doing it was."""


def check_memory(tier: str, limits: Limits) -> None:
    """Raise UsageError if the interpreter, which the limit includes, needs more memory."""
    if limits.memory_mb < LEAST_MEMORY_MB:
        raise UsageError(
            f"the {tier} tier cannot enforce memory_mb={limits.memory_mb}: the interpreter itself "
            f"needs more; ask for at least {LEAST_MEMORY_MB}"
        )


def describe_end(ended: str, stderr: bytes | bytearray) -> str:
    """One line about the end of a box, with the end of its stderr."""
    lines = bytes(stderr).decode("utf-8", "replace").split("\n")
    text = " | ".join(line.strip() for line in lines if line.strip())
    return f"{ended}: {text[-600:]}" if text else ended


class BoxConnection(Protocol):
    """The host's end of a running box; belongs to one event loop."""

    async def read(self) -> bytes:
        """The next bytes from the box; b"" at its end. Never raises for a box that is gone."""
        ...

    async def write(self, data: bytes) -> None:
        """Send bytes; OSError where the box is gone."""
        ...

    async def kill(self) -> None:
        """Kill the box; returns when nothing is left. May be called again."""
        ...

    def exit_summary(self) -> str:
        """Describe its end in a line: exit status, reason of the engine, end of stderr."""
        ...

    def forget(self) -> None:
        """In a fork of the owner: close the inherited descriptors, and call no loop."""
        ...


class Backend(Protocol):
    """Starts boxes of one tier."""

    tier: str
    trust: str
    """One line: what a program under this tier cannot do."""

    async def start(self) -> BoxConnection:
        """A fresh box that is warming up. Boxes may be started in parallel.

        Raises:
            BoxError: it cannot be started; the message says why and what to do.
        """
        ...

    def check(self, limits: Limits) -> None:
        """Look whether the tier can enforce `limits`.

        Raises:
            UsageError: it cannot; the message says what it can.
        """
        ...

    def describe(self) -> dict[str, Any]:
        """Plain facts for a run's record: image, runtime, interpreter …"""
        ...

    def close(self) -> None:
        """Remove all boxes; called from any thread once no loop uses them."""
        ...

    def forget(self) -> None:
        """In a fork of the owner: let go of what was inherited, and touch no box of the owner."""
        ...
