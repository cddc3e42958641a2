"""The part of JSON Schema that describes arguments of tools."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from flowzoo.errors import UsageError

_TYPES: Mapping[str, Callable[[Any], bool]] = MappingProxyType(
    {
        "string": lambda value: isinstance(value, str),
        "boolean": lambda value: isinstance(value, bool),
        "null": lambda value: value is None,
        "integer": lambda value: type(value) is int,
        "number": lambda value: type(value) in (int, float),
        "array": lambda value: isinstance(value, list),
        "object": lambda value: isinstance(value, dict),
    }
)
_CHECKED = {
    "type", "properties", "required", "additionalProperties", "items", "enum", "const", "anyOf",
}  # fmt: skip
_LISTS = "required", "enum", "anyOf"
_TEXTS = {"title", "description", "default", "examples", "$schema"}


def check_schema(schema: Any, path: str) -> None:
    """Raise `UsageError` unless `value_fault` can check all that `schema` demands."""
    if not isinstance(schema, Mapping):
        raise UsageError(f"{path}: expected a JSON schema, a dict, got {schema!r:.80}")
    unchecked = sorted(map(str, set(schema) - _CHECKED - _TEXTS))
    if unchecked:
        names = ", ".join(sorted(_CHECKED))
        raise UsageError(
            f"{path}: {', '.join(unchecked)} cannot be checked; describe the arguments by {names}."
        )
    if not isinstance(schema.get("properties", {}), Mapping):
        raise UsageError(f"{path}: properties must be a dict")
    for keyword in _LISTS:
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
    for name in schema.get("required", ()):
        if name not in value:
            return f"{path} lacks {name!r}"
    others = schema.get("additionalProperties", False)
    for name, item in value.items():
        inner = properties.get(name, others)
        if inner is False:
            return f"{path} has the unknown name {name!r:.60}"
        if inner is not True and (fault := value_fault(item, inner, f"{path}.{name}")):
            return fault
    return ""


def value_fault(value: Any, schema: Mapping[str, Any], path: str = "arguments") -> str:
    """Reason why `value` does not fit `schema`; "" if it does.

    An object has no names but its `properties`, unless `additionalProperties` allows more.
    """
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds and not any(_TYPES[kind](value) for kind in kinds):
        return f"{path} must be of type {' or '.join(kinds)}, got {type(value).__name__}"
    if "enum" in schema and not any(_same(value, choice) for choice in schema["enum"]):
        return f"{path} must be one of {schema['enum']!r:.200}"
    if "const" in schema and not _same(value, schema["const"]):
        return f"{path} must be {schema['const']!r:.200}"
    options = schema.get("anyOf", ())
    if options and all(value_fault(value, option, path) for option in options):
        return f"{path} fits none of its {len(options)} descriptions"
    if isinstance(value, dict) and ("properties" in schema or "object" in kinds):
        return _object_fault(value, schema, path)
    if isinstance(value, list) and isinstance(schema.get("items"), Mapping):
        for number, item in enumerate(value):
            if fault := value_fault(item, schema["items"], f"{path}[{number}]"):
                return fault
    return ""


def _same(value: Any, choice: Any) -> bool:
    # True equals 1 in Python, and not in JSON.
    return value == choice and isinstance(value, bool) == isinstance(choice, bool)
