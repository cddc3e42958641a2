"""Tools, and calls of them."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from flowzoo.envs.tools.schema import check_schema, value_fault
from flowzoo.errors import UsageError

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


@dataclass(frozen=True)
class Tool:
    """A function that an agent may call in its reply. The script computes the result.

    Raises:
        UsageError: a name that endpoints refuse, or parameters that cannot be checked.
    """

    name: str
    """1 to 64 ASCII letters, digits, `_` and `-`."""
    description: str
    """Text for the agent."""
    parameters: Mapping[str, Any] = field(hash=False)
    """JSON schema of the arguments, of type `object`."""
    checked: bool = True
    """False: calls may have any arguments, and `parameters` may be any schema, which is shown."""

    def __post_init__(self) -> None:
        if not (isinstance(self.name, str) and _NAME.fullmatch(self.name)):
            raise UsageError(
                "the name of a tool has 1 to 64 ASCII letters, digits, _ and -, got "
                f"{self.name!r:.80}"
            )
        if self.checked:
            check_schema(self.parameters, f"parameters of tool {self.name}")
        if self.parameters.get("type") != "object":
            raise UsageError(f'parameters of tool {self.name}: the schema has "type": "object"')

    @classmethod
    def of_schema(cls, schema: Mapping[str, Any]) -> Tool:
        """The tool that a schema shows; arguments are not checked."""
        return cls(**schema["function"], checked=False)

    def fault(self, arguments: Mapping[str, Any]) -> str:
        """Reason why a call may not have these arguments; "" if it may."""
        return value_fault(arguments, self.parameters) if self.checked else ""

    def schema(self) -> dict[str, Any]:
        """The tool as chat templates and endpoints take it; a fresh copy."""
        function = {
            "name": self.name,
            "description": self.description,
            "parameters": copy.deepcopy(dict(self.parameters)),
        }
        return {"type": "function", "function": function}


class ToolSource(Protocol):
    """Computes the results of tool calls outside a script. It can be pickled."""

    def use(self, calls: Sequence[ToolCall]) -> Sequence[str]:
        """Texts of the results, in the order of the calls."""
        ...


class ToolCall(NamedTuple):
    """A call of a tool in a reply; its arguments fit the tool's schema."""

    id: str
    """Nine digits, unique within the episode."""
    name: str
    arguments: Mapping[str, Any]

    def plain(self) -> dict[str, Any]:
        """The call as messages hold it; a fresh copy."""
        function = {"name": self.name, "arguments": copy.deepcopy(dict(self.arguments))}
        return {"id": self.id, "type": "function", "function": function}

    def result(self, text: str) -> dict[str, Any]:
        """The message with the result of the call."""
        return {"role": "tool", "tool_call_id": self.id, "name": self.name, "content": text}
