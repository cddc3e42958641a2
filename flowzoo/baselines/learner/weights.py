"""What one policy trains: all weights of a model, or a LoRA adapter on a base it may share.

A learner, a checkpoint and an engine's sync see only `Weights`: the parameters, how to make them
the ones the model computes with, and how to write and read them.
"""

from __future__ import annotations

import copy
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import PreTrainedModel

from flowzoo.errors import UsageError, missing_extra
from flowzoo.seeding import key_int

Start = Callable[[], AbstractContextManager[PreTrainedModel]]
"""Enters a model that computes with the weights from before training."""

_PREFIX = "base_model.model."
"""Before the names in an adapter's file: PEFT's layout, which every engine reads."""


_ROUTERS = {"router", "gate", "shared_expert_gate", "wg"}
"""Names of modules that route, in families whose routers are linear layers."""


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

    def save(self, folder: Path) -> None:
        """Write them into `folder` in Hugging Face (an adapter: PEFT) layout."""
        ...

    def load(self, folder: Path) -> None:
        """Read what `save` wrote; raises `UsageError` where names or shapes differ."""
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

    def save(self, folder: Path) -> None:
        """See `Weights`."""
        self.model.save_pretrained(folder)

    def load(self, folder: Path) -> None:
        """See `Weights`."""
        load_weights(self.model, folder)


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

    def save(self, folder: Path) -> None:
        """Refuse."""
        raise UsageError(f"a frozen policy is not saved, but {folder} was to hold one.")

    def load(self, folder: Path) -> None:
        """Refuse."""
        raise UsageError(f"a frozen policy keeps its weights and does not load {folder}.")


@dataclass(frozen=True, slots=True)
class LoraSettings:
    """LoRA adapters (arXiv 2106.09685) on all linear layers but the output head and routers.

    A router that learns sends tokens to other experts than the ones that were trained for them,
    which a small step of an adapter can overturn; the experts themselves are tensors without linear
    layers in most families, which no adapter touches.

    Raises:
        UsageError: a number out of range.
    """

    rank: int = 16
    alpha: int = 32
    """Updates are scaled by alpha / rank."""
    routers: bool = False
    """Adapt the routers of mixtures of experts too."""

    def __post_init__(self) -> None:
        """Check both."""
        if self.rank < 1 or self.alpha < 1:
            raise UsageError(
                f"LoRA needs rank >= 1 and alpha >= 1, got {self.rank} and {self.alpha}."
            )


