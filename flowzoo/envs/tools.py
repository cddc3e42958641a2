"""Tools for agents: their schemas, and the calls in replies.

Replies use the notation of Hermes and Qwen; engines translate the calls of other models.
"""

import copy
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, runtime_checkable

from flowzoo.declared import fits
from flowzoo.errors import UsageError

_TYPES: Mapping[str, type] = {
    "string": str,
    "boolean": bool,
    "null": type(None),
    "integer": int,
    "number": float,
    "array": list,
    "object": dict,
}
_CHECKED = {
    "type", "properties", "required", "additionalProperties", "items", "enum", "const", "anyOf",
}  # fmt: skip
_TEXTS = {"title", "description", "default", "examples", "$schema"}


def check_schema(schema: object, path: str) -> None:
    """Raise `UsageError` unless `value_fault` supports every keyword of `schema`."""
    if not isinstance(schema, Mapping):
        raise UsageError(f"{path}: expected a JSON schema, a dict, got {schema!r:.80}")
    unchecked = sorted(map(str, set(schema) - _CHECKED - _TEXTS))
    if unchecked:
        names = ", ".join(sorted(_CHECKED))
        raise UsageError(f"{path}: {', '.join(unchecked)} cannot be checked; use only {names}.")
    if not isinstance(schema.get("properties", {}), Mapping):
        raise UsageError(f"{path}: properties must be a dict")
    for keyword in ("required", "enum", "anyOf"):
        if not isinstance(schema.get(keyword, ()), list | tuple):
            raise UsageError(f"{path}: {keyword} must be a list")
    kinds = schema.get("type", [])
    for kind in [kinds] if isinstance(kinds, str) else kinds:
        if not (isinstance(kind, str) and kind in _TYPES):
            raise UsageError(f"{path}: type must be one of {', '.join(_TYPES)}, got {kind!r:.40}")
    for name, inner in schema.get("properties", {}).items():
        check_schema(inner, f"{path}.{name}")
    for inner in schema.get("anyOf", ()):
        check_schema(inner, path)
    for keyword in ("items", "additionalProperties"):
        if not isinstance(schema.get(keyword, True), bool):
            check_schema(schema[keyword], f"{path}.{keyword}")


def _object_fault(value: dict[str, Any], schema: Mapping[str, Any], path: str) -> str:
    properties = schema.get("properties", {})
    others = schema.get("additionalProperties", False)
    for name, item in value.items():
        inner = properties.get(name, others)
        if inner is False:
            return f"{path} has the unknown name {name!r:.60}"
        if inner is not True and (fault := value_fault(item, inner, f"{path}.{name}")):
            return fault
    return ""


def value_fault(value: Any, schema: Mapping[str, Any], path: str = "arguments") -> str:
    """Reason why `value` does not match `schema`; "" if it does.

    An object has only its `properties`, unless `additionalProperties` allows more.
    """
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds and not any(fits(value, _TYPES[kind]) for kind in kinds):
        return f"{path} must be of type {' or '.join(kinds)}, got {type(value).__name__}"
    if "enum" in schema and not any(_same(value, choice) for choice in schema["enum"]):
        return f"{path} must be one of {schema['enum']!r:.200}"
    if "const" in schema and not _same(value, schema["const"]):
        return f"{path} must be {schema['const']!r:.200}"
    options = schema.get("anyOf", ())
    if options and all(value_fault(value, option, path) for option in options):
        return f"{path} fits none of its {len(options)} descriptions"
    for name in schema.get("required", ()) if isinstance(value, dict) else ():
        if name not in value:
            return f"{path} lacks {name!r}"
    if isinstance(value, dict) and ("properties" in schema or "object" in kinds):
        return _object_fault(value, schema, path)
    if isinstance(value, list) and isinstance(schema.get("items"), Mapping):
        for number, item in enumerate(value):
            if fault := value_fault(item, schema["items"], f"{path}[{number}]"):
                return fault
    return ""


def _same(value: object, choice: object) -> bool:
    # True equals 1 in Python, but not in JSON.
    return value == choice and isinstance(value, bool) == isinstance(choice, bool)


_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


@dataclass(frozen=True)
class Tool:
    """A function that an agent may call in its reply. The script computes the result.

    Raises:
        UsageError: endpoints would reject the name, or the parameters cannot be checked.
    """

    name: str
    """1 to 64 ASCII letters, digits, `_` and `-`."""
    description: str
    """Description for the agent."""
    parameters: Mapping[str, Any] = field(hash=False)
    """JSON schema of the arguments, of type `object`."""
    checked: bool = True
    """False: `parameters` may be any schema and is only shown; arguments are not checked."""

    def __post_init__(self) -> None:
        if not (isinstance(self.name, str) and _NAME.fullmatch(self.name)):
            raise UsageError(
                "the name of a tool must have 1 to 64 ASCII letters, digits, _ and -, got "
                f"{self.name!r:.80}"
            )
        if self.checked:
            check_schema(self.parameters, f"parameters of tool {self.name}")
        if self.parameters.get("type") != "object":
            raise UsageError(
                f'parameters of tool {self.name}: the schema must have "type": "object"'
            )

    @classmethod
    def of_schema(cls, schema: Mapping[str, Any]) -> "Tool":
        """Make a tool from a schema; arguments are not checked."""
        return cls(**schema["function"], checked=False)

    def fault(self, arguments: Mapping[str, object]) -> str:
        """Reason why the arguments are invalid; "" if they are valid."""
        return value_fault(arguments, self.parameters) if self.checked else ""

    def schema(self) -> dict[str, Any]:
        """A fresh copy of the tool in the format of chat templates and endpoints."""
        function = {
            "name": self.name,
            "description": self.description,
            "parameters": copy.deepcopy(dict(self.parameters)),
        }
        return {"type": "function", "function": function}


