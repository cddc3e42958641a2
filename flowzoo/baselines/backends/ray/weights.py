"""Weights on their way: one safetensors file, which Ray's object store keeps once per node."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

import safetensors.torch
import torch

from flowzoo.baselines.learner.update import Learner

_OTHERS = "other_names"


def distinct(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors under the first of their names, on the CPU: a tied weight is sent once."""
    found: dict[int, tuple[str, torch.Tensor]] = {}
    for name in sorted(state):
        found.setdefault(state[name].data_ptr(), (name, state[name]))
    return {name: value.detach().cpu().contiguous() for name, value in found.values()}


def digest(tensors: Mapping[str, torch.Tensor]) -> str:
    """SHA-256 of names, kinds, shapes and bytes of the tensors."""
    found = hashlib.sha256()
    for name in sorted(tensors):
        value = tensors[name]
        found.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        found.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def to_file(state: Mapping[str, torch.Tensor]) -> bytes:
    """A safetensors file of the distinct tensors, which says what other names they have."""
    tensors = distinct(state)
    first = {state[name].data_ptr(): name for name in tensors}
    others = {name: first[state[name].data_ptr()] for name in state if name not in tensors}
    return safetensors.torch.save(tensors, {_OTHERS: json.dumps(others)})


def weights_file(learner: Learner, *, keep: bool = True) -> tuple[bytes, str]:
    """A learner's weights as a file, and their digest.

    Every rank of its learner group must call it; those that do not `keep` them get nothing.
    """
    state = learner.weights.state(keep=keep)
    if not keep:
        return b"", ""
    return to_file(state), digest(distinct(state))


def from_file(weights: bytes) -> dict[str, torch.Tensor]:
    """What `to_file` was given, on the CPU."""
    tensors = safetensors.torch.load(weights)
    size = int.from_bytes(weights[:8], "little")  # of the header, which is JSON
    said = json.loads(weights[8 : 8 + size]).get("__metadata__", {})
    others: dict[str, str] = json.loads(said.get(_OTHERS, "{}"))
    return tensors | {name: tensors[first] for name, first in others.items()}
