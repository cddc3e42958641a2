"""A workflow with its policies, and the requests to it that are open."""

import asyncio
import json
import logging
import secrets
from collections.abc import AsyncIterator, Sequence
from functools import partial
from time import monotonic
from typing import NamedTuple

from flowzoo.agents.policy_map import PolicyMap
from flowzoo.agents.serving.engine import ServingEngine
from flowzoo.agents.serving.questions import (
    ClientTools,
    Draw,
    SpokenTurn,
    TeamAnswer,
    ask_role,
    ask_workflow,
    check_served,
    resolve_ungraded,
)
from flowzoo.envs import Workflow, WorkflowError
from flowzoo.envs.door.fields import IgnoredFields, Surface
from flowzoo.envs.door.wire import MOST_SEED, ModelRequest, chat_messages
from flowzoo.errors import ChatError, FlowzooError
from flowzoo.front.front import failure
from flowzoo.front.line import WaitingLine
from flowzoo.front.refusal import ClientGoneError, RefusalError
from flowzoo.provenance import redact
from flowzoo.seeding import key_int

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
        strict: bool = False,
        limits: ServingLimits | None = None,
        api_key: str = "",
    ) -> None:
        """Hold the workflow and its policies.

        Args:
            workflow: the workflow to serve.
            policy_map: policies by role; they are closed by their owner.
            temperature: at which the policies sample; another one in a request has no effect.
            top_p: the same.
            strict: refuse fields of requests that would have no effect.
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
        self.surface = Surface(
            "serve", (workflow.name, *policy_map.entries), workflow.name, most, strict,
            {"temperature": temperature, "top_p": top_p},
        )  # fmt: skip
        self.ignored = IgnoredFields()
        self.line = WaitingLine(most, self.limits.max_waiting)
        self.engine = ServingEngine(policy_map, workflow.task, resolve_ungraded)
        self.open: set[PendingAnswer] = set()
        self.ending = False
        """True once no further requests are taken."""
        self.answered = 0
        """Number of requests that were answered."""

    async def begin(
        self, request: ModelRequest, departure: asyncio.Future[None]
    ) -> "PendingAnswer":
        """Begin to answer a request once there is room for its answers.

        Raises:
            RefusalError: it has no question, too many wait, or the server is ending.
            ClientGoneError: its client has left.
        """
        self.ignored.note(request.ignored, self.surface)
        check_question(request)
        if self.ending:
            raise ended()
        await self.line.enter(request.samples, departure, self.limits.seconds)
        return PendingAnswer(self, request, departure)

    def end(self) -> None:
        """Take no further requests, and refuse the waiting ones."""
        self.ending = True
        self.line.close(ended())

    def refuse_open(self) -> None:
        """End all open requests with an error."""
        for entry in list(self.open):
            entry.fail(ended())


class PendingAnswer:
    """A request that is being answered.

    What is not finished is dropped when its client leaves, and at the end of its context.
    """

    def __init__(
        self, service: TeamService, request: ModelRequest, departure: asyncio.Future[None]
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
        ask, messages = request.ask, chat_messages(request.ask.messages)
        last = last_question(ask.messages) if self.by_team else len(messages) - 1
        self.unseen_messages = last
        """Number of messages that a workflow does not see."""
        exchange = messages[last + 1 :]
        client = ClientTools(ask.tools, ask.most_calls, exchange, len(messages))
        seed = request.seed
        if seed is None:  # where a call goes on, the speakers before it say the same again
            text = messages[last]["content"]
            is_open = not self.by_team or not (ask.tools or exchange)
            seed = secrets.randbelow(MOST_SEED) if is_open else key_int("served", text)
        for sample in range(request.samples):
            draw, parts = Draw(seed, sample, request.cap), (service.workflow, service.policy_map)
            if self.by_team:
                tell, text = partial(self._tell, sample), messages[last]["content"]
                play = ask_workflow(*parts, text, draw, client, tell)
            else:
                play = ask_role(*parts, request.model, messages, draw, client)
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
            prompts = self.by_team and not self.request.ask.tools
            self._news.put_nowait(
                refusal(error, prompts) if error is not None else (sample, future.result())
            )

    def __enter__(self) -> "PendingAnswer":
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


def last_question(messages: Sequence[Sequence[str]]) -> int:
    """Index of the last message of the user; -1: there is none."""
    users = (n for n, (sender, *_) in enumerate(messages) if sender == "user")
    return max(users, default=-1)


def check_question(request: ModelRequest) -> None:
    """Raise `RefusalError` unless a request ends with a question, or a tool's results about it."""
    messages, label = request.ask.messages, "input" if request.api == "responses" else "messages"
    sent: dict[str, object] = {"tools": [tool.schema() for tool in request.ask.tools]}
    for number, message in enumerate(chat_messages(messages)):
        sent[f"{label}[{number}].content"] = message
    for param, value in sent.items():
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            fault = f"`{param}` has half of a surrogate pair."
            raise RefusalError(400, "invalid_value", fault, param) from None
    last = last_question(messages)
    if messages[-1][0] not in ("user", "tool") or last < 0 or not messages[last][1].strip():
        number = len(messages) - 1 if messages[-1][0] != "tool" else max(last, 0)
        fault = "The last message must be the user's, and have a text, or a tool's result."
        raise RefusalError(400, "invalid_value", fault, f"{label}[{number}]")


def ended() -> RefusalError:
    """The error for a request that a server does not answer because it ends."""
    return RefusalError(503, "server_ending", "The server is ending.")


def refusal(error: BaseException, own_prompts: bool) -> RefusalError:
    """The error that a client gets for a play that failed; the log has more.

    With `own_prompts` the workflow wrote the prompts, and the client none of their parts.
    """
    if isinstance(error, ChatError) and not own_prompts:
        return RefusalError(400, "unsupported_messages", str(error), "messages")
    if not isinstance(error, (WorkflowError, FlowzooError)):
        return failure(error)
    _log.warning("a request failed: %s", redact(str(error)))
    code = "workflow_failed" if isinstance(error, WorkflowError) else "policy_failed"
    return RefusalError(500, code, str(error))
