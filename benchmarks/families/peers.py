"""Rows of chats beside those of TRL's training templates and of the package `renderers`.

Both packages go beside this environment, without their dependencies:

    pip install --no-deps --target PEERS trl renderers openai-harmony tiktoken prime-pydantic-config
    PYTHONPATH=PEERS python -m benchmarks.families.peers docs/data/family-peers.json

The templates are those of publishers, of which TRL has copies.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.families.check import FAMILIES, Chat, make_chats
from benchmarks.families.tokenizers import make_tokenizer
from benchmarks.harness.record import write_table
from flowzoo.agents.chat.template import ChatRow, ChatTokenizer
from flowzoo.agents.policy import EarlierTurn
from flowzoo.envs.script import SampledRow
from flowzoo.errors import ChatError

COMMAND = "python -m benchmarks.families.peers docs/data/family-peers.json"
TRL = {
    "phi-3": "phi3", "gpt-oss": "gptoss", "gemma-2": "gemma", "gemma-3": "gemma3",
    "llama-3": "llama3", "qwen-2": "qwen2_5", "qwen-3": "qwen3",
    "deepseek-r1": "deepseek_r1_distill", "glm-4": "glm4moe",
}  # fmt: skip
"""Templates of families, each with another one for training."""
RENDERERS = {"llama-3": ("llama3_2", "llama-3"), "qwen-3": ("qwen3", "qwen3"),
             "glm-4": ("glm4moe", "glm-4.5")}  # fmt: skip
"""Templates of families, and their renderers. That of gpt-oss loads a vocabulary from a server."""
_MORE = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>",
         "</tool_response>", "<|begin_of_text|>", "<|end_of_text|>", "<|observation|>", "[gMASK]",
         "<sop>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "<|python_tag|>",
         "<|eom_id|>", "<|endoftext|>", "/nothink"]  # fmt: skip
"""Tokens that a renderer looks for."""
_VARIABLES = {"date_string": "26 Jul 2024"}


class PeerRow(NamedTuple):
    """What a peer makes of a chat with a reply."""

    prompt: Sequence[int]
    reply: Sequence[int]
    """What is learned."""
    later: Sequence[int] | None = None
    """The prompt of a later turn, from the ids of the row; None if the peer renders it anew."""


def tokenizer_of(family: str, template: str) -> Any:
    """The tokenizer of a family with a publisher's template."""
    tokenizer = make_tokenizer(FAMILIES[family])
    tokenizer.add_tokens(_MORE)
    tokenizer.bos_token = "<|begin_of_text|>"
    file = resources.files("trl") / "chat_templates" / f"{template}.jinja"
    tokenizer.chat_template = file.read_text("utf-8")
    return tokenizer


def trl_rows(family: str, template: str) -> Callable[[Chat, ChatTokenizer, list[int]], PeerRow]:
    """Rows of a training template, with its mask of generated tokens."""
    tokenizer = tokenizer_of(family, f"{template}_training")

    def make(one: Chat, chat: ChatTokenizer, row: list[int]) -> PeerRow:
        prompt = tokenizer.apply_chat_template(
            one.messages, add_generation_prompt=True, return_dict=False, **_VARIABLES
        )
        found = tokenizer.apply_chat_template(
            [*one.messages, chat.thoughts.message(one.reply)], return_dict=True,
            return_assistant_tokens_mask=True, **_VARIABLES,
        )  # fmt: skip
        pairs = list(zip(found["input_ids"], found["assistant_masks"], strict=True))[::-1]
        after = itertools.dropwhile(lambda pair: not pair[1], pairs)
        last = [number for number, _ in itertools.takewhile(lambda pair: pair[1], after)]
        return PeerRow(prompt, last[::-1])

    return make


