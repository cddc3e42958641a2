"""Checks of what agents must not learn: replies of phase-mates, gold answers, grades."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from flowzoo.envs.api.aec import WorkflowEnv
from flowzoo.envs.episode.effects import resolve
from flowzoo.envs.episode.episode import Episode
from flowzoo.envs.episode.turn import prompt_digest
from flowzoo.envs.script import Effect, EffectResult, Grade, Graded, Ran, RanCase, Run
from flowzoo.envs.tasks.task import Problem
from flowzoo.envs.testing.playthrough import (
    PLAYTHROUGHS,
    play_out,
    problem_at,
    require,
    sampled_reply,
)
from flowzoo.envs.workflow import Workflow
from flowzoo.sandbox.program import CallTest, CheckTest, StdinTest
from flowzoo.seeding import key_rng


def check_phase_leaks(workflow: Workflow) -> None:
    """No observation or info within a phase depends on the replies of phase-mates."""
    for number in range(PLAYTHROUGHS):
        for phase in _parallel_phases(workflow, number):
            first, second = (_phase_views(workflow, number, phase, text) for text in ("a", "b"))
            require(
                first == second, f"in phase {phase}, an observation depends on a phase-mate's reply"
            )


def _parallel_phases(workflow: Workflow, number: int) -> list[int]:
    env = WorkflowEnv(workflow)
    env.reset(seed=number)
    turns = play_out(env.episode, "leak", number).turns
    return sorted({turn.phase for turn in turns if turn.slot > 0})


def _phase_views(workflow: Workflow, number: int, phase: int, variant: str) -> list[str]:
    env = WorkflowEnv(workflow)
    env.reset(seed=number)
    views = []
    while not env.episode.done:
        turn = env.episode.waiting[0]
        if turn.phase > phase:
            break
        fixed = sampled_reply(workflow, "leak", number, turn.agent, turn.turn)
        if turn.phase == phase:
            views.append(f"{turn.agent}: {env.observe(turn.agent)} {env.infos[turn.agent]}")
            fixed = f"{variant} {fixed}"
        env.step(fixed)
    return views


def pin_result(workflow: Workflow, problem: Problem, effect: Effect, truth: random.Random) -> Any:
    """The result of an effect; where it tells ground truth, one that comes from `truth` instead."""
    # Ground truth are grades, and runs on hidden tests of the problem.
    if isinstance(effect, Grade):
        return Graded(float(truth.random() < 0.5), "pinned")
    hidden = {id(test) for test in problem.meta.get("hidden", ())}
    if isinstance(effect, Run) and any(id(test) in hidden for test in effect.tests):
        share = truth.choice((0.0, 0.5, 1.0))  # all, some or none pass
        statuses = ["AC" if truth.random() < share else "WA" for _ in effect.tests]
        cases = tuple(RanCase(status, "pinned", "") for status in statuses)
        return Ran("WA" if "WA" in statuses else "AC", cases)
    return resolve(workflow.task, [(problem, effect)], workflow.judge)[0]


def play_pinned(workflow: Workflow, problem: Problem, number: int, truth: random.Random) -> Episode:
    """An episode whose replies are a function of `number` and whose truth comes from `truth`."""
    episode = Episode(workflow, problem, "pinned")
    while not episode.done:
        if episode.effects:
            results: list[EffectResult] = [
                pin_result(workflow, problem, effect, truth) for effect in episode.effects
            ]
            episode.resolve(results)
            continue
        for turn in episode.waiting:
            episode.reply(turn.agent, sampled_reply(workflow, "pinned", number, turn.call))
    return episode


def planted_meta(meta: Mapping[str, Any], canary: str) -> dict[str, Any]:
    """`meta` with the canary in the worked solution, further gold answers and hidden tests."""
    planted = {**meta, "solution": f"worked {canary}"}
    planted |= {name: (canary,) for name in ("golds", "gold_ids") if name in meta}
    if "hidden" in meta:
        # Of the style that the problem has: a script may have them run.
        called = (CallTest((canary,), canary), CheckTest(f"assert {canary!r}"))
        planted["hidden"] = called if meta.get("entry") else (StdinTest(canary, canary),)
    return planted


def check_gold_leaks(workflow: Workflow) -> None:
    """No prompt contains the gold answer, and none changes when only the gold answer does.

    Worked solutions, further accepted answers and hidden tests are gold, too.
    """
    for number in range(PLAYTHROUGHS):
        prompts = []
        for canary in ("CANARY-7f3a", "CANARY-91bc"):
            problem = problem_at(workflow, number)
            planted = replace(problem, gold=canary, meta=planted_meta(problem.meta, canary))
            # Truth is pinned: only a gold answer that the script itself reads can differ.
            episode = play_pinned(workflow, planted, number, random.Random(number))
            for turn in episode.turns:
                for message in turn.messages:
                    leaked = canary in message["content"]
                    require(not leaked, f"{turn.agent} was shown the gold answer")
            prompts.append([prompt_digest(turn.messages) for turn in episode.turns])
        require(prompts[0] == prompts[1], "a prompt depends on the gold answer")


def check_truth_blindness(workflow: Workflow) -> None:
    """Neither the course of an episode nor its answer depends on ground truth.

    That is: on grades, and on what programs do on hidden tests.
    """
    for number in range(PLAYTHROUGHS):
        courses = []
        for seed in range(4):
            problem = problem_at(workflow, number)
            truth = key_rng("grades", number, seed)
            episode = play_pinned(workflow, problem, number, truth)
            asks = [(turn.agent, prompt_digest(turn.messages)) for turn in episode.turns]
            courses.append((asks, episode.finished().answer))
        same = all(course == courses[0] for course in courses)
        require(same, "the script's course or answer depends on grades (ground truth)")
