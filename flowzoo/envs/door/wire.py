"""Requests of OpenAI's Chat Completions and Responses, with their tools, as one."""

import json
import re
import sys
from collections.abc import Mapping
from itertools import islice
from typing import Any, NamedTuple

from flowzoo.envs.door.fields import TYPE_NAMES, Api, Surface, check_fields
from flowzoo.envs.script import Message, ProgramRequest
from flowzoo.envs.tools import Tool, ToolCall
from flowzoo.errors import UsageError
from flowzoo.front.refusal import RefusalError, refuse_constant, wrong

MOST_CALLS = 128
"""Most calls of a reply, and most tools of a request."""
MOST_CONTAINERS = 16_384
"""Most lists and objects of a request: each takes 14 times the memory of its text."""
Messages = tuple[tuple[str, ...], ...]
_MOST_IGNORED = 32  # names of ignored fields that a reply has
_TEXTS = ("text", "input_text", "output_text", "refusal")
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
            raise wrong(TYPE_NAMES[kind], value, f"{param}.function.{name}")
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


_SENDERS = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant",
            "tool": "tool"}  # fmt: skip
MOST_STOPS = 4
MOST_SEED = 2**63
"""Seeds are below it, and at least its negative."""


class ModelRequest(NamedTuple):
    """A request of either API, as all servers read it."""

    api: Api
    ask: ProgramRequest
    samples: int
    """Number of replies."""
    stream: bool
    stream_usage: bool
    """True if a last chunk of the stream has the token counts."""
    seed: int | None
    cap: int | None
    """Most tokens of a reply."""
    wants_json: bool
    transcript: bool
    ignored: tuple[str, ...]
    """Names of the fields that have no effect."""
    body: Mapping[str, Any]

    @property
    def model(self) -> str:
        """The model that the request names."""
        return self.ask.model


def _check_arguments(messages: list[Any]) -> None:
    # Arguments of calls are JSON in a text, whose brackets the request's do not include.
    rows = (row.get("tool_calls") for row in messages if isinstance(row, dict))
    calls = (call for row in rows if isinstance(row, list) for call in row)
    functions = (call.get("function") for call in calls if isinstance(call, dict))
    values = (row.get("arguments") for row in functions if isinstance(row, dict))
    text = " ".join(value for value in values if isinstance(value, str))
    if _exceeds_containers(text.encode("utf-8", "surrogatepass")):
        raise _too_many("Arguments of calls have")


def _too_many(subject: str) -> RefusalError:
    message = f"{subject} more than {MOST_CONTAINERS:,} lists and objects."
    return RefusalError(413, "request_too_large", message)


def read_body(raw: bytes) -> dict[str, Any]:
    """Read the object in the body of a request.

    Raises:
        RefusalError: it is not a JSON object, or has too many lists and objects.
    """
    if _exceeds_containers(raw):
        raise _too_many("The request has")
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
    openings = (token for token in _TEXT_OR_OPENING.finditer(data) if token.lastindex)
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


def read_request(raw: bytes, api: Api, surface: Surface) -> ModelRequest:
    """Read the body of a request.

    Raises:
        RefusalError: it is not JSON, or a field is missing, invalid or unsupported.
    """
    body = read_body(raw)
    model = read_model(body, surface.models)
    ignored = check_fields(body, api, surface)
    chat, label = (chat_body(body), "input") if api == "responses" else (body, "messages")
    messages = read_messages(chat.get("messages"), label)
    by_workflow = model == surface.workflow
    form = read_format(chat.get("response_format"))
    if form and by_workflow:
        ignored, form = [*ignored, "text" if api == "responses" else "response_format"], ""
    if form:
        messages = add_format(messages, form)
    options, extras = body.get("stream_options") or {}, body.get("flowzoo") or {}
    caps = [
        _whole(body, name, 1, sys.maxsize)
        for name in ("max_tokens", "max_completion_tokens", "max_output_tokens")
        if body.get(name) is not None and name not in ignored
    ]
    offer = read_tools(chat)
    return ModelRequest(
        api,
        ProgramRequest(model, messages, read_stops(chat.get("stop")), *offer),
        _whole(chat, "n", 1, surface.most_samples) or 1,
        body.get("stream") is True,
        _switch(options, "stream_options", "include_usage"),
        _whole(chat, "seed", -MOST_SEED, MOST_SEED - 1),
        min((cap for cap in caps if cap is not None), default=None),
        bool(form),
        surface.server == "serve" and _switch(extras, "flowzoo", "transcript"),
        tuple(ignored[:_MOST_IGNORED]),
        body,
    )


def _whole(body: Mapping[str, Any], name: str, low: int, high: int) -> int | None:
    value = body.get(name)
    if value is not None and not low <= value <= high:
        raise _invalid(name, f"must be {low} to {high}")
    return value


def _switch(options: Mapping[str, Any], name: str, switch: str) -> bool:
    value = options.get(switch)
    if value is not None and not isinstance(value, bool):
        raise wrong("true or false", value, f"{name}.{switch}")
    return value is True


