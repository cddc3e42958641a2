"""New weights on their way to an engine in another process: a file in memory, or handles of it."""

import contextlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors.torch import save_file

from flowzoo.agents.vllm.backend import Tensors, shared_memory

# torch describes shared memory of a GPU by the arguments of `rebuild_cuda_tensor`, among them a few
# classes and a number format. vLLM's own clients pickle them and its workers unpickle them
# (VLLM_ALLOW_INSECURE_SERIALIZATION=1). A name for each makes that unnecessary.
_NAMED: dict[str, Any] = {
    "Tensor": torch.Tensor,
    "TypedStorage": torch.storage.TypedStorage,
    "UntypedStorage": torch.UntypedStorage,
    "uint8": torch.uint8,
}
"""vLLM packs weights as bytes, so there is one number format."""


def plain_handles(handles: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
    """The arguments by GPU as msgpack and JSON-like carriers take them."""

    def plain(value: object) -> Any:
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

    def read(value: object) -> Any:
        if isinstance(value, list):
            return tuple(value)
        if not isinstance(value, str):
            return value
        if value not in _NAMED:
            raise ValueError(f"a handle of GPU memory holds the unknown word {value!r}")
        return _NAMED[value]

    return {gpu: tuple(read(value) for value in arguments) for gpu, arguments in given.items()}


class UpdateCalls(Protocol):
    """vLLM's calls around new weights, of an engine or a server."""

    def start_weight_update(self) -> None:
        """Stop sampling."""

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Load some or all weights."""

    def finish_weight_update(self) -> None:
        """Resume sampling with the new weights."""


def send_file(engine: UpdateCalls, tensors: Tensors, dtype: torch.dtype | None = None) -> None:
    """Replace the weights of an engine that sees this machine's files; `dtype` as in the file."""
    with weights_file(tensors, dtype) as file:
        engine.start_weight_update()
        engine.update_weights({"path": str(file)})
        engine.finish_weight_update()


@contextlib.contextmanager
def weights_file(tensors: Tensors, dtype: torch.dtype | None = None) -> Iterator[Path]:
    """A safetensors file of `tensors`, in `dtype` if given, that is gone after the block."""
    # Copied one by one, because tied weights share memory and safetensors refuses that.
    plain = {
        name: value.detach().to("cpu", dtype, copy=True).contiguous()
        for name, value in tensors.items()
    }
    with tempfile.TemporaryDirectory(prefix="flowzoo-weights-", dir=shared_memory()) as folder:
        file = Path(folder) / "weights.safetensors"
        save_file(plain, file)
        del plain
        yield file
