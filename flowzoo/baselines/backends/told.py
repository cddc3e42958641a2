"""Errors of one process of a run, told to another."""

from __future__ import annotations

import pickle

from flowzoo.errors import FlowzooError


def tell(who: str, error: Exception) -> bytes | str:
    """An error for other processes: itself where it can be sent, else what it says."""
    said = f"{who} stopped: {type(error).__name__}: {error}"
    if not isinstance(error, FlowzooError):
        return said
    try:
        sent = pickle.dumps(error)
        pickle.loads(sent)  # noqa: S301  # our own, of a moment ago
    except Exception:  # whatever a class of somebody's own does
        return said
    return sent


def hear(told: bytes | str, kind: type[FlowzooError]) -> FlowzooError:
    """The error that another process of this run has told of; one of `kind` if it is words."""
    return kind(told) if isinstance(told, str) else pickle.loads(told)  # noqa: S301  # of this run
