"""Graders: actors that carry out effects for rollout workers."""

import asyncio
import logging
import math
import os
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Protocol, cast

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.placement_group import PlacementGroup

from flowzoo.agents.rollout.engine import CHUNK, Resolver
from flowzoo.baselines.backends.backend import RolloutSpec
from flowzoo.baselines.backends.ray.cluster import (
    BACK_WITHIN_S,
    PAUSE_S,
    WorkerError,
    accept,
    ask_all,
    last_line,
    start_actors,
)
from flowzoo.baselines.backends.ray.worker import (
    AnsweringActor,
    Failed,
    OpenPlayer,
    check_grading,
    check_nodes,
)
from flowzoo.envs.episode.effects import PendingEffect
from flowzoo.envs.script import EffectResult, Grade
from flowzoo.envs.tasks.task import Task
from flowzoo.waits import WaitKind

EFFECTS = WaitKind(
    "the grader is ended and started again, and its effects are repeated", is_shared=True
)
"""Effects that graders carry out."""


class Grader(Protocol):
    """The part of a grader that grades."""

    def grading(self) -> Mapping[str, object]:
        """Settings that answers are graded with, equal in all processes."""

    def resolve(self, plan: RolloutSpec, effects: Sequence[PendingEffect]) -> list[EffectResult]:
        """Results of `effects`, in their order."""


class GraderWorker(AnsweringActor):
    """The actor."""

    def __init__(self, number: int, open_grader: OpenPlayer, folder: str, cores: int) -> None:
        super().__init__(f"grader {number}", folder)
        self._open = open_grader
        self._grader: Grader | None = None
        self._grading: Mapping[str, object] = {}
        os.environ["FLOWZOO_CORES"] = str(cores)

    def open(self) -> Mapping[str, object] | Failed:
        """Make the task, and its sandbox; the settings that answers are graded with."""

        def make() -> Mapping[str, object]:
            self._ready()
            return self._grading

        return self._answer(make)

    def resolve(
        self, grading: Mapping[str, object], plan: RolloutSpec, effects: Sequence[PendingEffect]
    ) -> list[EffectResult] | Failed:
        """Carry out effects of a plan, with `grading` and nothing else; results in their order."""

        def work() -> list[EffectResult]:
            grader = self._ready()
            check_grading([grading, self._grading])
            return grader.resolve(plan, effects)

        return self._answer(work)

    def _ready(self) -> Grader:
        if self._grader is None:
            grader = cast("Grader", self._open())
            self._grading = grader.grading()
            self._grader = grader
        return self._grader


FEWEST = 4  # effects that are not spread over graders: the boxes that a sandbox has for one core
MOST_LOSSES = 10  # number of times that the same effects may be lost with their grader

_log = logging.getLogger("flowzoo")


def start_graders(
    count: int, open_grader: OpenPlayer, cores: int, token: str, out: str
) -> "tuple[Graders, PlacementGroup]":
    """Actors that grade, one to a bundle of a placement group, with their tasks made."""
    names = [f"grader-{number}" for number in range(count)]  # in a namespace of this driver's own
    numbered = [(number, open_grader, os.getcwd(), cores) for number in range(count)]
    actors, group = start_actors("grader", GraderWorker, numbered, cores=cores, names=names)
    facts = ask_all("grader", actors, lambda grader: grader.facts.remote(token))
    check_nodes(facts, os.getcwd(), out)
    settings = ask_all("grader", actors, lambda grader: grader.open.remote())
    check_grading(settings)
    return Graders(names, settings[0], actors), group


