"""What one policy trains: all weights of a model, or a LoRA adapter on a base it may share.

A learner, a checkpoint and an engine's sync see only `Weights`: the parameters, how to make them
the ones the model computes with, and how to write and read them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Protocol

import torch
from safetensors.torch import load_file
from torch import nn
from transformers import PreTrainedModel

from flowzoo.errors import UsageError

Start = Callable[[], AbstractContextManager[PreTrainedModel]]
"""Enters a model that computes with the weights from before training."""


class Weights(Protocol):
    """The trained part of a model."""

    @property
    def model(self) -> PreTrainedModel:
        """The model that computes; several adapters share one."""
        ...

    @property
    def is_adapter(self) -> bool:
        """Whether these are a LoRA adapter's."""
        ...

    @property
    def notes(self) -> Sequence[str]:
        """What is to be said about what is trained."""
        ...

    def parameters(self) -> list[nn.Parameter]:
        """What an optimiser steps."""
        ...

    def active(self) -> AbstractContextManager[None]:
        """Inside, the model computes with these weights, and nobody else changes that."""
        ...

    def start(self) -> Start:
        """Keep the weights as they are now; call it before training."""
        ...

    def state(self, *, keep: bool = True) -> dict[str, torch.Tensor]:
        """All of them, whole, by their names in files; collective where they are sharded.

        A rank that only helps others to theirs does not `keep` them, and gets nothing.
        """
        ...

    def save(self, folder: Path | None) -> None:
        """Write them into `folder` in Hugging Face (an adapter: PEFT) layout.

        Where they are sharded every rank must call it; those that write nothing give None.
        """
        ...

    def load(self, folder: Path) -> None:
        """Read what `save` wrote; raises `UsageError` where names or shapes differ."""
        ...

    def put(self, state: Mapping[str, torch.Tensor], source: str) -> None:
        """Take over what `state` gave elsewhere, tied weights under one name or all of theirs.

        Raises `UsageError`, which names `source`, where names or shapes differ.
        """
        ...


class FullWeights:
    """All weights of a model that no other policy uses."""

    is_adapter = False
    notes: Sequence[str] = ()

    def __init__(self, model: PreTrainedModel) -> None:
        """Keep `model`; nothing is copied."""
        self.model = model

    def parameters(self) -> list[nn.Parameter]:
        """See `Weights`."""
        return [p for p in self.model.parameters() if p.requires_grad]

    def active(self) -> AbstractContextManager[None]:
        """Always."""
        return nullcontext()

    def start(self) -> Start:
        """See `Weights`: a frozen copy of the model."""
        model = copy.deepcopy(self.model).eval().requires_grad_(False)
        return lambda: nullcontext(model)

    def state(self, *, keep: bool = True) -> dict[str, torch.Tensor]:
        """See `Weights`."""
        return whole(self.model.state_dict(keep_vars=True), keep=keep)

    def save(self, folder: Path | None) -> None:
        """See `Weights`."""
        state = self.state(keep=folder is not None)
        if folder is not None:
            self.model.save_pretrained(folder, state_dict=state)

    def load(self, folder: Path) -> None:
        """See `Weights`."""
        load_weights(self.model, folder)

    def put(self, state: Mapping[str, torch.Tensor], source: str) -> None:
        """See `Weights`."""
        put_weights(self.model, state, source)


class FrozenWeights:
    """Weights of a policy that plays and is never trained or saved."""

    is_adapter = False
    notes: Sequence[str] = ()

    def __init__(self, model: PreTrainedModel, start: Start | None = None) -> None:
        """Play with `model`; `start` makes it compute with these weights, if others train on it."""
        self.model = model if start else model.eval().requires_grad_(False)
        self._start = start

    def parameters(self) -> list[nn.Parameter]:
        """None."""
        return []

    @contextmanager
    def active(self) -> Iterator[None]:
        """See `Weights`."""
        with self.start()():
            yield

    def start(self) -> Start:
        """See `Weights`: they never change."""
        return self._start or (lambda: nullcontext(self.model))

    def state(self, *, keep: bool = True) -> dict[str, torch.Tensor]:
        """Nothing of them is trained."""
        return {}

    def save(self, folder: Path | None) -> None:
        """Refuse."""
        raise UsageError(f"a frozen policy is not saved, but {folder} was to hold one.")

    def load(self, folder: Path) -> None:
        """Refuse."""
        raise UsageError(f"a frozen policy keeps its weights and does not load {folder}.")

    def put(self, state: Mapping[str, torch.Tensor], source: str) -> None:
        """Refuse."""
        raise UsageError(f"a frozen policy keeps its weights and does not take {source}.")


