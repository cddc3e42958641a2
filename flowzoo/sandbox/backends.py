"""Protocols of sandbox backends, which start boxes, and of connections to boxes.

A box is a process with the runner (`flowzoo/sandbox/runner`), which communicates by frames.
"""

from pathlib import Path
from typing import Any, Literal, Protocol

from flowzoo.errors import FlowzooError, UsageError
from flowzoo.sandbox.program import Limits

LocalTier = Literal["namespaces", "landlock", "unsafe"]

RUNNER = Path(__file__).parent / "runner"
# Flags of the interpreter: like -I, but with PYTHONHASHSEED.
FLAGS = ("-s", "-P", "-S", "-B")
READ_BYTES = 1 << 16
LEAST_MEMORY_MB = 32
STDERR_BYTES = 4096  # bytes kept of a box's stderr, which is empty unless it breaks

# The whole environment of a box: no variables of the caller, which may be secret.
ENVIRONMENT = {
    "PYTHONHASHSEED": "0",
    "PYTHONUTF8": "1",
    "PATH": "/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "MALLOC_ARENA_MAX": "1",
    "LD_BIND_NOW": "1",  # compiled once in the runner, not in each process forked from it
}


class BoxError(FlowzooError):
    """A box could not be started, broke, hung or disappeared; never a verdict on a program."""


class BoxRefusedError(BoxError):
    """A box reported why it cannot be created here; a retry would fail too."""


class KilledError(BoxError):
    """A signal with an unknown sender ended a process; only a retry shows the cause."""


def check_memory(tier: str, limits: Limits) -> None:
    """Raise UsageError if the memory limit is too low for the interpreter."""
    if limits.memory_mb < LEAST_MEMORY_MB:
        raise UsageError(
            f"the {tier} tier cannot enforce memory_mb={limits.memory_mb}: the interpreter itself "
            f"needs more; set at least {LEAST_MEMORY_MB}"
        )


def describe_end(ended: str, stderr: bytes | bytearray) -> str:
    """Describe the end of a box in one line, with the end of its stderr."""
    lines = bytes(stderr).decode("utf-8", "replace").split("\n")
    text = " | ".join(line.strip() for line in lines if line.strip())
    return f"{ended}: {text[-600:]}" if text else ended


class BoxConnection(Protocol):
    """The host's connection to a running box; belongs to one event loop."""

    async def read(self) -> bytes:
        """Return the next bytes from the box; b"" at its end. Never raises if the box has ended."""
        ...

    async def write(self, data: bytes) -> None:
        """Send bytes; raises OSError if the box has ended."""
        ...

    async def kill(self) -> None:
        """Kill the box and wait until nothing is left. May be called again."""
        ...

    def exit_summary(self) -> str:
        """Describe the end of the box in one line: exit status, engine's reason, end of stderr."""
        ...

    def forget(self) -> None:
        """In a fork of the owner: close the inherited descriptors without an event loop."""
        ...


class Backend(Protocol):
    """Starts boxes of one tier."""

    tier: str
    trust: str
    """Description of the isolation in one line."""

    async def start(self) -> BoxConnection:
        """Start a fresh box, which then warms up. Boxes may be started in parallel.

        Raises:
            BoxError: it cannot be started; the message has the reason and the remedy.
        """
        ...

    def check(self, limits: Limits) -> None:
        """Check that the tier can enforce `limits`.

        Raises:
            UsageError: it cannot; the message has the possible limits.
        """
        ...

    def describe(self) -> dict[str, Any]:
        """Plain facts for a run's record: image, runtime, interpreter …"""
        ...

    def close(self) -> None:
        """Remove all boxes; called from any thread when no loop uses them."""
        ...

    def forget(self) -> None:
        """In a fork of the owner: close inherited resources without affecting the owner's boxes."""
        ...
