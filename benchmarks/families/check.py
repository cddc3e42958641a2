"""Rows of many chats beside what transformers renders and reads, by families of chat templates.

python -m benchmarks.families.check docs/data/families.json
"""

from __future__ import annotations

import itertools
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.families.models import build, export_fault, invariance, make_tokenizer
from benchmarks.harness.record import write_table
from flowzoo.agents.chat.template import ChatTokenizer, read_thinking
from flowzoo.agents.chat.thoughts import ReplyParts
from flowzoo.agents.policy import EarlierTurn
from flowzoo.envs.script import Message, SampledRow, TokenSpan
from flowzoo.envs.tools import Tool, ToolCall, read_calls
from flowzoo.errors import ChatError, UsageError

COMMAND = "python -m benchmarks.families.check docs/data/families.json"
FAMILIES: Mapping[str, Any] = tomllib.loads(
    Path(__file__).with_name("templates.toml").read_text(encoding="utf-8")
)
REPLIES = (
    "The sum is 5.", "", " 5 \n", "\n\nfive", "naïve π \U0001f600", "```\nprint(5)\n```\n<b>&'\"",
    "<think>Both are odd.</think>5", "<think>\nTwo parts.\n\nBoth.\n</think>\n\nIt is 5.",
)  # fmt: skip
SYSTEMS = ("", "Be brief.\nUse digits.")
EARLIER = ("2 + 3?", "It is 5.", "And doubled?", "  10\n", "Why? </p> π", "")
"""Messages of earlier turns, the user's first."""
TOOL = Tool("run", "Run.", {"type": "object", "properties": {"code": {"type": "string"}}})
CALL = ToolCall("000000000", "run", {"code": 'print("5")'})
CLOSE = 1e-5
"""Most that log-probs in float32 may differ by in a batch."""


class Chat(NamedTuple):
    """A chat with the reply that it goes on with."""

    messages: list[Message]
    reply: str


def make_chats() -> Iterator[Chat]:
    """Every system text, number of earlier turns and reply together."""
    for system, turns, reply in itertools.product(SYSTEMS, (0, 1, 2, 3), REPLIES):
        roles = itertools.cycle(("user", "assistant"))
        past = zip(roles, (*EARLIER[: 2 * turns], "What is 2 + 3?"), strict=False)
        first = [("system", system)] if system else []
        yield Chat([{"role": role, "content": text} for role, text in (*first, *past)], reply)


@dataclass
class Findings:
    """What came of the chats with one template."""

    taken: int = 0
    """Chats that the template takes."""
    rows: int = 0
    """Chats whose row is what the template writes."""
    kept: int = 0
    """Rows whose tokens a later prompt begins with."""
    left_out: list[str] = field(default_factory=list)
    """Replies of chats without a row."""
    faults: list[str] = field(default_factory=list)
    calls: str = "none"


def open_chat(name: str, switch: str = "") -> tuple[ChatTokenizer, set[int]]:
    """The chat tokenizer of a family and the tokens that end its replies."""
    family = FAMILIES[name]
    tokenizer = make_tokenizer(family)
    thinking = read_thinking((switch,) if switch else (), (name,))[name]
    stop_ids = set(tokenizer.convert_tokens_to_ids(family["stops"]))
    return ChatTokenizer(tokenizer, thinking), stop_ids


def examine(chat: ChatTokenizer, stop_ids: set[int]) -> Findings:
    """Compare the rows of every chat with the renderings of transformers."""
    found, end = Findings(), chat.end_of_turn(stop_ids)
    for one in make_chats():
        try:
            row = chat.row(one.messages, (), one.reply, stop_ids)
        except ChatError:
            continue
        found.taken += 1
        if row is None:
            found.left_out.append(one.reply)
        elif fault := _fault(chat, one, row.prompt, (*row.reply, end)):
            found.faults.append(f"{one}: {fault}")
        else:
            found.rows += 1
            writers = chat.measure(one.messages).writers
            if fault := _wrong_writers(chat, one, row.prompt, writers):
                found.faults.append(f"{one}: {fault}")
            found.kept += _keeps(chat, one, SampledRow(*row, writers), found.faults)
    found.calls, fault = read_back(chat, stop_ids)
    found.faults += [fault] if fault else []
    return found


