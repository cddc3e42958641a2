"""Episodes in which one agent is answered from outside, by whoever calls; all others by policies.

A trainer that samples by itself wants to be asked and to answer, one call after the other, where a
rollout wants a policy that it can await. `OutsidePlay` stands between them: the rollout runs on a
loop of its own, and its policy for that agent waits until somebody answers.
"""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Mapping, Sequence
from concurrent.futures import Future

from flowzoo.agents.policy import Batching, Completion, Key, Policy, Request
from flowzoo.agents.policy_map import PolicyMap
from flowzoo.agents.rollout.episodes import EpisodeJob, Rollout
from flowzoo.agents.specs import make_policy
from flowzoo.agents.vllm.loop_thread import LoopThread
from flowzoo.envs import EpisodeRecord, Problem, Workflow
from flowzoo.envs.workflow import Roles
from flowzoo.errors import UsageError, unknown

Others = Mapping[str, Policy | str] | Policy | str
"""Who plays the other agents: a policy for all of them, or role or agent -> policy. A text is one
as `flowzoo eval --policy` takes it."""


def agents_of(workflow: Workflow, name: str) -> list[str]:
    """The agents that `name`, an agent or a role, stands for.

    Raises:
        UsageError: there is none.
    """
    agents = {agent: role for agent, (role, _) in workflow.agents.items()}
    if name in agents:
        return [name]
    members = [agent for agent, role in agents.items() if role == name]
    if not members:
        raise unknown("role or agent", name, [*agents.values(), *agents])
    return members


def policies_of(
    workflow: Workflow, others: Others, agents: Sequence[str], seed: int = 0
) -> dict[str, Policy]:
    """Role or agent -> policy of everybody that `agents` meet; a text is made into a policy.

    Args:
        workflow: what is played.
        others: who plays; an entry for one of several `agents` plays it while another one of them
            is answered from outside.
        agents: those that are answered from outside, one in an episode.
        seed: of the policies that are made.

    Raises:
        UsageError: a text that names no policy, or an entry for the only agent of `agents`.
    """
    roles: Roles = workflow.role_counts()
    if not isinstance(others, Mapping):
        others = {} if len(workflow.agents) == 1 else dict.fromkeys(roles, others)
    if len(agents) == 1 and agents[0] in others:
        raise UsageError(f"{agents[0]} is answered from outside: leave it out of `others`.")
    names = sorted({policy for policy in others.values() if isinstance(policy, str)})
    made = {name: make_policy(name, oracle=workflow, seed=seed) for name in names}
    return {
        key: made[policy] if isinstance(policy, str) else policy for key, policy in others.items()
    }


Events = queue.SimpleQueue[Request | Future[list[EpisodeRecord]]]
"""What is asked, and at last the episode."""


class OutsidePolicy:
    """Hands every request on, and waits until somebody answers it."""

    batching: Batching = "stream"
    name = "outside"

    def __init__(self) -> None:
        """Make it; `begin` comes before the first request."""
        self._asked = Events()
        self._answers: dict[Key, asyncio.Future[Completion]] = {}

    def begin(self, asked: Events) -> None:
        """Hand requests to `asked` from now on; nobody waits for an answer any more."""
        self._asked, self._answers = asked, {}

    async def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """See `Policy`."""
        loop = asyncio.get_running_loop()
        waiting = [loop.create_future() for _ in requests]
        for request, future in zip(requests, waiting, strict=True):
            self._answers[request.key] = future
            self._asked.put(request)
        return [await future for future in waiting]

    def answer(self, request: Request, completion: Completion) -> None:
        """Answer a request; on the loop's thread."""
        self._answers.pop(request.key).set_result(completion)

    async def close(self) -> None:
        """Nothing to release."""


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
        """Take the seat of `agent`.

        Args:
            workflow: what is played.
            agent: who is answered from outside.
            policies: role or agent -> policy of the others; see `policies_of`.
            loop: where episodes run.
            seed: first part of every request's key, as in `Rollout`.

        Raises:
            UsageError: an agent without a policy.
        """
        self._running: Future[list[EpisodeRecord]] | None = None
        self._loop, self.agent = loop, agent
        self._events = Events()
        self._policy = OutsidePolicy()
        self._rollout = Rollout(workflow, PolicyMap({**policies, agent: self._policy}), seed=seed)
        self.request: Request | None = None
        """What the agent is asked now; None: nothing is played, or the episode has ended."""
        self.record: EpisodeRecord | None = None
        """The episode, once it has ended."""
        self.problem: Problem | None = None
        """What is played, or was last."""

    def start(self, job: EpisodeJob) -> Request | None:
        """Begin an episode; what the agent is asked first, None if it ends without asking it.

        One that is under way is given up.
        """
        self.close()
        self.record, self.problem = None, job.problem
        # A new queue: what the one before was given up with must not be taken for this one's.
        self._events = Events()
        self._policy.begin(self._events)
        self._running = self._loop.start(self._rollout.arun([job]))
        _UNDER_WAY.add(self._running)
        self._running.add_done_callback(_UNDER_WAY.discard)
        self._running.add_done_callback(self._events.put)
        return self._next()

    def answer(self, completion: Completion) -> Request | None:
        """Answer for the agent; what it is asked next, None at the end.

        Raises:
            UsageError: nothing was asked.
        """
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
        event = self._events.get()
        if isinstance(event, Request):
            self.request = event
        else:
            self._running = self.request = None
            (self.record,) = event.result()
        return self.request
