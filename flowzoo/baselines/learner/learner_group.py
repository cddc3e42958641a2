"""Learner groups: the ranks that train one policy together.

Every rank has all rows and cuts the same microbatches, takes its share of them and adds its
gradient to the others'. All that decides about a step (counts, norms, errors) is the same on every
rank, so that no rank waits for a collective operation that another one never begins.
`SingleProcess` is the learner group of a learner in one process, and does nothing; the others are
in `flowzoo.baselines.backends`.

The learner takes a model apart: it asks the body for hidden states and multiplies with the output
head itself. Where the model is sharded, the parameters of its root (embeddings, last norm, head)
are gathered for a forward pass of the root alone, so the learner's own computation has to be one.
`add_entry` gives the model a method for that, which the learner group that shards it registers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MethodType
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn
from transformers import PreTrainedModel

T = TypeVar("T")
Floats = npt.NDArray[np.float64]

ENTRY = "flowzoo_entry"
"""Name of the method that `add_entry` gives a model."""


class LearnerGroup(Protocol):
    """Ranks that train a policy together; all methods but `local` are collective."""

    alone: bool
    """True if there are no other ranks."""
    writes: bool
    """True if this rank writes files."""

    def shard(self, model: PreTrainedModel) -> None:
        """Shard the parameters of `model` over the ranks, in place, if this group shards.

        Trials on the unsharded model must be done before. A second call does nothing.
        """
        ...

    def reshard(self, model: PreTrainedModel) -> None:
        """Free the parameters of `model` that were gathered for a forward pass.

        Call it before its parameters are read by name.
        """
        ...

    def local_parts(self, parts: Sequence[T], turn: int) -> list[T]:
        """Parts that this rank computes; `parts` are the same on every rank.

        `turn` rotates the first rank, so that few parts at a time are not always the same rank's.
        """
        ...

    def num_forward_passes(self, parts: int) -> int:
        """Number of parts that this rank must compute if it has `parts`, stand-ins included.

        If a forward pass is a collective operation: the largest number of any rank.
        """
        ...

    def set_gradient_sync(self, model: PreTrainedModel, now: bool) -> None:
        """Choose whether the next backward pass adds up gradients over ranks."""
        ...

    def add_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Add up the gradients of `parameters` over ranks, if no backward pass has done so."""
        ...

    def gather(self, value: T) -> list[T]:
        """Values of all ranks, by rank; they are pickled, so they are small and trusted."""
        ...

    def all_reduce(self, products: Floats) -> Floats:
        """Inner products of whole vectors from the products of their local parts."""
        ...

    def local(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The part of each tensor that this rank has, as a plain tensor that shares its memory."""
        ...


class SingleProcess:
    """The learner group of a single process."""

    alone = True
    writes = True

    def shard(self, model: PreTrainedModel) -> None:
        """No-op: a single process has nothing to shard."""

    def reshard(self, model: PreTrainedModel) -> None:
        """No-op."""

    def local_parts(self, parts: Sequence[T], turn: int) -> list[T]:
        """Return all `parts`."""
        return list(parts)

    def num_forward_passes(self, parts: int) -> int:
        """Return `parts` unchanged."""
        return parts

    def set_gradient_sync(self, model: PreTrainedModel, now: bool) -> None:
        """No-op."""

    def add_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """No-op."""

    def gather(self, value: T) -> list[T]:
        """Return the value of the only rank."""
        return [value]

    def all_reduce(self, products: Floats) -> Floats:
        """Return `products` unchanged."""
        return products

    def local(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return the tensors themselves."""
        return list(tensors)


def add_entry(model: PreTrainedModel) -> None:
    """Give `model` the method `ENTRY`, which calls its argument."""
    setattr(model, ENTRY, MethodType(_enter, model))


def within(model: PreTrainedModel, work: Callable[[], T]) -> T:
    """Run `work`, a computation with the parameters of `model`; it returns tensors in a tuple."""
    entry: Any = getattr(model, ENTRY, None)
    return work() if entry is None else entry(work)


def _enter(model: PreTrainedModel, work: Callable[[], Any]) -> Any:
    return work()
