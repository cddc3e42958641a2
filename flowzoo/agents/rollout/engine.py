"""The event loop under every sampler: many plays at once, their requests and effects in batches.

A *play* is a generator without I/O, as a workflow's script is. It yields `Asks` (requests to
policies), `Work` (effects to carry out) or `Plays` (further plays, run beside each other), receives
the results in their order, and returns what it made. The loop moves every play as far as it can
go. Requests go to the policies, effects to the task's batch grader (in chunks, off the loop);
whoever gets an answer moves on, no play waits for another. In deterministic mode a policy is
called only when no play can move, with all waiting requests in canonical order, so that batches,
hence floats, hence samples, repeat exactly; otherwise requests leave as they come (`stream`
policies one by one, `static` ones in whatever has gathered while they were busy).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any, NamedTuple

from flowzoo.agents.policy import Completion, Policy, Request, canonical
from flowzoo.agents.roster import Roster
from flowzoo.envs import WorkflowError
from flowzoo.envs.episode.effects import Job as Effort
from flowzoo.envs.episode.effects import resolve
from flowzoo.envs.tasks.task import Task
from flowzoo.errors import UsageError

CHUNK = 256
"""Effects graded in one go."""


class Answer(NamedTuple):
    """Which policy answered a request, and how."""

    policy: str
    completion: Completion


class Asks(NamedTuple):
    """Requests; the play receives an `Answer` each."""

    requests: Sequence[Request]


class Work(NamedTuple):
    """Effects with their problems; the play receives their results."""

    efforts: Sequence[Effort]


class Plays(NamedTuple):
    """Plays that run beside each other; the play receives what each returned."""

    plays: Sequence[Play]


Play = Generator[Asks | Work | Plays, list[Any], Any]


class Root:
    """A play that was admitted, with all plays it started; one of them failing ends it."""

    __slots__ = ("dead", "key", "number")

    def __init__(self, number: int, key: str) -> None:
        self.number, self.key = number, key
        self.dead = False


class Flight:
    """A play under way: what it waits for, and who waits for it."""

    __slots__ = ("missing", "parent", "place", "play", "results", "root", "work")

    def __init__(self, play: Play, root: Root, parent: Flight | None = None, place: int = 0):
        self.play, self.root, self.parent, self.place = play, root, parent, place
        self.results: list[Any] = []
        self.missing = 0
        self.work: Sequence[Effort] = ()


class Waiting(NamedTuple):
    """A request, and where its answer belongs."""

    flight: Flight
    place: int
    request: Request


class Engine:
    """Runs plays; make one for each run."""

    def __init__(
        self,
        roster: Roster,
        task: Task | None,
        *,
        deterministic: bool,
        in_flight: int,
        landed: Callable[[Any], None],
        failed: Callable[[WorkflowError, str], None],
    ) -> None:
        """Make an engine.

        Args:
            roster: who answers.
            task: whose effects there are; None if there are none.
            deterministic: see the module docstring.
            in_flight: most admitted plays open at a time.
            landed: called with what each admitted play returned, in order of completion.
            failed: called with the error and the key of each that failed; may raise.
        """
        self.roster, self.task = roster, task
        self.deterministic, self.in_flight = deterministic, in_flight
        self.landed, self.failed = landed, failed
        self.flying = 0
        self.found: dict[int, Any] = {}
        self.graded: deque[Flight] = deque()
        self.queues: dict[str, list[Waiting]] = {name: [] for name in roster.policies}
        self.queue_of: dict[str, list[Waiting]] = {}
        """Agent -> the queue of its policy, as it is met; queues are emptied in place."""
        self.busy: set[str] = set()
        self.grading = 0
        self.tasks: set[asyncio.Task[None]] = set()
        self.wake = asyncio.Event()
        self.error: BaseException | None = None

    async def run(self, plays: Iterable[tuple[str, Play]]) -> list[Any]:
        """What `plays`, each under its key, return, in their order; failed ones left out.

        Raises:
            UsageError: a policy gave another number of completions than was asked for.
            Exception: whatever a policy or a grader raised.
        """
        waiting = enumerate(plays)
        more = True
        try:
            while True:
                self.wake.clear()
                while more and self.flying < self.in_flight:
                    more = self._admit(next(waiting, None))
                self._grade()
                self._ask()
                if self.error is not None:
                    raise self.error
                if not self.tasks and not self.graded and not any(self.queues.values()):
                    if not more and self.flying == 0:
                        break
                    continue
                await self.wake.wait()
                if self.error is not None:
                    raise self.error
        finally:
            for task in self.tasks:
                task.cancel()
            await asyncio.gather(*self.tasks, return_exceptions=True)
        return [self.found[number] for number in sorted(self.found)]

    # -- moving plays --------------------------------------------------------------------------

    def _admit(self, entry: tuple[int, tuple[str, Play]] | None) -> bool:
        """Start a play; False if there is none left."""
        if entry is None:
            return False
        number, (key, play) = entry
        self.flying += 1
        self._move(Flight(play, Root(number, key)), None)
        return True

    def _move(self, flight: Flight, results: list[Any] | None) -> None:
        """Give a play what it waited for, and see to what it wants next."""
        root = flight.root
        if root.dead:
            return
        try:
            wanted = flight.play.send(results)  # type: ignore[arg-type] # None starts it
            while not wanted[0]:
                wanted = flight.play.send([])
        except StopIteration as stop:
            self._land(flight, stop.value)
        except WorkflowError as error:
            self._fail(root, error)
        else:
            self._see_to(flight, wanted)

    def _see_to(self, flight: Flight, wanted: Asks | Work | Plays) -> None:
        if isinstance(wanted, Work):
            flight.work = wanted.efforts
            self.graded.append(flight)
            return
        flight.missing = len(wanted[0])
        flight.results = [None] * flight.missing
        if isinstance(wanted, Asks):
            for place, request in enumerate(wanted.requests):
                self._queue(request.agent).append(Waiting(flight, place, request))
        else:
            for place, play in enumerate(wanted.plays):
                self._move(Flight(play, flight.root, flight, place), None)

    def _queue(self, agent: str) -> list[Waiting]:
        queue = self.queue_of.get(agent)
        if queue is None:
            queue = self.queues[self.roster.policy(agent).name]
            self.queue_of[agent] = queue
        return queue

    def _land(self, flight: Flight, made: Any) -> None:
        if flight.parent is not None:
            self._fill(flight.parent, flight.place, made)
            return
        self.flying -= 1
        self.found[flight.root.number] = made
        self.landed(made)

    def _fill(self, flight: Flight, place: int, result: Any) -> None:
        """One of the results that a play waits for is there; after the last it moves on."""
        flight.results[place] = result
        flight.missing -= 1
        if not flight.missing:
            self._move(flight, flight.results)

    def _fail(self, root: Root, error: WorkflowError) -> None:
        root.dead = True
        self.flying -= 1
        for queue in self.queues.values():
            queue[:] = [waiting for waiting in queue if not waiting.flight.root.dead]
        self.failed(error, root.key)

    # -- effects -------------------------------------------------------------------------------

    def _grade(self) -> None:
        while self.graded:
            flights: list[Flight] = []
            efforts: list[Effort] = []
            while self.graded and len(efforts) < CHUNK:
                flight = self.graded.popleft()
                flights.append(flight)
                efforts.extend(flight.work)
            self.grading += 1
            self._spawn(self._grade_chunk(flights, efforts))

    async def _grade_chunk(self, flights: list[Flight], efforts: list[Effort]) -> None:
        if self.task is None:
            raise UsageError("only episodes of a workflow have effects")
        results = await asyncio.to_thread(resolve, self.task, efforts)
        self.grading -= 1
        place = 0
        for flight in flights:
            count = len(flight.work)
            self._move(flight, results[place : place + count])
            place += count

    # -- replies -------------------------------------------------------------------------------

    def _ask(self) -> None:
        policies = self.roster.policies
        if self.deterministic:
            # Wait until nothing moves: then the set of waiting requests is a function of the seed.
            if self.grading or self.graded or self.busy:
                return
            for name, queue in self.queues.items():
                queue.sort(key=lambda waiting: canonical(waiting.request.key))
                self._send(policies[name], queue)
            return
        for name, queue in self.queues.items():
            if policies[name].batching == "static":
                if name not in self.busy:
                    self._send(policies[name], queue)
            else:
                for waiting in queue:
                    self._spawn(self._generate(policies[name], [waiting]))
                queue.clear()

    def _send(self, policy: Policy, queue: list[Waiting]) -> None:
        if queue:
            batch, queue[:] = list(queue), []
            self.busy.add(policy.name)
            self._spawn(self._generate(policy, batch))

    async def _generate(self, policy: Policy, batch: Sequence[Waiting]) -> None:
        completions = await policy.generate([waiting.request for waiting in batch])
        if len(completions) != len(batch):
            raise UsageError(
                f"policy {policy.name!r} returned {len(completions)} completions for "
                f"{len(batch)} requests; it must return one each, in order"
            )
        self.busy.discard(policy.name)
        for waiting, completion in zip(batch, completions, strict=True):
            self._fill(waiting.flight, waiting.place, Answer(policy.name, completion))

    # -- tasks ---------------------------------------------------------------------------------

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and task.exception() is not None and self.error is None:
            self.error = task.exception()
        self.wake.set()
