"""Memory of vLLM's engines: weights and cache, on one GPU or spread over several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from flowzoo.agents.vllm.settings import EngineSettings

_GIB = 2**30


class EngineBytes(NamedTuple):
    """Bytes of one engine, on one GPU."""

    weights: int
    cache: int
    """The least it starts with."""
    heads: int
    """Of attention: its GPUs must divide their number."""
    groups: int
    """Heads of keys and values: where there are more GPUs, some hold the same ones."""

    def on(self, gpus: int) -> int:
        """Bytes on each of so many GPUs (tensor parallel)."""
        return self.weights // gpus + self.cache // min(gpus, self.groups)


def with_cache(
    engines: Sequence[EngineBytes], bytes_each: int, cache_gib: float | None, gpus: int = 1
) -> int:
    """Bytes that engines which share `gpus` GPUs take of each.

    Args:
        engines: all of them.
        bytes_each: memory of a GPU.
        cache_gib: of a GPU for all their caches; None: vLLM takes its share of the GPU.
        gpus: their number.
    """
    least = sum(engine.on(gpus) for engine in engines)
    if cache_gib is None:  # taken whether it is needed or not
        return max(least, int(EngineSettings().gpu_share * bytes_each))
    return max(least, sum(one.weights // gpus for one in engines) + int(cache_gib * _GIB))


def gpus_of_each(engines: Sequence[EngineBytes], gpus: int, room: int, asked: int = 0) -> int:
    """GPUs that each engine is spread over; 1: all engines share one.

    Args:
        engines: all of them.
        gpus: that there are for them.
        room: bytes of a GPU that may be used.
        asked: GPUs that the settings give all engines together. Without, each has as few as
            hold it, in powers of two.
    """
    most = gpus // len(engines)
    if asked > 1:
        each = asked // len(engines)
        return each if each <= most else 1
    if sum(engine.on(1) for engine in engines) <= room:
        return 1
    for each in (2**power for power in range(1, most.bit_length())):
        if all(engine.heads % each == 0 and engine.on(each) <= room for engine in engines):
            return each
    return 1
