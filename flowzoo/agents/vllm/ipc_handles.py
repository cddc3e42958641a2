"""What names a piece of a GPU's memory to another process, as plain numbers, words and bytes.

torch describes shared memory of a GPU by the arguments of `rebuild_cuda_tensor`, among them a few
classes and a number format. vLLM's own clients pickle them, and its workers unpickle what they get
(VLLM_ALLOW_INSECURE_SERIALIZATION=1). Words for the few that there are need neither.
"""

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
    """The arguments by GPU as msgpack and JSON-like carriers take them.

    Raises:
        ValueError: one of them is something that has no word.
    """

    def plain(value: Any) -> Any:
        for word, named in _NAMED.items():
            if value is named:
                return word
        if isinstance(value, (tuple, list)):
            return [int(one) for one in value]
        if value is None or isinstance(value, (int, bytes)):
            return value
        raise ValueError(f"a handle of GPU memory holds {value!r}, which has no word")

    return {gpu: [plain(value) for value in one] for gpu, one in handles.items()}


def handles_of(given: Mapping[str, Sequence[Any]]) -> dict[str, tuple[Any, ...]]:
    """What `plain_handles` was given.

    Raises:
        ValueError: a word that stands for nothing.
    """

    def read(value: Any) -> Any:
        if isinstance(value, list):
            return tuple(value)
        if not isinstance(value, str):
            return value
        if value not in _NAMED:
            raise ValueError(f"a handle of GPU memory holds the unknown word {value!r}")
        return _NAMED[value]

    return {gpu: tuple(read(value) for value in one) for gpu, one in given.items()}
