"""The switch for thoughts: read from words, and put the way a chat template wants it."""

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


def read_thinking(words: Sequence[str], names: Iterable[str]) -> dict[str, bool | None]:
    """Read `on`, `off`, `NAME=on` and `NAME=off` words into a map over `names` (None: not said).

    Raises:
        UsageError: another word, an unknown name, or one that is told twice.
    """
    found: dict[str, bool | None] = dict.fromkeys(names)
    told: set[str] = set()
    for word in words:
        name, equals, value = word.rpartition("=")
        if value not in _VALUES:
            raise UsageError(f"thinking is `on`, `off`, or NAME=on or NAME=off, got {word!r}")
        if equals and name not in found:
            raise unknown("name before `=`", name, found)
        if name in told:
            raise UsageError(f"thinking is told twice, the second time by {word!r}")
        told.add(name)
        for entry in [name] if equals else [entry for entry in found if entry not in told]:
            found[entry] = _VALUES[value]
    return found


def thinking_kwargs(template: str, thinking: bool) -> dict[str, bool]:
    """What switches thoughts on or off in a chat template.

    Empty where the template knows no switch and does what is asked anyway.

    Raises:
        UsageError: it knows no switch and always does the other thing.
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
    """Whether the chat template makes a model think that is told neither to nor not to.

    It does where it opens a thought itself, or where switching thoughts off changes the prompt.
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
