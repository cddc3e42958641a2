"""Many episodes at once: the rollout engine.

A single event loop moves every episode as far as it can go. Requests go to the policies, effects to
the task's batch grader (in chunks, off the loop); whoever gets an answer moves on, no episode waits
for another. In deterministic mode (default) a policy is called only when no episode can move, with
all waiting requests in canonical order, so that batches, hence floats, hence samples, repeat
exactly; otherwise requests leave as they come (`stream` policies one by one, `static` ones in
whatever has gathered while they were busy).
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from flowzoo.agents.drivers import AECDriver, Answer, Driver, EpisodeDriver, chat
from flowzoo.agents.policy import Completion, Policy, Request, canonical
from flowzoo.agents.roster import Roster
from flowzoo.envs import EpisodeRecord, Message, Problem, Workflow, WorkflowError
from flowzoo.envs.effects import resolve
from flowzoo.envs.tasks.task import Task
from flowzoo.errors import UsageError

CHUNK = 256
"""Effects graded in one go."""


@dataclass(frozen=True, slots=True)
class Job:
    """One episode to run: a problem, and which of its samples this is."""

    problem: Problem
    sample: int = 0

    @property
    def key(self) -> str:
        """Id of the episode."""
        return f"{self.problem.id}#{self.sample}"


@dataclass(slots=True)
class Flight:
    """An episode in the air."""

    number: int
    sample: int
    driver: Driver
    answers: dict[int, Answer] = field(default_factory=dict)


@dataclass(slots=True)
class Waiting:
    """A request and the episode that waits for it."""

    flight: Flight
    call: int
    request: Request


class Rollout:
    """Runs jobs with a roster of policies.

    Raises:
        UsageError: the roster does not cover the workflow's roles, or `in_flight` is below 1.
    """

    def __init__(
        self,
        workflow: Workflow | None,
        roster: Roster,
        *,
        seed: int = 0,
        deterministic: bool = True,
        in_flight: int = 4096,
        on_error: Literal["raise", "count"] = "raise",
        failures: Path | None = None,
        on_episode: Callable[[EpisodeRecord], None] | None = None,
    ) -> None:
        """Make an engine.

        Args:
            workflow: the workflow every episode runs; None to drive environments that are not
                flowzoo's, with `arun_envs` (their roles are known only when they play).
            roster: who answers for which role.
            seed: first part of every request's key.
            deterministic: see the module docstring.
            in_flight: most episodes open at a time.
            on_error: a failing script (`WorkflowError`) stops everything, or is counted in
                `failed`.
            failures: a JSONL file that failed episodes are appended to, with transcript.
            on_episode: called with every finished episode, in order of completion.
        """
        if in_flight < 1:
            raise UsageError(f"`in_flight` must be >= 1, got {in_flight}")
        if workflow is not None:
            roster.check(workflow.role_counts())
        self.workflow, self.roster, self.seed = workflow, roster, seed
        self.deterministic, self.in_flight = deterministic, in_flight
        self.on_error, self.failures, self.on_episode = on_error, failures, on_episode
        self.failed = 0

    def run(self, jobs: Iterable[Job]) -> list[EpisodeRecord]:
        """Run `jobs` and return their records in the order of the jobs (failed ones left out).

        Raises:
            WorkflowError: a script failed and `on_error` is "raise".
            UsageError: called from a running event loop; await `arun` there.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(self.arun(jobs))
        raise UsageError("run() inside a running event loop: use `await rollout.arun(jobs)`")

    async def arun(self, jobs: Iterable[Job]) -> list[EpisodeRecord]:
        """`run` for callers that are coroutines."""
        workflow = self.workflow
        if workflow is None:
            raise UsageError("jobs need a workflow: Rollout(workflow, roster)")
        starts = (
            (job.sample, _start(EpisodeDriver, workflow, job.problem, job.key)) for job in jobs
        )
        return await _Run(self, workflow.task, starts).finish()

    async def arun_envs(
        self, envs: Iterable[Any], observe: Callable[[Any], list[Message]] = chat
    ) -> list[EpisodeRecord]:
        """Drive AEC environments, already reset, through `last` and `step`.

        Args:
            envs: environments; the i-th is keyed as sample i of its problem.
            observe: turns an observation into chat messages.
        """

        def starts() -> Iterable[tuple[int, Callable[[], Driver]]]:
            for number, env in enumerate(envs):
                core = getattr(env, "unwrapped", env)
                episode = getattr(core, "episode", None)
                problem = episode.problem.id if episode is not None else str(env)
                key = f"{problem}#{number}"
                yield number, _start(AECDriver, env, problem, key, observe)

        return await _Run(self, None, starts()).finish()

    def fail(self, error: WorkflowError, key: str) -> None:
        """Count a failed episode, save it if asked, and stop if told to."""
        self.failed += 1
        if self.failures is not None:
            self.failures.parent.mkdir(parents=True, exist_ok=True)
            line = {
                "episode": key,
                "problem": error.problem,
                "error": str(error),
                "transcript": error.transcript,
            }
            with self.failures.open("a", encoding="utf-8", errors="backslashreplace") as file:
                file.write(json.dumps(line) + "\n")
        if self.on_error == "raise":
            raise error


