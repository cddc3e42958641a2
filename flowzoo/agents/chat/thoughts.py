"""Formats of thoughts and answers, found by rendering a model's chat template.

Replies have thoughts in `<think>` tags. What a model writes instead is the difference between
renderings: of a question, and of the same chat with a reply, with a thought and without one.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

from flowzoo.agents.chat.rendering import refuse, render
from flowzoo.errors import ChatError, UsageError

OPENING, CLOSING = "<think>", "</think>"
SWITCHES = ("enable_thinking", "thinking")
"""Variables of chat templates: Qwen3 and most others; DeepSeek-V3.1 and Granite."""

THOUGHT_FIELDS = ("reasoning_content", "reasoning", "thinking")
"""Names under which chat templates look for the thought of a message."""
_QUESTION, _THOUGHT, _ANSWER, _NOTE = "71301", "71302", "71303", "71304"
_ASKED = ({"role": "user", "content": _QUESTION},)


class ReplyParts(NamedTuple):
    """A reply as its thought and the rest, without outer blanks."""

    thought: str
    answer: str

    @classmethod
    def of(cls, text: str) -> "ReplyParts":
        """Split a reply; an unfinished thought is part of the answer."""
        head, closing, answer = text.rpartition(CLOSING)
        return cls(head.strip().removeprefix(OPENING).strip() if closing else "", answer.strip())


@dataclass(frozen=True, slots=True)
class ThoughtFormat:
    """Texts around the thoughts and answers that a model writes."""

    opening: str = ""
    """Text before a thought; "": the chat template shows no thoughts."""
    closing: str = ""
    """Text between a thought and the answer."""
    opened: bool = False
    """True: prompts end with `opening`."""
    carrier: str = ""
    """Part of a message that has its thought: `fields`, `parts` of the content, "": its text."""
    answer: str = ""
    """Text right before an answer; "": thoughts are in the tags of replies, or there are none."""
    always: bool = False
    """True: answers without a thought are after `answer`, too."""
    blanks: str = ""
    """Blanks that the chat template writes before an answer, and the model with it."""

    def read(self, text: str) -> str:
        """Return what a model wrote, `opening`, `closing` and `answer` included, as a reply."""
        if not self.answer:
            return text.removeprefix(self.blanks)
        head, ended, answer = text.rpartition(self.answer)
        if not ended and not self.always and self.opening not in text:
            return text
        thought = head if ended else text
        between = self.closing.removesuffix(self.answer)
        for part in filter(None, (between + self.opening, self.opening, between)):
            thought = thought.replace(part, "")
        if ended and not thought.strip():
            return answer
        return f"{OPENING}{thought}{CLOSING}{answer}" if ended else f"{OPENING}{thought}"

    def message(self, text: str) -> dict[str, Any]:
        """The message of a reply, with its thought where the chat template looks for it."""
        parts = ReplyParts.of(text)
        if not self.carrier or CLOSING not in text:
            return {"role": "assistant", "content": text}
        return {"role": "assistant", **_write_parts(self.carrier, *parts)}


def _write_parts(carrier: str, thought: str, answer: str, **note: str) -> dict[str, Any]:
    if not thought or not carrier:
        return {"content": answer}
    if carrier == "fields":
        return {"content": answer, **dict.fromkeys(THOUGHT_FIELDS, thought)}
    part = {"type": "thinking", "thinking": thought, **note}
    return {"content": [part, {"type": "text", "text": answer}]}


def special_tokens(tokenizer: Any) -> re.Pattern[str]:
    """A pattern that finds the special tokens of a tokenizer in a text."""
    special = {str(token) for token in tokenizer.added_tokens_decoder.values() if token.special}
    special |= set(tokenizer.all_special_tokens)
    longest_first = sorted(special - {""}, key=len, reverse=True)  # an empty pad token
    return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")


def find_switch(tokenizer: object) -> str:
    """The variable of a chat template that switches thoughts; "" if none changes a prompt."""
    for name in SWITCHES:
        switched = [(_ASKED, {name: value}) for value in (True, False)]
        if len({*render(tokenizer, switched)}) > 1:
            return name
    return ""


def find_thoughts(tokenizer: Any, variables: Mapping[str, Any]) -> ThoughtFormat:
    """Find how a model writes thoughts.

    Raises:
        UsageError: prompts open a reply with special tokens that no reply of a chat begins with.
    """
    (prompt,) = render(tokenizer, [(_ASKED, variables)])
    plain = _whole(tokenizer, variables, _write_parts("", "", _ANSWER))
    carrier, opening, closing = _find_carrier(tokenizer, variables, prompt)
    opened = prompt.rstrip().endswith(OPENING)
    if opened or closing == CLOSING:
        return ThoughtFormat(OPENING, CLOSING, opened, carrier)
    special = special_tokens(tokenizer).search
    added = _after_shared(prompt, plain).strip() if plain else ""
    lead = _opening(plain, prompt, _ANSWER)
    if closing:
        answer, opening = lead or closing, opening or added
        if closing.endswith(answer) and opening and added in ("", opening):
            return ThoughtFormat(opening, closing, bool(added), carrier, answer, bool(lead))
    elif special(lead):
        return ThoughtFormat(answer=lead, always=True)
    if closing or special(added):
        _refuse(tokenizer, added or lead)
    if _in_tags(tokenizer, variables, prompt):
        return ThoughtFormat(OPENING, CLOSING)
    # As ids, since some tokenizers drop a blank themselves.
    prompt_ids, whole = tokenizer([prompt, plain], add_special_tokens=False)["input_ids"]
    blanks = tokenizer.decode(whole[len(prompt_ids) :]).partition(_ANSWER)[0]
    return ThoughtFormat(
        blanks=blanks if blanks.isspace() and whole[: len(prompt_ids)] == prompt_ids else ""
    )


def thinks_unasked(tokenizer: object) -> bool:
    """Return True if a model thinks when its chat template's switch is not set."""
    # It does if the template opens a thought itself, if answers are set apart from thoughts even
    # where there are none, or if switching thoughts off changes the prompt.
    if not getattr(tokenizer, "chat_template", None):
        return False
    thoughts = find_thoughts(tokenizer, {})
    if thoughts.opened or (thoughts.opening and thoughts.always):
        return True
    switch = find_switch(tokenizer)
    off = {switch: False} if switch else {}
    return len({*render(tokenizer, [(_ASKED, {}), (_ASKED, off)])}) > 1


