"""The rollout engine for plays that come while others are under way."""

import asyncio
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from flowzoo.agents.policy import Policy
from flowzoo.agents.policy_map import PolicyMap
from flowzoo.agents.rollout.engine import (
    PendingRequest,
    Play,
    Resolver,
    RolloutEngine,
    RootPlay,
    RunningPlay,
)
from flowzoo.envs.tasks.task import Task

GATHER_S = 0.003
"""Seconds in which no play begins or ends, after which policies get what is waiting as a batch."""
_MOST_GATHERED = 10  # times that plays may come and prolong this


class ServingEngine(RolloutEngine):
    """Runs plays from `add` on; an error of any kind ends one play."""

    def __init__(self, policy_map: PolicyMap, task: Task, resolver: Resolver) -> None:
        """Make an engine; see `RolloutEngine`."""
        super().__init__(
            policy_map,
            task,
            deterministic=False,
            in_flight=0,
            on_result=lambda result: None,
            on_failure=lambda error, key: None,
            resolver=resolver,
        )
        self.futures: dict[str, asyncio.Future[Any]] = {}
        self.begun = self.ended = 0
        """Numbers of plays."""
        self._gathered = 0

    def add(self, play: Play) -> asyncio.Future[Any]:
        """Begin a play; returns the future of its result. Cancelling it drops the play."""
        root = RootPlay(self.begun, str(self.begun))
        self.begun += 1
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.futures[root.key] = future
        future.add_done_callback(partial(self._forget, root))
        self.active_plays += 1
        self._advance(RunningPlay(play, root), None)
        self.wake.set()
        return future

    async def serve(self) -> None:
        """Move the plays until cancelled."""
        try:
            while True:
                await self.wake.wait()
                await self._gather()
                self.wake.clear()
                self._grade()
                self._ask()
                if self.error is not None:
                    raise self.error
        finally:
            await self.end_tasks()

    async def _gather(self) -> None:
        # Clients that got their answers from one batch send their next requests one by one.
        for _ in range(_MOST_GATHERED):
            if self._gathered == self.begun + self.ended:
                break
            self._gathered = self.begun + self.ended
            await asyncio.sleep(GATHER_S)

    def _forget(self, root: RootPlay, future: asyncio.Future[Any]) -> None:
        self.active_plays -= 1
        self.ended += 1
        del self.futures[root.key]
        if future.cancelled() or future.exception() is not None:
            self._leave_queues([root])

    def _leave_queues(self, roots: Iterable[RootPlay]) -> None:
        for root in roots:
            root.failed = True
        for queue in self.queues.values():
            queue[:] = [waiting for waiting in queue if not waiting.play.root.failed]

    def _break(self, roots: Iterable[RootPlay], error: Exception) -> None:
        roots = set(roots)
        self._leave_queues(roots)
        for root in roots:
            future = self.futures.get(root.key)
            if future is not None and not future.done():
                future.set_exception(error)

    # -- what the base class would end everything for --------------------------------------------

    def _advance(self, running: RunningPlay, results: list[Any] | None) -> None:
        try:
            super()._advance(running, results)
        except Exception as error:
            self._break([running.root], error)

    def _fail(self, root: RootPlay, error: Exception) -> None:
        self._break([root], error)

    def _finish_play(self, running: RunningPlay, result: Any) -> None:
        if running.parent is not None:
            super()._finish_play(running, result)
            return
        future = self.futures.get(running.root.key)
        if future is not None and not future.done():
            future.set_result(result)

    async def _generate(self, policy: Policy, batch: Sequence[PendingRequest]) -> None:
        try:
            await super()._generate(policy, batch)
        except Exception as error:
            self.busy.discard(policy.name)
            if len(batch) == 1:
                self._break([batch[0].play.root], error)
                return
            for waiting in batch:  # the fault may be in one of them: a chat that has no template
                self._spawn(self._generate(policy, [waiting]))

    async def _grade_chunk(self, plays: list[RunningPlay]) -> None:
        try:
            await super()._grade_chunk(plays)
        except Exception as error:
            self._break([running.root for running in plays], error)
