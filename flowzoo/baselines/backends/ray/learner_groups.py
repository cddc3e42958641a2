"""Learner groups of a run: one of all policies, or some that learn at the same time.

They never meet. What they have in common is the driver, which waits for each in a thread of its
own; nothing of a step that one of them has failed can be used, so its error ends them all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from ray.util.placement_group import PlacementGroup

from flowzoo.baselines.backends.at_once import at_once
from flowzoo.baselines.backends.ray.learners import (
    RemoteLearner,
    RemoteLearnerGroup,
    start_learners,
)
from flowzoo.baselines.backends.ray.worker import NodeFacts, OpenPlayer
from flowzoo.baselines.settings.learner_groups import LearnerGroupPlan

T = TypeVar("T")


class RemoteLearnerGroups:
    """The learner groups, each with a placement group of its own."""

    def __init__(
        self, plans: Sequence[LearnerGroupPlan], open_learners: OpenPlayer, cores: int, gpus: float
    ) -> None:
        """Start the actors of all; their models come later.

        Raises:
            UsageError: the cluster has no room for those of a learner group.
        """
        self.groups: list[PlacementGroup] = []
        self._learner_groups: dict[tuple[str, ...], RemoteLearnerGroup] = {}
        """Policies -> who learns them."""
        for policies, count in plans:
            opener = open_learners._replace(given=(*open_learners.given, policies))
            of = f" of {', '.join(policies)}" if len(plans) > 1 else ""
            self._learner_groups[policies], group = start_learners(count, opener, cores, gpus, of)
            self.groups.append(group)

    @property
    def pids(self) -> dict[str, list[int]]:
        """Policy -> the processes of its learner group, by rank, once they have said `facts`."""
        return {name: group.pids for names, group in self._learner_groups.items() for name in names}

    def facts(self, token: str) -> list[NodeFacts]:
        """What every rank's node is like; see `RemoteLearnerGroup.facts`."""
        return [one for group in self._learner_groups.values() for one in group.facts(token)]

    def join(self, shard: str) -> dict[str, RemoteLearner]:
        """Make the learners on all ranks; see `RemoteLearnerGroup.join`.

        What speaks for the learners comes back by policy, in the order of their names.
        """
        works = [
            {str(names): partial(group.join, shard)}
            for names, group in self._learner_groups.items()
        ]
        joined = at_once(works, self.end).values()
        found = {name: one for made in joined for name, one in made.items()}
        return {name: found[name] for name in sorted(found)}

    def together(self, works: Mapping[str, Callable[[], T]]) -> dict[str, T]:
        """What `works`, by policy, return; policies of one learner group take turns.

        Raises:
            Exception: the first of any learner group's; then all of them have ended.
        """
        lines = [
            {name: works[name] for name in names if name in works} for names in self._learner_groups
        ]
        found = at_once([line for line in lines if line], self.end)
        return {name: found[name] for name in works}

    def end(self) -> None:
        """End all ranks, whatever they are doing; from any thread."""
        for group in self._learner_groups.values():
            group.end()
