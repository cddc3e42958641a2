"""Statistics of the targets over any tuple of columns, by episode or by call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from flowzoo.baselines.advantages.columns import Groups
from flowzoo.baselines.advantages.segments import (
    Bools,
    Codes,
    Floats,
    GroupIndex,
    GroupStats,
    reduce,
    widen,
)
from flowzoo.baselines.advantages.spec import Weight

EPISODE = ("problem", "episode")
"""Columns that identify an episode: ids are unique within a problem only."""


class GroupedTargets(NamedTuple):
    """Groups of rows with the statistics of their targets."""

    codes: Codes
    """Group of each row, (rows,)."""
    segments: GroupStats
    """Statistics of each group, (groups,)."""
    items: Floats | None = None
    """Value of the row's item, (rows,): its target, or the mean of its episode's; None if not
    requested."""

    def rows(self, groups: Bools) -> Bools:
        """Mask of the rows in `groups`, (rows,)."""
        if not groups.any():
            return np.zeros(len(self.codes), np.bool_)
        return groups[self.codes]


class GroupedTargetsCache:
    """The pools of one computation, each found once."""

    def __init__(self, groups: Groups, targets: Floats, *, items: bool = False) -> None:
        """Pools of `targets`, (rows,); `items` says whether `GroupedTargets.items` is needed."""
        self.groups, self.targets, self.items = groups, targets, items
        self._found: dict[tuple[frozenset[str], Weight], GroupedTargets] = {}

    def of(self, columns: Sequence[str], weight: Weight) -> GroupedTargets:
        """Groups of rows that share `columns`, with each call or each episode counted once."""
        key = (frozenset(columns), weight)
        if key not in self._found:
            grouping = self.groups.by(columns)
            if weight == "call":
                self._found[key] = self._by_call(grouping)
            else:
                self._found[key] = self._by_episode(grouping, self.groups.by((*columns, *EPISODE)))
        return self._found[key]

    def widened(self, columns: Sequence[str], weight: Weight) -> GroupedTargets:
        """The same, where the rows of a group of one take the group without the last column."""
        pool = self.of(columns, weight)
        for width in range(len(columns) - 1, 0, -1):
            counts = pool.segments.counts
            lone = pool.rows(counts < 2)
            if not lone.any():
                break
            wider = self.of(columns[:width], weight)
            # One table of both kinds of group: the narrower ones, then the wider ones.
            tables = zip(pool.segments, wider.segments, strict=True)
            segments = GroupStats(*(np.concatenate(table) for table in tables))
            items = pool.items
            if items is not None and wider.items is not None:
                items = np.where(lone, wider.items, items)
            pool = GroupedTargets(widen(pool.codes, counts, wider.codes), segments, items)
        return pool

    def _by_call(self, grouping: GroupIndex) -> GroupedTargets:
        codes, first = grouping
        return GroupedTargets(codes, reduce(codes, self.targets, len(first)), self.targets)

    def _by_episode(self, grouping: GroupIndex, items: GroupIndex) -> GroupedTargets:
        """Two levels: rows to episodes within a group, episodes to groups."""
        means = reduce(items.codes, self.targets, len(items.first)).mean
        segments = reduce(grouping.codes[items.first], means, len(grouping.first))
        return GroupedTargets(grouping.codes, segments, means[items.codes] if self.items else None)
