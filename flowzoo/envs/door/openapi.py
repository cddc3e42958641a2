"""OpenAPI descriptions of the servers, made of the tables by which they check requests."""

from collections.abc import Mapping
from typing import Any

from flowzoo.envs.door.fields import Api, Surface, fields_of, outcome
from flowzoo.envs.door.wire import MOST_CALLS, MOST_STOPS

JSON = dict[str, Any]
_TYPES: Mapping[type, JSON] = {
    bool: {"type": "boolean"},
    dict: {"type": "object"},
    float: {"type": "number"},
    int: {"type": "integer"},
    list: {"type": "array"},
    str: {"type": "string"},
}
"""Schemas of the types of fields."""


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
_RESPONSE = _object(
    "id object created_at model status output",
    object={"const": "response"},
    output=_list({"type": "object", "required": ["id", "type"]}),
)
_TOOL = _object("type function", type={"const": "function"}, function=_object("name", name=_TEXT))
_STATUS = _object("status", status=_TEXT)


def describe(title: str, surface: Surface, one_model: bool = False) -> JSON:
    """The description of a server.

    Args:
        title: its name.
        surface: what its requests may have.
        one_model: whether there is an address for each model.
    """
    error = {"application/json": {"schema": _ERROR}}
    paths: JSON = {
        "/v1/chat/completions": _create("complete", _request("chat", surface), _COMPLETION),
        "/v1/responses": _create("respond", _request("responses", surface), _RESPONSE),
        "/v1/models": {"get": {"operationId": "models", **_responses(_MODELS)}},
        "/health": {"get": {"operationId": "health", "security": [], **_responses(_STATUS)}},
        "/metrics": {"get": {"operationId": "metrics", **_responses(_TEXT, "text/plain")}},
    }
    if one_model:
        schema = {"enum": [*surface.models]}
        name = {"name": "name", "in": "path", "required": True, "schema": schema}
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


def _create(name: str, request: JSON, reply: JSON) -> JSON:
    body = {"required": True, "content": {"application/json": {"schema": request}}}
    responses = _responses(reply, stream=True)
    return {"post": {"operationId": name, "requestBody": body, **responses}}


def _request(api: Api, surface: Surface) -> JSON:
    message = _object(
        "role content",
        role={"enum": ["system", "developer", "user", "assistant"]},
        content={"anyOf": [_TEXT, _list(_PART)]},
    )
    stop = {"type": "string", "minLength": 1}
    readers: JSON = {
        "model": {"enum": [*surface.models]},
        "messages": _list(message, minItems=1),
        "input": {"anyOf": [_TEXT, _list(message, minItems=1)]},
        "stop": _or_null(stop, _list(stop, maxItems=MOST_STOPS)),
        "tools": _or_null(_list(_TOOL, maxItems=MOST_CALLS)),
        "tool_choice": {},
    }
    fields: JSON = {}
    for field in fields_of(api):
        done = outcome(field, surface.server)
        if not done.startswith("refused"):
            kind = _or_null(_TYPES[field.kind]) if field.kind else {}
            fields[field.name] = {**readers.get(field.name, kind), "description": done}
    required = "model messages" if api == "chat" else "model input"
    return _object(required, **fields)


def _responses(schema: JSON, kind: str = "application/json", stream: bool = False) -> JSON:
    content: JSON = {kind: {"schema": schema}}
    if stream:
        content["text/event-stream"] = {}
    errors = {"default": {"$ref": "#/components/responses/Error"}}
    return {"responses": {"200": {"description": "The answer.", "content": content}, **errors}}