def read_format(value: Mapping[str, Any] | None) -> str:
    """The instruction for a format of replies; empty for plain text."""
    kind = (value or {}).get("type", "text")
    if kind == "text":
        return ""
    if kind == "json_object":
        return "Reply with a JSON object only."
    schema = value.get("json_schema") if value and kind == "json_schema" else None
    if not isinstance(schema, dict) or not isinstance(schema.get("schema", {}), dict):
        message = "`response_format` must be of the type text, json_object or json_schema."
        raise RefusalError(400, "unsupported_value", message, "response_format")
    return f"Reply only with JSON of this schema: {json.dumps(schema.get('schema', {}))}"


def add_format(messages: Messages, form: str) -> Messages:
    """The messages with an instruction in the first prompt."""
    first = next((n for n, row in enumerate(messages) if row[0] in ("system", "user")), 0)
    sender, text, *more = messages[first]
    prompt = sender, f"{text}\n\n{form}", *more
    return (*messages[:first], prompt, *messages[first + 1 :])


def chat_body(body: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a request of Responses under the names of Chat Completions."""
    value, messages = body.get("input"), list[Any]()
    rows = [{"role": "user", "content": value}] if isinstance(value, str) else value
    if not isinstance(rows, list) or not rows:
        raise wrong("a text or a list of at least one item", rows, "input")
    if body.get("instructions"):
        messages.append({"role": "system", "content": body["instructions"]})
    for number, row in enumerate(rows):
        _add_item(messages, row, f"input[{number}]")
    form = (body.get("text") or {}).get("format")
    if isinstance(form, dict) and form.get("type") == "json_schema":
        form = {"type": "json_schema", "json_schema": form}
    choice, tools = body.get("tool_choice"), body.get("tools")
    if isinstance(choice, dict) and choice.get("type") == "function":
        choice = {"type": "function", "function": choice}
    if isinstance(tools, list):
        tools = [{**row, "function": row} if isinstance(row, dict) else row for row in tools]
    return {
        "messages": messages,
        "response_format": form if isinstance(form, dict) else None,
        "tools": tools,
        "tool_choice": choice,
        "parallel_tool_calls": body.get("parallel_tool_calls"),
    }


def _add_item(messages: list[Any], row: Any, param: str) -> None:
    # A call belongs to the assistant's message before it; thoughts are not shown again.
    kind = row.get("type", "message") if isinstance(row, dict) else None
    if kind == "message":
        messages.append({"role": row.get("role"), "content": row.get("content")})
    elif kind == "function_call":
        call = {"id": row.get("call_id"), "type": "function", "function": row}
        if not messages or messages[-1]["role"] != "assistant":
            messages.append({"role": "assistant", "content": ""})
        messages[-1].setdefault("tool_calls", []).append(call)
    elif kind == "function_call_output":
        identity, content = row.get("call_id"), row.get("output")
        messages.append({"role": "tool", "tool_call_id": identity, "content": content})
    elif kind != "reasoning":
        message = f"`{param}` must be a message, a function's call or its output."
        raise RefusalError(400, "unsupported_content", message, param)


def read_messages(value: object, label: str = "messages") -> Messages:
    """Read the field `messages` into the format of `ProgramRequest`; errors call it `label`."""
    names: dict[str, str] = {}
    if not isinstance(value, list) or not value:
        raise wrong("a list of at least one message", value, label)
    _check_arguments(value)
    messages: list[tuple[str, ...]] = []
    for number, message in enumerate(value):
        param = f"{label}[{number}]"
        if not isinstance(message, dict):
            raise wrong("an object", message, param)
        sender = message.get("role")
        if not isinstance(sender, str) or sender not in _SENDERS:
            expected = f"one of {', '.join(_SENDERS)}, got {sender!r:.60}"
            raise _invalid(f"{param}.role", f"must be {expected}")
        calls = read_calls_of(message, param, names)
        content = message.get("content")
        if content is None and sender == "assistant" and calls:
            content = ""
        row = _SENDERS[sender], _content(content, f"{param}.content")
        messages.append((*row, calls) if calls else row)
    return tuple(messages)


def _content(value: object, param: str) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise wrong("a text or a list of text parts", value, param)
    texts: list[str] = []
    for part in value:
        kind = part.get("type") if isinstance(part, dict) else None
        text = part.get("refusal" if kind == "refusal" else "text") if kind in _TEXTS else None
        if not isinstance(text, str):
            message = f"`{param}` may have parts of the type `text` only: models read no others."
            raise RefusalError(400, "unsupported_content", message, param)
        texts.append(text)
    return "".join(texts)


def chat_messages(rows: Messages) -> list[Message]:
    """Messages of a request as agents see them."""
    return [
        {"role": sender, "content": content, **(json.loads(more[0]) if more else {})}
        for sender, content, *more in rows
    ]


def read_stops(value: object) -> tuple[str, ...]:
    """Read the texts of the field `stop`."""
    stops = [value] if isinstance(value, str) else value or []
    if not isinstance(stops, list) or len(stops) > MOST_STOPS:
        raise wrong(f"a text or a list of at most {MOST_STOPS}", value, "stop")
    for stop in stops:
        if not isinstance(stop, str) or not stop:
            raise wrong("texts that are not empty", stop, "stop")
    return tuple(stops)


def model_list(models: tuple[str, ...]) -> dict[str, Any]:
    """The JSON of `/v1/models`."""
    rows = [{"id": name, "object": "model", "created": 0, "owned_by": "flowzoo"} for name in models]
    return {"object": "list", "data": rows}
