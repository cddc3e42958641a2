"""Bytes that a learner's backward pass keeps, counted on tensors without memory.

The learner's own forward pass runs on fake tensors, and autograd names every tensor that it saves.
"""

from __future__ import annotations

import copy
import logging
import math
import random
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import ModuleList
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.plan.shape import bare_model
from flowzoo.agents.policy import Completion
from flowzoo.baselines.learner.batch import Microbatch, tensors
from flowzoo.baselines.learner.config import Compute, RowLayout
from flowzoo.baselines.learner.hidden_states import last_hidden, layers_of
from flowzoo.baselines.learner.lora import LoraBase, LoraSettings
from flowzoo.baselines.learner.packing import use_packed_attention
from flowzoo.errors import UsageError

_LENGTHS = (640, 1280)
"""Tokens of the counted rows: long enough to need no table of all pairs of tokens."""
_BENT = 0.1
"""Share of the short row's bytes by which a line through both may miss the origin; models that keep
such a table miss it by more."""


class UncountedError(UsageError):
    """A model whose activations cannot be counted; says why."""


class Saved(NamedTuple):
    """Bytes that autograd keeps from the forward pass to the backward pass."""

    per_token: float
    fixed: float
    """Bytes for any number of tokens, e.g. copies of weights in bfloat16."""


@dataclass(frozen=True, slots=True)
class Activations:
    """Bytes that are kept by each decoder layer, and around the layers."""

    layers: tuple[Saved, ...]
    around: Saved
    stream: int
    """Bytes of the hidden state of a token between two layers, which checkpointing keeps."""

    def kept(self, tokens: int, *, again: bool) -> int:
        """Bytes for `tokens`; `again`: each layer is computed again in the backward pass."""
        per_token = [layer.per_token for layer in self.layers]
        inner = math.fsum(per_token)
        if again:
            inner = max(per_token) + len(per_token) * self.stream
        return math.ceil((self.around.per_token + inner) * tokens)

    @property
    def copies(self) -> int:
        """Bytes of the copies of weights in bfloat16, at the end of any forward pass."""
        return math.ceil(self.around.fixed + math.fsum(layer.fixed for layer in self.layers))


def count_activations(
    config: Any, lora: LoraSettings | None, weights: Compute, compute: Compute
) -> Activations:
    """Count the bytes that the backward pass keeps of a model, by its configuration.

    `weights` and `compute` are the number formats of the weights and of the products.
    """
    with torch.device("meta"):
        model = bare_model(copy.deepcopy(config), dtype=getattr(torch, weights))
    try:
        with _quiet():
            kinds = _shorten(model)
            *layers, around = map(_line, *_saved(model, lora, compute))
    except Exception as error:  # a family that is built in another way raises any type
        reason = (str(error) or type(error).__name__).splitlines()[0][:200]
        raise UncountedError(f"the activations of {config.model_type}: {reason}") from error
    last = dict(zip(kinds, layers, strict=False))  # a frozen first layer saves less
    stream = config.get_text_config().hidden_size * (2 if weights == "bfloat16" else 4)
    further = [last[kind] for kind in kinds[len(layers) :]]
    return Activations((*layers, *further), around, stream)


@contextmanager
def _quiet() -> Iterator[None]:
    # Without torch's stack in the log: the error becomes a line.
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


def _shorten(model: Any) -> list[Hashable]:
    """Shorten `model` to its first layers with every kind among them, two at least.

    Returns the kind of every layer before: modules and the shapes of their weights.
    """
    layers = layers_of(model)
    kinds: list[Hashable] = [
        tuple((name, type(module)) for name, module in layer.named_modules())
        + tuple((name, *weight.shape) for name, weight in layer.named_parameters())
        for layer in layers
    ]
    first = [kinds.index(kind) for kind in set(kinds)]
    lists = [part for part in model.modules() if isinstance(part, ModuleList) and [*part] == layers]
    if not lists:
        raise UsageError("its layers are not in one list")
    del lists[0][max(2, max(first) + 1) :]
    return kinds


def _saved(model: Any, lora: LoraSettings | None, compute: Compute) -> list[list[int]]:
    """Bytes that each layer of `model` keeps of each length, and last the bytes around them."""
    if lora is not None:
        with torch.device("meta"):
            LoraBase(model, "", lora).add("one", 0)
    with FakeTensorMode(allow_non_fake_inputs=True), _GroupedProducts():
        leave_meta(model)
        layout: RowLayout = "packed"
        # As the learner chooses with `layout` auto.
        try:
            use_packed_attention(model)
        except UsageError:
            layout = "padded"
        counts = []
        for length in _LENGTHS:
            draw = random.Random(length)
            ids = [draw.randrange(1, 3) for _ in range(length + 1)]
            batch = tensors([Completion("", ids[:-1], ids[-1:], [0.0])], [0.0], layout)
            with torch.autocast("cpu", torch.bfloat16, enabled=compute == "bfloat16"):
                counts.append(_count(model, batch))
    # A table of all pairs grows with the square of the length.
    short, long = map(sum, counts)
    if short * (_LENGTHS[1] / _LENGTHS[0] + _BENT) < long:
        raise UsageError("it keeps tables of all pairs of tokens")
    return counts


def _line(short: int, long: int) -> Saved:
    slope = (long - short) / (_LENGTHS[1] - _LENGTHS[0])
    return Saved(slope, max(0.0, short - slope * _LENGTHS[0]))


class _GroupedProducts(TorchDispatchMode):
    """Products of experts in any number format: torch's own shape rule takes bfloat16 alone."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is torch.ops.aten._grouped_mm.default and args[0].ndim == 2 and args[1].ndim == 3:
            return args[0].new_empty((args[0].shape[0], args[1].shape[-1]))
        return func(*args, **(kwargs or {}))


def leave_meta(model: Any) -> None:
    """Replace tensors on the meta device, where autocast does nothing, by new ones on the CPU."""
    copies: dict[int, Any] = {}
    for module in model.modules():
        for tensors_of, wrap in ((module._parameters, True), (module._buffers, False)):
            for name, old in tensors_of.items():
                if old is None:
                    continue
                if id(old) not in copies:
                    new = torch.empty(old.shape, dtype=old.dtype, device="cpu")
                    copies[id(old)] = torch.nn.Parameter(new, old.requires_grad) if wrap else new
                tensors_of[name] = copies[id(old)]


def _count(model: Any, batch: Microbatch) -> list[int]:
    """Bytes of the storages that each layer saves, and last of those around the layers.

    The parameters' own count nowhere.
    """
    parameters = {weight.untyped_storage()._cdata for weight in model.parameters()}
    layers = layers_of(model)
    around = len(layers)
    owner = around
    seen: dict[int, tuple[torch.UntypedStorage, set[int]]] = {}

    def enter(number: int, *_: Any) -> None:
        nonlocal owner
        owner = number

    def pack(value: Tensor) -> Tensor:
        storage = value.untyped_storage()
        if storage._cdata not in parameters:  # held, so that no other gets its address
            seen.setdefault(storage._cdata, (storage, set()))[1].add(owner)
        return value

    hooks = [
        hook
        for number, layer in enumerate(layers)
        for hook in (
            layer.register_forward_pre_hook(partial(enter, number)),
            layer.register_forward_hook(partial(enter, around)),
        )
    ]
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda value: value):
        last_hidden(model, batch)
    for hook in hooks:
        hook.remove()
    sizes = [0] * (around + 1)
    for storage, owners in seen.values():
        # A tensor that several layers saved is around them.
        sizes[owners.pop() if len(owners) == 1 else around] += storage.nbytes()
    return sizes
