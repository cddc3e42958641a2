"""Episodes in which the caller answers for one agent or role, and policies for all others."""

from __future__ import annotations

import asyncio
import os
import queue
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from functools import cache
from typing import Any

from flowzoo.agents.policy import Batching, Completion, Key, Policy, Request
from flowzoo.agents.policy_map import PolicyMap
from flowzoo.agents.rollout.drivers import make_request
from flowzoo.agents.rollout.episodes import EpisodeJob, Rollout
from flowzoo.agents.specs import make_policy
from flowzoo.agents.vllm.loop_thread import LoopThread
from flowzoo.envs import EpisodeRecord, Problem, Workflow
from flowzoo.envs.api.solo import SoloEnv, own_agents
from flowzoo.envs.episode.episode import Episode
from flowzoo.envs.workflow import Roles
from flowzoo.errors import UsageError, missing_extra

Others = Mapping[str, Policy | str] | Policy | str
"""Policies of the other agents: one for all, or by role or agent. A text is a policy as
`flowzoo eval --policy` takes it."""


def free_agents(workflow: Workflow, others: Others, played: str | Sequence[str] = ()) -> list[str]:
    """The agents of the roles and agents in `played`, or else all that `others` does not name."""
    names = [played] if isinstance(played, str) else list(played)
    seats = isinstance(others, Mapping) and not names
    named = {agent for name in (others if seats else names) for agent in own_agents(workflow, name)}
    free = [agent for agent in workflow.agents if (agent in named) != seats]
    if not free:
        raise UsageError("`others` plays every agent: leave one out, or name it in `played`.")
    return free


def policies_of(
    workflow: Workflow, others: Others, agents: Sequence[str], seed: int = 0
) -> dict[str, Policy]:
    """Policies of the other agents, by role or agent; texts are made into policies."""
    # An entry for one of several `agents` plays it while another one of them is answered from
    # outside.
    roles: Roles = workflow.role_counts()
    if not isinstance(others, Mapping):
        others = {} if len(workflow.agents) == 1 else dict.fromkeys(roles, others)
    if len(agents) == 1 and agents[0] in others:
        raise UsageError(f"{agents[0]} is answered from outside: leave it out of `others`.")
    names = sorted({policy for policy in others.values() if isinstance(policy, str)})
    by_text = {name: make_policy(name, oracle=workflow, seed=seed) for name in names}
    return {
        key: by_text[policy] if isinstance(policy, str) else policy
        for key, policy in others.items()
    }


def check_served(workflow: Workflow, roles: Collection[str] | None = None) -> None:
    """Raise `UsageError` if a workflow needs what other libraries cannot answer: tools, a judge.

    `roles`: roles that the library answers for; None: all.
    """
    remedy = "use `flowzoo train` and `flowzoo eval`."
    if workflow.needs_judge:
        raise UsageError(
            f"{workflow.name} asks a judge, which this adapter does not have: {remedy}"
        )
    offered = [role for role in workflow.tool_roles if roles is None or role in roles]
    if offered:
        raise UsageError(
            f"{workflow.name} offers tools to {', '.join(offered)}, which this adapter cannot pass "
            f"on: {remedy}"
        )


def data_set(rows: Sequence[Mapping[str, Any]], purpose: str) -> Any:
    """`rows` as a `datasets.Dataset`."""
    try:
        from datasets import Dataset
    except ImportError as error:
        raise missing_extra("datasets", "data", purpose) from error
    return Dataset.from_list([dict(row) for row in rows])


Events = queue.SimpleQueue[Request | Future[list[EpisodeRecord]]]
"""Requests, and finally the episode."""


class OutsidePolicy:
    """Passes every request of an episode on and waits for its answer."""

    batching: Batching = "stream"
    name = "outside"

    def __init__(self) -> None:
        self.events = Events()
        self._answers: dict[Key, asyncio.Future[Completion]] = {}

    async def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """See `Policy`."""
        loop = asyncio.get_running_loop()
        waiting = [loop.create_future() for _ in requests]
        for request, future in zip(requests, waiting, strict=True):
            self._answers[request.key] = future
            self.events.put(request)
        return [await future for future in waiting]

    def answer(self, request: Request, completion: Completion) -> None:
        """Answer a request; on the loop's thread."""
        self._answers.pop(request.key).set_result(completion)

    async def close(self) -> None:
        """No-op: nothing to release."""


