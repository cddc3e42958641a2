"""Memory in use, on a GPU or of a process."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any


def status_bytes(name: str) -> int:
    """A size of this process from `/proc/self/status`, in bytes; 0 without /proc."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def peak_gib() -> float | None:
    """Peak GPU memory that torch allocated, in GiB; None on a CPU."""
    cuda = _cuda()
    return cuda.max_memory_allocated() / 2**30 if cuda else None


def held_bytes() -> int:
    """Memory in use: tensors on the GPU, or the whole process on a CPU."""
    cuda = _cuda()
    return cuda.memory_allocated() if cuda else status_bytes("VmRSS")


@contextmanager
def peak_memory(peaks: dict[str, int], name: str) -> Iterator[None]:
    """Put the peak of the block, in bytes, into `peaks[name]`; 0 without /proc."""
    cuda = _cuda()
    if cuda:
        cuda.reset_peak_memory_stats()
    else:
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins anew
    yield
    peaks[name] = cuda.max_memory_allocated() if cuda else status_bytes("VmHWM")


def _cuda() -> Any:
    """`torch.cuda` if torch was imported and there is a GPU, else None."""
    torch = sys.modules.get("torch")
    return torch.cuda if torch and torch.cuda.is_available() else None
