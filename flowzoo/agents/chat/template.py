"""From chat messages to prompt ids and from output ids to text, with a model's own tokenizer.

A prompt is rendered once, and what the model sampled is never tokenized again: the prompt of a
later turn begins with the ids of the earlier one wherever its text does. Tool calls, which families
of models write in several ways, are read into the one notation of replies.
"""

import itertools
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal, NamedTuple

from flowzoo.agents.chat.rendering import refuse, render
from flowzoo.agents.chat.thoughts import (
    CLOSING,
    OPENING,
    ReplyParts,
    find_thoughts,
    special_tokens,
    thinking_kwargs,
)
from flowzoo.agents.chat.writers import (
    TextSpans,
    go_on_from,
    has_other_marks,
    join_spans,
    mark_texts,
    text_spans,
    token_spans,
)
from flowzoo.agents.policy import EarlierTurn
from flowzoo.envs.script import Message, SampledRow, TokenSpan
from flowzoo.envs.settings import read_named
from flowzoo.envs.text import encodable
from flowzoo.envs.tools import CLOSE, OPEN, Tool, call_text
from flowzoo.errors import UsageError
from flowzoo.seeding import key_digest

Family = Literal["hermes", "llama", "mistral"]
MARKS = (OPEN, CLOSE, "<|python_tag|>", "[TOOL_CALLS]", "[ARGS]")
"""Texts around calls, which some tokenizers count as special tokens."""

_DECODER = json.JSONDecoder()
_NAMED = re.compile(r"\s*([a-zA-Z0-9_-]{1,64})\[ARGS\]")
_ID = re.compile(r',\s*"id"\s*:\s*"\w*"\s*\}\Z')
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
        return head + "\n".join(map(_read_named_call, calls))
    row = _json_row(rest, rest.index("[") + 1, ",")
    if row is None or not row.rest.startswith("]"):
        return head + call_text(rest)
    calls = [call_text(_ID.sub("}", source)) for _, source in row.values]  # ids are made here
    return head + "\n".join(calls) + row.rest[1:]


def _read_named_call(call: str) -> str:
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
    row = _json_row(body, 0, ";")
    if row is None:
        return call_text(body)
    return "\n".join(call_text(_rename_parameters(*pair)) for pair in row.values) + row.rest


def _rename_parameters(value: object, source: str) -> str:
    # `parameters` as `arguments`, in the source itself, so that names given twice are seen.
    if isinstance(value, dict) and value.keys() == {"name", "parameters"}:
        name = _PARAMETERS.search(source)
        if name is not None and isinstance(value["name"], str) and ":" not in value["name"]:
            return f'{source[: name.start()]}"arguments":{source[name.end() :]}'
    return source


class _JsonRow(NamedTuple):
    values: list[tuple[object, str]]
    """Values with their sources."""
    rest: str
    """Text after them."""


def _json_row(text: str, start: int, comma: str) -> _JsonRow | None:
    # Values of JSON from `start` on, with a `comma` between them; None if one is no JSON.
    values: list[tuple[object, str]] = []
    try:
        while True:
            start = _after_space(text, start)
            value, end = _DECODER.raw_decode(text, start)
            values.append((value, text[start:end]))
            end = _after_space(text, end)
            if text[end : end + 1] != comma:
                return _JsonRow(values, text[end:])
            start = end + 1
    except (ValueError, RecursionError):
        return None


def _after_space(text: str, start: int) -> int:
    while text[start : start + 1].isspace():
        start += 1
    return start


_VALUES = {"on": True, "off": False}


def read_thinking(args: Sequence[str], names: Iterable[str]) -> dict[str, bool | None]:
    """Read `on`, `off`, `NAME=on` and `NAME=off` into a map over `names`; None: no entry."""
    names = list(names)
    switches = read_named(args, names, "thinking", "name", plain=True)
    for value in switches.values():
        if value not in _VALUES:
            raise UsageError(f"thinking is `on`, `off`, or NAME=on or NAME=off, got {value!r}")
    given = {name: switches.get(name, switches.get("")) for name in names}
    return {name: None if value is None else _VALUES[value] for name, value in given.items()}


Chatted = tuple[Any, ...]
"""A chat as a key: (role, content) of each message, calls and tools as JSON, ids of its beginning.
"""
Chat = tuple[Sequence[Message], Sequence[Tool], EarlierTurn | None]
"""A chat, the tools that its reply may call, and the turn that it goes on from."""

Filled = tuple[list[Any], Mapping[str, Any]]
"""Messages without special tokens, and the variables of the template."""

_REMEMBERED = 512


def _key(chat: Sequence[Message], tools: Sequence[Tool], earlier: EarlierTurn | None) -> Chatted:
    begun = () if earlier is None else (*map(tuple, earlier.row),)
    rows = [
        (message["role"], message["content"])
        if len(message) == 2 and isinstance(message["content"], str)
        else (json.dumps(message, sort_keys=True),)
        for message in chat
    ]
    return (*rows, *((json.dumps(tool.schema()),) for tool in tools), *begun)