def load_weights(model: PreTrainedModel, folder: Path | str) -> None:
    """Copy the safetensors of `folder` into `model`, all of them and nothing else.

    Raises:
        UsageError: names or shapes differ.
    """
    tensors: dict[str, torch.Tensor] = {}
    for file in sorted(Path(folder).glob("*.safetensors")):
        tensors |= load_file(file, device="cpu")
    put_weights(model, tensors, folder)


def put_weights(
    model: PreTrainedModel, tensors: Mapping[str, torch.Tensor], source: Path | str
) -> None:
    """Copy tensors into `model`, all of its and nothing else; those that are tied under any name.

    Raises:
        UsageError: names or shapes differ; names `source`.
    """
    own = model.state_dict(keep_vars=True)
    # A tied weight is saved under one of its names: the others share its memory.
    loaded = {_memory(own[name]) for name in tensors if name in own}
    needed = {
        name: value
        for name, value in own.items()
        if name in tensors or _memory(value) not in loaded
    }
    check_names(tensors, needed, source)
    with torch.no_grad():
        for name, value in tensors.items():
            own[name].copy_(like(own[name], value))


def whole(tensors: Mapping[str, torch.Tensor], *, keep: bool = True) -> dict[str, torch.Tensor]:
    """The tensors with what other ranks have of them, on the CPU; what is whole stays as it is.

    What several names share is gathered once, and is shared again. One tensor at a time is on the
    device. A rank that only helps others to theirs does not `keep` them, and gets nothing.
    """
    found: dict[int, torch.Tensor] = {}
    for value in tensors.values():
        if _memory(value) not in found:
            one = whole_tensor(value).detach()
            one = one.cpu() if hasattr(value, "full_tensor") else one
            found[_memory(value)] = one if keep else one.new_empty(0)
    return {name: found[_memory(value)] for name, value in tensors.items() if keep}


def whole_tensor(value: torch.Tensor) -> torch.Tensor:
    """`value` with what other ranks have of it; collective where it is sharded."""
    gather = getattr(value, "full_tensor", None)  # of a DTensor, which is not imported for this
    return value if gather is None else gather()


def like(target: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """The whole tensor `value` spread over ranks as `target` is, without asking them."""
    if not hasattr(target, "full_tensor"):
        return value
    from torch.distributed.tensor import distribute_tensor

    mesh, placements = target.device_mesh, target.placements  # type: ignore[attr-defined]
    return distribute_tensor(value.to(target.device), mesh, placements, src_data_rank=None)


def _memory(value: torch.Tensor) -> int:
    """Names the memory of a tensor, the same way on every rank.

    Of a sharded one it is the parameter, whose part may be empty here and have no memory.
    """
    return id(value) if hasattr(value, "full_tensor") else value.data_ptr()


def check_names(
    found: Mapping[str, torch.Tensor], own: Mapping[str, torch.Tensor], source: Path | str
) -> None:
    """Raise `UsageError` unless the tensors found in `source` are those of `own`, shapes too."""
    missing, surplus = sorted(set(own) - set(found)), sorted(set(found) - set(own))
    wrong = sorted(name for name in set(found) & set(own) if found[name].shape != own[name].shape)
    if missing or surplus or wrong:
        raise UsageError(
            f"the weights in {source} do not fit the model: missing {missing[:5]}, unknown "
            f"{surplus[:5]}, of another shape {wrong[:5]}."
        )
