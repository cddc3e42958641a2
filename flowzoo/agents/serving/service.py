"""A workflow with its policies, and the requests to it that are open."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from functools import partial
from time import monotonic
from typing import NamedTuple

from flowzoo.agents.policy_map import PolicyMap
from flowzoo.agents.rollout.engine import Play
from flowzoo.agents.serving.engine import ServingEngine
from flowzoo.agents.serving.parameters import ServedRequest, Team
from flowzoo.agents.serving.questions import (
    SpokenTurn,
    TeamAnswer,
    ask_role,
    ask_workflow,
    check_served,
    resolve_ungraded,
)
from flowzoo.envs import Workflow, WorkflowError
from flowzoo.errors import ChatError, FlowzooError
from flowzoo.front.front import failure
from flowzoo.front.line import WaitingLine
from flowzoo.front.refusal import ClientGoneError, RefusalError
from flowzoo.provenance import redact

PULSE_S = 15.0
"""Seconds without news after which a stream has a comment, so that proxies keep it open."""
_log = logging.getLogger("flowzoo")


class ServingLimits(NamedTuple):
    """Limits of requests."""

    request_bytes: int = 2**20
    """Most bytes of a request's body."""
    max_open: int = 256
    """Most answers that are under way at a time."""
    seconds: float = 600.0
    """Most seconds of a request, and before it of its wait for others."""
    max_waiting: int = 1024
    """Most requests that wait until there is room for their answers."""


class TeamService:
    """Answers requests by plays of one engine, so that their calls are batched."""

    def __init__(
        self,
        workflow: Workflow,
        policy_map: PolicyMap,
        *,
        temperature: float = 1.0,
        top_p: float = 1.0,
        limits: ServingLimits | None = None,
        api_key: str = "",
    ) -> None:
        """Hold the workflow and its policies.

        Args:
            workflow: the workflow to serve.
            policy_map: policies by role; they are closed by their owner.
            temperature: at which the policies sample; requests may ask for no other.
            top_p: the same.
            limits: limits of requests.
            api_key: the key that requests must have; empty: none.

        Raises:
            UsageError: the workflow cannot play a question, or a role has no policy.
        """
        policy_map.check(workflow.role_counts(), judge=workflow.needs_judge)
        check_served(workflow)
        self.workflow, self.policy_map = workflow, policy_map
        self.limits, self.api_key = limits or ServingLimits(), api_key
        most = min(self.limits.max_open, workflow.open_limit or self.limits.max_open)
        self.team = Team(workflow.name, tuple(policy_map.entries), temperature, top_p, most)
        self.line = WaitingLine(most, self.limits.max_waiting)
        self.engine = ServingEngine(policy_map, workflow.task, resolve_ungraded)
        self.open: set[PendingAnswer] = set()
        self.ending = False
        """True once no further requests are taken."""
        self.answered = 0
        """Number of requests that were answered."""

    async def begin(self, request: ServedRequest, departure: asyncio.Future[None]) -> PendingAnswer:
        """Begin to answer a request once there is room for its answers.

        Raises:
            RefusalError: too many wait, or the server is ending.
            ClientGoneError: its client has left.
        """
        if self.ending:
            raise ended()
        await self.line.enter(request.samples, departure, self.limits.seconds)
        return PendingAnswer(self, request, departure)

    def refuse_open(self) -> None:
        """End all open requests with an error."""
        for entry in list(self.open):
            entry.fail(ended())

    def play(
        self, request: ServedRequest, sample: int, on_turn: Callable[[SpokenTurn], None]
    ) -> Play:
        """The play of one answer to a request."""
        workflow, policy_map, messages = self.workflow, self.policy_map, request.messages
        draw = request.seed, sample, request.cap
        if request.model == workflow.name:
            return ask_workflow(workflow, policy_map, messages[-1]["content"], *draw, on_turn)
        return ask_role(workflow, policy_map, request.model, messages, *draw)


class PendingAnswer:
    """A request that is being answered.

    What is not finished is dropped when its client leaves, and at the end of its context.
    """

    def __init__(
        self, service: TeamService, request: ServedRequest, departure: asyncio.Future[None]
    ) -> None:
        self.request, self._service = request, service
        self.by_team = request.model == service.workflow.name
        """True if the whole workflow answers, not a role."""
        self._news: asyncio.Queue[tuple[int, SpokenTurn | TeamAnswer] | Exception] = asyncio.Queue()
        self._futures: list[asyncio.Future[TeamAnswer]] = []
        limit = service.limits.seconds
        late = RefusalError(504, "timeout", f"The answer took longer than {limit:g} s.")
        self._timer = asyncio.get_running_loop().call_later(limit, self.fail, late)
        self._start = monotonic()
        service.open.add(self)
        for sample in range(request.samples):
            play = service.play(request, sample, partial(self._tell, sample))
            future = service.engine.add(play)
            future.add_done_callback(partial(self._finish, sample))
            self._futures.append(future)
        departure.add_done_callback(
            lambda done: None if done.cancelled() else self.fail(ClientGoneError())
        )

    def fail(self, error: Exception) -> None:
        """End it with an error."""
        self._news.put_nowait(error)
        self.close()

    def close(self) -> None:
        """Drop what is not finished."""
        self._timer.cancel()
        if self in self._service.open:
            self._service.open.discard(self)
            self._service.line.leave(self.request.samples, monotonic() - self._start)
        for future in self._futures:
            future.cancel()

    async def news(self) -> AsyncIterator[tuple[int, SpokenTurn | TeamAnswer] | None]:
        """Turns and answers, with the number of the choice, as they come; None: still waiting.

        Raises:
            RefusalError: there will be no answer.
        """
        left = self.request.samples
        while left:
            try:
                async with asyncio.timeout(PULSE_S):
                    item = await self._news.get()
            except TimeoutError:
                yield None
                continue
            if isinstance(item, Exception):
                raise item
            left -= isinstance(item[1], TeamAnswer)
            yield item
        self._service.answered += 1

    def _tell(self, sample: int, turn: SpokenTurn) -> None:
        self._news.put_nowait((sample, turn))

    def _finish(self, sample: int, future: asyncio.Future[TeamAnswer]) -> None:
        if not future.cancelled():
            error = future.exception()
            self._news.put_nowait(
                refusal(error, self.by_team) if error is not None else (sample, future.result())
            )

    def __enter__(self) -> PendingAnswer:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


def ended() -> RefusalError:
    """The error for a request that a server does not answer because it ends."""
    return RefusalError(503, "server_ending", "The server is ending.")


def refusal(error: BaseException, by_team: bool) -> RefusalError:
    """The error that a client gets for a play that failed; the log has more."""
    if isinstance(error, ChatError) and not by_team:  # of a workflow they are not the client's
        return RefusalError(400, "unsupported_messages", str(error), "messages")
    if not isinstance(error, (WorkflowError, FlowzooError)):
        return failure(error)
    _log.warning("a request failed: %s", redact(str(error)))
    code = "workflow_failed" if isinstance(error, WorkflowError) else "policy_failed"
    return RefusalError(500, code, str(error))
