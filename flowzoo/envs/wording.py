"""User-defined prompt texts and system messages, from Python or a TOML file."""

import string
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from flowzoo.declared import fits
from flowzoo.envs.script import CHAT_ROLES, Message
from flowzoo.errors import UsageError, unknown
from flowzoo.files import read_toml

INSTRUCTION = "instruction"  # name of the task's text on the answer format
AGAIN = "/again"  # suffix of the key of examples for a role's second and later turns
Texts = tuple[tuple[str, str], ...]  # sorted pairs of name and text, hashable


def read_wording(path: str | Path) -> tuple[Texts, Texts]:
    """Read the prompts and the system messages by role of a TOML file.

    It has tables `prompts` and `system`, and the key `instruction`.
    """
    tables = read_toml(Path(path))
    for name in tables:
        if name not in ("prompts", "system", INSTRUCTION):
            raise unknown(f"table of {path}", name, ["prompts", "system", INSTRUCTION])
    prompts = tables.get("prompts", {})
    if INSTRUCTION in tables:
        prompts = {**prompts, INSTRUCTION: tables[INSTRUCTION]}
    return (
        plain_texts(f"prompts of {path}", prompts),
        plain_texts(f"system of {path}", tables.get("system", {})),
    )


def plain_texts(setting: str, given: object) -> Texts:
    """Read texts by name from a mapping, pairs, or arguments NAME=TEXT."""
    pairs = given.items() if isinstance(given, Mapping) else given
    if isinstance(pairs, str) or not isinstance(pairs, Iterable):
        raise UsageError(f"{setting}: expected texts by name, got {given!r:.80}.")
    texts: dict[str, str] = {}
    for pair in pairs:
        parts = pair.split("=", 1) if isinstance(pair, str) else pair
        if not fits(tuple(parts) if isinstance(parts, list) else parts, tuple[str, str]):
            raise UsageError(f"{setting}: expected NAME=TEXT or a text by name, got {pair!r:.80}.")
        name, text = parts
        if name in texts:
            raise UsageError(f"{setting} gives {name!r} twice.")
        texts[name] = text
    return tuple(sorted(texts.items()))


def replace_texts(setting: str, defaults: Mapping[str, str], texts: Texts) -> dict[str, str]:
    """The workflow's texts `defaults`, replaced by `texts`."""
    # A text is formatted by `str.format` if the replaced text is: placeholders may be omitted, and
    # literal braces must be doubled.
    merged = dict(defaults)
    for name, text in texts:
        if name not in defaults:
            raise unknown(f"{setting} of this workflow", name, defaults)
        allowed = placeholders(defaults[name])
        names = ", ".join(f"{{{field}}}" for field in sorted(allowed))
        rule = f"placeholders are {names}, and literal braces are doubled: \\boxed{{{{}}}}"
        try:
            further = sorted(_fields(text) - allowed) if allowed else []
        except ValueError as error:
            raise UsageError(f"{setting} {name}: {error}; {rule}.") from error
        if further:
            raise UsageError(f"{setting} {name} has the placeholder {{{further[0]}}}; {rule}.")
        merged[name] = text
    return merged


def placeholders(text: str) -> set[str]:
    """The placeholders of `str.format`; empty for a text that is used unchanged."""
    try:
        fields = _fields(text)
    except ValueError:
        return set()
    return fields if all(field.isidentifier() for field in fields) else set()


def _fields(text: str) -> set[str]:
    return {field for _, field, _, _ in string.Formatter().parse(text) if field is not None}


class PromptFrame(NamedTuple):
    """Messages before a role's own chat."""

    system: str = ""
    # Worked examples, each a chat that ends with the reply.
    examples: tuple[Message, ...] = ()
    again: tuple[Message, ...] = ()  # further examples that come first when the role is asked again

    def shown(self, turn: int) -> tuple[Message, ...]:
        """The examples before the role's turn number `turn`, from 0."""
        return (*self.again, *self.examples) if turn else self.examples


def plain_examples(given: Any) -> tuple[tuple[str, tuple[tuple[str, str], ...]], ...]:
    """Chats of examples by role, as a hashable value."""
    if isinstance(given, int):
        raise UsageError(
            f"examples={given}: a number is valid for env(), make_workflow() and --options; the "
            "class of a workflow needs chats by role, from flowzoo.envs.with_examples."
        )
    pairs = given.items() if isinstance(given, Mapping) else given
    roles: list[tuple[str, tuple[tuple[str, str], ...]]] = []
    for role, chat in pairs:
        turns = tuple((item["role"], item["content"]) if isinstance(item, Mapping) else tuple(item)
                      for item in chat)  # fmt: skip
        if not all(fits(turn, tuple[str, str]) and turn[0] in CHAT_ROLES for turn in turns):
            raise UsageError(
                f"examples of {role}: a message needs a role (user, assistant or tool) and a "
                f"content, a str; got {chat!r:.80}."
            )
        if turns and turns[-1][0] != "assistant":
            raise UsageError(f"examples of {role}: a chat must end with the assistant's reply.")
        if any(sender == "system" for sender, _ in turns):
            raise UsageError(f"examples of {role}: give system messages with `system`.")
        roles.append((role, turns))
    return tuple(sorted(roles))


def frame_messages(messages: list[Message], frame: PromptFrame, turn: int) -> list[Message]:
    """The chat of a role's turn `turn`, after its system message and examples."""
    # A system message of the chat is appended to the frame's.
    system, rest = frame.system, messages
    if messages and messages[0]["role"] == "system":
        first, rest = messages[0]["content"], messages[1:]
        system = f"{system}\n\n{first}" if system else first
    head: list[Message] = [{"role": "system", "content": system}] if system else []
    return [*head, *(message.copy() for message in frame.shown(turn)), *rest]