class PolicyPlayer:
    """Policies of the agents that a single-role environment's user has not `played`."""

    def __init__(self, workflow: Workflow, others: Others, played: Sequence[str]) -> None:
        self._given = workflow, others, played
        self._seats = PolicyMap(
            {**policies_of(workflow, others, played), **dict.fromkeys(played, OutsidePolicy())}
        )
        self._seats.check(workflow.role_counts())

    def reply(self, episode: Episode, agent: str) -> str:
        """The reply of `agent` to its open turn."""
        turn = next(turn for turn in episode.waiting if turn.agent == agent)
        key = (episode.key, agent, turn.turn)
        request = make_request(self._seats, key, episode, turn)
        if request.tools:
            names = ", ".join(tool.name for tool in request.tools)
            raise UsageError(
                f"{request.agent} is offered tools ({names}), which this adapter cannot pass on: "
                "use `flowzoo train` and `flowzoo eval`."
            )
        (completion,) = _loop(os.getpid()).wait(self._seats.policy(agent).generate([request]))
        return completion.text

    def __reduce__(self) -> tuple[Any, ...]:
        return PolicyPlayer, self._given  # policies hold threads and connections


@cache
def _loop(process: int) -> LoopThread:
    # One for each process: a fork has no thread of its parent's, and would wait for ever.
    return LoopThread("flowzoo-others")


_UNDER_WAY: set[Future[list[EpisodeRecord]]] = set()
"""Loops hold their tasks weakly: a seat that is dropped would take its episode with it, and asyncio
would complain of one destroyed while it waits."""


class OutsidePlay:
    """One agent's seat in the episodes of a workflow, one episode at a time."""

    def __init__(
        self,
        workflow: Workflow,
        agent: str,
        policies: Mapping[str, Policy],
        loop: LoopThread,
        seed: int = 0,
    ) -> None:
        self.agent, self._loop = agent, loop
        self._workflow, self._policies, self._seed = workflow, policies, seed
        self._policy = OutsidePolicy()
        self._running: Future[list[EpisodeRecord]] | None = None
        self.request: Request | None = None
        """Request that waits for an answer; None before and after an episode."""
        self.record: EpisodeRecord | None = None
        """The episode, once it has ended."""
        self.problem: Problem | None = None
        """Problem of the newest episode."""

    def start(self, job: EpisodeJob) -> Request | None:
        """Begin an episode; what the agent is asked first, None if it ends without asking it."""
        self.close()
        self.record, self.problem = None, job.problem
        # A new policy: the last event of a dropped episode must not reach this one.
        self._policy = OutsidePolicy()
        policy_map = PolicyMap({**self._policies, self.agent: self._policy})
        rollout = Rollout(self._workflow, policy_map, seed=self._seed)
        self._running = self._loop.start(rollout.arun([job]))
        _UNDER_WAY.add(self._running)
        self._running.add_done_callback(_UNDER_WAY.discard)
        self._running.add_done_callback(self._policy.events.put)
        return self._next()

    def answer(self, completion: Completion) -> Request | None:
        """Answer for the agent; returns its next request, None at the end."""
        if self.request is None:
            raise UsageError("nothing waits for a reply: the episode has ended, or none was begun.")
        self._loop.loop.call_soon_threadsafe(self._policy.answer, self.request, completion)
        return self._next()

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Give up the episode that is under way, if one is."""
        if self._running is not None:
            self._running.cancel()
        self._running = self.request = None

    def _next(self) -> Request | None:
        event = self._policy.events.get()
        if isinstance(event, Request):
            self.request = event
        else:
            self._running = self.request = None
            (self.record,) = event.result()
        return self.request


def make_seat(workflow: Any, *, others: Any = None, **options: Any) -> SoloEnv:
    """The environment of a role; the entry point of the Gymnasium registrations.

    Args:
        workflow: name of a workflow, `module:Class`, a Workflow subclass or instance.
        others: who plays the other agents: functions as for `SoloEnv`, or policies as for
            `flowzoo eval --policy` ("scripted:0.5", "hf:PATH", "openai:MODEL@URL") or Policy
            objects, one for all or by role or agent; by default the workflow's scripted expert.
        options: further arguments of `SoloEnv`.
    """
    each = others.values() if isinstance(others, Mapping) else [others]
    if others is None or all(map(callable, each)):
        return SoloEnv(workflow, others=others, **options)
    env = SoloEnv(workflow, **options)
    env.player = PolicyPlayer(env.workflow, others, env.own)
    return env
