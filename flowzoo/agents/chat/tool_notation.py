"""Tool calls as families of models write them, in the one notation of replies."""

from __future__ import annotations

import json
import re
from typing import Literal

from flowzoo.envs.tools.reading import CLOSE, OPEN, call_text
from flowzoo.errors import UsageError

Family = Literal["hermes", "llama", "mistral"]
MARKS = (OPEN, CLOSE, "<|python_tag|>", "[TOOL_CALLS]", "[ARGS]")
"""Texts around calls, which some tokenizers count as special tokens."""

_DECODER = json.JSONDecoder()
_NAMED = re.compile(r"\s*([a-zA-Z0-9_-]{1,64})\[ARGS\]")
_PARAMETERS = re.compile(r'"parameters"\s*:')


def find_family(template: str) -> Family:
    """The family in whose notation a model with this chat template calls tools.

    Raises:
        UsageError: the template knows no tools, or calls in a notation that is not read.
    """
    if "tools" in template:
        if "[TOOL_CALLS]" in template:
            return "mistral"
        if OPEN in template and "<function=" not in template and "<arg_key>" not in template:
            return "hermes"
        if OPEN not in template and "parameters" in template and "<|start_header_id|>" in template:
            return "llama"
        raise UsageError(
            "the chat template has tools in a notation that is not read: expected that of Hermes "
            "and Qwen (<tool_call> with JSON), Llama 3 (JSON) or Mistral ([TOOL_CALLS]); use an "
            "endpoint, whose server reads calls (openai:MODEL@URL)."
        )
    raise UsageError(
        "the chat template knows no tools, and the workflow offers some: use a model that was "
        "trained to call them, such as Qwen/Qwen2.5-0.5B-Instruct."
    )


def one_notation(text: str, family: Family) -> str:
    """A reply without thoughts, its calls in the notation that `read_calls` reads.

    A call that cannot be translated stays as it is, between the tags, and is refused there.
    """
    if family == "hermes":
        return text
    # The tags mean nothing to these models: a quotation of them is no call.
    text = text.replace(OPEN, "<\u200btool_call>").replace(CLOSE, "<\u200b/tool_call>")
    return _from_mistral(text) if family == "mistral" else _from_llama(text)


def _from_mistral(text: str) -> str:
    head, mark, rest = text.partition("[TOOL_CALLS]")
    if not mark:
        return text
    if not rest.lstrip().startswith("["):
        calls = rest.split("[TOOL_CALLS]")
        return head + "\n".join(map(_named, calls))
    start, calls = rest.index("[") + 1, list[str]()
    try:
        while True:
            start = _after_space(rest, start)
            end = _DECODER.raw_decode(rest, start)[1]
            calls.append(call_text(rest[start:end]))
            start = _after_space(rest, end)
            if rest[start : start + 1] == "]":
                return head + "\n".join(calls) + rest[start + 1 :]
            if rest[start : start + 1] != ",":
                return head + call_text(rest)
            start += 1
    except (ValueError, RecursionError):
        return head + call_text(rest)


def _named(call: str) -> str:
    # The newer notation: NAME[ARGS]{...}.
    match = _NAMED.match(call)
    if match is None:
        return call_text(call)
    return call_text(f'{{"name": "{match[1]}", "arguments": {call[match.end() :]}}}')


def _from_llama(text: str) -> str:
    body = text.strip()
    tagged = body.startswith("<|python_tag|>")
    body = body.removeprefix("<|python_tag|>").strip()
    if not (tagged or body.startswith("{")):
        return text
    calls, start = list[str](), 0
    try:
        while True:
            value, end = _DECODER.raw_decode(body, start)
            calls.append(call_text(_renamed(value, body[start:end])))
            start = _after_space(body, end)
            if body[start : start + 1] != ";":
                return "\n".join(calls) + body[start:]
            start = _after_space(body, start + 1)
    except (ValueError, RecursionError):
        return call_text(body)


def _renamed(value: object, source: str) -> str:
    # `parameters` as `arguments`, in the source itself, so that names given twice are seen.
    if isinstance(value, dict) and value.keys() == {"name", "parameters"}:
        name = _PARAMETERS.search(source)
        if name is not None and isinstance(value["name"], str) and ":" not in value["name"]:
            return f'{source[: name.start()]}"arguments":{source[name.end() :]}'
    return source


def _after_space(text: str, start: int) -> int:
    while text[start : start + 1].isspace():
        start += 1
    return start
