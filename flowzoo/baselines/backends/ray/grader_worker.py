"""A grader: an actor that carries out effects for rollout workers. It needs no Ray to exist.

What it is given names what is to be graded with, as a rollout worker's request names its weights: a
grader that Ray has started again on a node with another sandbox refuses.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, cast

from flowzoo.baselines.backends.plays import PlayPlan
from flowzoo.baselines.backends.ray.nodes import check_grading
from flowzoo.baselines.backends.ray.worker import AnsweringActor, Failed, OpenPlayer
from flowzoo.envs.episode.effects import PendingEffect
from flowzoo.envs.script import EffectResult


class Grader(Protocol):
    """What grades in a grader."""

    def grading(self) -> Mapping[str, Any]:
        """What answers are graded with, which must be the same everywhere."""
        ...

    def resolve(self, plan: PlayPlan, effects: Sequence[PendingEffect]) -> list[EffectResult]:
        """Results of `effects`, in their order."""
        ...


class Ready(NamedTuple):
    """A grader has its task."""

    grading: Mapping[str, Any]


class Resolved(NamedTuple):
    """What effects came to, in their order."""

    results: list[EffectResult]


GraderReply = Ready | Resolved | Failed


class GraderWorker(AnsweringActor):
    """The actor."""

    def __init__(self, number: int, open_grader: OpenPlayer, folder: str, cores: int) -> None:
        """Cheap: whatever is heavy is made when it is first needed, and again after a restart.

        Args:
            number: names it.
            open_grader: makes what grades.
            folder: the driver's working directory.
            cores: those that are this grader's; a sandbox starts its boxes by them.
        """
        super().__init__(f"grader {number}", folder)
        self._open = open_grader
        self._grader: Grader | None = None
        self._grading: Mapping[str, Any] = {}
        os.environ["FLOWZOO_CORES"] = str(cores)

    def open(self) -> GraderReply:
        """Make the task, and its sandbox."""

        def make() -> Ready:
            self._ready()
            return Ready(self._grading)

        return self._answer(make)

    def resolve(
        self, grading: Mapping[str, Any], plan: PlayPlan, effects: Sequence[PendingEffect]
    ) -> GraderReply:
        """Carry out effects of a plan, with `grading` and nothing else."""

        def work() -> Resolved:
            grader = self._ready()
            check_grading([grading, self._grading])
            return Resolved(grader.resolve(plan, effects))

        return self._answer(work)

    def _ready(self) -> Grader:
        if self._grader is None:
            grader = cast("Grader", self._open())
            self._grading = grader.grading()
            self._grader = grader
        return self._grader
