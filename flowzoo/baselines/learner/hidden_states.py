"""Last hidden states of padded and packed rows, and which of the two layouts a family can have."""

import weakref
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from flowzoo.agents.hf.attention import LEARNING, product_dtype, text_config
from flowzoo.agents.hf.decode import model_fingerprint, near_borders
from flowzoo.baselines.learner.batch import Microbatch
from flowzoo.baselines.learner.config import LayoutChoice, RowLayout
from flowzoo.baselines.learner.packing import Packing, grow, lay_out, use_packed_attention
from flowzoo.baselines.learner.vocabulary import Entropy, OutputHead, body_of, head_of, target_logps
from flowzoo.errors import UsageError

_checkpointed: weakref.WeakKeyDictionary[PreTrainedModel, list[GradientCheckpointingLayer]] = (
    weakref.WeakKeyDictionary()
)
"""Model -> its layers. Asking the model walks through all its modules, at every forward pass."""


def layers_of(model: PreTrainedModel) -> list[GradientCheckpointingLayer]:
    """The decoder layers."""
    return [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]


def _enable_checkpointing(model: PreTrainedModel) -> None:
    layers = layers_of(model)
    try:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    except ValueError:  # what the library raises where a family has no support
        layers = []
    if not layers:
        raise UsageError(
            f"{type(model).__name__} has no layers that can be computed again: leave out "
            "`gradient_checkpointing`, and lower `microbatch_tokens` if memory runs out."
        )
    for layer in layers:
        layer.__dict__["_gradient_checkpointing_func"] = partial(_again, layer)
    _checkpointed[model] = layers


@contextmanager
def checkpointing(model: PreTrainedModel) -> Iterator[None]:
    """Inside, layers checkpoint if `_enable_checkpointing` said so and a gradient is asked for."""
    layers = _checkpointed.get(model, []) if torch.is_grad_enabled() else []
    for layer in layers:
        layer.training = True
    try:
        yield
    finally:
        for layer in layers:
            layer.training = False


def _again(layer: nn.Module, function: Callable[..., Any], *args: Any) -> Any:
    # The library checkpoints a layer if its `training` flag is set, which in many families (OPT,
    # XGLM) turns on the layer's dropout too: inside, the flag is off.
    def quiet(*inputs: Any) -> Any:
        before, layer.training = layer.training, False
        try:
            return function(*inputs)
        finally:
            layer.training = before

    return checkpoint(quiet, *args, use_reentrant=False)


_misfits: dict[Hashable, str] = {}
"""Kind of model -> why it cannot be packed, as `_packed_misfit` found it; "" where it can."""


def last_hidden(model: PreTrainedModel, batch: Microbatch) -> Tensor:
    """Last hidden states at all positions, (positions, hidden)."""
    with checkpointing(model):
        if batch.packing is None:
            out = body_of(model)(input_ids=batch.input_ids, use_cache=False)
            hidden: Tensor = out.last_hidden_state
        else:
            hidden = _packed_hidden(model, batch.input_ids, batch.packing)
    return hidden.flatten(0, 1)


def fitting_layout(model: PreTrainedModel, choice: LayoutChoice) -> tuple[RowLayout, list[str]]:
    """The layout that `model` is to be trained in, for which it is made ready, and remarks."""
    if choice == "padded" or not (reason := _packed_misfit(model)):
        return "padded" if choice == "padded" else "packed", []
    fault = f"{type(model).__name__} cannot read packed rows ({reason})"
    if choice == "packed":
        raise UsageError(f"{fault}: use `layout` padded, or auto.")
    return "padded", [
        f"{fault}: its rows are padded, which is as right, and slower where rows share a prompt"
    ]


def _reads_packed_rows(model: PreTrainedModel) -> bool:
    return text_config(model)._attn_implementation == LEARNING


@torch.no_grad()
def _packed_misfit(model: PreTrainedModel) -> str:
    # Packed and separate rows are compared once a kind of model: some layer may mix positions in
    # another way than full attention, or the model may not hand the packing through.
    if _reads_packed_rows(model):
        return ""
    model.eval()
    kind = model_fingerprint(model)
    if kind not in _misfits:
        with _in_float32(model):
            _misfits[kind] = _compare(model)
    if not _misfits[kind]:
        use_packed_attention(model)
    return _misfits[kind]


