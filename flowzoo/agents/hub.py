"""Saying that a model is looked for on the hub, which is silent and may take a minute."""

from __future__ import annotations

import logging
import os

_log = logging.getLogger(__name__)
_told: set[str] = set()


def tell_hub(source: str) -> None:
    """Log, once in a process, that `source` is no folder here, so that the hub is asked for it."""
    if source not in _told and not os.path.isdir(source):
        _told.add(source)
        _log.warning("there is no folder %s: looking for a model of that name on the hub", source)