def renderer_rows(
    family: str, template: str, name: str
) -> Callable[[Chat, ChatTokenizer, list[int]], PeerRow]:
    """Rows of a renderer, with its mask of sampled tokens."""
    from renderers.base import create_renderer
    from renderers.configs import config_from_name

    renderer = create_renderer(tokenizer_of(family, template), config_from_name(name))

    def make(one: Chat, chat: ChatTokenizer, row: list[int]) -> PeerRow:
        prompt = renderer.render_ids(one.messages, add_generation_prompt=True)
        whole = renderer.render([*one.messages, chat.thoughts.message(one.reply)])
        parts = zip(whole.token_ids, whole.message_indices, whole.sampled_mask, strict=True)
        size = len(one.messages)
        reply = [number for number, index, sampled in parts if index == size and sampled]
        bridge = renderer.bridge_to_next_turn(
            list(prompt), row, [{"role": "user", "content": "A?"}]
        )
        return PeerRow(prompt, reply, bridge and bridge.token_ids)

    return make


def compare(
    family: str, template: str, make: Callable[[Chat, ChatTokenizer, list[int]], PeerRow]
) -> list[str]:
    """Equal prompts, replies and later prompts as cells of a table, and the first difference."""
    tokenizer = tokenizer_of(family, template)
    stops = set(tokenizer.convert_tokens_to_ids(FAMILIES[family]["stops"]))
    chat = ChatTokenizer(tokenizer, _VARIABLES)
    end, text = chat.end_of_turn(stops), tokenizer.decode
    count, equal, differences = 0, [0, 0, 0], dict[str, str]()
    for one in make_chats():
        try:
            row = chat.row(one.messages, (), one.reply, stops)
        except ChatError:  # a template without system texts
            continue
        if row is None:
            continue
        count += 1
        reply = [*row.reply, end]
        theirs = make(one, chat, reply)
        equal[0] += list(row.prompt) == list(theirs.prompt)
        equal[1] += reply == list(theirs.reply)
        later = _later(chat, one, row)
        kept = later[: len(row.prompt) + len(row.reply)] == [*row.prompt, *row.reply]
        equal[2] += later == theirs.later if theirs.later else not kept
        if list(row.prompt) != list(theirs.prompt):
            differences.setdefault("prompt", _difference(text, row.prompt, theirs.prompt))
        if reply != list(theirs.reply):
            differences.setdefault("reply", _difference(text, reply, theirs.reply))
    why = "; ".join(f"{name}: {what}" for name, what in differences.items())
    return [*(f"{number} of {count}" for number in equal), why or "equal"]


def _later(chat: ChatTokenizer, one: Chat, row: ChatRow) -> list[int]:
    said = {"role": "assistant", "content": chat.decode(row.reply)}
    later = [*one.messages, said, {"role": "user", "content": "A?"}]
    return list(chat.encode([later], None, [EarlierTurn(one.messages, SampledRow(*row))])[0].ids)


def _difference(text: Callable[[Any], str], ours: Sequence[int], theirs: Sequence[int]) -> str:
    # What stands between the beginning and the end that both have.
    pairs = list(zip(ours, theirs, strict=False))
    start = next((n for n, (one, other) in enumerate(pairs) if one != other), len(pairs))
    backwards = zip(ours[start:][::-1], theirs[start:][::-1], strict=False)
    rest = len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], backwards)))
    one, other = (text(ids[start : len(ids) - rest]) for ids in (ours, theirs))
    return f"{one!r} here, {other!r} there"


def rows() -> Iterator[list[str]]:
    """A row of the table for every family of every peer."""
    for family, template in TRL.items():
        cells = compare(family, template, trl_rows(family, template))
        yield [family, "TRL", *cells[:2], "none", cells[3]]
    for family, (template, name) in RENDERERS.items():
        cells = compare(family, template, renderer_rows(family, template, name))
        yield [family, "renderers", *cells]


def main() -> None:
    """Write the table."""
    table = list[list[str]]()
    for row in rows():
        table.append(row)
        sys.stdout.write(" | ".join(row) + "\n")
    columns = (
        "family", "peer", "equal prompts", "equal replies", "equal later prompts",
        "first differences",
    )  # fmt: skip
    if len(sys.argv) > 1:
        cells = [[f"`{cell}`" if "'" in cell else cell for cell in row] for row in table]
        cells = [[cell.replace("|", r"\|") for cell in row] for row in cells]
        write_table(Path(sys.argv[1]), COMMAND, columns, cells)


if __name__ == "__main__":
    main()