class TokenizedPrompt(NamedTuple):
    """A prompt as the model reads it."""

    ids: tuple[int, ...]
    writers: tuple[TokenSpan, ...]
    """Writers of its tokens; empty: unknown."""
    shortened: int = 0
    """Number of tokens cut from it."""

    def cut(self, budget: int) -> "TokenizedPrompt":
        """Return its head and tail in `budget` tokens (at least 1), where it has more."""
        # The last resort: a chat starts with the instructions and the problem and ends with the
        # opening of the reply.
        size, tail = len(self.ids), (budget + 1) // 2
        if size <= budget:
            return self
        places = [*range(budget - tail), *range(size - tail, size)]
        writers = [span.writer for span in self.writers for _ in range(span.tokens)]
        spans = join_spans((writers[position], 1) for position in places) if writers else ()
        return TokenizedPrompt(tuple(self.ids[position] for position in places), spans)


class ChatRow(NamedTuple):
    """Token ids of a prompt and its reply, without the end of the turn."""

    prompt: tuple[int, ...]
    reply: tuple[int, ...]


def _go_on(
    row: SampledRow | None, apart: bool, ids: tuple[int, ...], writers: tuple[TokenSpan, ...]
) -> TokenizedPrompt:
    # The prompt that begins with `row`, which `apart` is no part of `ids`.
    begin = () if row is None else (*row.prompt, *row.reply)
    inside = 0 if apart else len(begin)
    if row is None or ids[:inside] != begin[:inside]:
        return TokenizedPrompt(ids, writers)
    return TokenizedPrompt((*begin, *ids[inside:]), go_on_from(row, writers, inside))


