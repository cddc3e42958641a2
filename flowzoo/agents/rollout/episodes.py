"""Rollouts of many episodes at once: the base class of samplers, and the plain sampler."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

from flowzoo.agents.judge import FunctionJudge
from flowzoo.agents.policy_map import PolicyMap
from flowzoo.agents.rollout.drivers import drive, drive_env
from flowzoo.agents.rollout.engine import Play, Resolver, RolloutEngine, resolve_here
from flowzoo.envs import (
    Call,
    Episode,
    EpisodeRecord,
    Message,
    Problem,
    UngradedError,
    Workflow,
    WorkflowError,
)
from flowzoo.envs.external.text_env import chat
from flowzoo.envs.records import json_line
from flowzoo.envs.workflow import MOST_CALLS
from flowzoo.errors import UsageError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class EpisodeJob:
    """One episode to run: a problem, and which of its samples this is."""

    problem: Problem
    sample: int = 0

    @property
    def key(self) -> str:
        """Id of the episode."""
        return f"{self.problem.id}#{self.sample}"


@dataclass(frozen=True, slots=True)
class RolloutBatch:
    """Episodes of a rollout, and the rows to learn from."""

    records: list[EpisodeRecord]
    """Episodes that were played to their end, in the order of the jobs."""
    rows: list[Call]
    """Replies to learn from: all calls of the records, and candidates that were not executed."""
    value_calls: int = 0
    """Number of further replies, sampled only to value candidates."""
    value_tokens: int = 0
    """Tokens in those replies."""
    failed: int = 0
    """Jobs that failed and were counted."""


def append_row(path: Path, row: Any) -> None:
    """Append a row of JSON to a file."""
    with path.open("a", encoding="utf-8", errors="backslashreplace") as file:
        file.write(json_line(row))


def concat_batches(parts: Sequence[RolloutBatch]) -> RolloutBatch:
    """Join the batches of several jobs."""
    return RolloutBatch(
        [record for part in parts for record in part.records],
        [row for part in parts for row in part.rows],
        sum(part.value_calls for part in parts),
        sum(part.value_tokens for part in parts),
        sum(part.failed for part in parts),
    )


def run_sync(work: Coroutine[Any, Any, T], remedy: str) -> T:
    """Run a coroutine to its end; where a loop is running, raise with the `remedy` to await."""
    results: list[T] = []

    async def keep() -> None:
        # Returned, it would be written out: asyncio.run takes the repr of its finished task.
        results.append(await work)

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        asyncio.run(keep())
        return results[0]
    work.close()
    name = remedy.partition("(")[0].removeprefix("a")
    raise UsageError(f"{name}() inside a running event loop: use `await rollout.{remedy}`")


class Sampler:
    """Plays jobs with the policies of a policy map; see `Rollout` and the tree samplers.

    Raises:
        UsageError: the policy map does not cover the workflow's roles, or `in_flight` is below 1.
    """

    def __init__(
        self,
        workflow: Workflow | None,
        policy_map: PolicyMap,
        *,
        seed: int = 0,
        deterministic: bool = True,
        in_flight: int = 4096,
        on_error: Literal["raise", "count", "ungraded"] = "raise",
        failures: Path | None = None,
        on_episode: Callable[[EpisodeRecord], None] | None = None,
        resolver: Resolver = resolve_here,
    ) -> None:
        """Make a sampler.

        Args:
            workflow: the workflow every episode runs; None to drive environments that are not
                flowzoo's, with `Rollout.arun_envs` (their roles are known only when they play).
            policy_map: policies by role.
            seed: first part of every request's key.
            deterministic: see `flowzoo.agents.rollout.engine`.
            in_flight: most jobs open at a time.
            on_error: a failing script (`WorkflowError`) stops everything, or is counted in
                `failed`; under `ungraded` only episodes with an unknown verdict are counted.
            failures: a JSONL file that failed episodes are appended to, with transcript.
            on_episode: called with every finished episode, in order of completion.
            resolver: carries out effects; by default a thread of this process.
        """
        if in_flight < 1:
            raise UsageError(f"`in_flight` must be >= 1, got {in_flight}")
        if workflow is not None:
            if workflow.judge is not None and policy_map.judge is None:
                policy_map = policy_map.with_judge(FunctionJudge(workflow.judge))
            policy_map.check(workflow.role_counts(), judge=workflow.needs_judge)
        self.workflow, self.policy_map, self.seed = workflow, policy_map, seed
        self.deterministic, self.in_flight = deterministic, in_flight
        self.on_error, self.failures, self.on_episode = on_error, failures, on_episode
        self.resolver = resolver
        self.failed = 0
        self.unknown: dict[str, str] = {}
        """Why the verdict on an episode is unknown, by its key."""

    def play(self, workflow: Workflow, job: EpisodeJob) -> Play:
        """The play of one job; returns its `RolloutBatch`."""
        raise NotImplementedError(f"{type(self).__name__} must define play()")

    def sample(self, jobs: Iterable[EpisodeJob]) -> RolloutBatch:
        """Run `jobs` and return their results in order, failed ones left out.

        Raises:
            WorkflowError: a script failed and `on_error` is "raise".
            UsageError: called from a running event loop; await `asample` there.
        """
        return run_sync(self.asample(jobs), "asample(jobs)")

    async def asample(self, jobs: Iterable[EpisodeJob]) -> RolloutBatch:
        """`sample` for callers that are coroutines."""
        workflow, before = self.workflow, self.failed
        if workflow is None:
            raise UsageError("jobs need a workflow: Rollout(workflow, policy_map)")

        def on_result(part: RolloutBatch) -> None:
            for record in part.records:
                self._report(record)

        plays = ((job.key, self.play(workflow, job)) for job in jobs)
        batch = concat_batches(await self._run(plays, on_result))
        return replace(batch, failed=self.failed - before)

    async def _run(
        self, plays: Iterable[tuple[str, Play]], on_result: Callable[[Any], None]
    ) -> list[Any]:
        task, limit = None, None
        if self.workflow is not None:
            task, limit = self.workflow.task, self.workflow.open_limit
        engine = RolloutEngine(
            self.policy_map,
            task,
            deterministic=self.deterministic,
            in_flight=min(self.in_flight, limit or self.in_flight),
            on_result=on_result,
            on_failure=self.fail,
            resolver=self.resolver,
        )
        return await engine.run(plays)

    def _report(self, record: EpisodeRecord) -> None:
        if self.on_episode is not None:
            self.on_episode(record)

    def fail(self, error: WorkflowError, key: str) -> None:
        """Count and save a failed episode, and raise its error unless `on_error` counts it."""
        self.failed += 1
        if isinstance(error, UngradedError):
            self.unknown[key] = error.reason
        if self.failures is not None:
            self.failures.parent.mkdir(parents=True, exist_ok=True)
            line = {
                "episode": key,
                "problem": error.problem,
                "error": str(error),
                "transcript": error.transcript,
            }
            append_row(self.failures, line)
        counted = self.on_error == "count" or (self.on_error == "ungraded" and key in self.unknown)
        if not counted:
            raise error


class Rollout(Sampler):
    """Plays every job once, from its start to its end."""

    def play(self, workflow: Workflow, job: EpisodeJob) -> Play:
        """The play of one job; returns its `RolloutBatch`, in which every call is a row."""
        start = partial(Episode, workflow, job.problem, job.key)
        record = yield from drive(start, self.policy_map, self.seed, job.sample)
        return RolloutBatch([record], list(record.calls))

    def run(self, jobs: Iterable[EpisodeJob]) -> list[EpisodeRecord]:
        """Run `jobs` and return their records in the order of the jobs (failed ones left out).

        Raises:
            WorkflowError: a script failed and `on_error` is "raise".
            UsageError: called from a running event loop; await `arun` there.
        """
        return run_sync(self.arun(jobs), "arun(jobs)")

    async def arun(self, jobs: Iterable[EpisodeJob]) -> list[EpisodeRecord]:
        """`run` for callers that are coroutines."""
        return (await self.asample(jobs)).records

    async def arun_envs(
        self,
        envs: Iterable[object],
        observe: Callable[[Any], list[Message]] = chat,
        max_calls: int = MOST_CALLS,
    ) -> list[EpisodeRecord]:
        """Drive AEC environments, already reset, through `last` and `step`.

        Args:
            envs: environments; the i-th is keyed as sample i of its problem.
            observe: turns an observation into chat messages.
            max_calls: most calls of an episode, after which it counts as failed; an environment of
                flowzoo's has its own limit.
        """

        def plays() -> Iterator[tuple[str, Play]]:
            for number, env in enumerate(envs):
                episode = getattr(getattr(env, "unwrapped", env), "episode", None)
                problem = str(env) if episode is None else episode.problem.id
                play = drive_env(
                    env, problem, self.policy_map, self.seed, number, observe, max_calls
                )
                yield f"{problem}#{number}", play

        return await self._run(plays(), self._report)
