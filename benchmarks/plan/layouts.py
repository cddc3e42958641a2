"""Placements of a run on GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from flowzoo.baselines.settings.options import Sharding

Training = Literal["full", "lora"]
Where = Literal["transformers", "colocated", "split", "split, own GPUs"]

SPARE = 0.1
"""Share of a GPU that is left free for memory that is not counted (see `memory`)."""


@dataclass(frozen=True, slots=True)
class Layout:
    """A placement of a run, and the bytes on its fullest GPU by engine."""

    training: Training
    shard: Sharding
    ranks: int
    learner: int
    """Bytes of all learners on one GPU, at the worst moment."""
    needs: Mapping[Where, int]
    """Bytes by placement of the engine, without impossible ones."""
    engine_gpus: int = 1
    """GPUs over which an engine on separate GPUs is spread."""
    counted: bool = True
    """True if the numbers include the learner's activations."""


def layout_fits(layout: Layout, where: Where, room: int) -> bool | None:
    """True if GPUs of which `room` bytes may be used hold a layout; None: not known."""
    if layout.needs[where] > room:
        return False
    return True if layout.counted else None
