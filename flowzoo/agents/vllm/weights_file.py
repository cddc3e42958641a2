"""New weights on their way to an engine in another process: one safetensors file in memory."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file

from flowzoo.agents.vllm.backend import Tensors, shared_memory


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
