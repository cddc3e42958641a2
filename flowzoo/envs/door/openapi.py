"""OpenAPI descriptions of the servers, made of the tables by which they check requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flowzoo.envs.door.wire import MOST_CALLS, MOST_STOPS, Kinds

JSON = dict[str, Any]
_TYPES: Mapping[str, JSON] = {
    "true or false": {"type": "boolean"},
    "an object": {"type": "object"},
    "a number": {"type": "number"},
    "a whole number": {"type": "integer"},
    "a text": {"type": "string"},
}
"""Schemas by the name of a type in `Kinds`."""
_TEXT: JSON = {"type": "string"}
_PART: JSON = {
    "type": "object",
    "required": ["type", "text"],
    "properties": {"type": {"const": "text"}, "text": _TEXT},
}
_ERROR: JSON = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": _TEXT,
                "type": {"enum": ["invalid_request_error", "server_error"]},
                "param": {"type": ["string", "null"]},
                "code": _TEXT,
            },
        }
    },
}
_MODEL: JSON = {
    "type": "object",
    "required": ["id", "object", "created", "owned_by"],
    "properties": {"id": _TEXT, "object": {"const": "model"}},
}
_MODELS: JSON = {
    "type": "object",
    "required": ["object", "data"],
    "properties": {"object": {"const": "list"}, "data": {"type": "array", "items": _MODEL}},
}
_COMPLETION: JSON = {
    "type": "object",
    "required": ["id", "object", "created", "model", "choices", "usage"],
    "properties": {
        "object": {"const": "chat.completion"},
        "choices": {
            "type": "array",
            "items": {"type": "object", "required": ["index", "message", "finish_reason"]},
        },
        "usage": {"type": ["object", "null"]},
    },
}
_TOOL: JSON = {
    "type": "object",
    "required": ["type", "function"],
    "properties": {
        "type": {"const": "function"},
        "function": {"type": "object", "required": ["name"], "properties": {"name": _TEXT}},
    },
}
_STATUS = {"type": "object", "required": ["status"], "properties": {"status": _TEXT}}


def describe(
    title: str,
    kinds: Kinds,
    neutral: Mapping[str, tuple[Any, ...]],
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
    kinds: Kinds, neutral: Mapping[str, tuple[Any, ...]], models: Sequence[str], tools: bool
) -> JSON:
    message = {
        "type": "object",
        "required": ["role", "content"],
        "properties": {
            "role": {"enum": ["system", "developer", "user", "assistant"]},
            "content": {"anyOf": [_TEXT, {"type": "array", "items": _PART}]},
        },
    }
    stop = {"type": "string", "minLength": 1}
    fields: JSON = {name: _or_null(_TYPES[kind]) for name, (kind, _) in kinds.items()}
    fields |= {name: {"enum": [*values, None]} for name, values in neutral.items()}
    fields |= {
        "model": {"enum": [*models]},
        "messages": {"type": "array", "minItems": 1, "items": message},
        "stop": _or_null(stop, {"type": "array", "maxItems": MOST_STOPS, "items": stop}),
    }
    if tools:
        fields["tools"] = _or_null({"type": "array", "maxItems": MOST_CALLS, "items": _TOOL})
        fields["n"] = {"enum": [1, None]}
    return {
        "type": "object",
        "required": ["model", "messages"],
        "additionalProperties": False,
        "properties": fields,
    }


def _or_null(*schemas: JSON) -> JSON:
    return {"anyOf": [*schemas, {"type": "null"}]}


def _responses(schema: JSON, kind: str = "application/json", stream: bool = False) -> JSON:
    content: JSON = {kind: {"schema": schema}}
    if stream:
        content["text/event-stream"] = {}
    errors = {"default": {"$ref": "#/components/responses/Error"}}
    return {"responses": {"200": {"description": "The answer.", "content": content}, **errors}}
