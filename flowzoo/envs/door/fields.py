"""The fields of requests, and what the door and `flowzoo serve` do with each: one table.

Of it are made the checks of requests, the OpenAPI descriptions and the table of the documentation.
A field that is not in it is ignored, as one of the table is that says so: the reply names it.
"""

import logging
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

from flowzoo.declared import fits
from flowzoo.front.refusal import RefusalError, wrong

Api = Literal["chat", "responses"]
_log = logging.getLogger("flowzoo")
_MOST_TOLD = 100  # names of fields that are logged


class Field(NamedTuple):
    """A field of requests."""

    name: str
    api: Api | None
    """None: both have it."""
    kind: type | None
    """Type of the value; None: its reader checks it."""
    door: str
    """`honored`, `mapped`, `ignored` or `refused` by the door, and after a colon how."""
    serve: str = ""
    """The same of `flowzoo serve`; empty: as the door."""
    neutral: tuple[object, ...] = ()
    """Values that ask for nothing."""


_IGNORED = "ignored"
_FORMAT = "mapped: the first prompt asks for it, and a code fence around JSON is removed"
_FORMAT_OF_ROLES = f"{_FORMAT}; of a workflow it is ignored"
_EACH = "of a workflow the most tokens of every reply"
_SAMPLED = "ignored: rollouts set it"
_ELSEWHERE = "refused: nothing is stored here, so send all of `input`"
FIELDS = (
    Field("model", None, str, "honored"),
    Field("messages", "chat", list, "honored", "honored; a workflow is asked the last of the user"),
    Field("input", "responses", None, "mapped: messages", "mapped: messages"),
    Field("instructions", "responses", str, "mapped: the first message, of the system"),
    Field("tools", None, list, "honored", "honored; of a workflow by its last speaker"),
    Field("tool_choice", None, None, "mapped: selects the tools that are shown, and forces none"),
    Field("parallel_tool_calls", None, bool, "honored"),
    Field("max_tool_calls", "responses", int, "ignored: it counts calls of built-in tools"),
    Field("n", "chat", int, "mapped: so many turns", "honored: so many episodes"),
    Field("stop", "chat", None, "honored"),
    Field("stream", None, bool, "honored"),
    Field("stream_options", None, dict, "honored: `include_usage`"),
    Field("temperature", None, float, _SAMPLED, "ignored, unless it is the server's"),
    Field("top_p", None, float, _SAMPLED, "ignored, unless it is the server's"),
    Field("seed", "chat", int, _SAMPLED, "honored"),
    Field("max_tokens", "chat", int, _SAMPLED, f"honored; {_EACH}"),
    Field("max_completion_tokens", "chat", int, _SAMPLED, f"mapped: max_tokens; {_EACH}"),
    Field("max_output_tokens", "responses", int, _SAMPLED, f"mapped: max_tokens; {_EACH}"),
    Field("response_format", "chat", dict, _FORMAT, _FORMAT_OF_ROLES, ({"type": "text"},)),
    Field("text", "responses", dict, f"{_FORMAT}; `verbosity` is ignored",
          f"{_FORMAT_OF_ROLES}; `verbosity` is ignored", ({},)),
    Field("metadata", None, dict, "ignored; Responses repeat it", "", ({},)),
    Field("frequency_penalty", "chat", float, _IGNORED, "", (0,)),
    Field("presence_penalty", "chat", float, _IGNORED, "", (0,)),
    Field("logit_bias", "chat", dict, _IGNORED, "", ({},)),
    Field("logprobs", "chat", bool, _IGNORED, "", (False,)),
    Field("top_logprobs", None, int, _IGNORED, "", (0,)),
    Field("reasoning_effort", "chat", str, _IGNORED),
    Field("reasoning", "responses", dict, _IGNORED, "", ({},)),
    Field("verbosity", "chat", str, _IGNORED),
    Field("functions", "chat", list, "ignored: send `tools`", "", ([],)),
    Field("function_call", "chat", None, "ignored: send `tool_choice`", "", ("none", "auto")),
    Field("modalities", "chat", list, _IGNORED, "", (["text"],)),
    *(Field(name, "chat", dict, _IGNORED)
      for name in ("audio", "prediction", "web_search_options")),
    Field("moderation", None, dict, _IGNORED),
    Field("user", None, str, _IGNORED),
    Field("safety_identifier", None, str, _IGNORED),
    *(Field(f"prompt_cache_{name}", None, kind, _IGNORED)
      for name, kind in (("key", str), ("retention", str), ("options", dict))),
    Field("service_tier", None, str, _IGNORED, "", ("auto", "default")),
    Field("store", None, bool, "ignored: nothing is stored", "", (False,)),
    Field("include", "responses", list, _IGNORED, "", ([],)),
    Field("truncation", "responses", str, _IGNORED, "", ("disabled",)),
    Field("background", "responses", bool, _IGNORED, "", (False,)),
    *(Field(name, "responses", kind, _IGNORED)
      for name, kind in (("background_options", dict), ("context_management", list),
                         ("access_programs", dict), ("image", dict))),
    *(Field(name, "responses", None, _ELSEWHERE)
      for name in ("previous_response_id", "conversation", "prompt")),
    Field("flowzoo", None, dict, "ignored", "honored: `transcript`", ({},)),
)  # fmt: skip
"""All fields of the official client's requests, and `flowzoo`."""
_PARTS = {
    "flowzoo": ("transcript",), "stream_options": ("include_usage",), "text": ("format",),
}  # fmt: skip
"""Names that have an effect in fields that are objects."""
TYPE_NAMES: Mapping[type, str] = {
    bool: "true or false",
    dict: "an object",
    float: "a number",
    int: "a whole number",
    list: "a list",
    str: "a text",
}


