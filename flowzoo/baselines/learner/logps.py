"""Log-probabilities of output tokens under a causal language model, for both layouts of rows."""

from __future__ import annotations

from torch import Tensor
from transformers import PreTrainedModel

from flowzoo.baselines.learner.batch import MicroBatch
from flowzoo.baselines.learner.gradient_checkpointing import enable_checkpointing, layers_of
from flowzoo.baselines.learner.hidden_states import last_hidden, reads_packed_rows, use_packed_rows
from flowzoo.baselines.learner.literals import RowLayout
from flowzoo.baselines.learner.output_head import OutputHead, head_of
from flowzoo.baselines.learner.vocabulary import Entropy, target_logps


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
    states = last_hidden(model, batch)[batch.positions]
    return logps_at(states, head_of(model), batch, temperature, entropy=entropy, chunk=chunk)


def logps_at(
    states: Tensor,
    head: OutputHead,
    batch: MicroBatch,
    temperature: float,
    *,
    entropy: Entropy = "none",
    chunk: int = 0,
) -> tuple[Tensor, Tensor | None]:
    """What `token_logps` returns, from the states at `batch.positions`, (states, hidden)."""
    found = target_logps(states, head, batch.sources, batch.targets, temperature, entropy, chunk)
    logps = scatter(found.logps, batch.mask)
    if entropy == "none":
        return logps, None
    return logps, scatter(found.entropies[batch.sources], batch.mask)


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
    """Make `model`, in place, ready for `token_logps`, and check that its family is supported.

    Args:
        model: of any causal family; it is put in eval mode, since ratios need dropout off.
        layout: of the batches to come; `packed` also reads padded ones.
        gradient_checkpointing: keep only the inputs of each layer for the backward pass and
            compute the rest again: a third more time, much less memory.
        compile: compile the layers (torch.compile); pays for many steps on long rows.

    Raises:
        UsageError: its logits are no known function of its hidden states, it cannot read packed
            rows, or its layers cannot be checkpointed.
    """
    model.eval()
    head_of(model)  # looked at now, so that a family without support is refused here
    if layout == "packed" and not reads_packed_rows(model):
        use_packed_rows(model)
    if gradient_checkpointing:
        enable_checkpointing(model)
    if compile:
        for layer in layers_of(model):
            if layer._compiled_call_impl is None:  # several adapters share one base
                layer.compile(dynamic=True)
    return model
