"""Equal bits of equal computations on a GPU."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from flowzoo.errors import UsageError

# torch reads it at the first matrix product on a GPU.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


@contextmanager
def fixed_order() -> Iterator[None]:
    """Inside, torch adds up in a fixed order; `UsageError` for an operation without one."""
    memory: Any = torch.utils.deterministic
    before, filled = torch.get_deterministic_debug_mode(), memory.fill_uninitialized_memory
    torch.set_deterministic_debug_mode("error")
    memory.fill_uninitialized_memory = False
    try:
        yield
    except RuntimeError as error:
        if "deterministic" not in str(error):
            raise
        raise UsageError(
            "this model's updates cannot have the same bits twice on this GPU "
            f"({str(error).splitlines()[0][:300]}): turn `deterministic` off."
        ) from error
    finally:
        torch.set_deterministic_debug_mode(before)
        memory.fill_uninitialized_memory = filled