def _start(kind: Callable[..., Driver], *args: Any) -> Callable[[], Driver]:
    return lambda: kind(*args)


class _Run:
    """The state of one `arun`."""

    def __init__(
        self,
        rollout: Rollout,
        task: Task | None,
        starts: Iterable[tuple[int, Callable[[], Driver]]],
    ) -> None:
        self.rollout = rollout
        self.task = task
        self.starts = enumerate(starts)
        self.more = True
        self.flying = 0
        self.records: dict[int, EpisodeRecord] = {}
        self.graded: deque[Flight] = deque()
        self.queues: dict[str, list[Waiting]] = {name: [] for name in rollout.roster.policies}
        self.queue_of: dict[str, list[Waiting]] = {}
        """Agent -> the queue of its policy, as it is met; queues are emptied in place."""
        self.busy: set[str] = set()
        self.grading = 0
        self.tasks: set[asyncio.Task[None]] = set()
        self.wake = asyncio.Event()
        self.error: BaseException | None = None

    async def finish(self) -> list[EpisodeRecord]:
        try:
            while True:
                self.wake.clear()
                self._admit()
                self._grade()
                self._ask()
                if self.error is not None:
                    raise self.error
                if not self.tasks and not self.graded and not any(self.queues.values()):
                    if not self.more and self.flying == 0:
                        break
                    continue
                await self.wake.wait()
                if self.error is not None:
                    raise self.error
        finally:
            for task in self.tasks:
                task.cancel()
            await asyncio.gather(*self.tasks, return_exceptions=True)
        return [self.records[number] for number in sorted(self.records)]

    # -- moving episodes -----------------------------------------------------------------------

    def _admit(self) -> None:
        while self.more and self.flying < self.rollout.in_flight:
            entry = next(self.starts, None)
            if entry is None:
                self.more = False
                return
            number, (sample, start) = entry
            self.flying += 1
            try:
                flight = Flight(number, sample, start())
            except WorkflowError as error:
                self._failed(error, f"{error.problem}#{sample}")
                continue
            self._move(flight)

    def _move(self, flight: Flight) -> None:
        """Queue what the episode waits for, or file it if it is over."""
        driver = flight.driver
        if driver.effects():
            self.graded.append(flight)
            return
        opened = driver.open_turns()
        if not opened:
            self._file(flight)
            return
        roster, seed = self.rollout.roster, self.rollout.seed
        for turn in opened:
            key = (seed, driver.problem, flight.sample, turn.agent, turn.turn)
            request = Request(key, turn.agent, turn.role, turn.messages, driver.problem)
            queue = self.queue_of.get(turn.agent)
            if queue is None:
                queue = self.queues[roster.policy(turn.agent).name]
                self.queue_of[turn.agent] = queue
            queue.append(Waiting(flight, turn.call, request))

    def _file(self, flight: Flight) -> None:
        self.flying -= 1
        finished = flight.driver.finish(flight.answers)
        self.records[flight.number] = finished
        if self.rollout.on_episode is not None:
            self.rollout.on_episode(finished)

    def _failed(self, error: WorkflowError, key: str) -> None:
        self.flying -= 1
        self.rollout.fail(error, key)

    # -- effects -------------------------------------------------------------------------------

    def _grade(self) -> None:
        while self.graded:
            flights: list[Flight] = []
            jobs: list[Any] = []
            while self.graded and len(jobs) < CHUNK:
                flight = self.graded.popleft()
                flights.append(flight)
                jobs.extend(flight.driver.effects())
            self.grading += 1
            self._spawn(self._grade_chunk(flights, jobs))

    async def _grade_chunk(self, flights: list[Flight], jobs: list[Any]) -> None:
        if self.task is None:
            raise UsageError("only episodes of a workflow have effects")
        results = await asyncio.to_thread(resolve, self.task, jobs)
        self.grading -= 1
        place = 0
        for flight in flights:
            count = len(flight.driver.effects())
            try:
                flight.driver.resolve(results[place : place + count])
            except WorkflowError as error:
                self._failed(error, f"{flight.driver.problem}#{flight.sample}")
            else:
                self._move(flight)
            place += count

    # -- replies -------------------------------------------------------------------------------

    def _ask(self) -> None:
        policies = self.rollout.roster.policies
        if self.rollout.deterministic:
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
            self._take(policy.name, waiting, completion)

    def _take(self, policy: str, waiting: Waiting, completion: Completion) -> None:
        flight = waiting.flight
        flight.answers[waiting.call] = Answer(policy, completion)
        try:
            moved = flight.driver.reply(waiting.request.agent, completion.text)
        except WorkflowError as error:
            self._failed(error, f"{flight.driver.problem}#{flight.sample}")
        else:
            if moved:
                self._move(flight)

    # -- tasks ---------------------------------------------------------------------------------

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self._landed)

    def _landed(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and task.exception() is not None and self.error is None:
            self.error = task.exception()
        self.wake.set()