def thinking_kwargs(tokenizer: object, thinking: bool) -> dict[str, bool]:
    """Variables that switch thoughts on or off in a chat template."""
    # Empty if the template has no switch and does what is asked anyway.
    switch = find_switch(tokenizer)
    if switch:
        return {switch: thinking}
    thinks = bool(find_thoughts(tokenizer, {}).opening)
    if thinking == thinks:
        return {}
    raise UsageError(
        f"thinking={thinking} needs a chat template with the variable {' or '.join(SWITCHES)}; "
        f"this model's has none and {'always thinks' if thinks else 'does not think'}: leave "
        "`thinking` out."
    )


def _whole(tokenizer: object, variables: Mapping[str, object], reply: Mapping[str, object]) -> str:
    # The chat with a reply; "" where the template does not take it, or writes a content that is no
    # text as Python or JSON does.
    chat = [*_ASKED, {"role": "assistant", **reply}]
    try:
        (text,) = render(tokenizer, [(chat, variables)], opened=False)
    except ChatError:
        return ""
    return text if _ANSWER in text and _NOTE not in text else ""


def _opening(text: str, prompt: str, mark: str) -> str:
    # What is written between the opening of a reply and its first part.
    return _after_shared(text, prompt).partition(mark)[0].strip()


def _after_shared(text: str, other: str) -> str:
    pairs = zip(text, other, strict=False)
    start = next((index for index, (left, right) in enumerate(pairs) if left != right), len(other))
    return text[start:]


def _find_carrier(
    tokenizer: object, variables: Mapping[str, object], prompt: str
) -> tuple[str, str, str]:
    # Place of thoughts, and the texts around them; "" three times where none is shown.
    for carrier in ("fields", "parts"):
        reply = _write_parts(carrier, _THOUGHT, _ANSWER, **{_NOTE: _NOTE})
        text = _whole(tokenizer, variables, reply)
        _, mark, rest = text.partition(_THOUGHT)
        if mark and _ANSWER in rest:
            closing = rest.partition(_ANSWER)[0].strip()
            return carrier, _opening(text, prompt, _THOUGHT), closing
    return "", "", ""


def _in_tags(tokenizer: object, variables: Mapping[str, object], prompt: str) -> bool:
    # Whether a prompt, with one of the switches or without, has the tags of replies, or a reply
    # loses its thought.
    switched = [
        (_ASKED, {**variables, name: value}) for name in SWITCHES for value in (True, False)
    ]
    reply = {"content": f"{OPENING}{_THOUGHT}{CLOSING}{_ANSWER}"}
    text = _whole(tokenizer, variables, reply)
    prompts = [prompt, *render(tokenizer, switched)]
    return (text != "" and _THOUGHT not in text) or any(OPENING in text for text in prompts)


def _refuse(tokenizer: Any, opening: str) -> NoReturn:
    lines = enumerate(str(tokenizer.chat_template).splitlines(), 1)
    number, line = next(
        ((n, text) for n, text in lines if "add_generation_prompt" in text), (1, "")
    )
    refuse(
        tokenizer,
        f"opens a reply with {opening!r:.80}, which the replies of its chats do not show (line "
        f"{number}: {line.strip()!r:.120})",
    )
