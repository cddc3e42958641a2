"""Last hidden states of padded and packed rows, and which of the two layouts a family can have."""

from __future__ import annotations

from collections.abc import Hashable

import torch
from torch import Tensor
from transformers import PreTrainedModel

from flowzoo.agents.hf.attention import LEARNING, text_config
from flowzoo.agents.hf.kinds import kind_of
from flowzoo.baselines.learner.batch import MicroBatch
from flowzoo.baselines.learner.gradient_checkpointing import checkpointing
from flowzoo.baselines.learner.literals import LayoutChoice, RowLayout
from flowzoo.baselines.learner.output_head import body_of
from flowzoo.baselines.learner.packed_attention import use_packed_attention
from flowzoo.baselines.learner.prefix_tree import Packing, grow, lay_out
from flowzoo.errors import UsageError

_misfits: dict[Hashable, str] = {}
"""Kind of model -> why it cannot be packed, as `use_packed_rows` found it; "" where it can."""


def last_hidden(model: PreTrainedModel, batch: MicroBatch) -> Tensor:
    """Last hidden states at all positions, (positions, hidden).

    Raises:
        UsageError: the batch is packed, and the model was not made for packed rows.
    """
    with checkpointing(model):
        if batch.packing is None:
            out = body_of(model)(input_ids=batch.input_ids, use_cache=False)
            hidden: Tensor = out.last_hidden_state
        else:
            hidden = _packed_hidden(model, batch.input_ids, batch.packing)
    return hidden.flatten(0, 1)


class PackedRowsError(UsageError):
    """A family that is right only in padded rows."""

    def __init__(self, model: PreTrainedModel, reason: str) -> None:
        """`reason` says what of `model` cannot be packed."""
        self.reason = f"{type(model).__name__} cannot read packed rows ({reason})"
        super().__init__(f"{self.reason}: use `layout` padded, or auto.")


def fitting_layout(model: PreTrainedModel, choice: LayoutChoice) -> tuple[RowLayout, list[str]]:
    """The layout of rows that `model` is to be trained in, and what is to be said about it.

    Args:
        model: made one that reads packed rows, if these are wanted and it can.
        choice: what is wanted.

    Raises:
        PackedRowsError: `packed` is wanted, and it cannot read such rows.
    """
    if choice == "padded":
        return "padded", []
    if not reads_packed_rows(model):
        try:
            use_packed_rows(model)
        except PackedRowsError as error:
            if choice == "packed":
                raise
            return "padded", [
                f"{error.reason}: its rows are padded, which is as right, and slower where rows "
                "share a prompt"
            ]
    return "packed", []


def reads_packed_rows(model: PreTrainedModel) -> bool:
    """Whether `model` went through `use_packed_rows`."""
    return text_config(model)._attn_implementation == LEARNING


@torch.no_grad()
def use_packed_rows(model: PreTrainedModel) -> None:
    """Make `model`, in place, one that reads packed rows, and compare them with separate rows.

    They are compared once a kind of model.

    Raises:
        PackedRowsError: they differ, since some layer mixes positions in another way than full
            attention, or the model does not hand the packing through to its layers; it is left as
            it was.
    """
    model.eval()
    kind = kind_of(model)
    if kind not in _misfits:
        _misfits[kind] = _compare(model)
    if _misfits[kind]:
        raise PackedRowsError(model, _misfits[kind])
    use_packed_attention(model)


def _compare(model: PreTrainedModel) -> str:
    """Why `model`, which is left as it is, cannot read packed rows; or nothing."""
    config = text_config(model)
    rows = [[1, 2, 3, 1, 2], [1, 2, 3, 2], [1, 2, 3], [3, 1, 3, 2, 2, 1], [2]]
    alone = [_alone(model, row) for row in rows]
    before = config._attn_implementation
    try:
        return _misfit(model, rows, alone)
    except UsageError as error:
        return str(error)
    except torch.OutOfMemoryError:  # says nothing of the kind
        raise
    except Exception as error:  # whatever a family that is built in another way stumbles over
        return (str(error) or type(error).__name__).splitlines()[0][:200]
    finally:
        config._attn_implementation = before


def _misfit(model: PreTrainedModel, rows: list[list[int]], alone: list[Tensor]) -> str:
    """Make `model` read packed rows; why that does not give the states `alone`, or nothing."""
    tree = grow(rows)
    ids = torch.from_numpy(tree.ids)[None].to(model.device)
    use_packed_attention(model)
    packed = _packed_hidden(model, ids, lay_out(tree).to(model.device))[0]
    for row, path, own in zip(rows, tree.paths, alone, strict=True):
        if not _near(packed[path], own):
            return "its hidden states are not those of single rows"
        if not _near(_alone(model, row), own):
            return "single rows would become others"
    return ""


def _alone(model: PreTrainedModel, row: list[int]) -> Tensor:
    """Hidden states (tokens, hidden) of one row by itself."""
    ids = torch.tensor([row], device=model.device)
    return body_of(model)(input_ids=ids, use_cache=False).last_hidden_state[0]


def _near(mine: Tensor, own: Tensor) -> bool:
    close = 5e-2 if mine.dtype in (torch.bfloat16, torch.float16) else 1e-3
    return torch.allclose(mine, own, rtol=close, atol=close)


def _packed_hidden(model: PreTrainedModel, ids: Tensor, packing: Packing) -> Tensor:
    """Last hidden states of a packed sequence, (1, N, hidden)."""
    config = text_config(model)
    if not reads_packed_rows(model):
        raise UsageError("packed rows need a model that went through `prepare`.")
    kind = model.device.type
    lower = torch.is_autocast_enabled(kind)
    dtype = torch.get_autocast_dtype(kind) if lower else model.dtype
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