class Graders:
    """Sends effects to graders. Every rollout worker has a copy; not for several threads."""

    def __init__(
        self, names: Sequence[str], grading: Mapping[str, object], actors: Sequence[Any] = ()
    ) -> None:
        self._names, self.grading = list(names), grading
        self._actors = list(actors)
        self._busy = [0] * len(self._names)
        """Calls of this process that each has not answered."""
        self._lost: dict[Any, int] = {}
        """Lost graders by the pending request for their return."""
        self._last: int | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        # Plain values: Ray keeps handles among an actor's arguments in its object store, from where
        # they may be gone when the actor is to be started again (ray #53727).
        return Graders, (self._names, self.grading)

    def __call__(self, plan: RolloutSpec) -> Resolver:
        """Resolver of the effects of `plan`; graders make its task themselves."""

        async def resolver(task: Task, effects: Sequence[PendingEffect]) -> list[EffectResult]:
            if not self._actors:
                self._actors = [ray.get_actor(name) for name in self._names]
            share = math.ceil(len(effects) / len(self._actors))
            size = min(CHUNK, max(FEWEST, share))
            sent = [_bare(effect) for effect in effects]
            chunks = [sent[at : at + size] for at in range(0, len(sent), size)]
            results = await asyncio.gather(*(self._resolve(plan, chunk) for chunk in chunks))
            return [result for results in results for result in results]

        return resolver

    async def _resolve(
        self, plan: RolloutSpec, chunk: Sequence[PendingEffect]
    ) -> Sequence[EffectResult]:
        losses = 0
        while True:
            grader = await self._choose()
            self._busy[grader] += 1
            try:
                actor, limit = self._actors[grader], EFFECTS.limit_s(str(grader))
                end = partial(ray.kill, actor, no_restart=False)
                with EFFECTS.wait(f"grader {grader}", str(grader), limit_s=limit, give_up=end):
                    reply = await actor.resolve.remote(self.grading, plan, chunk)
            except RayTaskError as error:  # graders catch their own: this is about the answer
                raise WorkerError(
                    f"the answer of grader {grader} was lost: {last_line(error)}"
                ) from error
            except RayError as error:
                losses += 1
                self._lose(grader, error)
                if losses > MOST_LOSSES:
                    raise WorkerError(
                        f"{len(chunk)} effects, the first of problem {chunk[0][0].id}, were lost "
                        f"with their grader {MOST_LOSSES} times: they may need more memory than a "
                        "grader has; leave `graders` out to see what rollout workers say of them"
                    ) from error
            else:
                return accept(reply)
            finally:
                self._busy[grader] -= 1

    async def _choose(self) -> int:
        # the fewest calls of this process; of several the next in turn
        count, began = len(self._actors), time.monotonic()
        while True:
            self._look()
            lost = set(self._lost.values())
            there = [number for number in range(count) if number not in lost]
            if there:
                last = os.getpid() if self._last is None else self._last  # not all begin alike
                self._last = min(
                    there, key=lambda index: (self._busy[index], (index - last - 1) % count)
                )
                return self._last
            if time.monotonic() - began > BACK_WITHIN_S:
                raise WorkerError(
                    f"all {count} graders are gone, and none has come back in "
                    f"{BACK_WITHIN_S:.0f} s: the same command goes on from the last checkpoint "
                    "once the cluster has room for them"
                )
            await asyncio.sleep(PAUSE_S)

    def _lose(self, grader: int, error: RayError) -> None:
        if grader not in self._lost.values():
            _log.warning(
                "grader %d is gone (%s); what it was doing is repeated",
                grader, type(error).__name__,
            )  # fmt: skip
            self._lost[self._actors[grader].open.remote()] = grader

    def _look(self) -> None:
        if not self._lost:
            return
        answered, _ = ray.wait(list(self._lost), num_returns=len(self._lost), timeout=0)
        for ref in answered:
            grader = self._lost.pop(ref)
            try:
                accept(ray.get(ref))
            except RayError:
                self._lost[self._actors[grader].open.remote()] = grader


def _bare(pending: PendingEffect) -> PendingEffect:
    # Graders do not look at the reply that a grade is recorded for.
    problem, effect = pending
    return (problem, effect._replace(of=None)) if isinstance(effect, Grade) else pending
