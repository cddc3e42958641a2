"""OpenAI's chat completions on the wire: requests as they are read, replies and errors as sent."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from flowzoo.envs.script import ProgramReply, ProgramRequest
from flowzoo.envs.text import encodable

_SENDERS = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_MOST_STOPS = 4


class RefusalError(Exception):
    """A request that is answered with an error in OpenAI's format."""

    def __init__(self, status: int, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.param = status, code, param

    def body(self) -> dict[str, Any]:
        """The JSON of the answer."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        error = {"message": str(self), "type": kind, "param": self.param, "code": self.code}
        return {"error": error}


class ChatCall(NamedTuple):
    """A request to the door."""

    request: ProgramRequest
    stream: bool
    stream_usage: bool
    """True if the stream ends with a chunk that has the token counts."""


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


# Fields of sampling, which are checked and have no effect: a rollout has its own sampling.
_SAMPLING: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "temperature": ("a number", _is_number),
    "top_p": ("a number", _is_number),
    "presence_penalty": ("a number", _is_number),
    "frequency_penalty": ("a number", _is_number),
    "seed": ("a whole number", _is_whole),
    "max_tokens": ("a whole number", _is_whole),
    "max_completion_tokens": ("a whole number", _is_whole),
    "user": ("a text", lambda value: isinstance(value, str)),
}
# Fields that a reply would have to obey, with the values that ask for nothing.
_UNSUPPORTED: Mapping[str, tuple[Any, ...]] = {
    "tools": ([],),
    "functions": ([],),
    "tool_choice": ("none", "auto"),
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


def read_call(raw: bytes, models: tuple[str, ...]) -> ChatCall:
    """Read the body of a request.

    Raises:
        RefusalError: it is no JSON, a field is missing or wrong, or asks for what there is not.
    """
    try:
        body = json.loads(raw.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        message = f"The body must be JSON in UTF-8: {error}"
        raise RefusalError(400, "invalid_json", message) from None
    if not isinstance(body, dict):
        raise _wrong("a JSON object", body, None)
    model = body.get("model")
    if not isinstance(model, str):
        raise _wrong("the name of a role or an agent", model, "model")
    if model not in models:
        message = f"The model {model!r:.100} does not exist; there are {', '.join(models)}."
        raise RefusalError(404, "model_not_found", message, "model")
    _check_fields(body)
    options = body.get("stream_options")
    if not isinstance(options, (dict, type(None))):
        raise _wrong("an object", options, "stream_options")
    return ChatCall(
        ProgramRequest(model, _messages(body.get("messages")), _stops(body.get("stop"))),
        body.get("stream") is True,
        bool(options and options.get("include_usage")),
    )


def _wrong(expected: str, value: Any, param: str | None) -> RefusalError:
    subject = f"`{param}`" if param else "The body"
    message = f"{subject} must be {expected}, got {type(value).__name__}."
    return RefusalError(400, "invalid_type", message, param)


def _check_fields(body: Mapping[str, Any]) -> None:
    if not isinstance(body.get("stream"), (bool, type(None))):
        raise _wrong("true or false", body["stream"], "stream")
    for name, (expected, fits) in _SAMPLING.items():
        value = body.get(name)
        if value is not None and not fits(value):
            raise _wrong(expected, value, name)
    if body.get("n") not in (None, 1):
        message = "`n` must be 1: a request is one turn of an agent."
        raise RefusalError(400, "unsupported_value", message, "n")
    for name, neutral in _UNSUPPORTED.items():
        if body.get(name) is not None and body[name] not in neutral:
            message = f"`{name}` is not supported: replies are plain text."
            raise RefusalError(400, "unsupported_parameter", message, name)


def _messages(value: Any) -> tuple[tuple[str, str], ...]:
    if not isinstance(value, list) or not value:
        raise _wrong("a list of at least one message", value, "messages")
    messages: list[tuple[str, str]] = []
    for number, message in enumerate(value):
        param = f"messages[{number}]"
        if not isinstance(message, dict):
            raise _wrong("an object", message, param)
        sender = message.get("role")
        if not isinstance(sender, str) or sender not in _SENDERS:
            expected = f"one of {', '.join(_SENDERS)}, got {sender!r:.60}"
            raise RefusalError(
                400, "invalid_value", f"`{param}.role` must be {expected}.", f"{param}.role"
            )
        if message.get("tool_calls") or message.get("function_call"):
            text = f"`{param}.tool_calls` is not supported: replies are plain text."
            raise RefusalError(400, "unsupported_parameter", text, f"{param}.tool_calls")
        messages.append((_SENDERS[sender], _content(message.get("content"), f"{param}.content")))
    return tuple(messages)


def _content(value: Any, param: str) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise _wrong("a text or a list of text parts", value, param)
    texts: list[str] = []
    for part in value:
        text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None
        if not isinstance(text, str):
            message = f"`{param}` may have parts of the type `text` only."
            raise RefusalError(400, "unsupported_content", message, param)
        texts.append(text)
    return "".join(texts)


def _stops(value: Any) -> tuple[str, ...]:
    stops = [value] if isinstance(value, str) else value or []
    if not isinstance(stops, list) or len(stops) > _MOST_STOPS:
        raise _wrong(f"a text or a list of at most {_MOST_STOPS}", value, "stop")
    for stop in stops:
        if not isinstance(stop, str) or not stop:
            raise _wrong("texts that are not empty", stop, "stop")
    return tuple(stops)


def _shown(reply: ProgramReply, stop: tuple[str, ...]) -> tuple[str, str]:
    # Text and finish reason, for a program that wants the reply to end before a text in `stop`.
    ends = [end for end in (reply.text.find(part) for part in stop) if end >= 0]
    if ends:
        return encodable(reply.text[: min(ends)]), "stop"
    return encodable(reply.text), reply.counts.finish


def completion(call: ChatCall, number: int, reply: ProgramReply) -> dict[str, Any]:
    """The JSON of a reply."""
    text, finish = _shown(reply, call.request.stop)
    message = {"role": "assistant", "content": text, "refusal": None}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish}
    return {**_head(call, number, "chat.completion"), "choices": [choice], "usage": _usage(reply)}


def events(call: ChatCall, number: int, reply: ProgramReply) -> Iterator[bytes]:
    """A reply as server-sent events."""
    text, finish = _shown(reply, call.request.stop)
    head = _head(call, number, "chat.completion.chunk")
    steps: list[tuple[dict[str, str], str | None]] = [
        ({"role": "assistant", "content": ""}, None),
        ({"content": text}, None),
        ({}, finish),
    ]
    for delta, reason in steps:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        yield _event({**head, "choices": [choice]})
    if call.stream_usage:
        yield _event({**head, "choices": [], "usage": _usage(reply)})
    yield b"data: [DONE]\n\n"


def model_list(models: tuple[str, ...]) -> dict[str, Any]:
    """The JSON of `/v1/models`."""
    rows = [{"id": name, "object": "model", "created": 0, "owned_by": "flowzoo"} for name in models]
    return {"object": "list", "data": rows}


def _head(call: ChatCall, number: int, kind: str) -> dict[str, Any]:
    # The id is a function of the run, as a program may use it.
    created, model = int(time.time()), call.request.model
    return {"id": f"chatcmpl-{number}", "object": kind, "created": created, "model": model}


def _usage(reply: ProgramReply) -> dict[str, int]:
    _, prompt, output = reply.counts
    return {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}


def _event(row: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(row).encode() + b"\n\n"