def _rendered(chat: ChatTokenizer, messages: list[Message], **more: Any) -> str:
    return chat.tokenizer.apply_chat_template(
        messages, tokenize=False, **{**chat.variables, **more}
    )


def _text(tokenizer: Any, ids: tuple[int, ...] | list[int]) -> str:
    return tokenizer.decode(ids, clean_up_tokenization_spaces=False)


def _fault(chat: ChatTokenizer, one: Chat, prompt: tuple[int, ...], reply: tuple[int, ...]) -> str:
    # Why a row is wrong; "" if it is right.
    asked = _rendered(chat, one.messages, add_generation_prompt=True)
    if tuple(chat.tokenizer(asked, add_special_tokens=False)["input_ids"]) != prompt:
        return "the prompt is another"
    if ReplyParts.of(chat.decode(reply[:-1])) != ReplyParts.of(one.reply):
        return f"the reply reads {chat.decode(reply[:-1])!r}"
    whole = _rendered(chat, [*one.messages, chat.thoughts.message(one.reply)])
    row = _text(chat.tokenizer, (*prompt, *reply))
    written = _text(chat.tokenizer, chat.tokenizer(whole, add_special_tokens=False)["input_ids"])
    thought, closing, answer = row[len(_text(chat.tokenizer, prompt)) :].rpartition("</think>")
    # A template that drops thoughts writes the row without it.
    forms = [row, row[: -len(thought + closing + answer)].removesuffix("<think>\n") + answer]
    end = _text(chat.tokenizer, reply[-1:])
    if not any(f"{written}{end}".startswith(form) for form in forms):
        return f"{row!r} is not how {written!r} begins"
    if "generation %}" in chat.tokenizer.chat_template:
        masked = _masked(chat, [*one.messages, chat.thoughts.message(one.reply)])
        if masked != _text(chat.tokenizer, reply):
            return f"the template's mask has {masked!r}"
    return ""


def _by_token(spans: Sequence[TokenSpan]) -> list[str]:
    return [span.writer for span in spans for _ in range(span.tokens)]


def _wrong_writers(
    chat: ChatTokenizer, one: Chat, prompt: tuple[int, ...], writers: Sequence[TokenSpan]
) -> str:
    # Why the writers of a prompt are others; "" if the authors of its messages wrote their texts
    # and the template the rest, blanks aside.
    ids, parts = iter(prompt), {"user": "", "template": ""}
    for span in writers:
        parts[span.writer] += _text(chat.tokenizer, list(itertools.islice(ids, span.tokens)))
    texts = [message["content"].partition("</think>")[2] for message in one.messages]
    texts = [text or message["content"] for text, message in zip(texts, one.messages, strict=True)]
    same = sorted("".join("".join(texts).split())) == sorted("".join(parts["user"].split()))
    if next(ids, None) is not None or not same:
        return f"its authors wrote {parts['user']!r}"
    return ""


def _keeps(chat: ChatTokenizer, one: Chat, row: SampledRow, faults: list[str]) -> bool:
    # Whether the prompt of a later turn begins with the row; by ids that the tokenizer makes, it is
    # the prompt that the template writes.
    said = {"role": "assistant", "content": chat.decode(row.reply)}
    later = [*one.messages, said, {"role": "user", "content": "Why?"}]
    (prompt,) = chat.encode([later], None, [EarlierTurn(one.messages, row)])
    if prompt.ids != chat.measure(later).ids:
        faults.append(f"{one}: a later prompt is another")
    begin = (*row.prompt, *row.reply)
    keeps = prompt.ids[: len(begin)] == begin
    expected = [*_by_token(row.writers), *["sampled"] * len(row.reply)]
    if keeps and _by_token(prompt.writers)[: len(begin)] != expected:
        faults.append(f"{one}: a later prompt is by {prompt.writers}")
    return keeps


