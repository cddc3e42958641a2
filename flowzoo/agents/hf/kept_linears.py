"""Linear layers in the number format of sampling, in place of a model's float32 ones.

A learner keeps float32 weights. Converting them for every token costs more than the products of a
small batch, so their lower-precision form is kept beside them and renewed after every update.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import nn

from flowzoo.agents.traits import EngineDType


class LowerLinear(nn.Linear):
    """A linear layer in bfloat16 or float16; under autocast it computes what its source does."""

    def __init__(self, source: nn.Linear, dtype: torch.dtype) -> None:
        super().__init__(
            source.in_features, source.out_features, source.bias is not None,
            source.weight.device, dtype,
        )  # fmt: skip
        self.requires_grad_(False)

    @torch.no_grad()
    def take(self, source: nn.Linear) -> None:
        """Round the weights of `source`."""
        for target, parameter in zip(self.parameters(), source.parameters(), strict=True):
            target.copy_(parameter)

    def holds(self, source: nn.Linear) -> bool:
        """Return True if the weights are the rounded ones of `source`."""
        pairs = zip(self.parameters(), source.parameters(), strict=True)
        return all(torch.equal(target, other.to(target.dtype)) for target, other in pairs)


class _Slot(NamedTuple):
    # The module that calls a layer, and the name it does so by; tied layers have several.
    parent: nn.Module
    child: str
    name: str
    source: nn.Linear
    layer: LowerLinear


class KeptLinears:
    """The linear layers of a model, output head included, in the number format of sampling.

    Adapters stay as they are, as do experts that are no linear layers.
    """

    def __init__(self, model: nn.Module, dtype: EngineDType) -> None:
        layers: dict[nn.Linear, LowerLinear] = {}
        self._slots: list[_Slot] = []
        for path, parent in model.named_modules():
            for child, source in parent._modules.items():
                name = f"{path}.{child}".removeprefix(".")
                if type(source) is not nn.Linear or ".lora_" in name:
                    continue
                if source not in layers:
                    layers[source] = LowerLinear(source, getattr(torch, dtype))
                    layers[source].take(source)
                self._slots.append(_Slot(parent, child, name, source, layers[source]))

    def refresh(self) -> None:
        """Take the model's weights over again; frozen ones never change."""
        for slot in self._distinct():
            if slot.source.weight.requires_grad:
                slot.layer.take(slot.source)

    def differing(self) -> list[str]:
        """Names of the layers that do not hold the model's weights."""
        return [slot.name for slot in self._distinct() if not slot.layer.holds(slot.source)]

    @contextmanager
    def active(self) -> Iterator[None]:
        """Inside, the model computes with the kept layers."""
        for slot in self._slots:
            slot.parent._modules[slot.child] = slot.layer
        try:
            yield
        finally:
            for slot in self._slots:
                slot.parent._modules[slot.child] = slot.source

    def _distinct(self) -> list[_Slot]:
        return list({id(slot.source): slot for slot in self._slots}.values())
