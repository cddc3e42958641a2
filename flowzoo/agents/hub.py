"""Where a model is looked for: in a folder, or on the hub, which is silent and takes a minute."""

from __future__ import annotations

import logging
import os
import re

from flowzoo.agents.gguf import check_gguf, is_gguf
from flowzoo.errors import UsageError

_log = logging.getLogger(__name__)
_told: set[str] = set()
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?", re.ASCII)


def check_model(source: str) -> None:
    """Refuse what is neither a folder here nor can be a name on the hub; loads nothing.

    Raises:
        UsageError: so it is.
    """
    if is_gguf(source):
        check_gguf(source)
    elif not os.path.isdir(source) and _NAME.fullmatch(source) is None:
        raise UsageError(
            f"there is no folder {source!r}: expected one with a model (config.json, tokenizer "
            "files, *.safetensors), a .gguf file, or the name of a model on the hub, e.g. "
            "owner/name."
        )


def tell_hub(source: str) -> None:
    """Log, once in a process, that `source` is no folder here, so that the hub is asked for it."""
    if source not in _told and not os.path.isdir(source):
        _told.add(source)
        _log.warning("there is no folder %s: looking for a model of that name on the hub", source)
