"""OpenAPI descriptions of the servers, made of the tables by which they check requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flowzoo.envs.door.wire import MOST_CALLS, MOST_STOPS, Kinds

JSON = dict[str, Any]
_TYPES: Mapping[type, JSON] = {
    bool: {"type": "boolean"},
    dict: {"type": "object"},
    float: {"type": "number"},
    int: {"type": "integer"},
    str: {"type": "string"},
}
"""Schemas of the types in `Kinds`."""


def _object(required: str, **properties: JSON) -> JSON:
    return {"type": "object", "required": required.split(), "properties": properties}


def _list(items: JSON, **limits: int) -> JSON:
    return {"type": "array", "items": items, **limits}


def _or_null(*schemas: JSON) -> JSON:
    return {"anyOf": [*schemas, {"type": "null"}]}


_TEXT: JSON = {"type": "string"}
_PART = _object("type text", type={"const": "text"}, text=_TEXT)
_ERROR = _object(
    "error",
    error=_object(
        "message type param code",
        message=_TEXT,
        type={"enum": ["invalid_request_error", "server_error"]},
        param={"type": ["string", "null"]},
        code=_TEXT,
    ),
)
_MODEL = _object("id object created owned_by", id=_TEXT, object={"const": "model"})
_MODELS = _object("object data", object={"const": "list"}, data=_list(_MODEL))
_CHOICE: JSON = {"type": "object", "required": ["index", "message", "finish_reason"]}
_COMPLETION = _object(
    "id object created model choices usage",
    object={"const": "chat.completion"},
    choices=_list(_CHOICE),
    usage={"type": ["object", "null"]},
)
_TOOL = _object("type function", type={"const": "function"}, function=_object("name", name=_TEXT))
_STATUS = _object("status", status=_TEXT)


def describe(
    title: str,
    kinds: Kinds,
    neutral: Mapping[str, tuple[object, ...]],
    models: Sequence[str],
    tools: bool = False,
    one_model: bool = False,
) -> JSON:
    """The description of a server.

    Args:
        title: its name.
        kinds: types of the fields that it obeys or checks.
        neutral: the only values of fields that ask for what there is not.
        models: names that `model` may have.
        tools: whether a request may bring tools.
        one_model: whether there is an address for each model.
    """
    error = {"application/json": {"schema": _ERROR}}
    request = _request(kinds, neutral, models, tools)
    chat = {
        "requestBody": {"required": True, "content": {"application/json": {"schema": request}}},
        **_responses(_COMPLETION, stream=True),
    }
    paths: JSON = {
        "/v1/chat/completions": {"post": {"operationId": "complete", **chat}},
        "/v1/models": {"get": {"operationId": "models", **_responses(_MODELS)}},
        "/health": {"get": {"operationId": "health", "security": [], **_responses(_STATUS)}},
        "/metrics": {"get": {"operationId": "metrics", **_responses(_TEXT, "text/plain")}},
    }
    if one_model:
        name = {"name": "name", "in": "path", "required": True, "schema": {"enum": [*models]}}
        get = {"operationId": "model", "parameters": [name], **_responses(_MODEL)}
        paths["/v1/models/{name}"] = {"get": get}
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": "1"},
        "paths": paths,
        "components": {
            "responses": {"Error": {"description": "An error.", "content": error}},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"key": []}],
    }


def _request(
    kinds: Kinds, neutral: Mapping[str, tuple[object, ...]], models: Sequence[str], tools: bool
) -> JSON:
    message = _object(
        "role content",
        role={"enum": ["system", "developer", "user", "assistant"]},
        content={"anyOf": [_TEXT, _list(_PART)]},
    )
    stop = {"type": "string", "minLength": 1}
    fields: JSON = {name: _or_null(_TYPES[kind]) for name, kind in kinds.items()}
    fields |= {name: {"enum": [*values, None]} for name, values in neutral.items()}
    fields |= {
        "model": {"enum": [*models]},
        "messages": _list(message, minItems=1),
        "stop": _or_null(stop, _list(stop, maxItems=MOST_STOPS)),
    }
    if tools:
        fields["tools"] = _or_null(_list(_TOOL, maxItems=MOST_CALLS))
        fields["n"] = {"enum": [1, None]}
    return {**_object("model messages", **fields), "additionalProperties": False}


def _responses(schema: JSON, kind: str = "application/json", stream: bool = False) -> JSON:
    content: JSON = {kind: {"schema": schema}}
    if stream:
        content["text/event-stream"] = {}
    errors = {"default": {"$ref": "#/components/responses/Error"}}
    return {"responses": {"200": {"description": "The answer.", "content": content}, **errors}}
