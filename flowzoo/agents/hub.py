"""Models by name: folders, GGUF files and ids of the Hugging Face hub."""

from __future__ import annotations

import logging
import os
import re

from flowzoo.agents.gguf import check_gguf, is_gguf
from flowzoo.errors import UsageError

_log = logging.getLogger(__name__)
_logged: set[str] = set()
_DESCRIBED_BY = ("config.json", "adapter_config.json", "params.json")
"""Every model's folder has one of these: transformers', an adapter's, Mistral's."""
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?", re.ASCII)


def check_model(source: str) -> None:
    """Check that a source is a model's folder, a GGUF file or a valid hub id; loads nothing.

    Raises:
        UsageError: neither an existing folder or file nor a valid hub id.
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


def log_hub_lookup(source: str) -> None:
    """Log once per process that `source` is not a local folder and is looked up on the hub."""
    if source not in _logged and not os.path.isdir(source):
        _logged.add(source)
        _log.warning("there is no folder %s: looking for a model of that name on the hub", source)
