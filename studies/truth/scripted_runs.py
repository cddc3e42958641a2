"""Transcripts of scripted players whose skill in every role is known: blame is tested on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flowzoo.baselines.diagnostics.blame import (
    Choice,
    Chooser,
    Situation,
    expert_reply,
    play,
)
from flowzoo.envs.episode.episode import Episode
from flowzoo.envs.episode.turn import Turn
from flowzoo.envs.tasks.task import Problem
from flowzoo.envs.workflow import Workflow
from flowzoo.seeding import key_rng

Skill = float | Callable[[Situation], float]
"""Chance that a role does its job rightly, everywhere or by situation."""


def judge_skill(tpr: float, tnr: float, judged: str = "generator") -> Skill:
    """Of a role that judges the latest reply of `judged`: right where it is, by these shares."""

    def chance(where: Situation) -> float:
        latest = dict(where[0][2])
        return tpr if latest.get(judged, 0.0) >= 1 else tnr

    return chance


def scripted_episodes(
    workflow: Workflow, problems: Sequence[Problem], skills: Mapping[str, Skill], seed: int
) -> list[dict[str, Any]]:
    """One saved episode of every problem, with what `diagnostics.blame` reads of it."""
    chooser = _player(skills, seed)
    played = play(workflow, problems, [chooser] * len(problems))
    return [
        {
            "problem": problem.id,
            "score": episode.score,
            "calls": [
                {
                    "agent": one.agent,
                    "turn": one.turn,
                    "role": one.role,
                    "reply": one.reply,
                    "role_score": one.role_score,
                }
                for one in episode.decisions
            ],
        }
        for problem, episode in zip(problems, played, strict=True)
    ]


def _player(skills: Mapping[str, Skill], seed: int) -> Chooser:
    def choose(episode: Episode, turn: Turn, where: Situation) -> Choice:
        skill = skills[episode.workflow.agents[turn.agent][0]]
        chance = skill(where) if callable(skill) else skill
        rng = key_rng("scripted run", seed, episode.problem.id, turn.agent, turn.turn)
        return Choice(expert_reply(episode, turn, float(rng.random() < chance), rng))

    return choose
