"""Requests to a served workflow: every field is obeyed, asks for nothing, or is refused."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any, NamedTuple

from flowzoo.envs.door.wire import (
    NOTES,
    SAMPLING,
    UNSUPPORTED,
    Kinds,
    check_kinds,
    check_neutral,
    read_body,
    read_messages,
    read_model,
    read_stops,
)
from flowzoo.envs.script import Message
from flowzoo.front.refusal import RefusalError, wrong

OBEYED: Kinds = {
    **SAMPLING,
    "n": int,
    "stream": bool,
    "stream_options": dict,
    "flowzoo": dict,
}
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    **UNSUPPORTED,
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "service_tier": ("auto", "default"),
    "store": (False,),
}
_FIELDS = {"model", "messages", "stop", *OBEYED, *NEUTRAL, *NOTES}
_SEEDS = 2**63


class Team(NamedTuple):
    """The facts of a served workflow that decide which requests it takes."""

    workflow: str
    roles: tuple[str, ...]
    """Roles, and agents with a policy that their role does not have."""
    temperature: float
    top_p: float
    max_open: int

    @property
    def models(self) -> tuple[str, ...]:
        """Names that the field `model` may have."""
        return (self.workflow, *self.roles)


class ServedRequest(NamedTuple):
    """A request that can be answered."""

    model: str
    messages: list[Message]
    samples: int
    stop: tuple[str, ...]
    seed: int
    cap: int | None
    """Most tokens of a reply."""
    stream: bool
    stream_usage: bool
    transcript: bool


def read_request(raw: bytes, team: Team) -> ServedRequest:
    """Read the body of a request.

    Raises:
        RefusalError: it is no JSON, a field is missing or wrong, or asks for what there is not.
    """
    body = read_body(raw)
    model = read_model(body, team.models)
    for name in body:
        if name not in _FIELDS:
            message = f"`{name:.100}` is no parameter of this server."
            raise RefusalError(400, "unknown_parameter", message, name)
    check_kinds(body, {**OBEYED, **NOTES})
    check_neutral(body, NEUTRAL)
    _check_sampling(body, team)
    stream = body.get("stream") is True
    seed = body.get("seed")
    return ServedRequest(
        model,
        _messages(body.get("messages")),
        _number(body, "n", 1, team.max_open) or 1,
        read_stops(body.get("stop")),
        secrets.randbelow(_SEEDS) if seed is None else _number(body, "seed", -_SEEDS, _SEEDS - 1),
        _cap(body, model == team.workflow),
        stream,
        _switch(body, "stream_options", "include_usage", stream),
        _switch(body, "flowzoo", "transcript"),
    )


def _check_sampling(body: Mapping[str, Any], team: Team) -> None:
    # The policies of a team sample as they were trained; what is asked for must be that.
    for name, value in (("temperature", team.temperature), ("top_p", team.top_p)):
        if body.get(name) not in (None, value):
            option, got = name.replace("_", "-"), f"{body[name]!r:.40}"
            message = f"`{name}` is {value:g} for all requests (--{option}), got {got}."
            raise RefusalError(400, "unsupported_value", message, name)


def _number(body: Mapping[str, Any], name: str, low: int, high: int) -> Any:
    value = body.get(name)
    if value is not None and not low <= value <= high:
        message = f"`{name}` must be {low} to {high}."
        raise RefusalError(400, "invalid_value", message, name)
    return value


def _cap(body: Mapping[str, Any], by_team: bool) -> int | None:
    if by_team and body.get("max_completion_tokens") is not None:
        message = (
            "`max_completion_tokens` counts the tokens of all calls, and every call of a workflow "
            "has a limit of its own: give `max_tokens`, the most tokens of one reply."
        )
        raise RefusalError(400, "unsupported_parameter", message, "max_completion_tokens")
    names = ("max_tokens", "max_completion_tokens")
    caps = [_number(body, name, 1, 2**31) for name in names if body.get(name) is not None]
    return min(caps, default=None)


def _switch(body: Mapping[str, Any], name: str, switch: str, fits: bool = True) -> bool:
    # A field that is an object with one switch.
    options = body.get(name) or {}
    if options and not fits:
        message = f"`{name}` is for requests with `stream`."
        raise RefusalError(400, "invalid_value", message, name)
    for key in options:
        if key != switch:
            message = f"`{name}.{key:.100}` is no parameter of this server."
            raise RefusalError(400, "unknown_parameter", message, f"{name}.{key}")
    value = options.get(switch)
    if value is not None and not isinstance(value, bool):
        raise wrong("true or false", value, f"{name}.{switch}")
    return value is True


def _messages(value: Any) -> list[Message]:
    messages = read_messages(value)
    for number, (_, content) in enumerate(messages):
        try:
            content.encode()
        except UnicodeEncodeError:
            message = f"`messages[{number}].content` has half of a surrogate pair."
            param = f"messages[{number}].content"
            raise RefusalError(400, "invalid_value", message, param) from None
    sender, content = messages[-1]
    if sender != "user" or not content.strip():
        message = "The last message must be the user's, and have a text."
        raise RefusalError(400, "invalid_value", message, f"messages[{len(messages) - 1}]")
    return [{"role": sender, "content": content} for sender, content in messages]
