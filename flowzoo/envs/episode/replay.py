"""What an episode asked the first time, and whether its replay asks the same (pure functions)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from flowzoo.envs.episode.turns import Turn, prompt_digest
from flowzoo.envs.script import Classes, Effect, Grade, Message
from flowzoo.errors import DivergedError

EffectKey = tuple[str, Any]
"""An effect without its replies: its kind, and what it asks about."""


class ReplayTrace(NamedTuple):
    """All that a replay is compared with."""

    turns: Sequence[tuple[str, int, list[Message] | bytes]]
    """Agent, phase and prompt (or its digest) of every turn opened so far."""
    questions: Sequence[EffectKey]
    """Every effect requested so far."""
    done: bool


def effect_key(effect: Effect) -> EffectKey:
    """What `effect` asks about."""
    if isinstance(effect, Grade):
        return "grade", effect.answer
    if isinstance(effect, Classes):
        return "classes", effect.answers
    return type(effect).__name__.lower(), tuple(effect)


def replay_trace(
    turns: Sequence[Turn], effects: Sequence[Effect], done: bool, digests: bool = False
) -> ReplayTrace:
    """What was asked in these turns and effects; with `digests`, small enough to be stored."""
    rows = [
        (turn.agent, turn.phase, prompt_digest(turn.messages) if digests else turn.messages)
        for turn in turns
    ]
    return ReplayTrace(rows, [effect_key(effect) for effect in effects], done)


def diverged(workflow: str, what: str) -> DivergedError:
    """The error for a replay in which `what` is not as it was."""
    return DivergedError(
        f"{workflow}: {what} when the episode was replayed. play() must not use clocks, globals "
        "or unseeded randomness (problem.rng() is allowed)."
    )


def check_turns(workflow: str, before: ReplayTrace, opened: Sequence[Turn]) -> None:
    """Raise `DivergedError` unless the turns just opened were opened before, in the same place."""
    for turn in opened:
        if turn.call >= len(before.turns):
            raise diverged(workflow, f"{turn.agent} was asked once more")
        agent, phase, prompt = before.turns[turn.call]
        now = prompt_digest(turn.messages) if isinstance(prompt, bytes) else turn.messages
        if (turn.agent, turn.phase, now) != (agent, phase, prompt):
            raise diverged(workflow, f"call {turn.call} ({agent}) was asked something else")


def check_effects(
    workflow: str, before: ReplayTrace, first: int, effects: Sequence[Effect]
) -> None:
    """Raise `DivergedError` unless `effects`, from number `first` on, were requested before."""
    now = [effect_key(effect) for effect in effects]
    if now != list(before.questions[first : first + len(now)]):
        raise diverged(workflow, f"effect {first} asked about something else")
