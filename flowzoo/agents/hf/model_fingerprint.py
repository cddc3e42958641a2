"""Fingerprints of models: results of a check hold for all models with one fingerprint."""

from __future__ import annotations

import json
from collections.abc import Hashable
from typing import Any

import torch


def model_fingerprint(model: Any) -> Hashable:
    """Fingerprint of a transformers model's computation, without the values of its weights."""
    # Forward passes are checked once per fingerprint in a process: isolated policies are many equal
    # models.
    config = {
        name: value for name, value in model.config.to_dict().items() if name != "_name_or_path"
    }
    device = model.device.type
    return (
        type(model), json.dumps(config, sort_keys=True, default=str), model.dtype, device,
        model.config._attn_implementation, torch.is_autocast_enabled(device),
        frozenset(type(part) for part in model.modules()),
    )  # fmt: skip
