"""Wire format of OpenAI's chat completions: requests with their tools, and replies."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from flowzoo.declared import fits
from flowzoo.envs.script import ProgramReply, ProgramRequest
from flowzoo.envs.text import encodable
from flowzoo.envs.tools import Tool, ToolCall
from flowzoo.errors import UsageError
from flowzoo.front.refusal import RefusalError, refuse_constant, wrong

MOST_CALLS = 128
"""Most calls of a reply, and most tools of a request."""
MOST_CONTAINERS = 16_384
"""Most lists and objects of a request: each takes 14 times the memory of its text."""
_TEXT_OR_OPENING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?|([\[{])', re.DOTALL)


class ToolOffer(NamedTuple):
    """The tools of a request."""

    tools: tuple[Tool, ...] = ()
    most_calls: int = 1
    needs_call: bool = False


def read_tools(body: Mapping[str, object]) -> ToolOffer:
    """Read the tool offer of a request: `tools`, `tool_choice`, `parallel_tool_calls`.

    Raises:
        RefusalError: a field is invalid, or requires an unknown tool.
    """
    rows = [] if body.get("tools") is None else body["tools"]
    if not isinstance(rows, list) or len(rows) > MOST_CALLS:
        raise wrong(f"a list of at most {MOST_CALLS} tools", rows, "tools")
    tools = tuple(_tool(row, f"tools[{number}]") for number, row in enumerate(rows))
    if len({tool.name for tool in tools}) < len(tools):
        raise RefusalError(400, "invalid_value", "Two of `tools` have the same name.", "tools")
    several = body.get("parallel_tool_calls")
    if several not in (None, True, False):
        raise wrong("true or false", several, "parallel_tool_calls")
    return _tool_offer(body.get("tool_choice"), tools, 1 if several is False else MOST_CALLS)


def _tool_offer(choice: object, tools: tuple[Tool, ...], most: int) -> ToolOffer:
    if choice == "none" or (not tools and choice in (None, "auto")):
        return ToolOffer()
    if choice in (None, "auto"):
        return ToolOffer(tools, most)
    if isinstance(choice, dict) and choice.get("type") == "function":
        function = choice.get("function")
        name = function.get("name") if isinstance(function, dict) else None
        tools = tuple(tool for tool in tools if tool.name == name)
    elif choice != "required":
        message = "`tool_choice` must be none, auto, required or a function."
        raise RefusalError(400, "unsupported_value", message, "tool_choice")
    if not tools:
        raise _invalid("tool_choice", "asks for a call of a tool that is not in `tools`")
    return ToolOffer(tools, most, needs_call=True)


def _tool(row: object, param: str) -> Tool:
    function = row.get("function") if isinstance(row, dict) else None
    if not isinstance(row, dict) or row.get("type") != "function" or not isinstance(function, dict):
        message = f"`{param}` must be of the type `function`."
        raise RefusalError(400, "unsupported_tool", message, param)
    parameters = function.get("parameters") or {"type": "object", "properties": {}}
    description = function.get("description") or ""
    for name, value, kind in (("parameters", parameters, dict), ("description", description, str)):
        if not isinstance(value, kind):
            raise wrong(_TYPE_NAMES[kind], value, f"{param}.function.{name}")
    checked = function.get("strict") is True
    try:
        return Tool(function.get("name") or "", description, parameters, checked)
    except UsageError as error:
        hint = " Leave out `strict`." if checked else ""
        raise RefusalError(
            400, "unsupported_schema", f"`{param}`: {error}{hint}", f"{param}.function"
        ) from None


def read_calls_of(message: Mapping[str, object], param: str, names: dict[str, str]) -> str:
    """The JSON of a message's calls, or of the call whose result it has; "" without calls.

    Args:
        message: a message of a request.
        param: name of the message in errors.
        names: tool by id of earlier calls; calls of this message are added.

    Raises:
        RefusalError: a call cannot be read, or its id is unknown.
    """
    if message.get("role") == "tool":
        identity = message.get("tool_call_id")
        if not isinstance(identity, str) or identity not in names:
            raise _invalid(f"{param}.tool_call_id", "must be the id of an earlier call")
        return json.dumps({"tool_call_id": identity, "name": names[identity]})
    rows = [] if message.get("tool_calls") is None else message["tool_calls"]
    if rows and message.get("role") != "assistant":
        raise _invalid(f"{param}.tool_calls", "is for messages of the assistant")
    if not isinstance(rows, list):
        raise wrong("a list", rows, f"{param}.tool_calls")
    calls = [_call(row, f"{param}.tool_calls[{number}]") for number, row in enumerate(rows)]
    names.update((call.id, call.name) for call in calls)
    return json.dumps({"tool_calls": [call.plain() for call in calls]}) if calls else ""


def _call(row: Any, param: str) -> ToolCall:
    function = row.get("function") if isinstance(row, dict) else None
    if isinstance(function, dict):
        identity, name = row.get("id"), function.get("name")
        try:
            arguments = json.loads(
                function.get("arguments") or "{}", parse_constant=refuse_constant
            )
        except (TypeError, ValueError, RecursionError):
            arguments = None
        if isinstance(identity, str) and isinstance(name, str) and isinstance(arguments, dict):
            return ToolCall(identity, name, arguments)
    expected = "an id, a name and arguments that are the JSON of an object"
    raise _invalid(param, f"must be a call of a function: {expected}")


def _invalid(param: str, fault: str) -> RefusalError:
    return RefusalError(400, "invalid_value", f"`{param}` {fault}.", param)


def sent_calls(calls: Sequence[ToolCall]) -> list[dict[str, Any]]:
    """Calls in the format of a response: arguments are a JSON string."""
    rows = [call.plain() for call in calls]
    for row in rows:
        arguments = json.dumps(row["function"]["arguments"], ensure_ascii=False)
        row["function"]["arguments"] = encodable(arguments)
    return rows


_SENDERS = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
MOST_STOPS = 4


class ChatCall(NamedTuple):
    """A request to the door."""

    request: ProgramRequest
    stream: bool
    stream_usage: bool
    """True if a last chunk of the stream has the token counts."""


_TYPE_NAMES = {
    bool: "true or false",
    dict: "an object",
    float: "a number",
    int: "a whole number",
    str: "a text",
}
Kinds = Mapping[str, type]
"""Type of the value by field."""
SAMPLING: Kinds = {
    **dict.fromkeys(("temperature", "top_p", "presence_penalty", "frequency_penalty"), float),
    **dict.fromkeys(("seed", "max_tokens", "max_completion_tokens"), int),
}
"""Sampling fields: checked and ignored, since rollouts set the sampling."""
NOTES: Kinds = {
    "metadata": dict,
    **dict.fromkeys(("prompt_cache_key", "safety_identifier", "user"), str),
}
"""Fields without an effect on replies."""
_UNHEEDED: Kinds = {
    **SAMPLING,
    **NOTES,
    **dict.fromkeys(("min_p", "repetition_penalty"), float),
    **dict.fromkeys(("reasoning_effort", "service_tier", "verbosity"), str),
    "store": bool,
    "top_k": int,
}
"""Further fields that are checked and ignored."""
UNSUPPORTED: Mapping[str, tuple[object, ...]] = {
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "logit_bias": ({},),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "web_search_options": (),
}
"""Neutral values by field, for unsupported fields."""
KINDS: Kinds = {"stream": bool, "stream_options": dict, **_UNHEEDED}
"""Fields of the door that are checked by their type alone."""
_OBEYED = {"messages", "model", "n", "parallel_tool_calls", "stop", "tool_choice", "tools"}


def read_body(raw: bytes) -> dict[str, Any]:
    """Read the object in the body of a request.

    Raises:
        RefusalError: it is not a JSON object, or has too many lists and objects.
    """
    if _exceeds_containers(raw):
        message = f"The request has more than {MOST_CONTAINERS:,} lists and objects."
        raise RefusalError(413, "request_too_large", message)
    try:
        body = json.loads(raw.decode("utf-8"), parse_constant=refuse_constant)
    except (ValueError, RecursionError) as error:
        message = f"The body must be JSON in UTF-8: {error}"
        raise RefusalError(400, "invalid_json", message) from None
    if not isinstance(body, dict):
        raise wrong("a JSON object", body, None)
    return body


def _exceeds_containers(data: bytes) -> bool:
    if data.count(b"{") + data.count(b"[") <= MOST_CONTAINERS:
        return False  # soon for almost all requests, as brackets in texts are counted
    openings = (found for found in _TEXT_OR_OPENING.finditer(data) if found.lastindex)
    return next(islice(openings, MOST_CONTAINERS, None), None) is not None


def read_model(body: Mapping[str, object], models: tuple[str, ...]) -> str:
    """Read the field `model`, one of `models`."""
    model = body.get("model")
    if not isinstance(model, str):
        raise wrong(f"one of {', '.join(models)}", model, "model")
    if model not in models:
        message = f"The model {model!r:.100} does not exist; there are {', '.join(models)}."
        raise RefusalError(404, "model_not_found", message, "model")
    return model


def read_call(raw: bytes, models: tuple[str, ...]) -> ChatCall:
    """Read the body of a request.

    Raises:
        RefusalError: it is not JSON, or a field is missing, invalid or unsupported.
    """
    body = read_body(raw)
    model = read_model(body, models)
    _check_fields(body)
    options = body.get("stream_options")
    messages = read_messages(body.get("messages"), tools=True)
    return ChatCall(
        ProgramRequest(model, messages, read_stops(body.get("stop")), *read_tools(body)),
        body.get("stream") is True,
        bool(options and options.get("include_usage")),
    )


def _check_fields(body: Mapping[str, object]) -> None:
    for name in body.keys() - _OBEYED - KINDS.keys() - UNSUPPORTED.keys():
        if body[name] is not None:
            message = f"`{name:.100}` is not a parameter of the door."
            raise RefusalError(400, "unknown_parameter", message, name)
    check_kinds(body, KINDS)
    if body.get("n") not in (None, 1):
        message = "`n` must be 1: a request is one turn of an agent."
        raise RefusalError(400, "unsupported_value", message, "n")
    check_neutral(body, UNSUPPORTED)


def check_kinds(body: Mapping[str, object], kinds: Kinds) -> None:
    """Reject fields of a wrong type; null counts as absent."""
    for name, kind in kinds.items():
        value = body.get(name)
        if value is not None and not fits(value, kind):
            raise wrong(_TYPE_NAMES[kind], value, name)


def check_neutral(body: Mapping[str, object], neutral: Mapping[str, tuple[object, ...]]) -> None:
    """Reject fields that ask for unsupported features."""
    for name, values in neutral.items():
        if body.get(name) is not None and body[name] not in values:
            message = f"`{name}` is not supported: replies are plain text."
            raise RefusalError(400, "unsupported_parameter", message, name)


def read_messages(value: object, tools: bool = False) -> tuple[tuple[str, ...], ...]:
    """Read the field `messages` into the format of `ProgramRequest`.

    With `tools`, messages may have tool calls and results.
    """
    senders = {**_SENDERS, "tool": "tool"} if tools else _SENDERS
    names: dict[str, str] = {}
    if not isinstance(value, list) or not value:
        raise wrong("a list of at least one message", value, "messages")
    messages: list[tuple[str, ...]] = []
    for number, message in enumerate(value):
        param = f"messages[{number}]"
        if not isinstance(message, dict):
            raise wrong("an object", message, param)
        sender = message.get("role")
        if not isinstance(sender, str) or sender not in senders:
            expected = f"one of {', '.join(senders)}, got {sender!r:.60}"
            raise _invalid(f"{param}.role", f"must be {expected}")
        for name in ("function_call",) if tools else ("function_call", "tool_calls"):
            if message.get(name):
                text = f"`{param}.{name}` is not supported: replies are plain text."
                raise RefusalError(400, "unsupported_parameter", text, f"{param}.{name}")
        calls = read_calls_of(message, param, names)
        content = message.get("content")
        if content is None and sender == "assistant" and calls:
            content = ""
        row = senders[sender], _content(content, f"{param}.content")
        messages.append((*row, calls) if calls else row)
    return tuple(messages)


def _content(value: object, param: str) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise wrong("a text or a list of text parts", value, param)
    texts: list[str] = []
    for part in value:
        text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None
        if not isinstance(text, str):
            message = f"`{param}` may have parts of the type `text` only."
            raise RefusalError(400, "unsupported_content", message, param)
        texts.append(text)
    return "".join(texts)


def read_stops(value: object) -> tuple[str, ...]:
    """Read the texts of the field `stop`."""
    stops = [value] if isinstance(value, str) else value or []
    if not isinstance(stops, list) or len(stops) > MOST_STOPS:
        raise wrong(f"a text or a list of at most {MOST_STOPS}", value, "stop")
    for stop in stops:
        if not isinstance(stop, str) or not stop:
            raise wrong("texts that are not empty", stop, "stop")
    return tuple(stops)


def until(text: str, stop: tuple[str, ...], finish: str) -> tuple[str, str]:
    """The text before the first stop text, and its finish reason; unchanged without a match."""
    ends = [end for end in (text.find(part) for part in stop) if end >= 0]
    return (encodable(text[: min(ends)]), "stop") if ends else (encodable(text), finish)


def _parts(call: ChatCall, reply: ProgramReply) -> tuple[str, str, list[dict[str, Any]]]:
    # The calls after a stop text are dropped.
    text, finish = until(reply.text, call.request.stop, reply.counts.finish)
    if reply.calls and len(text) == len(reply.text):
        return text, "tool_calls", sent_calls(reply.calls)
    return text, finish, []


def completion(call: ChatCall, number: int, reply: ProgramReply) -> dict[str, Any]:
    """The JSON of a completion."""
    text, finish, calls = _parts(call, reply)
    message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
    if calls:
        message |= {"content": text or None, "tool_calls": calls}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish}
    return {**_head(call, number, "chat.completion"), "choices": [choice], "usage": _usage(reply)}


def events(call: ChatCall, number: int, reply: ProgramReply) -> Iterator[bytes]:
    """A reply as server-sent events."""
    text, finish, calls = _parts(call, reply)
    head = _head(call, number, "chat.completion.chunk")
    steps: list[tuple[dict[str, Any], str | None]] = [
        ({"role": "assistant", "content": ""}, None),
        *([({"content": text}, None)] if text or not calls else []),
        *(({"tool_calls": [{"index": n, **row}]}, None) for n, row in enumerate(calls)),
        ({}, finish),
    ]
    for delta, reason in steps:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        yield event({**head, "choices": [choice]})
    if call.stream_usage:
        yield event({**head, "choices": [], "usage": _usage(reply)})
    yield DONE


def model_list(models: tuple[str, ...]) -> dict[str, Any]:
    """The JSON of `/v1/models`."""
    rows = [{"id": name, "object": "model", "created": 0, "owned_by": "flowzoo"} for name in models]
    return {"object": "list", "data": rows}


def _head(call: ChatCall, number: int, kind: str) -> dict[str, Any]:
    # The id is deterministic, since a program may use it.
    created, model = int(time.time()), call.request.model
    return {"id": f"chatcmpl-{number}", "object": kind, "created": created, "model": model}


def _usage(reply: ProgramReply) -> dict[str, int]:
    _, prompt, output = reply.counts
    return {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}


DONE = b"data: [DONE]\n\n"
"""The last event of a stream."""


def event(row: dict[str, Any]) -> bytes:
    """A server-sent event."""
    return b"data: " + json.dumps(row).encode() + b"\n\n"
