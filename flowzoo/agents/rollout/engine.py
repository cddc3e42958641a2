"""The event loop under every sampler: many plays at once, their requests and effects in batches.

A *play* is a generator without I/O. It yields `RequestBatch`, `EffectBatch` or `PlayBatch` (further
plays, run beside each other), receives the results in their order, and returns its result. In
deterministic mode a policy is called only when no play can move, with all waiting requests in
canonical order, so that batches, hence floats, hence samples, repeat exactly; otherwise requests
leave as they come.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from flowzoo.agents.policy import Completion, Policy, Request, canonical
from flowzoo.agents.policy_map import PolicyMap
from flowzoo.envs import WorkflowError
from flowzoo.envs.door.server import submit
from flowzoo.envs.episode.effects import PendingEffect as PendingEffect
from flowzoo.envs.episode.effects import resolve
from flowzoo.envs.script import Advance, EffectResult, Progress
from flowzoo.envs.tasks.task import Task
from flowzoo.errors import UsageError
from flowzoo.functions import exit_error
from flowzoo.provenance import usable_cores
from flowzoo.waits import LIMITS, LateError, Wait, WaitKind

CHUNK = 256
"""Effects graded in one go."""

ENDED_WITHIN_S = 10.0
"""Most seconds for calls that are canceled to end."""
ANSWERS = WaitKind("the command ends with an error", is_shared=True)
"""Answers of policies: engines, endpoints and judges."""
BATCHES = WaitKind("the command ends with an error", is_shared=True, usual=max)
"""Answers to batches, whose sizes differ."""
LOOK_AGAIN_S = 1.0
"""Seconds to take an answer that came while something blocked the loop."""

Resolver = Callable[[Task, Sequence[PendingEffect]], Awaitable[list[EffectResult]]]
"""Carries effects of a task out, off the loop; returns results in order, as `resolve` does."""


_MOST_THREADS = min(32, usable_cores() + 4)
_slots: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()


async def resolve_here(task: Task, effects: Sequence[PendingEffect]) -> list[EffectResult]:
    """`resolve` in a thread of this process, for which nothing waits once this is cancelled."""
    # The end of a loop and of a process wait for asyncio's own threads: so would Ctrl-C.
    loop = asyncio.get_running_loop()
    done: asyncio.Future[list[EffectResult]] = loop.create_future()

    def settle(results: list[EffectResult], error: BaseException | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(results)
        else:
            done.set_exception(error)

    def work() -> None:
        results, failure = list[EffectResult](), None
        try:
            results = resolve(task, effects)
        except BaseException as error:
            failure = error
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle, results, failure)

    async with _slots.setdefault(loop, asyncio.Semaphore(_MOST_THREADS)):
        threading.Thread(target=work, name="flowzoo-effects", daemon=True).start()
        return await done


class Response(NamedTuple):
    """A completion, with the name of the policy that gave it."""

    policy: str
    completion: Completion


class RequestBatch(NamedTuple):
    """Requests; the play receives a `Response` each."""

    requests: Sequence[Request]


class EffectBatch(NamedTuple):
    """Effects with their problems; the play receives their results."""

    effects: Sequence[PendingEffect]


class PlayBatch(NamedTuple):
    """Plays that run beside each other; the play receives what each returned."""

    plays: "Sequence[Play]"


Step = RequestBatch | EffectBatch | PlayBatch
Play = Generator[Step, list[Any], Any]


@dataclass(slots=True, eq=False)
class RootPlay:
    """A play that was admitted, with all plays it started; one of them failing ends it."""

    number: int
    key: str
    failed: bool = False


@dataclass(slots=True, eq=False)
class RunningPlay:
    """A play under way: what it waits for, and who waits for it."""

    play: Play
    root: RootPlay
    parent: "RunningPlay | None" = None
    index: int = 0
    results: list[Any] = field(default_factory=list)
    pending: int = 0
    effects: Sequence[PendingEffect] = ()


class PendingRequest(NamedTuple):
    """A request, and where its answer belongs."""

    play: RunningPlay
    position: int
    request: Request


class RolloutEngine:
    """Runs plays; make one for each run."""

    def __init__(
        self,
        policy_map: PolicyMap,
        task: Task | None,
        *,
        deterministic: bool,
        in_flight: int,
        on_result: Callable[[Any], None],
        on_failure: Callable[[WorkflowError, str], None],
        resolver: Resolver = resolve_here,
    ) -> None:
        """Make an engine.

        `deterministic`: see the module docstring. At most `in_flight` admitted plays are open at a
        time. `on_result` gets what each returned, in order of completion, `on_failure` the error
        and key of each that failed; it may raise.
        """
        self.policy_map, self.task = policy_map, task
        self.deterministic, self.in_flight = deterministic, in_flight
        self.on_result, self.on_failure, self.resolver = on_result, on_failure, resolver
        self.active_plays = 0
        self.results: dict[int, Any] = {}
        self.pending_effects: deque[RunningPlay] = deque()
        self.queues: dict[str, list[PendingRequest]] = {name: [] for name in policy_map.policies}
        self.busy: set[str] = set()
        self.grading = 0
        self.tasks: set[asyncio.Task[None]] = set()
        self.wake = asyncio.Event()
        self.error: BaseException | None = None

    async def run(self, plays: Iterable[tuple[str, Play]]) -> list[Any]:
        """Run `plays`, each under its key; returns their results in order, failed ones left out."""
        waiting = enumerate(plays)
        more = True
        try:
            while True:
                self.wake.clear()
                while more and self.active_plays < self.in_flight:
                    more = self._admit(waiting)
                self._grade()
                self._ask()
                if self.error is not None:
                    raise self.error
                if not self.tasks and not self.pending_effects and not any(self.queues.values()):
                    if not more and self.active_plays == 0:
                        break
                    continue
                await self.wake.wait()
                if self.error is not None:
                    raise self.error
        finally:
            await self.end_tasks()
        return [self.results[number] for number in sorted(self.results)]

    # -- moving plays --------------------------------------------------------------------------

    def _admit(self, plays: Iterator[tuple[int, tuple[str, Play]]]) -> bool:
        for number, (key, play) in plays:
            self.active_plays += 1
            self._advance(RunningPlay(play, RootPlay(number, key)), None)
            return True
        return False

    def _advance(self, running: RunningPlay, results: list[Any] | None) -> None:
        root = running.root
        if root.failed:
            return
        try:
            batch = running.play.send(results)  # type: ignore[arg-type] # None starts it
            while not batch[0]:
                batch = running.play.send([])
        except StopIteration as stop:
            self._finish_play(running, stop.value)
        except WorkflowError as error:
            self._fail(root, error)
        else:
            self._dispatch(running, batch)

    def _dispatch(self, running: RunningPlay, batch: Step) -> None:
        if isinstance(batch, EffectBatch):
            running.effects = batch.effects
            self.pending_effects.append(running)
            return
        running.pending = len(batch[0])
        running.results = [None] * running.pending
        if isinstance(batch, RequestBatch):
            for index, request in enumerate(batch.requests):
                queue = self.queues[self.policy_map.policy(request.agent).name]
                queue.append(PendingRequest(running, index, request))
        else:
            for index, play in enumerate(batch.plays):
                self._advance(RunningPlay(play, running.root, running, index), None)

    def _finish_play(self, running: RunningPlay, result: object) -> None:
        if running.parent is not None:
            self._deliver(running.parent, running.index, result)
            return
        self.active_plays -= 1
        self.results[running.root.number] = result
        self.on_result(result)

    def _deliver(self, running: RunningPlay, index: int, result: object) -> None:
        running.results[index] = result
        running.pending -= 1
        if not running.pending:
            self._advance(running, running.results)

    def _fail(self, root: RootPlay, error: WorkflowError) -> None:
        root.failed = True
        self.active_plays -= 1
        for queue in self.queues.values():
            queue[:] = [waiting for waiting in queue if not waiting.play.root.failed]
        self.on_failure(error, root.key)

    # -- effects -------------------------------------------------------------------------------

    def _grade(self) -> None:
        while self.pending_effects:
            plays: list[RunningPlay] = []
            while self.pending_effects and sum(len(play.effects) for play in plays) < CHUNK:
                running = self.pending_effects.popleft()
                if any(type(effect) is Advance for _, effect in running.effects):
                    # Programs take their time: an episode waits for its own alone.
                    self._grade_together([running])
                else:
                    plays.append(running)
            if plays:
                self._grade_together(plays)

    def _grade_together(self, plays: list[RunningPlay]) -> None:
        self.grading += 1
        self._spawn(self._grade_chunk(plays))

    async def _resolve(self, effects: Sequence[PendingEffect]) -> list[EffectResult]:
        # Agent programs move on in this process; the resolver has the other effects.
        if self.task is None:
            raise UsageError("only episodes of a workflow have effects")
        programs = [effect for _, effect in effects if type(effect) is Advance]
        others = [job for job in effects if type(job[1]) is not Advance]
        results, moves = list[EffectResult](), list[Progress]()
        if programs:
            moves = await asyncio.gather(*map(asyncio.wrap_future, submit(programs)))
        if others:
            results = await self.resolver(self.task, others)
        rest, moved = iter(results), iter(moves)
        return [next(moved if type(job[1]) is Advance else rest) for job in effects]

    async def _grade_chunk(self, plays: list[RunningPlay]) -> None:
        effects = [effect for running in plays for effect in running.effects]
        results = iter(await self._resolve(effects))
        self.grading -= 1
        for running in plays:
            self._advance(running, list(islice(results, len(running.effects))))

    # -- replies -------------------------------------------------------------------------------

    def _ask(self) -> None:
        # Wait until nothing moves: then the set of waiting requests is a function of the seed.
        if self.deterministic and (self.grading or self.pending_effects or self.busy):
            return
        for name, policy in self.policy_map.policies.items():
            queue = self.queues[name]
            if policy.batching == "stream" and not self.deterministic:
                for waiting in queue:
                    self._spawn(self._generate(policy, [waiting]))
                queue.clear()
            elif queue and name not in self.busy:
                if self.deterministic:
                    queue.sort(key=lambda waiting: canonical(waiting.request.key))
                self.busy.add(name)
                self._spawn(self._generate(policy, list(queue)))
                queue.clear()

    async def _generate(self, policy: Policy, batch: Sequence[PendingRequest]) -> None:
        kind = ANSWERS if policy.batching == "stream" else BATCHES
        name, limit = f"policy {policy.name!r}", kind.limit_s(policy.name)
        late = LateError(
            f"{name} has not answered in {limit:.0f} s: what was saved before is whole, and the "
            "same command goes on from it"
        )
        loop = asyncio.get_running_loop()
        is_here = any(getattr(policy, trait, False) for trait in ("is_person", "is_function"))
        try:
            with nullcontext() if is_here else kind.wait(name, policy.name, limit_s=limit) as wait:
                if wait is not None:
                    wait.give_up = partial(loop.call_soon_threadsafe, self._look, wait, late)
                completions = await policy.generate([waiting.request for waiting in batch])
        except (Exception, asyncio.CancelledError, KeyboardInterrupt):
            raise
        except BaseException as error:
            raise exit_error(error, f"policy {policy.name!r}") from error
        if len(completions) != len(batch):
            raise UsageError(
                f"policy {policy.name!r} returned {len(completions)} completions for "
                f"{len(batch)} requests; it must return one each, in order"
            )
        self.busy.discard(policy.name)
        for (play, position, _), completion in zip(batch, completions, strict=True):
            self._deliver(play, position, Response(policy.name, completion))

    # -- tasks ---------------------------------------------------------------------------------

    async def end_tasks(self) -> None:
        """Cancel the calls of policies and graders that are under way, and wait for their end."""
        for task in self.tasks:
            task.cancel()
        if self.tasks:
            await asyncio.wait(self.tasks, timeout=ENDED_WITHIN_S)

    def _look(self, wait: Wait, late: LateError) -> None:
        asyncio.get_running_loop().call_later(LOOK_AGAIN_S, self._give_up, wait, late)

    def _give_up(self, wait: Wait, late: LateError) -> None:
        if wait.ended:
            return
        LIMITS.abandoned = True
        self.error = self.error or late
        self.wake.set()

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and task.exception() is not None and self.error is None:
            self.error = task.exception()
        self.wake.set()