class LoraBase:
    """A frozen model with LoRA adapters on it, one of which is active at a time."""

    def __init__(self, model: PreTrainedModel, path: str, settings: LoraSettings) -> None:
        """Freeze `model`, which was loaded from `path`."""
        self.model, self.path, self.settings = model.requires_grad_(False), path, settings
        self._routers = [] if settings.routers else routers_of(model)
        self.note = ""
        """Which layers have adapters, once there is one."""
        self._lock = threading.RLock()
        self._active = ""
        self._count = 0

    def add(self, name: str, seed: int) -> LoraWeights:
        """A new adapter, whose output is 0; `name` and `seed` decide its first weights.

        Raises:
            MissingExtraError: peft is not installed.
        """
        try:
            from peft import LoraConfig
        except ImportError as error:
            raise missing_extra("peft", "train", "LoRA training") from error
        config = LoraConfig(
            r=self.settings.rank,
            lora_alpha=self.settings.alpha,
            lora_dropout=0.0,
            target_modules="all-linear",
            exclude_modules=self._routers or None,
            task_type="CAUSAL_LM",
            base_model_name_or_path=self.path,
        )
        label = f"p{self._count}"  # a module's name, in which a policy's dots would be an error
        self._count += 1
        with self._lock, torch.random.fork_rng(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Already found a `peft_config`")  # several are meant
            torch.manual_seed(key_int("adapter", name, seed) >> 1)
            self.model.add_adapter(config, adapter_name=label)
            self._active = label
        weights = LoraWeights(self, label)
        for parameter in weights.parameters():  # of a base in lower precision too
            parameter.data = parameter.data.float()
        self.note = self._describe(label)
        return weights

    def _describe(self, label: str) -> str:
        """The layers that adapter `label` stands on, and those left out, by name and number."""
        part = f".lora_A.{label}."
        adapted = [name.partition(part)[0] for name, _ in self.model.named_parameters()
                   if part in name]  # fmt: skip
        experts = [name for name, p in self.model.named_parameters()
                   if ".experts." in name and p.ndim > 2]  # fmt: skip
        left = [*self._routers, *experts]
        said = f"LoRA of rank {self.settings.rank} on {_counted(adapted)}"
        return f"{said}; not on {_counted(left)}" if left else said

    @contextmanager
    def use(self, label: str) -> Iterator[None]:
        """Inside, `label` is the active adapter of the model; other threads wait."""
        with self._lock:
            if self._active != label:
                self.model.set_adapter(label)
                self._active = label
            yield

    @contextmanager
    def plain(self) -> Iterator[PreTrainedModel]:
        """Inside, the model computes without any adapter; other threads wait."""
        with self._lock:
            if self._count == 0:
                yield self.model
                return
            self.model.disable_adapters()
            try:
                yield self.model
            finally:
                self.model.enable_adapters()


class LoraWeights:
    """One adapter of a `LoraBase`."""

    is_adapter = True

    def __init__(self, base: LoraBase, label: str) -> None:
        """Made by `LoraBase.add`."""
        self.base, self._label = base, label

    @property
    def notes(self) -> Sequence[str]:
        """See `Weights`: the layers that are adapted."""
        return (self.base.note,)

    @property
    def model(self) -> PreTrainedModel:
        """The base, with all its adapters."""
        return self.base.model

    def parameters(self) -> list[nn.Parameter]:
        """See `Weights`."""
        part = f".{self._label}."
        return [p for name, p in self.model.named_parameters() if part in name]

    def active(self) -> AbstractContextManager[None]:
        """See `Weights`."""
        return self.base.use(self._label)

    def start(self) -> Start:
        """See `Weights`: the base with its adapters off, since a new adapter's output is 0."""
        return self.base.plain

    def save(self, folder: Path) -> None:
        """See `Weights`."""
        folder.mkdir(parents=True, exist_ok=True)
        save_file(self._state(), folder / "adapter_model.safetensors")
        self.model.peft_config[self._label].save_pretrained(str(folder))

    def load(self, folder: Path) -> None:
        """See `Weights`."""
        own, found = self._state(), load_file(folder / "adapter_model.safetensors")
        _check_names(found, own, folder)
        parameters = dict(self.model.named_parameters())
        with torch.no_grad():
            for name, value in found.items():
                stem, _, last = name.removeprefix(_PREFIX).rpartition(".")
                parameters[f"{stem}.{self._label}.{last}"].copy_(value)

    def _state(self) -> dict[str, torch.Tensor]:
        state: dict[str, Any] = self.model.get_adapter_state_dict(self._label)
        return {f"{_PREFIX}{name}": value.contiguous() for name, value in state.items()}


def routers_of(model: PreTrainedModel) -> list[str]:
    """Names of the linear layers that choose experts, or weigh a shared one."""
    kinds = {name: type(module).__name__ for name, module in model.named_modules()}

    def routes(name: str) -> bool:
        parts = name.split(".")
        above = (kinds[".".join(parts[:depth])] for depth in range(1, len(parts) + 1))
        return bool(_ROUTERS.intersection(parts)) or any("Router" in kind for kind in above)

    return [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and routes(name)
    ]


def _counted(names: Sequence[str]) -> str:
    """`q_proj ×2, v_proj ×2`: names without where they stand, with their numbers."""
    counts = Counter(name.rpartition(".")[2] for name in names)
    return ", ".join(f"{name} ×{count}" for name, count in counts.items())


def load_weights(model: PreTrainedModel, folder: Path | str) -> None:
    """Copy the safetensors of `folder` into `model`, all of them and nothing else.

    Raises:
        UsageError: names or shapes differ.
    """
    tensors: dict[str, torch.Tensor] = {}
    for file in sorted(Path(folder).glob("*.safetensors")):
        tensors |= load_file(file, device="cpu")
    own = model.state_dict()
    # A tied weight is saved under one of its names: the others share its memory.
    loaded = {own[name].data_ptr() for name in tensors if name in own}
    needed = {
        name: value
        for name, value in own.items()
        if name in tensors or value.data_ptr() not in loaded
    }
    _check_names(tensors, needed, folder)
    model.load_state_dict(tensors, strict=False)


def _check_names(
    found: dict[str, torch.Tensor], own: dict[str, torch.Tensor], folder: Path | str
) -> None:
    missing, surplus = sorted(set(own) - set(found)), sorted(set(found) - set(own))
    wrong = sorted(name for name in set(found) & set(own) if found[name].shape != own[name].shape)
    if missing or surplus or wrong:
        raise UsageError(
            f"the weights in {folder} do not fit the model: missing {missing[:5]}, unknown "
            f"{surplus[:5]}, of another shape {wrong[:5]}."
        )
