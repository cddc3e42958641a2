"""Learner groups: the ranks that train one policy together."""

from collections.abc import Callable, Sequence
from types import MethodType
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from flowzoo.aliases import Floats, T

ENTRY = "flowzoo_entry"  # name of the method that `add_entry` gives a model


class LearnerGroup:
    """Ranks that train a policy together, here a single process; all methods but `local` are
    collective.
    """

    # Every rank has all rows and cuts the same microbatches. All that decides about a step (counts,
    # norms, errors) is the same on every rank, so that none waits for a collective operation that
    # another never begins.

    alone = True
    """True if there are no other ranks."""
    writes = True
    """True if this rank writes files."""

    def shard(self, model: PreTrainedModel) -> None:
        """Shard the parameters of `model` over the ranks, in place, if this group shards."""

    def reshard(self, model: PreTrainedModel) -> None:
        """Free what a forward pass gathered, before parameters are read by name."""

    def local_parts(self, parts: Sequence[T], turn: int) -> list[T]:
        """Parts that this rank computes, beginning with another rank at every `turn`."""
        return list(parts)

    def num_forward_passes(self, parts: int) -> int:
        """Number of passes of this rank with `parts`, stand-ins included."""
        return parts

    def set_gradient_sync(self, model: PreTrainedModel, now: bool) -> None:
        """Choose whether the next backward pass adds up gradients over ranks."""

    def add_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Add up the gradients of `parameters` over ranks, if no backward pass has done so."""

    def gather(self, value: T) -> list[T]:
        """Values of all ranks, by rank; they are pickled, so they are small and trusted."""
        return [value]

    def all_reduce(self, products: Floats) -> Floats:
        """Inner products of whole vectors from the products of their local parts."""
        return products

    def local(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The part of each tensor that this rank has, as a plain tensor that shares its memory."""
        return list(tensors)


def add_entry(model: PreTrainedModel) -> None:
    """Give `model` the method `ENTRY`, which calls its argument."""
    # The parameters of a sharded root (embeddings, last norm, head) are gathered for a forward pass
    # of the root alone, so the learner's own computation has to be one.
    setattr(model, ENTRY, MethodType(lambda _, work: work(), model))


def within(model: PreTrainedModel, work: Callable[[], T]) -> T:
    """Run `work`, a computation with the parameters of `model`; it returns tensors in a tuple."""
    entry: Any = getattr(model, ENTRY, None)
    return work() if entry is None else entry(work)
