"""Turns of an episode, digests of their prompts, and the comparison of a replay with its trace."""

import copy
import hashlib
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from flowzoo.envs.script import (
    Advance,
    Ask,
    Effect,
    Message,
    Reply,
    SampledRow,
    UseTool,
)
from flowzoo.envs.tools import Tool
from flowzoo.errors import DivergedError


def copy_messages(messages: Sequence[Message]) -> list[Message]:
    """An independent copy of a chat."""
    return [
        copy.deepcopy(message) if "tool_calls" in message else message.copy()
        for message in messages
    ]


class Turn:
    """An opened ask: its agent, position and prompt, and later its reply."""

    def __init__(self, ask: Ask, call: int, slot: int, turn: int, phase: int, logged: int) -> None:
        self.agent, seen, self.parse, self.lenient, tools, self.max_tool_calls = ask
        self.tools: tuple[Tool, ...] = tuple(tools)
        self.call, self.slot, self.turn, self.phase, self.logged = call, slot, turn, phase, logged
        # The reply as the script gets it: without thoughts, unless the workflow shows them.
        self.reply: Reply | None = None
        self.said = ""  # the whole reply, thoughts included, once there is one
        self.row: SampledRow | None = None  # its token ids, where they are known
        self.messages: list[Message] = (
            [{"role": "user", "content": seen}] if isinstance(seen, str) else copy_messages(seen)
        )

    def observe(self) -> list[Message]:
        """A fresh copy of the messages, safe to change."""
        return copy_messages(self.messages)


def prompt_digest(messages: Sequence[Message]) -> bytes:
    """16 bytes that identify a prompt across machines and processes."""
    hasher = hashlib.blake2b(digest_size=16)
    for message in messages:
        for part in (message["role"], message["content"]):
            raw = part.encode("utf-8", "surrogatepass")
            hasher.update(len(raw).to_bytes(8, "little"))
            hasher.update(raw)
        if len(message) > 2:  # tool calls, or a result
            hasher.update(json.dumps(message, sort_keys=True).encode())
    return hasher.digest()


EffectKey = tuple[str, Any]  # an effect as its kind and arguments


class ReplayTrace(NamedTuple):
    """Turns and effects that a replay must reproduce."""

    # Agent, phase, prompt (or its digest) and tools of every turn opened so far.
    turns: Sequence[tuple[str, int, list[Message] | bytes, tuple[Tool, ...]]]
    questions: Sequence[EffectKey]  # every effect requested so far
    done: bool


def effect_key(effect: Effect) -> EffectKey:
    """Kind and arguments of `effect`; a reply by its number."""
    if isinstance(effect, UseTool):
        return "UseTool", effect.call
    if isinstance(effect, Advance):
        return "Advance", effect.key
    values = (value.call if isinstance(value, Reply) else value for value in effect)
    return type(effect).__name__, tuple(values)


def replay_trace(
    turns: Sequence[Turn], effects: Sequence[Effect], done: bool, digests: bool = False
) -> ReplayTrace:
    """The trace of turns and effects; with `digests`, prompts are stored as hashes."""
    form = prompt_digest if digests else list
    rows = [(turn.agent, turn.phase, form(turn.messages), turn.tools) for turn in turns]
    return ReplayTrace(rows, [effect_key(effect) for effect in effects], done)


def diverged_error(workflow: str, what: str) -> DivergedError:
    """Make the error for a replay that differs from the first run in `what`."""
    return DivergedError(
        f"{workflow}: {what} when the episode was replayed. play() must not use clocks, globals "
        "or unseeded randomness (problem.rng() is allowed)."
    )


def check_turns(workflow: str, before: ReplayTrace, opened: Sequence[Turn]) -> None:
    """Raise `DivergedError` unless the opened turns equal the turns of the trace."""
    for turn in opened:
        if turn.call >= len(before.turns):
            raise diverged_error(workflow, f"{turn.agent} was asked again")
        agent, phase, prompt, tools = before.turns[turn.call]
        now = prompt_digest(turn.messages) if isinstance(prompt, bytes) else turn.messages
        if (turn.agent, turn.phase, now, turn.tools) != (agent, phase, prompt, tools):
            raise diverged_error(workflow, f"call {turn.call} ({agent}) was asked something else")


def check_effects(
    workflow: str, before: ReplayTrace, first: int, effects: Sequence[Effect]
) -> None:
    """Raise `DivergedError` unless `effects`, from number `first`, reproduce the trace."""
    now = [effect_key(effect) for effect in effects]
    if now != list(before.questions[first : first + len(now)]):
        raise diverged_error(workflow, f"effect {first} asked about something else")
