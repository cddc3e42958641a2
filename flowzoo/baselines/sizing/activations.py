"""What the backward pass of a learner keeps, counted on tensors that have no memory.

The learner's own forward pass runs on fake tensors: the layers, its attention over packed rows,
adapters and autocast are the real ones, and autograd names every tensor that it saves. Two lengths
and two depths give what a layer keeps for a token, what it keeps whatever the tokens (copies of its
weights in bfloat16), and the same of what is around the layers.
"""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from flowzoo.baselines.learner.batch import MicroBatch, tensors
from flowzoo.baselines.learner.choices import Compute, RowLayout
from flowzoo.baselines.learner.hidden_states import last_hidden
from flowzoo.baselines.learner.lora import LoraBase, LoraSettings
from flowzoo.baselines.learner.packed_attention import use_packed_attention
from flowzoo.baselines.sizing.shape import bare_model
from flowzoo.errors import UsageError

_LENGTHS = (640, 1280)
"""Of the row that is counted: long enough to go without a table of who sees whom."""


class Saved(NamedTuple):
    """Bytes that autograd keeps from the forward pass to the backward pass."""

    per_token: float
    fixed: float
    """Whatever the tokens."""


@dataclass(frozen=True, slots=True)
class Activations:
    """What is kept by each decoder layer, and by what is around them."""

    layer: Saved
    around: Saved
    layers: int
    stream: int
    """Bytes of the hidden state of a token between two layers, which checkpointing keeps."""

    def kept(self, tokens: int, *, again: bool) -> int:
        """Bytes for `tokens`; `again`: each layer is computed again in the backward pass."""
        around = self.around.per_token * tokens
        one = self.layer.per_token * tokens
        if again:
            return math.ceil(around + one + self.layers * self.stream * tokens)
        return math.ceil(around + self.layers * one)

    @property
    def copies(self) -> int:
        """Bytes of the copies of weights in bfloat16.

        All live at the end of the forward pass, with and without checkpointing.
        """
        return math.ceil(self.around.fixed + self.layers * self.layer.fixed)


@dataclass(frozen=True, slots=True)
class _Row:
    prompt_ids: Sequence[int]
    output_ids: Sequence[int]
    logps: Sequence[float]


def count_activations(
    config: Any, lora: LoraSettings | None, weights: Compute, compute: Compute
) -> Activations:
    """What the backward pass keeps of a model, by its configuration.

    Args:
        config: of the model; all layers count as its first two.
        lora: adapters, if they are what is trained.
        weights: number format of the weights.
        compute: number format of the products.

    Raises:
        UsageError: no such model can be made.
    """
    layers = config.get_text_config().num_hidden_layers
    one, two = (_saved(config, depth, lora, weights, compute) for depth in (1, 2))
    layer = Saved(two.per_token - one.per_token, two.fixed - one.fixed)
    around = Saved(one.per_token - layer.per_token, max(0.0, one.fixed - layer.fixed))
    stream = config.get_text_config().hidden_size * (2 if weights == "bfloat16" else 4)
    return Activations(layer, around, layers, stream)


def _saved(
    config: Any, depth: int, lora: LoraSettings | None, weights: Compute, compute: Compute
) -> Saved:
    short = copy.deepcopy(config)
    text = short.get_text_config()
    text.num_hidden_layers = depth
    if getattr(text, "layer_types", None):
        text.layer_types = text.layer_types[:depth]
    short._attn_implementation = "sdpa"
    with torch.device("meta"):
        model = bare_model(short, dtype=getattr(torch, weights))
        if lora is not None:
            LoraBase(model, "", lora).add("one", 0)
    found = []
    with FakeTensorMode(allow_non_fake_inputs=True):
        _leave_meta(model)
        layout: RowLayout = "packed"
        try:
            use_packed_attention(model)
        except UsageError:
            layout = "padded"
        own = {one.untyped_storage()._cdata for one in model.parameters()}
        for length in _LENGTHS:
            draw = random.Random(length)
            ids = [draw.randrange(1, 3) for _ in range(length + 1)]
            batch = tensors([_Row(ids[:-1], ids[-1:], [0.0])], [0.0], layout)
            with torch.autocast("cpu", torch.bfloat16, enabled=compute == "bfloat16"):
                found.append(_count(model, batch, own))
    slope = (found[1] - found[0]) / (_LENGTHS[1] - _LENGTHS[0])
    return Saved(slope, max(0.0, found[0] - slope * _LENGTHS[0]))


def _leave_meta(model: Any) -> None:
    """Put new tensors of the CPU in the place of the meta device's, where autocast does nothing."""
    made: dict[int, Any] = {}
    for module in model.modules():
        for tensors_of, wrap in ((module._parameters, True), (module._buffers, False)):
            for name, old in tensors_of.items():
                if old is None:
                    continue
                if id(old) not in made:
                    new = torch.empty(old.shape, dtype=old.dtype, device="cpu")
                    made[id(old)] = torch.nn.Parameter(new, old.requires_grad) if wrap else new
                tensors_of[name] = made[id(old)]


def _count(model: Any, batch: MicroBatch, own: set[int]) -> int:
    """Bytes of the storages that autograd saves, but for the parameters' own."""
    seen: dict[int, torch.UntypedStorage] = {}

    def pack(value: Tensor) -> Tensor:
        storage = value.untyped_storage()
        if storage._cdata not in own:
            seen.setdefault(storage._cdata, storage)  # held, so that no other takes its place
        return value

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda value: value):
        last_hidden(model, batch)
    return sum(storage.nbytes() for storage in seen.values())
