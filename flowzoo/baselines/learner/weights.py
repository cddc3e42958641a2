"""Trained weights of one policy: a whole model, or a LoRA adapter on a base it may share."""

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

from flowzoo.agents.model_files import save_model
from flowzoo.errors import UsageError

Start = Callable[[], AbstractContextManager[PreTrainedModel]]
"""Enters a model that computes with the weights from before training."""


class Weights(Protocol):
    """The trained part of a model."""

    @property
    def model(self) -> PreTrainedModel:
        """The model that computes; several adapters share one."""

    @property
    def is_adapter(self) -> bool:
        """True if these are a LoRA adapter's."""

    @property
    def notes(self) -> Sequence[str]:
        """Remarks about what is trained."""

    def parameters(self) -> list[nn.Parameter]:
        """Parameters for an optimizer."""

    def active(self) -> AbstractContextManager[None]:
        """Context in which the model computes with these weights, exclusively."""

    def start(self) -> Start:
        """Keep the weights as they are now; call it before training."""

    def state(self, *, keep: bool = True) -> dict[str, torch.Tensor]:
        """Whole tensors by their names in files, collectively; empty without `keep`."""

    def save(self, folder: Path | None) -> None:
        """Write them in Hugging Face or PEFT layout, collectively, if `folder` is given."""

    def load(self, folder: Path) -> None:
        """Read what `save` wrote; raises `UsageError` where names or shapes differ."""

    def put(self, state: Mapping[str, torch.Tensor], source: str) -> None:
        """Take over what `state` gave; raises `UsageError` where names or shapes differ."""


class FullWeights:
    """All weights of a model that no other policy uses."""

    is_adapter = False
    notes: Sequence[str] = ()

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model

    def parameters(self) -> list[nn.Parameter]:
        """Parameters that require gradients."""
        return [p for p in self.model.parameters() if p.requires_grad]

    def active(self) -> AbstractContextManager[None]:
        """Always."""
        return nullcontext()

    def start(self) -> Start:
        """Start of a frozen copy of the model."""
        model = copy.deepcopy(self.model).eval().requires_grad_(False)
        return lambda: nullcontext(model)

    def state(self, *, keep: bool = True) -> dict[str, torch.Tensor]:
        """Whole tensors of the model, by name."""
        return whole(self.model.state_dict(keep_vars=True), keep=keep)

    def save(self, folder: Path | None) -> None:
        """Write the model in the format of transformers."""
        state = self.state(keep=folder is not None)
        if folder is not None:
            save_model(self.model, folder, state_dict=state)

    def load(self, folder: Path) -> None:
        """Load weights that `save` wrote."""
        load_weights(self.model, folder)

    def put(self, state: Mapping[str, torch.Tensor], source: str) -> None:
        """Copy `state` into the model."""
        _put_weights(self.model, state, source)


class FrozenWeights:
    """Weights of a policy that plays and is never trained or saved."""

    is_adapter = False
    notes: Sequence[str] = ()

    def __init__(self, model: PreTrainedModel, start: Start | None = None) -> None:
        self.model = model if start else model.eval().requires_grad_(False)
        self._start = start

    def parameters(self) -> list[nn.Parameter]:
        """None."""
        return []

    @contextmanager
    def active(self) -> Iterator[None]:
        """Context in which the model computes with the frozen weights."""
        with self.start()():
            yield

    def start(self) -> Start:
        """Context of the weights, which never change."""
        return self._start or (lambda: nullcontext(self.model))

    def state(self, *, keep: bool = True) -> dict[str, torch.Tensor]:
        """Return an empty list: nothing is trained."""
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
    """Copy the safetensors of `folder` into `model`, all of them and nothing else."""
    tensors: dict[str, torch.Tensor] = {}
    for file in sorted(Path(folder).glob("*.safetensors")):
        tensors |= load_file(file, device="cpu")
    _put_weights(model, tensors, folder)


def _put_weights(
    model: PreTrainedModel, tensors: Mapping[str, torch.Tensor], source: Path | str
) -> None:
    model_state = model.state_dict(keep_vars=True)
    # A tied weight is saved under one of its names: the others share its memory.
    loaded = {_memory(model_state[name]) for name in tensors if name in model_state}
    needed = {
        name: value
        for name, value in model_state.items()
        if name in tensors or _memory(value) not in loaded
    }
    check_names(tensors, needed, source)
    with torch.no_grad():
        for name, value in tensors.items():
            model_state[name].copy_(like(model_state[name], value))


def whole(tensors: Mapping[str, torch.Tensor], *, keep: bool = True) -> dict[str, torch.Tensor]:
    """The tensors with what other ranks have of them, on the CPU; what is whole stays as it is."""
    # One tensor at a time is on the device, and what several names share is gathered once.
    by_memory: dict[int, torch.Tensor] = {}
    for value in tensors.values():
        if _memory(value) not in by_memory:
            tensor = whole_tensor(value).detach()
            tensor = tensor.cpu() if hasattr(value, "full_tensor") else tensor
            by_memory[_memory(value)] = tensor if keep else tensor.new_empty(0)
    return {name: by_memory[_memory(value)] for name, value in tensors.items() if keep}


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
    # Of a sharded tensor the parameter: its part may be empty here and have no memory.
    return id(value) if hasattr(value, "full_tensor") else value.data_ptr()


def check_names(
    loaded: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor], source: Path | str
) -> None:
    """Raise `UsageError` unless `loaded` has the names and shapes of `expected`."""
    missing, surplus = sorted(set(expected) - set(loaded)), sorted(set(loaded) - set(expected))
    wrong = sorted(
        name for name in set(loaded) & set(expected) if loaded[name].shape != expected[name].shape
    )
    if missing or surplus or wrong:
        raise UsageError(
            f"the weights in {source} do not fit the model: missing {missing[:5]}, unknown "
            f"{surplus[:5]}, of another shape {wrong[:5]}."
        )