class Surface(NamedTuple):
    """The facts of a server that decide what becomes of a request."""

    server: Literal["door", "serve"]
    models: tuple[str, ...]
    """Names that the field `model` may have."""
    workflow: str = ""
    """The model that is a whole workflow; empty: none is."""
    most_samples: int = 128
    """Most replies to a request."""
    strict: bool = False
    """True: what would be ignored is refused."""
    sampling: Mapping[str, float] = {}
    """Values of sampling fields that all requests have."""


def outcome(field: Field, server: str) -> str:
    """Treatment of a field by a server."""
    return (field.serve if server == "serve" else "") or field.door


def fields_of(api: Api) -> Iterator[Field]:
    """The fields of requests of a kind."""
    return (field for field in FIELDS if field.api in (None, api))


def check_fields(body: Mapping[str, Any], api: Api, surface: Surface) -> list[str]:
    """Names of the fields of a request that have no effect; null counts as absent.

    Raises:
        RefusalError: a field has a value of a wrong type, or cannot be done without.
    """
    names, ignored = {"model"}, list[str]()
    for field in fields_of(api):
        name, value, done = field.name, body.get(field.name), outcome(field, surface.server)
        names.add(name)
        if value is None:
            continue
        if field.kind is not None and not fits(value, field.kind):
            raise wrong(TYPE_NAMES[field.kind], value, name)
        if done.startswith("refused"):
            message = f"`{name}` is {done}."
            raise RefusalError(400, "unsupported_parameter", message, name)
        is_neutral = value in field.neutral or value == surface.sampling.get(name)
        if done.startswith("ignored"):
            ignored += [] if is_neutral else [name]
        elif parts := _PARTS.get(name):
            ignored += [f"{name}.{key:.100}" for key in value if key not in parts]
    others = (name for name, value in body.items() if name not in names and value is not None)
    return [*ignored, *(f"{name:.100}" for name in others)]


class IgnoredFields:
    """Names of the ignored fields that were logged."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def note(self, names: tuple[str, ...], surface: Surface) -> None:
        """Log each name once.

        Raises:
            RefusalError: the server is strict, and a field would be ignored.
        """
        if names and surface.strict:
            message = f"`{names[0]}` would have no effect, and this server is strict: leave it out."
            raise RefusalError(400, "unsupported_parameter", message, names[0])
        for name in names:
            if name not in self._told and len(self._told) < _MOST_TOLD:
                self._told.add(name)
                _log.warning("requests have the field %r, which has no effect", name)


def field_rows() -> list[list[str]]:
    """The rows of the documentation's table: field, API, the door, `flowzoo serve`."""
    apis = {"chat": "Chat Completions", "responses": "Responses", None: "both"}
    return [
        [f"`{field.name}`", apis[field.api], field.door, outcome(field, "serve")]
        for field in FIELDS
    ]