class ChatTokenizer:
    """A tokenizer with its chat template and the settings of one policy."""

    def __init__(self, tokenizer: Any, thinking: bool | None = None) -> None:
        if not getattr(tokenizer, "chat_template", None):
            raise UsageError(
                "the tokenizer has no chat template; use an instruction-tuned model, or set "
                "`tokenizer.chat_template`."
            )
        self.tokenizer = tokenizer
        self.variables: Mapping[str, Any] = (
            {} if thinking is None else thinking_kwargs(tokenizer, thinking)
        )
        settings = (str(item) for pair in sorted(self.variables.items()) for item in pair)
        self.template_id = key_digest(str(tokenizer.chat_template), *settings).hex()[:8]
        """Hash of the template and its variables."""
        self._known: dict[Chatted, TokenizedPrompt] = {}  # newest last
        self._patterns: dict[Chatted, str] = {}  # renderings with marks, newest last
        self._special = special_tokens(tokenizer)
        self.thoughts = find_thoughts(tokenizer, self.variables)
        """Texts around the thoughts that the model writes."""
        self._prefix = self.thoughts.opening if self.thoughts.opened else ""
        # Some tokenizers count the tags of thoughts as special: they must survive decoding.
        added = tokenizer.added_tokens_decoder
        mute = {number for number, token in added.items() if token.special}
        mute |= set(tokenizer.all_special_ids)
        written = f"{self.thoughts.opening}{self.thoughts.closing}{self.thoughts.answer}"
        self._tags = {OPENING, CLOSING, *self._special.findall(written)}
        tags = {number for number, token in added.items() if str(token) in self._tags}
        self._mute = mute - tags if mute & tags else None
        marks = {number for number, token in added.items() if str(token) in MARKS}
        self._mute_beside_calls = mute - tags - marks

    def thinking_as(self, thinking: bool | None) -> "ChatTokenizer":
        """The same with another switch for thoughts; raises `UsageError` where there is none."""
        return ChatTokenizer(self.tokenizer, thinking)

    @cached_property
    def family(self) -> Family:
        """The notation of the model's tool calls; raises `UsageError` where there is none."""
        return find_family(str(self.tokenizer.chat_template))

    def encode(
        self,
        chats: Sequence[Sequence[Message]],
        tools: Sequence[Sequence[Tool]] | None = None,
        earlier: Sequence[EarlierTurn | None] | None = None,
    ) -> list[TokenizedPrompt]:
        """The prompt of each chat, the opening of the reply included; equal chats are done once.

        Args:
            chats: the messages of each.
            tools: the tools of each; None: no chat has any.
            earlier: the turn that each goes on from, whose ids are kept where the template writes
                its text again; None: no chat goes on from one.
        """
        # The last few hundred chats are remembered, since voters and the samples of a group ask the
        # same at different times.
        none = [None] * len(chats)
        rows = list(zip(chats, tools or [()] * len(chats), earlier or none, strict=True))
        keys = [_key(*row) for row in rows]
        cached = {key: self._known.pop(key, None) for key in keys}
        new = {key: row for key, row in zip(keys, rows, strict=True) if cached[key] is None}
        prompts = {key: prompt for key, prompt in cached.items() if prompt is not None}
        if new:
            prompts.update(zip(new, self._prompts(list(new.values())), strict=True))
        self._known.update(prompts)
        for key in list(self._known)[: max(0, len(self._known) - _REMEMBERED)]:
            del self._known[key]
        return [prompts[key] for key in keys]

    def measure(self, chat: Sequence[Message], tools: Sequence[Tool] = ()) -> TokenizedPrompt:
        """The prompt of one chat, which is not remembered."""
        return self._prompts([(chat, tools, None)])[0]

    def decode(self, ids: Sequence[int], tools: Sequence[Tool] = ()) -> str:
        """The text of a reply without special tokens; broken bytes become U+FFFD.

        Thoughts are in `<think>` tags; where the template has opened one, the text starts with the
        opening tag. Calls of `tools` are in the notation of replies.
        """
        mute = self._mute_beside_calls if tools else self._mute
        spoken = ids if mute is None else [number for number in ids if number not in mute]
        text = self.tokenizer.decode(spoken, skip_special_tokens=mute is None)
        text = self.thoughts.read(self._prefix + text)
        if self.thoughts.answer:
            for tag in sorted(self._tags - {OPENING, CLOSING}):
                text = text.replace(tag, "")
        if not tools:
            return text
        thoughts, closing, rest = text.rpartition(CLOSING)
        return thoughts + closing + one_notation(rest, self.family)

    def row(
        self, chat: Sequence[Message], tools: Sequence[Tool], text: str, stop_ids: Collection[int]
    ) -> ChatRow | None:
        """Prompt and reply of a chat that goes on with `text`, as the template writes it.

        None where it does not: the text spells out a special token, does not survive the
        tokenizer, or is not what follows the prompt.
        """
        special = {match[0] for match in self._special.finditer(text)}
        if text != encodable(text) or special - {OPENING, CLOSING}:
            return None
        messages, variables = self._fill(chat, tools)
        closed = {**variables, "add_generation_prompt": False}
        parts = ReplyParts.of(text)
        replies = [self.thoughts.message(content) for content in (text, parts.answer)]
        wholes = [([*messages, reply], closed) for reply in replies]
        prompt, whole, answered = render(self.tokenizer, [(messages, variables), *wholes])
        prompt_ids = self._ids(prompt)
        written = self._ids(whole)
        # Where the tokenizer joins prompt and reply, the reply is read alone, as it is sampled.
        rest = written[len(prompt_ids) :] if written[: len(prompt_ids)] == prompt_ids else ()
        rest = rest or self._ids(whole.removeprefix(prompt))
        reply = tuple(itertools.takewhile(lambda number: number not in stop_ids, rest))
        if whole.startswith(prompt) and ReplyParts.of(self.decode(reply)) == parts:
            return ChatRow(prompt_ids, reply)
        if self.thoughts.carrier or not parts.thought:
            return None
        # A template that drops thoughts shows that the answer is what it writes.
        reply = self._ids(text.removeprefix(self._prefix))
        before = prompt.rstrip().removesuffix(self._prefix) if self._prefix else prompt
        after = answered.removeprefix(before).lstrip().removeprefix(CLOSING).lstrip()
        proved = answered.startswith(before) and after.startswith(parts.answer)
        return ChatRow(prompt_ids, reply) if proved and self.decode(reply) == text else None

    def end_of_turn(self, stop_ids: Collection[int]) -> int:
        """The first of `stop_ids` that the template writes after an assistant's content."""
        # In a chat that goes on, since many templates end the last message otherwise; in one that
        # ends with it only if that shows none.
        contents = "71301", "71302", "71303"
        roles = "user", "assistant", "user"
        chat = [{"role": role, "content": text} for role, text in zip(roles, contents, strict=True)]
        for part in (chat, chat[:2]):
            (text,) = render(self.tokenizer, [(part, self.variables)], opened=False)
            after = text.rpartition(contents[1])[2].partition(contents[2])[0]
            ends = [number for number in self._ids(after) if number in stop_ids]
            if ends:
                return ends[0]
        raise UsageError(
            "the chat template ends an assistant's message with none of the model's end tokens "
            f"({', '.join(map(str, sorted(stop_ids)))}): use a model whose generation config "
            "names the end of a turn (eos_token_id)."
        )

    def _inert(self, text: str) -> str:
        # Special tokens are split by a zero-width space: a reply that spells out an end-of-turn
        # token would end the turn of the agent that quotes it, and speak in another role.
        return self._special.sub(
            lambda match: f"{match[0][0]}\u200b{match[0][1:]}", encodable(text)
        )

    def _inert_all(self, value: object) -> Any:
        if isinstance(value, str):
            return self._inert(value)
        if isinstance(value, list):
            return [self._inert_all(item) for item in value]
        if isinstance(value, dict):
            return {self._inert_all(name): self._inert_all(item) for name, item in value.items()}
        return value

    def _prompts(self, chats: Sequence[Chat]) -> list[TokenizedPrompt]:
        filled = [self._fill(messages, tools) for messages, tools, _ in chats]
        before = [self._fill(turn.messages, tools) for _, tools, turn in chats if turn is not None]
        rendered = render(self.tokenizer, [*filled, *before])
        texts, prompts = rendered[: len(chats)], iter(rendered[len(chats) :])
        starts = [
            0 if turn is None else self._shared_length(text, next(prompts), turn.row)
            for text, (_, _, turn) in zip(texts, chats, strict=True)
        ]
        rests = [text[start:] for text, start in zip(texts, starts, strict=True)]
        encoded = self.tokenizer(rests, add_special_tokens=False)
        if not all(encoded["input_ids"]):
            refuse(self.tokenizer, "makes an empty prompt")
        spans = [
            token_spans(encoding, places, start, len(text))
            for encoding, places, start, text in zip(
                encoded.encodings or [None] * len(chats),
                self._text_spans(chats, filled, texts), starts, texts, strict=True,
            )
        ]  # fmt: skip
        return [
            _go_on(None if turn is None else turn.row, start > 0, tuple(ids), writers)
            for (_, _, turn), start, ids, writers in zip(
                chats, starts, encoded["input_ids"], spans, strict=True
            )
        ]

    def _text_spans(
        self, chats: Sequence[Chat], filled: Sequence[Filled], texts: Sequence[str]
    ) -> list[TextSpans | None]:
        # Where in `texts`, their renderings, the texts of the messages of `chats` are. What is
        # around them is rendered once for chats that differ in their texts only.
        forms = [mark_texts(messages) for messages, _ in filled]
        keys = [_key(form.messages, chat[1], None) for form, chat in zip(forms, chats, strict=True)]
        new = {
            key: (form.messages, variables)
            for key, form, (_, variables) in zip(keys, forms, filled, strict=True)
            if key not in self._patterns and not has_other_marks(key, form)
        }
        patterns = self._patterns | dict(
            zip(new, render(self.tokenizer, list(new.values())), strict=True)
        )
        spans = [
            text_spans(text, patterns[key], form.texts) if key in patterns else None
            for text, key, form in zip(texts, keys, forms, strict=True)
        ]
        # A template with the date writes other things the next day.
        stale = {key for key, places in zip(keys, spans, strict=True) if places is None}
        fresh = [key for key in patterns if key not in stale]
        self._patterns = {key: patterns[key] for key in fresh[-_REMEMBERED:]}
        return spans

    def _shared_length(self, text: str, prompt: str, row: SampledRow) -> int:
        # Characters of `text` that the template wrote for a prompt and the model for its reply; 0
        # if they are others, or if a token may reach beyond them. Some tokenizers drop the blank
        # with which a reply begins, unless there is a token before it.
        before, spoken = (
            self.tokenizer.decode(
                [*row.prompt[-1:], *reply], skip_special_tokens=False,
                clean_up_tokenization_spaces=False,
            )
            for reply in ((), row.reply)
        )  # fmt: skip
        begin = prompt + spoken.removeprefix(before)
        ends = text.startswith(begin) and self._special.match(text, len(begin))
        return len(begin) if ends else 0

    def _ids(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def _fill(self, chat: Sequence[Message], tools: Sequence[Tool]) -> Filled:
        # Messages and variables, without special tokens.
        variables = self.variables
        if tools and self.family:
            offered = [self._inert_all(tool.schema()) for tool in tools]
            variables = {**variables, "tools": offered}
        messages = [
            {**message, "content": self._inert(message["content"])}
            if len(message) == 2
            else self._inert_all(message)
            for message in chat
        ]
        if self.thoughts.answer:  # a thought that is shown is no part of the answer
            messages = [
                {**message, **self.thoughts.message(message["content"])}
                if message["role"] == "assistant"
                else message
                for message in messages
            ]
        return messages, variables


def stop_tokens(model: Any, tokenizer: Any) -> frozenset[int]:
    """Every id that ends a reply: the generation config's, the tokenizer's end of sequence."""
    stop_ids: set[int] = set()
    configs = (getattr(model, "generation_config", None), model.config, tokenizer)
    for ids in (getattr(holder, "eos_token_id", None) for holder in configs):
        stop_ids.update([ids] if isinstance(ids, int) else ids or ())
    if not stop_ids:
        raise UsageError(
            "neither the model's generation config nor the tokenizer names an end token "
            "(eos_token_id), so no reply could end by itself."
        )
    return frozenset(stop_ids)
