"""`threading` and `random`, without what they do after every fork.

Both repair themselves in each child, which costs 0.6 ms and 160 pages. Where the parent has one
thread only, as here, there is nothing to repair but the seed and the thread's number, of which
`inside.wake_up` takes care.
"""

from __future__ import annotations

import os

_register = os.register_at_fork
os.register_at_fork = lambda **hooks: None
try:
    import random
    import threading
finally:
    os.register_at_fork = _register


def register_hooks() -> None:
    """Have them repair themselves after all: for a box in which programs can fork."""
    os.register_at_fork(after_in_child=threading._after_fork)  # type: ignore[attr-defined]
    os.register_at_fork(after_in_child=random.seed)
