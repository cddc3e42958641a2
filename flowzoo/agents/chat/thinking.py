"""The switch for thoughts: reading the setting, and the variable of a chat template."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from flowzoo.errors import UsageError, unknown

OPENING, CLOSING = "<think>", "</think>"
SWITCHES = ("enable_thinking", "thinking")
"""Variables of chat templates: Qwen3 and most others; DeepSeek-V3.1 and Granite."""

_VARIABLE = r"(?<![\w.'\"]){}\b"
_VALUES = {"on": True, "off": False}


def read_thinking(args: Sequence[str], names: Iterable[str]) -> dict[str, bool | None]:
    """Read `on`, `off`, `NAME=on` and `NAME=off` arguments into a map over `names`; None: no entry.

    Raises:
        UsageError: another word, an unknown name, or one that is given twice.
    """
    switches: dict[str, bool | None] = dict.fromkeys(names)
    seen: set[str] = set()
    for word in args:
        name, equals, value = word.rpartition("=")
        if value not in _VALUES:
            raise UsageError(f"thinking is `on`, `off`, or NAME=on or NAME=off, got {word!r}")
        if equals and name not in switches:
            raise unknown("name before `=`", name, switches)
        if name in seen:
            raise UsageError(
                f"thinking is given twice for one name, the second time by {word!r}: leave one out"
            )
        seen.add(name)
        for entry in [name] if equals else [entry for entry in switches if entry not in seen]:
            switches[entry] = _VALUES[value]
    return switches


def thinking_kwargs(template: str, thinking: bool) -> dict[str, bool]:
    """Variables that switch thoughts on or off in a chat template.

    Empty if the template has no switch and does what is asked anyway.

    Raises:
        UsageError: it has no switch and always does the other thing.
    """
    for name in SWITCHES:
        if re.search(_VARIABLE.format(name), template):
            return {name: thinking}
    if thinking == (OPENING in template):
        return {}
    other = "always thinks" if OPENING in template else "does not think"
    raise UsageError(
        f"thinking={thinking} needs a chat template with the variable {' or '.join(SWITCHES)}; "
        f"this model's has none and {other}: leave `thinking` out."
    )


def thinks_unasked(tokenizer: Any) -> bool:
    """Return True if a model thinks when its chat template's switch is not set.

    It does if the template opens a thought itself, or if switching thoughts off changes the prompt.
    """
    template = str(getattr(tokenizer, "chat_template", None) or "")
    if OPENING not in template:
        return False

    def prompt(**switch: bool) -> str:
        chat = [{"role": "user", "content": "."}]
        return tokenizer.apply_chat_template(
            chat, add_generation_prompt=True, tokenize=False, **switch
        )

    if prompt().rstrip().endswith(OPENING):
        return True
    switched = any(re.search(_VARIABLE.format(name), template) for name in SWITCHES)
    return switched and prompt() != prompt(**thinking_kwargs(template, thinking=False))
