"""Where a model is looked for: in a folder, or on the hub, which is silent and takes a minute."""

from __future__ import annotations

import logging
import os
import re

from flowzoo.agents.gguf import check_gguf, is_gguf
from flowzoo.errors import UsageError

_log = logging.getLogger(__name__)
_told: set[str] = set()
_DESCRIBED_BY = ("config.json", "adapter_config.json", "params.json")
"""Files one of which every model's folder has: transformers', an adapter's, Mistral's."""
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?", re.ASCII)


def check_model(source: str) -> None:
    """Refuse what is neither a model's folder nor can be a name on the hub; loads nothing.

    Raises:
        UsageError: so it is.
    """
    if is_gguf(source):
        check_gguf(source)
    elif os.path.isdir(source):
        if not any(os.path.isfile(os.path.join(source, name)) for name in _DESCRIBED_BY):
            raise UsageError(
                f"the folder {source!r} holds no config.json, so there is no model in it: expected "
                "one with config.json, tokenizer files and *.safetensors."
            )
    elif _NAME.fullmatch(source) is None:
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
