"""Kernels: plain functions of a module that are replaced by their compiled forms at first use."""

from __future__ import annotations

from collections.abc import Iterable
from threading import Lock
from typing import Any

_LOCK = Lock()


def compile_in(module: dict[str, Any], names: Iterable[str]) -> None:
    """Replace the functions `names` in a module's `globals()` by compiled ones, once."""
    # They are compiled by numba when they are called first, or loaded from the cache beside the
    # module's file. As globals, and not as a closure, they may call one another and still be
    # cached. A kernel must not call itself: numba 0.65 crashes when it takes such a one from the
    # cache.
    from numba import njit

    with _LOCK:  # graders run on threads
        for name in names:
            if not hasattr(module[name], "py_func"):
                module[name] = njit(cache=True, nogil=True)(module[name])