def examine_model(name: str) -> tuple[str, str]:
    """Whether rows of a tiny model depend on their batch, and its export under transformers."""
    model, tokenizer = build(FAMILIES[name])
    gap = invariance(model)
    with tempfile.TemporaryDirectory() as folder:
        fault = export_fault(model, tokenizer, Path(folder))
    return "yes" if gap <= CLOSE else f"no: {gap:.0e}", fault or "yes"


def _masked(chat: ChatTokenizer, messages: list[Message]) -> str:
    # What the template's generation blocks say that the model wrote last.
    found = chat.tokenizer.apply_chat_template(
        messages, return_dict=True, return_assistant_tokens_mask=True, **chat.variables
    )
    pairs = list(zip(found["input_ids"], found["assistant_masks"], strict=True))[::-1]
    after = itertools.dropwhile(lambda pair: not pair[1], pairs)
    last = [number for number, _ in itertools.takewhile(lambda pair: pair[1], after)]
    return _text(chat.tokenizer, last[::-1])


def read_back(chat: ChatTokenizer, stop_ids: set[int]) -> tuple[str, str]:
    """How a call that the template writes is read, and what is wrong with it."""
    asked: list[Message] = [{"role": "user", "content": "2 + 3?"}]
    try:
        prompt = chat.measure(asked, (TOOL,)).ids
    except UsageError as error:
        return "none" if "knows no tools" in str(error) else "refused", ""
    said = {"role": "assistant", "content": "", "tool_calls": [CALL.plain()]}
    whole = _rendered(chat, [*asked, said], tools=[TOOL.schema()])
    ids = chat.tokenizer(whole, add_special_tokens=False)["input_ids"][len(prompt) :]
    reply = list(itertools.takewhile(lambda number: number not in stop_ids, ids))
    text = chat.decode(reply, (TOOL,))
    reading = read_calls(ReplyParts.of(text).answer, (TOOL,))
    right = [one.arguments for one in reading.calls] == [CALL.arguments]
    return chat.family, "" if right else f"{text!r} is no call: {reading.fault}"


def variants() -> Iterator[tuple[str, str]]:
    """Every family with every switch of its thoughts."""
    for name, family in FAMILIES.items():
        yield from ((name, switch) for switch in family.get("thinking", [""]))


def main() -> None:
    """Write the table."""
    rows = list[list[str]]()
    for name, switch in variants():
        chat, stop_ids = open_chat(name, switch)
        found = examine(chat, stop_ids)
        thoughts = f"`{chat.thoughts.opening}`" if chat.thoughts.opening else "none"
        rows.append([
            f"{name}, thinking {switch}" if switch else name,
            f"`{FAMILIES[name]['end']}`",
            thoughts + (", opened by the prompt" if chat.thoughts.opened else ""),
            found.calls,
            f"{found.rows} of {found.taken}",
            f"{found.kept} of {found.rows}",
            "yes" if "generation %}" in chat.tokenizer.chat_template else "none",
            *examine_model(name),
        ])  # fmt: skip
        sys.stdout.write(" | ".join([*rows[-1], *found.faults[:3]]) + "\n")
    columns = (
        "family", "a reply ends with", "thoughts begin with", "calls",
        "rows as the template writes them", "later prompts begin with the row", "mask as its own",
        "rows are alone what they are in batches", "export ends and replies alike",
    )  # fmt: skip
    if len(sys.argv) > 1:
        cells = [[cell.replace("|", r"\|") for cell in row] for row in rows]
        write_table(Path(sys.argv[1]), COMMAND, columns, cells)


if __name__ == "__main__":
    main()
