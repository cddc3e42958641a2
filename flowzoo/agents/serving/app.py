"""The application of a served workflow: `/v1/chat/completions` and `/v1/models`."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator

from flowzoo.agents.serving.parameters import NEUTRAL, OBEYED, read_request
from flowzoo.agents.serving.questions import TeamAnswer
from flowzoo.agents.serving.replies import ReplyStream, completion
from flowzoo.agents.serving.service import PendingAnswer, TeamService
from flowzoo.envs.door.openapi import describe
from flowzoo.envs.door.wire import NOTES, event, model_list
from flowzoo.front.front import Front
from flowzoo.front.refusal import RefusalError
from flowzoo.front.request import HttpReply, HttpRequest, json_reply


class TeamFront(Front):
    """The application of a service."""

    def __init__(self, service: TeamService) -> None:
        super().__init__(
            {
                "POST /v1/chat/completions": self._chat,
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

    async def _chat(self, request: HttpRequest) -> HttpReply:
        service = self.service
        limits = service.limits
        raw = await request.body(limits.request_bytes, seconds=limits.seconds)
        pending = await service.begin(read_request(raw, service.team), request.departure)
        if pending.request.stream:
            return HttpReply(200, b"", "text/event-stream", parts=reply_events(pending))
        return await full_reply(pending)

    async def _models(self, request: HttpRequest) -> HttpReply:
        return json_reply(200, model_list(self.service.team.models))

    async def _model(self, request: HttpRequest) -> HttpReply:
        name = request.path.rpartition("/")[2]
        for row in model_list(self.service.team.models)["data"]:
            if row["id"] == name:
                return json_reply(200, row)
        raise RefusalError(404, "model_not_found", f"The model {name!r:.100} does not exist.")

    async def _description(self, request: HttpRequest) -> HttpReply:
        models, kinds = self.service.team.models, {**OBEYED, **NOTES}
        return json_reply(200, describe("flowzoo serve", kinds, NEUTRAL, models, one_model=True))


async def full_reply(pending: PendingAnswer) -> HttpReply:
    """The response to an open request, with its answers."""
    answers: dict[int, TeamAnswer] = {}
    with pending:
        async for item in pending.news():
            if item is not None and isinstance(item[1], TeamAnswer):
                answers[item[0]] = item[1]
    choices = [answers[index] for index in sorted(answers)]
    return json_reply(200, completion(pending.request, choices, pending.by_team))


async def reply_events(pending: PendingAnswer) -> AsyncIterator[bytes]:
    """The events of an open request: the turns of the roles as they come, then the answers."""
    stream, completions = ReplyStream(pending.request, pending.by_team), []
    with pending:
        try:
            for start in stream.start():
                yield start
            async for item in pending.news():
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
