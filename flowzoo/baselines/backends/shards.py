"""Shards: the unit of rollout work, of its repetition and of its determinism.

The same episodes in other batches have the same tokens, but their log-probs differ in the last
bits. So jobs are cut into shards by a setting and never by the number of ranks, and a shard is
always played as one batch, wherever that happens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from flowzoo.agents.rollout.episodes import EpisodeJob


class Shard(NamedTuple):
    """Jobs that are played as one batch."""

    number: int
    jobs: tuple[EpisodeJob, ...]


def cut_shards(jobs: Sequence[EpisodeJob], size: int) -> list[Shard]:
    """Shards of `size` jobs each, in order; the last may have fewer. 0: one shard of all."""
    size = size or max(1, len(jobs))
    starts = range(0, max(1, len(jobs)), size)
    return [Shard(n, tuple(jobs[start : start + size])) for n, start in enumerate(starts)]
