"""The application of a served workflow: `/v1/chat/completions` and `/v1/models`."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from flowzoo.agents.serving.parameters import read_request
from flowzoo.agents.serving.questions import TeamAnswer
from flowzoo.agents.serving.replies import ReplyStream, completion, reply_head
from flowzoo.agents.serving.service import PendingAnswer, TeamService
from flowzoo.envs.door.app import MOST_INCOMING, answer, body_of, left, no_address
from flowzoo.envs.door.refusal import BodyRoom, RefusalError
from flowzoo.envs.door.wire import event, model_list

ADDRESSES = "POST /v1/chat/completions, GET /v1/models and GET /v1/models/NAME"
_RETRY_S = {429: "1", 503: "5"}
"""Seconds after which a refused request may be sent again, by status."""


def make_app(service: TeamService) -> Starlette:
    """The application of a service."""
    room = BodyRoom(MOST_INCOMING)

    async def chat(request: Request) -> Response:
        check_allowed(service, request)
        limits = service.limits
        try:
            async with asyncio.timeout(limits.seconds):
                raw = await body_of(request, limits.request_bytes, (room,))
        except TimeoutError:
            message = f"The request did not come within {limits.seconds:g} s."
            raise RefusalError(408, "timeout", message) from None
        opened = service.begin(read_request(raw, service.team))
        if opened.request.stream:
            events = streamed(service, opened, request)
            return StreamingResponse(events, media_type="text/event-stream")
        return await answered(service, opened, request)

    async def models(request: Request) -> Response:
        check_allowed(service, request)
        return answer(200, model_list(service.team.models))

    async def model(request: Request) -> Response:
        check_allowed(service, request)
        name, rows = request.path_params["name"], model_list(service.team.models)["data"]
        for row in rows:
            if row["id"] == name:
                return answer(200, row)
        raise RefusalError(404, "model_not_found", f"The model {name!r:.100} does not exist.")

    routes = [
        Route("/v1/chat/completions", chat, methods=["POST"]),
        Route("/v1/models", models, methods=["GET"]),
        Route("/v1/models/{name}", model, methods=["GET"]),
    ]
    handlers: Any = {HTTPException: other, RefusalError: refused, ClientDisconnect: left}
    return Starlette(routes=routes, exception_handlers=handlers)


async def refused(request: Request, error: Exception) -> Response:
    """The response to a request that is refused."""
    assert isinstance(error, RefusalError)
    response = answer(error.status, error.body())
    if error.status in _RETRY_S:
        response.headers["Retry-After"] = _RETRY_S[error.status]
    return response


async def other(request: Request, error: Exception) -> Response:
    """The response to a request for another address or by another method."""
    refusal = no_address(request, error, ADDRESSES)
    return answer(refusal.status, refusal.body())


def check_allowed(service: TeamService, request: Request) -> None:
    """Raise `RefusalError` for a request without the key, or of a web page where there is none."""
    if not service.api_key:
        if "origin" in request.headers:  # any page that a browser shows can reach this machine
            message = "Web pages may ask a server with a key only: start it with --api-key."
            raise RefusalError(403, "origin_refused", message)
        return
    kind, _, key = request.headers.get("authorization", "").partition(" ")
    same = secrets.compare_digest(key.strip().encode(), service.api_key.encode())
    if kind.lower() != "bearer" or not same:
        raise RefusalError(401, "invalid_api_key", "The API key is not the one of this server.")


@contextmanager
def attended(opened: PendingAnswer, request: Request) -> Iterator[None]:
    """Drop an open request when its client leaves, and in any case at the end."""
    departure = asyncio.ensure_future(request.receive())
    departure.add_done_callback(
        lambda done: None if done.cancelled() else opened.fail(ClientDisconnect())
    )
    try:
        with opened:
            yield
    finally:
        departure.cancel()


async def answered(service: TeamService, opened: PendingAnswer, request: Request) -> Response:
    """The response to an open request, with its answers."""
    answers: dict[int, TeamAnswer] = {}
    with attended(opened, request):
        async for item in opened.news():
            if item is not None and isinstance(item[1], TeamAnswer):
                answers[item[0]] = item[1]
    ask, choices = opened.request, [answers[index] for index in sorted(answers)]
    by_team = ask.model == service.workflow.name
    return answer(200, completion(reply_head(ask), ask, choices, by_team))


async def streamed(
    service: TeamService, opened: PendingAnswer, request: Request
) -> AsyncIterator[bytes]:
    """The events of an open request: the turns of the roles as they come, then the answers."""
    by_team = opened.request.model == service.workflow.name
    stream, completions = ReplyStream(opened.request, by_team), []
    with attended(opened, request):
        try:
            for start in stream.start():
                yield start
            async for item in opened.news():
                if item is None:
                    yield b": the workflow is playing\n\n"
                elif isinstance(item[1], TeamAnswer):
                    completions += item[1].completions
                    for part in stream.answer(item[0], item[1]):
                        yield part
                else:
                    yield stream.turn(item[0], item[1])
            for part in stream.end(completions):
                yield part
        except RefusalError as error:
            yield event(error.body())
        except ClientDisconnect:
            return
