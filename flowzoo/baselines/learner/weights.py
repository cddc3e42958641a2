"""Trained weights of one policy: a whole model, or a LoRA adapter on a base it may share."""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from flowzoo.agents.model_files import save_model
from flowzoo.errors import UsageError

Start = Callable[[], AbstractContextManager[PreTrainedModel]]
"""Enters a model that computes with the weights from before training."""


class Weights:
    """The trained part of a model: here all weights of one that no other policy uses."""

    is_adapter = False
    """True if these are a LoRA adapter's."""
    notes: Sequence[str] = ()
    """Remarks about what is trained."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        """The model that computes; several adapters share one."""

    def parameters(self) -> list[nn.Parameter]:
        """Parameters that require gradients, for an optimizer."""
        return [p for p in self.model.parameters() if p.requires_grad]

    def active(self) -> AbstractContextManager[None]:
        """Context in which the model computes with these weights, exclusively."""
        return nullcontext()

    def start(self) -> Start:
        """Keep the weights as they are now; call it before training."""
        model = copy.deepcopy(self.model).eval().requires_grad_(False)
        return lambda: nullcontext(model)

    def state(self, *, keep: bool = True) -> dict[str, Tensor]:
        """Whole tensors by their names in files, collectively; empty without `keep`."""
        return whole(self.model.state_dict(keep_vars=True), keep=keep)

    def save(self, folder: Path | None) -> None:
        """Write them in Hugging Face or PEFT layout, collectively, if `folder` is given."""
        state = self.state(keep=folder is not None)
        if folder is not None:
            save_model(self.model, folder, state_dict=state)

    def load(self, folder: Path) -> None:
        """Read what `save` wrote; raises `UsageError` where names or shapes differ."""
        tensors: dict[str, Tensor] = {}
        for file in sorted(folder.glob("*.safetensors")):
            tensors |= load_file(file, device="cpu")
        self.put(tensors, str(folder))

    def put(self, state: Mapping[str, Tensor], source: str) -> None:
        """Take over what `state` gave; raises `UsageError` where names or shapes differ."""
        targets: Mapping[str, Tensor] = self.model.state_dict(keep_vars=True)
        # A tied weight is saved under one of its names: the others share its memory.
        loaded = {_memory(targets[name]) for name in state if name in targets}
        copy_tensors(state, targets, source, {
            name for name, value in targets.items()
            if name in state or _memory(value) not in loaded
        })  # fmt: skip


class FrozenWeights(Weights):
    """Weights of a policy that plays and is never trained or saved."""

    def __init__(self, model: PreTrainedModel, start: Start | None = None) -> None:
        super().__init__(model if start else model.eval().requires_grad_(False))
        self._start: Start = start or (lambda: nullcontext(self.model))

    def parameters(self) -> list[nn.Parameter]:
        """No parameters."""
        return []

    @contextmanager
    def active(self) -> Iterator[None]:
        """Context in which the model computes with the frozen weights."""
        with self._start():
            yield

    def start(self) -> Start:
        """Context of the weights, which never change."""
        return self._start

    def save(self, folder: Path | None) -> None:
        """Refuse."""
        raise UsageError(f"a frozen policy is not saved, but {folder} was to hold one.")

    def state(self, *, keep: bool = True) -> dict[str, Tensor]:
        """Return an empty map: nothing is trained."""
        return {}

    def put(self, state: Mapping[str, Tensor], source: str) -> None:
        """Refuse."""
        raise UsageError(f"a frozen policy keeps its weights and does not take {source}.")


def copy_tensors(
    tensors: Mapping[str, Tensor], targets: Mapping[str, Tensor], source: str, needed: set[str]
) -> None:
    """Copy `tensors` into `targets`; raise `UsageError` unless all `needed` are there and fit."""
    missing, surplus = sorted(needed - set(tensors)), sorted(set(tensors) - needed)
    wrong = sorted(
        name for name in needed & set(tensors) if tensors[name].shape != targets[name].shape
    )
    if missing or surplus or wrong:
        raise UsageError(
            f"the weights in {source} do not fit the model: missing {missing[:5]}, unknown "
            f"{surplus[:5]}, of another shape {wrong[:5]}."
        )
    with torch.no_grad():
        for name, value in tensors.items():
            targets[name].copy_(like(targets[name], value))


def whole(tensors: Mapping[str, Tensor], *, keep: bool = True) -> dict[str, Tensor]:
    """The tensors with what other ranks have of them, on the CPU; what is whole stays as it is."""
    # One tensor at a time is on the device, and what several names share is gathered once.
    by_memory: dict[int, Tensor] = {}
    for value in tensors.values():
        if _memory(value) not in by_memory:
            tensor = whole_tensor(value).detach()
            tensor = tensor.cpu() if hasattr(value, "full_tensor") else tensor
            by_memory[_memory(value)] = tensor if keep else tensor.new_empty(0)
    return {name: by_memory[_memory(value)] for name, value in tensors.items() if keep}


def whole_tensor(value: Tensor) -> Tensor:
    """`value` with what other ranks have of it; collective where it is sharded."""
    gather = getattr(value, "full_tensor", None)  # of a DTensor, which is not imported for this
    return value if gather is None else gather()


def like(target: Tensor, value: Tensor) -> Tensor:
    """The whole tensor `value` spread over ranks as `target` is, without asking them."""
    if not hasattr(target, "full_tensor"):
        return value
    from torch.distributed.tensor import distribute_tensor

    mesh, placements = target.device_mesh, target.placements  # type: ignore[attr-defined]
    return distribute_tensor(value.to(target.device), mesh, placements, src_data_rank=None)


def _memory(value: Tensor) -> int:
    # Of a sharded tensor the parameter: its part may be empty here and have no memory.
    return id(value) if hasattr(value, "full_tensor") else value.data_ptr()
