"""Errors sent from one process of a run to another."""

from __future__ import annotations

import pickle
import traceback
from pathlib import Path

from flowzoo.errors import FlowzooError


def serialize_error(process: str, error: Exception) -> bytes | str:
    """Pickle of a flowzoo error; of others, or if it cannot be pickled, message and place."""
    message = f"{process} stopped: {type(error).__name__}: {error}"
    frames = traceback.extract_tb(error.__traceback__)
    if frames:
        message += f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})"
    if not isinstance(error, FlowzooError):
        return message
    try:
        sent = pickle.dumps(error)
        pickle.loads(sent)  # noqa: S301  # our own, of a moment ago
    except Exception:  # a class of the user may raise anything when pickled
        return message
    return sent


def deserialize_error(data: bytes | str, kind: type[FlowzooError]) -> FlowzooError:
    """The error that another process of this run has sent; a message becomes a `kind`."""
    return kind(data) if isinstance(data, str) else pickle.loads(data)  # noqa: S301  # of this run
