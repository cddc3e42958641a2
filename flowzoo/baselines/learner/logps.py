"""Log-probabilities of output tokens under a causal language model, for both layouts of rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from flowzoo.agents.hf.attention import LEARNING
from flowzoo.baselines.learner.batch import MicroBatch
from flowzoo.baselines.learner.choices import RowLayout
from flowzoo.baselines.learner.packed_attention import use_packed_attention
from flowzoo.baselines.learner.prefix_tree import Packing, grow, lay_out
from flowzoo.baselines.learner.vocabulary import Entropy, target_logps
from flowzoo.errors import UsageError


def token_logps(
    model: PreTrainedModel,
    batch: MicroBatch,
    temperature: float,
    *,
    entropy: Entropy = "none",
    chunk: int = 0,
) -> tuple[Tensor, Tensor | None]:
    """Log-probabilities of the output tokens, and entropies: (rows, T) each, 0 off the mask.

    Prompt positions cost no logits, equal prefixes cost them once, and no more than a chunk of
    them is in memory.

    Args:
        model: a model that went through `prepare`, if the batch is packed.
        batch: the rows.
        temperature: divides the logits.
        entropy: `none`: None stands in their place; `value`: numbers without gradients; `grad`.
        chunk: positions whose logits are in memory together; 0: as many as 128 MiB hold.

    Raises:
        UsageError: the batch is packed, and the model did not go through `prepare`.
    """
    states = _last_hidden(model, batch)[batch.positions]
    found = target_logps(
        states, head_of(model), batch.sources, batch.targets, temperature, entropy, chunk
    )
    logps = scatter(found.logps, batch.mask)
    if entropy == "none":
        return logps, None
    return logps, scatter(found.entropies[batch.sources], batch.mask)


def output_states(model: PreTrainedModel, batch: MicroBatch) -> Tensor:
    """The last hidden state that predicts each output token, (tokens, hidden), row by row."""
    return _last_hidden(model, batch)[batch.positions[batch.sources]]


def scatter(flat: Tensor, mask: Tensor) -> Tensor:
    """Put (tokens,) into the true places of (rows, T), row by row, and 0 elsewhere."""
    return flat.new_zeros(mask.shape).masked_scatter(mask, flat)


def head_of(model: PreTrainedModel) -> nn.Linear:
    """The projection to the vocabulary.

    Raises:
        UsageError: the model has none, or one that is more than a linear layer.
    """
    head = model.get_output_embeddings()
    if not isinstance(head, nn.Linear):
        raise UsageError(
            f"{type(model).__name__} has no plain linear layer as its output head, but "
            f"{'none' if head is None else type(head).__name__}: the learner needs one."
        )
    return head


def prepare(
    model: PreTrainedModel,
    layout: RowLayout = "packed",
    *,
    gradient_checkpointing: bool = False,
    compile: bool = False,
) -> PreTrainedModel:
    """Make `model`, in place, ready for `token_logps`, and check that its family is supported.

    Args:
        model: of any causal family; it is put in eval mode, since ratios need dropout off.
        layout: of the batches to come; `packed` also reads padded ones.
        gradient_checkpointing: keep only the inputs of each layer for the backward pass and
            compute the rest again: a third more time, much less memory.
        compile: compile the layers (torch.compile); pays for many steps on long rows.

    Raises:
        UsageError: its logits are not a plain projection of its hidden states, or it cannot read
            packed rows.
    """
    model.eval()
    check_head(model)
    if layout == "packed":
        attention = model.config._attn_implementation
        use_packed_attention(model)
        try:
            check_packing(model)
        except UsageError:
            model.config._attn_implementation = attention
            raise
    if gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    if compile:
        for layer in _layers(model):
            if layer._compiled_call_impl is None:  # several adapters share one base
                layer.compile(dynamic=True)
    return model


@torch.no_grad()
def check_head(model: PreTrainedModel) -> None:
    """Raise unless logits are the head's projection of the last hidden states.

    Some families scale or cap their logits afterwards; log-probs would be wrong without a sign.

    Raises:
        UsageError: they are not, or the head is no plain linear layer.
    """
    head = head_of(model)
    ids = torch.arange(4, device=model.device)[None]
    hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
    theirs = model(input_ids=ids, use_cache=False).logits
    if not torch.allclose(theirs, head(hidden), rtol=1e-4, atol=1e-4):
        raise UsageError(
            f"{type(model).__name__} changes its logits after the output head (a scale or a cap): "
            "the learner does not support this family."
        )


@torch.no_grad()
def check_packing(model: PreTrainedModel) -> None:
    """Raise unless packed rows get the hidden states of separate rows.

    Raises:
        UsageError: they do not, since some layer mixes positions in another way than attention,
            or the model does not hand the packing through to its layers.
    """
    rows = [[1, 2, 3, 1, 2], [1, 2, 3, 2], [1, 2, 3], [3, 1, 3, 2, 2, 1], [2]]
    tree = grow(rows)
    ids = torch.from_numpy(tree.ids)[None].to(model.device)
    message = f'{type(model).__name__} does not support packed rows: use layout="padded".'
    try:
        packed = _packed_hidden(model, ids, lay_out(tree).to(model.device))[0]
    except UsageError:
        raise
    except Exception as error:  # whatever a family that is built in another way stumbles over
        raise UsageError(message) from error
    for row, path in zip(rows, tree.paths, strict=True):
        ids = torch.tensor([row], device=model.device)
        alone = model.base_model(input_ids=ids, use_cache=False).last_hidden_state[0]
        if not torch.allclose(packed[path], alone, rtol=1e-3, atol=1e-3):
            raise UsageError(message)


def _last_hidden(model: PreTrainedModel, batch: MicroBatch) -> Tensor:
    """Last hidden states at all positions, (positions, hidden)."""
    with _checkpointing(model):
        if batch.packing is None:
            out = model.base_model(input_ids=batch.input_ids, use_cache=False)
            hidden: Tensor = out.last_hidden_state
        else:
            hidden = _packed_hidden(model, batch.input_ids, batch.packing)
    return hidden.flatten(0, 1)


def _packed_hidden(model: PreTrainedModel, ids: Tensor, packing: Packing) -> Tensor:
    """Last hidden states of a packed sequence, (1, N, hidden)."""
    if model.config._attn_implementation != LEARNING:
        raise UsageError("packed rows need a model that went through `prepare`.")
    kind = model.device.type
    lower = torch.is_autocast_enabled(kind)
    dtype = torch.get_autocast_dtype(kind) if lower else model.dtype
    heads = model.config.num_attention_heads
    groups = getattr(model.config, "num_key_value_heads", None) or heads
    return model.base_model(
        input_ids=ids,
        # Passed on as it is, being 4-D; without one the library would make one of (N, N).
        attention_mask=ids.new_zeros((1, 1, 1, 1)),
        position_ids=packing.positions,
        use_cache=False,
        packing=packing.stacked(heads // groups, dtype),
    ).last_hidden_state


def _layers(model: PreTrainedModel) -> list[nn.Module]:
    """The decoder layers."""
    return [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]


@contextmanager
def _checkpointing(model: PreTrainedModel) -> Iterator[None]:
    """Inside, layers checkpoint if that is on: the library does so in training mode only.

    Only the layers' own flags change, so dropout stays off.
    """
    layers = _layers(model) if model.is_gradient_checkpointing and torch.is_grad_enabled() else []
    for layer in layers:
        layer.training = True
    try:
        yield
    finally:
        for layer in layers:
            layer.training = False
