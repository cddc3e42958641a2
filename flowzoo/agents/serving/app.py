"""The application of a served workflow: Chat Completions, Responses and models; its server."""

import asyncio
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from functools import partial
from typing import Any

from flowzoo.agents.policy import Completion
from flowzoo.agents.serving.questions import NO_ANSWER, TeamAnswer
from flowzoo.agents.serving.service import PendingAnswer, TeamService
from flowzoo.envs.door.fields import Api
from flowzoo.envs.door.openapi import describe
from flowzoo.envs.door.replies import (
    ReplyChoice,
    ReplyWriter,
    UsedTokens,
    make_choice,
    reply_writer,
)
from flowzoo.envs.door.wire import model_list, read_request
from flowzoo.envs.text import encodable
from flowzoo.front.front import Front
from flowzoo.front.refusal import RefusalError
from flowzoo.front.request import HttpReply, HttpRequest, json_reply
from flowzoo.front.server import FrontServer


class TeamFront(Front):
    """The application of a service."""

    def __init__(self, service: TeamService) -> None:
        super().__init__(
            {
                "POST /v1/chat/completions": partial(self._reply, "chat"),
                "POST /v1/responses": partial(self._reply, "responses"),
                "GET /v1/models": self._models,
                "GET /v1/models/*": self._model,
                "GET /openapi.json": self._description,
            }
        )
        self.service, self.is_public = service, bool(service.api_key)

    def check(self, request: HttpRequest) -> None:
        """Raise `RefusalError` for a request without the key."""
        key = self.service.api_key
        if key and not secrets.compare_digest(request.key.encode(), key.encode()):
            message = "The API key is not the one of this server."
            raise RefusalError(401, "invalid_api_key", message)

    def gauges(self) -> dict[str, float]:
        """Answers and requests."""
        line = self.service.line
        return {
            "open_answers": line.used,
            "waiting_requests": len(line.waiting),
            "answered_requests_total": self.service.answered,
        }

    async def _reply(self, api: Api, request: HttpRequest) -> HttpReply:
        service = self.service
        limits = service.limits
        raw = await request.body(limits.request_bytes, seconds=limits.seconds)
        parsed = read_request(raw, api, service.surface)
        pending = await service.begin(parsed, request.departure)
        writer = reply_writer(parsed, secrets.token_hex(12))
        if parsed.stream:
            return HttpReply(200, b"", "text/event-stream", parts=reply_events(pending, writer))
        return await full_reply(pending, writer)

    async def _models(self, request: HttpRequest) -> HttpReply:
        return json_reply(200, model_list(self.service.surface.models))

    async def _model(self, request: HttpRequest) -> HttpReply:
        name = request.path.rpartition("/")[2]
        for row in model_list(self.service.surface.models)["data"]:
            if row["id"] == name:
                return json_reply(200, row)
        raise RefusalError(404, "model_not_found", f"The model {name!r:.100} does not exist.")

    async def _description(self, request: HttpRequest) -> HttpReply:
        return json_reply(200, describe("flowzoo serve", self.service.surface, one_model=True))


async def full_reply(pending: PendingAnswer, writer: ReplyWriter) -> HttpReply:
    """The response to an open request, with its answers."""
    answers: dict[int, TeamAnswer] = {}
    with pending:
        async for item in pending.news():
            if item is not None and isinstance(item[1], TeamAnswer):
                answers[item[0]] = item[1]
    choices = [choice_of(pending, index, answers[index]) for index in sorted(answers)]
    counts = usage(done for answer in answers.values() for done in answer.completions)
    return json_reply(200, writer.whole(choices, counts))


async def reply_events(pending: PendingAnswer, writer: ReplyWriter) -> AsyncIterator[bytes]:
    """The events of an open request: the turns of the roles as they come, then the answers."""
    completions: list[Completion] = []
    with pending:
        try:
            for start in writer.start():
                yield start
            async for item in pending.news():
                if item is None:
                    yield b": the workflow is playing\n\n"
                elif isinstance(item[1], TeamAnswer):
                    completions += item[1].completions
                    choice = choice_of(pending, item[0], item[1])
                    for part in (*writer.parts(choice), *writer.finish(choice)):
                        yield part
                else:
                    text = encodable(item[1].text).strip()
                    yield writer.turn(item[0], f"[{item[1].agent}] {text}\n\n")
            for part in writer.end(usage(completions)):
                yield part
        except RefusalError as error:
            yield writer.fail(error)


def choice_of(pending: PendingAnswer, index: int, answer: TeamAnswer) -> ReplyChoice:
    """An answer as a reply, with the facts of its play."""
    request, facts = pending.request, dict[str, Any]()
    shortened = sum(done.shortened for done in answer.completions)
    if pending.by_team or request.transcript or shortened:
        facts |= {"calls": len(answer.completions), "shortened": shortened}
    if pending.by_team:
        facts["unseen_messages"] = pending.unseen_messages
    if request.transcript:
        facts["transcript"] = [_clean(turn) for turn in answer.transcript]
    refusal = NO_ANSWER if answer.text is None else None
    text, calls = answer.text or "", answer.calls
    return make_choice(request, ReplyChoice(index, text, answer.finish, calls, refusal, facts))


def _clean(turn: Mapping[str, Any]) -> dict[str, Any]:
    messages = [{**part, "content": encodable(part["content"])} for part in turn["messages"]]
    return {**turn, "messages": messages, "reply": encodable(turn["reply"])}


def usage(completions: Iterable[Completion]) -> UsedTokens | None:
    """Tokens of all calls; None where a policy does not count them."""
    prompt = output = 0
    for done in completions:
        if done.prompt_tokens is None or done.output_tokens is None:
            return None
        prompt, output = prompt + done.prompt_tokens, output + done.output_tokens
    return UsedTokens(prompt, output)


_LOOK_S = 0.05  # seconds between two looks at the end


class TeamServer(FrontServer):
    """Serves a workflow until a signal, or `stop`; then it finishes open requests."""

    def __init__(
        self,
        service: TeamService,
        opened: socket.socket,
        grace: float,
        on_ready: Callable[[], None],
    ) -> None:
        """Make a server.

        Args:
            service: the workflow with its policies.
            opened: socket to listen on; see `bind`.
            grace: seconds for open requests after the end was asked for.
            on_ready: called once it listens.
        """
        front = TeamFront(service)
        super().__init__(front, opened, grace_s=int(grace) + 2, on_ready=on_ready)
        self._service, self._grace = service, grace

    async def run_until_stopped(self) -> None:
        """Serve.

        Raises:
            Exception: the engine failed.
        """
        engine = asyncio.create_task(self._service.engine.serve())
        end = asyncio.create_task(self._watch(engine))
        try:
            await self.listen()
        finally:
            end.cancel()
            engine.cancel()
            results = await asyncio.gather(engine, end, return_exceptions=True)
        if isinstance(results[0], Exception):
            raise results[0]

    async def _watch(self, engine: asyncio.Task[None]) -> None:
        while not (self.should_exit or engine.done()):
            await asyncio.sleep(_LOOK_S)
        self.should_exit = True
        self._service.end()
        if not engine.done():
            await asyncio.wait([engine], timeout=self._grace)
        self._service.refuse_open()