@contextmanager
def _in_float32(model: PreTrainedModel) -> Iterator[None]:
    # In bfloat16 equal computations of a real model differ by a third. A GPU may lack the memory.
    stored = [parameter.data for parameter in model.parameters()]
    if model.device.type == "cpu":
        for parameter in model.parameters():
            parameter.data = parameter.data.float()
    try:
        yield
    finally:
        for parameter, data in zip(model.parameters(), stored, strict=True):
            parameter.data = data


def _compare(model: PreTrainedModel) -> str:
    config = text_config(model)
    rows = [[1, 2, 3, 1, 2], [1, 2, 3, 2], [1, 2, 3], [3, 1, 3, 2, 2, 1], [2]]
    rows += [([1, 2, 3, 3, 1] * border)[: border + 1] for border in near_borders(model)]
    alone = [_alone(model, row) for row in rows]
    before = config._attn_implementation
    try:
        return _misfit(model, rows, alone)
    except UsageError as error:
        return str(error)
    except torch.OutOfMemoryError:  # says nothing of the kind
        raise
    except Exception as error:  # families built in other ways raise anything
        return (str(error) or type(error).__name__).splitlines()[0][:200]
    finally:
        config._attn_implementation = before


def _misfit(model: PreTrainedModel, rows: list[list[int]], alone: list[Tensor]) -> str:
    tree = grow(rows)
    ids = torch.from_numpy(tree.ids)[None].to(model.device)
    use_packed_attention(model)
    packed = _packed_hidden(model, ids, lay_out(tree).to(model.device))[0]
    for row, path, lone_logps in zip(rows, tree.paths, alone, strict=True):
        if not _is_close(packed[path], lone_logps):
            return "its hidden states are not those of single rows"
        if not _is_close(_alone(model, row), lone_logps):
            return "single rows would become others"
    return ""


def _alone(model: PreTrainedModel, row: list[int]) -> Tensor:
    # (tokens, hidden)
    ids = torch.tensor([row], device=model.device)
    return body_of(model)(input_ids=ids, use_cache=False).last_hidden_state[0]


def _is_close(left: Tensor, right: Tensor) -> bool:
    close = 5e-2 if left.dtype in (torch.bfloat16, torch.float16) else 1e-3
    return torch.allclose(left, right, rtol=close, atol=close)


def _packed_hidden(model: PreTrainedModel, ids: Tensor, packing: Packing) -> Tensor:
    # (1, N, hidden)
    config = text_config(model)
    if not _reads_packed_rows(model):
        raise UsageError("packed rows need a model that went through `prepare`.")
    dtype = product_dtype(model.device, model.dtype)
    heads = config.num_attention_heads
    groups = getattr(config, "num_key_value_heads", None) or heads
    return body_of(model)(
        input_ids=ids,
        # Passed on as it is, being 4-D; without one the library would make one of (N, N).
        attention_mask=ids.new_zeros((1, 1, 1, 1)),
        position_ids=packing.positions,
        use_cache=False,
        packing=packing.stacked(heads // groups, dtype),
    ).last_hidden_state


def logps_at(
    states: Tensor,
    head: OutputHead,
    batch: Microbatch,
    temperature: float,
    *,
    entropy: Entropy = "none",
    chunk: int = 0,
) -> tuple[Tensor, Tensor | None]:
    """Log-probs of the output tokens, and entropies: (rows, T) each, 0 off the mask.

    `states` are the last hidden ones at `batch.positions`, (states, hidden): prompt positions cost
    no logits, and equal prefixes cost them once.
    """
    scores = target_logps(states, head, batch.sources, batch.targets, temperature, entropy, chunk)
    logps = scatter(scores.logps, batch.mask)
    if entropy == "none":
        return logps, None
    return logps, scatter(scores.entropies[batch.sources], batch.mask)


def scatter(flat: Tensor, mask: Tensor) -> Tensor:
    """Put (tokens,) into the true places of (rows, T), row by row, and 0 elsewhere."""
    return flat.new_zeros(mask.shape).masked_scatter(mask, flat)


def prepare(
    model: PreTrainedModel,
    layout: RowLayout = "packed",
    *,
    gradient_checkpointing: bool = False,
    compile: bool = False,
) -> PreTrainedModel:
    """Make `model`, in place, ready for `last_hidden`, and check that its family is supported."""
    # Eval mode: the ratios need dropout off.
    model.eval()
    head_of(model)  # looked at now, so that a family without support is refused here
    fitting_layout(model, layout)
    if gradient_checkpointing:
        _enable_checkpointing(model)
    if compile:
        for layer in layers_of(model):
            if layer._compiled_call_impl is None:  # several adapters share one base
                layer.compile(dynamic=True)
    return model
