"""The ranks that train one policy together, as a learner sees them.

Every rank has all rows and cuts the same micro-batches, takes its share of them and adds its
gradient to the others'. Whatever decides about a step (counts, norms, errors) is the same on every
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
    """What a learner needs of the ranks beside it; all methods but `local` are collective."""

    alone: bool
    """There are no others."""
    writes: bool
    """Whether this rank writes files."""

    def shard(self, model: PreTrainedModel) -> None:
        """Shard the parameters of `model` over the ranks, in place, if this group shards.

        Whatever is to be tried on the model as it is must be done before. A second call does
        nothing.
        """
        ...

    def reshard(self, model: PreTrainedModel) -> None:
        """Give up what was gathered of `model` for a forward pass, so that each rank has its part.

        Before its parameters are looked at by name.
        """
        ...

    def local_parts(self, parts: Sequence[T], turn: int) -> list[T]:
        """Those of `parts`, which are the same on every rank, that this rank computes.

        `turn` says who comes first, so that few parts at a time are not always the same rank's.
        """
        ...

    def num_forward_passes(self, parts: int) -> int:
        """How many parts this rank must compute where it has `parts`, stand-ins included.

        As many as the rank that has most, where a forward pass is a collective operation.
        """
        ...

    def set_gradient_sync(self, model: PreTrainedModel, now: bool) -> None:
        """Whether the next backward pass adds the gradient to the other ranks' already."""
        ...

    def add_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Make the gradients of `parameters` the sums over ranks, where no pass has done so."""
        ...

    def gather(self, value: T) -> list[T]:
        """What every rank gives, by rank; `value` is pickled, so it is our own and small."""
        ...

    def all_reduce(self, products: Floats) -> Floats:
        """Inner products of whole vectors from those of what `local` gives of them."""
        ...

    def local(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The part of each tensor that this rank has, as a plain tensor that shares its memory."""
        ...


class SingleProcess:
    """The learner group of a learner in one process; see `LearnerGroup`."""

    alone = True
    writes = True

    def shard(self, model: PreTrainedModel) -> None:
        """Leave it whole."""

    def reshard(self, model: PreTrainedModel) -> None:
        """Nothing was gathered."""

    def local_parts(self, parts: Sequence[T], turn: int) -> list[T]:
        """All of them."""
        return list(parts)

    def num_forward_passes(self, parts: int) -> int:
        """As many."""
        return parts

    def set_gradient_sync(self, model: PreTrainedModel, now: bool) -> None:
        """There is nobody."""

    def add_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """They are."""

    def gather(self, value: T) -> list[T]:
        """The one value."""
        return [value]

    def all_reduce(self, products: Floats) -> Floats:
        """They are whole."""
        return products

    def local(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """All of each."""
        return list(tensors)


def add_entry(model: PreTrainedModel) -> None:
    """Give `model` the method `ENTRY`, which calls what it is given."""
    setattr(model, ENTRY, MethodType(_enter, model))


def within(model: PreTrainedModel, work: Callable[[], T]) -> T:
    """What `work`, a computation with the parameters of `model`, returns; tensors in a tuple."""
    entry: Any = getattr(model, ENTRY, None)
    return work() if entry is None else entry(work)


def _enter(model: PreTrainedModel, work: Callable[[], Any]) -> Any:
    return work()
