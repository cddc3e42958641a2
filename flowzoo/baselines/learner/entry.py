"""The way into a model that is spread over ranks.

The learner takes a model apart: it asks the body for hidden states and multiplies with the output
head itself. Where the model is sharded, the parameters of its root (embeddings, last norm, head)
are gathered for a forward pass of the root alone, so the learner's own computation has to be one.
`add_entry` gives the model a method for that, which the gang that shards it registers.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any, TypeVar

from transformers import PreTrainedModel

T = TypeVar("T")

ENTRY = "flowzoo_entry"
"""Name of the method."""


def add_entry(model: PreTrainedModel) -> None:
    """Give `model` the method `ENTRY`, which calls what it is given."""
    setattr(model, ENTRY, MethodType(_enter, model))


def within(model: PreTrainedModel, work: Callable[[], T]) -> T:
    """What `work`, a computation with the parameters of `model`, returns; tensors in a tuple."""
    entry: Any = getattr(model, ENTRY, None)
    return work() if entry is None else entry(work)


def _enter(model: PreTrainedModel, work: Callable[[], Any]) -> Any:
    return work()
