"""Settings of the whole process for computing with torch."""

import ctypes
import os

import torch

_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8
"""Parameters of glibc's mallopt(3)."""


def prepare_process(threads: int) -> None:
    """Set the number of torch's threads, unless it is 0, and keep freed memory.

    A step allocates what the step before it has freed. Memory from the system is cleared page by
    page, which takes several times as long as what is computed on it. All threads share one heap,
    or the learner could not use what the sampler's thread has freed. The C library's variables
    (MALLOC_…, GLIBC_TUNABLES) have precedence.
    """
    if threads:
        torch.set_num_threads(threads)
    library = ctypes.CDLL(None)
    chosen = "glibc.malloc." in os.environ.get("GLIBC_TUNABLES", "")
    chosen = chosen or any(name.startswith("MALLOC_") for name in os.environ)
    if hasattr(library, "mallopt") and not chosen:
        library.mallopt(_M_MMAP_MAX, 0)
        library.mallopt(_M_TRIM_THRESHOLD, -1)
        library.mallopt(_M_ARENA_MAX, 1)
