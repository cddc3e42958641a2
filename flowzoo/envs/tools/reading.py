"""Calls of tools in the text of a reply.

Replies have one notation, that of Hermes and Qwen; engines translate the calls of other models.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from flowzoo.envs.tools.tool import Tool, ToolCall

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_FENCE = re.compile(r"`{3,}\w*")


class CallReading(NamedTuple):
    """The calls of a reply, or the reason why they cannot be read."""

    calls: tuple[ToolCall, ...] = ()
    fault: str = ""


class _CallFault(Exception):
    """A call that cannot be read."""


def call_text(content: str) -> str:
    """A call in the notation of replies; `content` is a JSON object with name and arguments."""
    # In JSON `<` occurs in strings only, where it may be escaped.
    inert = content.replace(OPEN, "\\u003ctool_call>").replace(CLOSE, "\\u003c/tool_call>")
    return f"{OPEN}\n{inert}\n{CLOSE}"


def before_calls(text: str) -> str:
    """The text of a reply before its first call and the code fence that is opened for it."""
    head = text.partition(OPEN)[0].strip()
    above, _, last = head.rpartition("\n")
    opened = sum(map(_is_fence, head.splitlines())) % 2
    return above.strip() if opened and _is_fence(last) else head


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
        # Models put calls into code fences, which say nothing; servers read past them, too.
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
