"""Wire format of tools: offers of a request, calls in its messages, calls of a reply."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from flowzoo.envs.door.refusal import RefusalError, refuse_constant, wrong
from flowzoo.envs.text import encodable
from flowzoo.envs.tools import Tool, ToolCall
from flowzoo.errors import UsageError

MOST_CALLS = 128
"""Most calls of a reply, and most tools of a request."""


class ToolOffer(NamedTuple):
    """The tools of a request."""

    tools: tuple[Tool, ...] = ()
    most_calls: int = 1
    needs_call: bool = False


def read_tools(body: Mapping[str, Any]) -> ToolOffer:
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
    return _chosen(body.get("tool_choice"), tools, 1 if several is False else MOST_CALLS)


def _chosen(choice: Any, tools: tuple[Tool, ...], most: int) -> ToolOffer:
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
        message = "`tool_choice` asks for a call of a tool that is not in `tools`."
        raise RefusalError(400, "invalid_value", message, "tool_choice")
    return ToolOffer(tools, most, needs_call=True)


def _tool(row: Any, param: str) -> Tool:
    function = row.get("function") if isinstance(row, dict) else None
    if not isinstance(row, dict) or row.get("type") != "function" or not isinstance(function, dict):
        message = f"`{param}` must be of the type `function`."
        raise RefusalError(400, "unsupported_tool", message, param)
    parameters = function.get("parameters") or {"type": "object", "properties": {}}
    description = function.get("description") or ""
    for name, value, kind in (("parameters", parameters, dict), ("description", description, str)):
        if not isinstance(value, kind):
            expected = "an object" if kind is dict else "a text"
            raise wrong(expected, value, f"{param}.function.{name}")
    checked = function.get("strict") is True
    try:
        return Tool(function.get("name") or "", description, parameters, checked)
    except UsageError as error:
        hint = " Leave out `strict`." if checked else ""
        raise RefusalError(
            400, "unsupported_schema", f"`{param}`: {error}{hint}", f"{param}.function"
        ) from None


def read_calls_of(message: Mapping[str, Any], param: str, names: dict[str, str]) -> str:
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
            text = f"`{param}.tool_call_id` must be the id of an earlier call."
            raise RefusalError(400, "invalid_value", text, f"{param}.tool_call_id")
        return json.dumps({"tool_call_id": identity, "name": names[identity]})
    rows = [] if message.get("tool_calls") is None else message["tool_calls"]
    if rows and message.get("role") != "assistant":
        text = f"`{param}.tool_calls` is for messages of the assistant."
        raise RefusalError(400, "invalid_value", text, f"{param}.tool_calls")
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
    text = (
        f"`{param}` must be a call of a function: an id, a name and arguments that are the JSON of "
        "an object."
    )
    raise RefusalError(400, "invalid_value", text, param)


def sent_calls(calls: Sequence[ToolCall]) -> list[dict[str, Any]]:
    """Calls in the format of a response: arguments are a JSON string."""
    return [
        {
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": encodable(arguments)},
        }
        for call in calls
        for arguments in [json.dumps(call.arguments, ensure_ascii=False)]
    ]
