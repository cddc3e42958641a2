"""A bound on the work of one comparison, counted in visited nodes, so that it is repeatable.

Outside of `Bounded` nothing is counted. A scope inside another one shares its budget.
"""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Final

_BUDGET: Final = 150_000
"""Nodes in doubles; a node at many digits costs a dozen and more."""


class UnreliableValueError(Exception):
    """A value that cannot be trusted, or that is out of reach."""


class _State(threading.local):
    left: int | None = None


_state = _State()


class Bounded:
    """`with Bounded():` gives what is compared inside one budget."""

    def __enter__(self) -> None:
        """Begin, unless a budget is there already."""
        self.is_first = _state.left is None
        if self.is_first:
            _state.left = _BUDGET

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End."""
        if self.is_first:
            _state.left = None


def spend(units: int) -> None:
    """Count work.

    Raises:
        UnreliableValueError: the budget is used up.
    """
    if _state.left is not None:
        _state.left -= units
        if _state.left < 0:
            raise UnreliableValueError


def is_spent() -> bool:
    """Whether the budget is used up, so that nothing further was looked at."""
    return _state.left is not None and _state.left < 0
