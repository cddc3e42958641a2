"""Models that compute alike: what is found out about one holds for all of its kind."""

from __future__ import annotations

import json
from collections.abc import Hashable
from typing import Any

import torch


def kind_of(model: Any) -> Hashable:
    """What decides how a transformers model computes, apart from its weights' values.

    Its class, its configuration, the modules that it is made of (adapters are some), where and in
    which precision it computes. A family's forward pass is checked once a kind in a process, of
    which isolated policies are many models.
    """
    config = {name: one for name, one in model.config.to_dict().items() if name != "_name_or_path"}
    device = model.device.type
    return (
        type(model), json.dumps(config, sort_keys=True, default=str), model.dtype, device,
        model.config._attn_implementation, torch.is_autocast_enabled(device),
        frozenset(type(part) for part in model.modules()),
    )  # fmt: skip
