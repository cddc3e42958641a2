"""New weights on their way to an engine in another process: one safetensors file in memory."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors.torch import save_file

from flowzoo.agents.vllm.backend import Tensors, shared_memory


class UpdateCalls(Protocol):
    """vLLM's calls around new weights, of an engine or a server."""

    def start_weight_update(self) -> None:
        """Stop sampling."""
        ...

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Load some or all weights."""
        ...

    def finish_weight_update(self) -> None:
        """Resume sampling with the new weights."""
        ...


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