@runtime_checkable
class ToolSource(Protocol):
    """Computes results of tool calls outside a script; must be picklable."""

    def use(self, calls: "Sequence[ToolCall]") -> Sequence[str]:
        """Texts of the results, in the order of the calls."""
        ...


class ToolCall(NamedTuple):
    """A call of a tool in a reply; its arguments match the tool's schema."""

    id: str
    """Nine digits, unique within the episode."""
    name: str
    arguments: Mapping[str, Any]

    def plain(self) -> dict[str, Any]:
        """A fresh copy of the call in the format of messages."""
        function = {"name": self.name, "arguments": copy.deepcopy(dict(self.arguments))}
        return {"id": self.id, "type": "function", "function": function}

    def result(self, text: str) -> dict[str, Any]:
        """The message with the result of the call."""
        return {"role": "tool", "tool_call_id": self.id, "name": self.name, "content": text}


OPEN, CLOSE = "<tool_call>", "</tool_call>"
_FENCE = re.compile(r"`{3,}\w*")


class CallReading(NamedTuple):
    """The calls of a reply, or the reason why they cannot be read."""

    calls: tuple[ToolCall, ...] = ()
    fault: str = ""


class _CallFault(Exception):
    """A call that cannot be read."""


def call_text(content: str) -> str:
    """Format a call for a reply; `content` is a JSON object with name and arguments."""
    # In JSON, `<` occurs only in strings, where it can be escaped.
    inert = content.replace(OPEN, "\\u003ctool_call>").replace(CLOSE, "\\u003c/tool_call>")
    return f"{OPEN}\n{inert}\n{CLOSE}"


def before_calls(text: str) -> str:
    """The text of a reply before its first call and the call's code fence."""
    thoughts = text.rfind("</think>") + 1  # they may mention the tag of a call
    start = text.find(OPEN, thoughts)
    head = (text if start < 0 else text[:start]).rstrip()
    above, _, last = head.rpartition("\n")
    opened = sum(map(_is_fence, head[thoughts:].splitlines())) % 2
    return (above if opened and _is_fence(last) else head).strip()


def _is_fence(line: str) -> bool:
    return _FENCE.fullmatch(line.strip()) is not None


def read_calls(text: str, tools: Sequence[Tool], most: int = 1, number: int = 0) -> CallReading:
    """Read the calls of a reply.

    Args:
        text: the reply without thoughts.
        tools: the tools that it may call.
        most: most calls.
        number: index of the reply in the episode, for the ids of the calls.
    """
    try:
        bodies = _bodies(text)
        if len(bodies) > most:
            raise _CallFault(f"{len(bodies)} calls where {most} may be made")
        calls = [_call(body, tools) for body in bodies]
    except _CallFault as fault:
        return CallReading(fault=str(fault))
    ids = (f"{number % 10**6:06d}{index:03d}" for index in range(len(calls)))
    return CallReading(tuple(ToolCall(name, *call) for name, call in zip(ids, calls, strict=True)))


def _bodies(text: str) -> list[str]:
    head, opening, rest = text.partition(OPEN)
    if CLOSE in head:
        raise _CallFault("a closing tag without a call")
    bodies: list[str] = []
    while opening:
        body, closing, rest = rest.partition(CLOSE)
        if not closing:
            raise _CallFault("a call without a closing tag")
        if OPEN in body:
            raise _CallFault("a call inside a call")
        bodies.append(body)
        between, opening, rest = rest.partition(OPEN)
        # Models put calls into code fences; they are ignored, as servers do.
        if not all(not line.strip() or _is_fence(line) for line in between.splitlines()):
            raise _CallFault("text after a call")
    return bodies


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise _CallFault(f"the name {twice!r:.60} is given twice")
    return dict(pairs)


def _number(text: str) -> Any:
    raise _CallFault(f"{text} is no number of JSON")


def _call(body: str, tools: Sequence[Tool]) -> tuple[str, dict[str, Any]]:
    try:
        value = json.loads(body, object_pairs_hook=_unique, parse_constant=_number)
    except RecursionError:
        raise _CallFault("a call that is nested too deep") from None
    except ValueError as error:
        raise _CallFault(f"a call that is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise _CallFault(f"a call must be an object, got {type(value).__name__}")
    if value.keys() != {"name", "arguments"}:
        names = ", ".join(sorted(value))
        raise _CallFault(f"a call has the names name and arguments, got {names or 'none'!s:.80}")
    name, arguments = value["name"], value["arguments"]
    tool = next((tool for tool in tools if tool.name == name), None)
    if tool is None:
        raise _CallFault(f"no tool {name!r:.60}; there is {', '.join(t.name for t in tools)}")
    if not isinstance(arguments, dict):
        raise _CallFault(f"arguments must be an object, got {type(arguments).__name__}")
    if fault := tool.fault(arguments):
        raise _CallFault(f"{tool.name}: {fault}")
    return tool.name, arguments
