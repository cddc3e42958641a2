"""The global random generators of python, numpy and torch, as a checkpoint keeps them."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import torch


def seed_random(seed: int) -> None:
    """Seed the global generators of python and numpy, which functions of users may draw from."""
    random.seed(seed)
    np.random.seed(seed % 2**32)


def random_state() -> dict[str, Any]:
    """States of the global generators, in types that load without unpickling."""
    name, keys, position, has_gauss, gauss = cast("tuple[Any, ...]", np.random.get_state())
    return {
        "python": random.getstate(),
        "numpy": (name, torch.from_numpy(keys.astype(np.int64)), position, has_gauss, gauss),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def set_random_state(state: Mapping[str, Any]) -> None:
    """Put `random_state()` back. Devices that are not here any more are left out."""
    random.setstate(state["python"])
    name, keys, position, has_gauss, gauss = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), position, has_gauss, gauss))
    torch.set_rng_state(state["torch"])
    if torch.cuda.is_available() and len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(state["cuda"])
