"""When garbage is looked for."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected(*, freeze: bool = False) -> Iterator[None]:
    """Around what makes much that lives on, as imports do: garbage is not looked for among it.

    It is looked for afterwards, if it was before. With `freeze` it is never looked for among what
    there is at the end, whose pages forks then share for as long as nobody writes to them.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if freeze:
            gc.freeze()
        if collecting:
            gc.enable()
