"""Handles of GPU memory for another process, as numbers, names and bytes in place of pickles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

_NAMED: dict[str, Any] = {
    "Tensor": torch.Tensor,
    "TypedStorage": torch.storage.TypedStorage,
    "UntypedStorage": torch.UntypedStorage,
    "uint8": torch.uint8,
}
"""vLLM packs weights as bytes, so there is one number format."""


def plain_handles(handles: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
    """The arguments by GPU as msgpack and JSON-like carriers take them."""

    def plain(value: Any) -> Any:
        for word, named in _NAMED.items():
            if value is named:
                return word
        if isinstance(value, (tuple, list)):
            return [int(item) for item in value]
        if value is None or isinstance(value, (int, bytes)):
            return value
        raise ValueError(f"a handle of GPU memory holds {value!r}, which has no word")

    return {gpu: [plain(value) for value in arguments] for gpu, arguments in handles.items()}


def handles_of(given: Mapping[str, Sequence[Any]]) -> dict[str, tuple[Any, ...]]:
    """Inverse of `plain_handles`."""

    def read(value: Any) -> Any:
        if isinstance(value, list):
            return tuple(value)
        if not isinstance(value, str):
            return value
        if value not in _NAMED:
            raise ValueError(f"a handle of GPU memory holds the unknown word {value!r}")
        return _NAMED[value]

    return {gpu: tuple(read(value) for value in arguments) for gpu, arguments in given.items()}
