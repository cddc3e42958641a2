"""Checks that runs can be repeated, forked, cut off, batched and added up."""

from __future__ import annotations

import pickle
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from flowzoo.envs.api.aec import WorkflowEnv
from flowzoo.envs.api.guard import Guard
from flowzoo.envs.episode.effects import resolve
from flowzoo.envs.episode.episode import Episode
from flowzoo.envs.episode.recording import record, state_hash
from flowzoo.envs.episode.turn import prompt_digest
from flowzoo.envs.tasks.task import Problem
from flowzoo.envs.testing.playthrough import (
    guard,
    pickle_bytes,
    play_out,
    problem_at,
    require,
    sampled_reply,
)
from flowzoo.envs.workflow import Workflow

ALONE = 20  # number of episodes that are played both together and alone


def check_seeds(workflow: Workflow, episodes: int = 5) -> None:
    """Equal seeds agree over whole episodes; different seeds give different problems."""

    def trace(seed: int) -> list[Any]:
        env = guard(workflow)
        rows: list[Any] = []
        for number in range(episodes):
            env.reset(seed=seed if number == 0 else None)
            for agent, (*seen, info) in _expert_turns(env, workflow, 0.5, number):
                rows.append((agent, *seen, repr(info)))
        return rows

    require(trace(1) == trace(1), "two runs with equal seeds differ")
    require(trace(1) != trace(2), "two runs with different seeds are equal")


def check_returns(workflow: Workflow, episodes: int = 20) -> None:
    """Rewards from `last()`, dead steps included, add up to each agent's reported return."""
    env = guard(workflow)
    for number in range(episodes):
        env.reset(seed=number)
        paid = dict.fromkeys(env.possible_agents, 0.0)
        for agent, (_, reward, *_) in _expert_turns(env, workflow, 0.7, number):
            paid[agent] += reward
        returns = env.record().returns
        require(paid == dict(returns), f"last() paid {paid}, the record says {dict(returns)}")


def _expert_turns(
    env: Guard, workflow: Workflow, skill: float, seed: int
) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Agents with what `last()` says, while experts play the episode to its end."""
    respond = workflow.responder(env.env.episode.problem, skill, seed)
    for agent in env.agent_iter():
        obs, _, terminated, truncated, _ = last = env.last()
        yield agent, last
        chat = obs["messages"] if obs else []
        is_over = terminated or truncated
        env.step(None if is_over else respond(workflow.agents[agent][0], chat))


def check_budget(workflow: Workflow) -> None:
    """No agent is asked more than `max_cycles` times; an episode that needs more is truncated and
    pays nothing.
    """
    problem = problem_at(workflow, 0)
    needed = _most_asks(play_out(Episode(workflow, problem), "budget"))
    for limit in range(1, needed + 1):
        episode = play_out(Episode(workflow, problem, max_cycles=limit), "budget")
        asks = _most_asks(episode)
        require(asks <= limit, f"an agent was asked {asks} times under max_cycles={limit}")
        short = limit < needed
        require(episode.truncated == short, f"truncated is {not short} under max_cycles={limit}")
        paid = set(record(episode).returns.values())
        require(not short or paid == {0.0}, f"a truncated episode paid {paid}")


def _most_asks(episode: Episode) -> int:
    return max(Counter(turn.agent for turn in episode.turns).values(), default=0)


def check_forks(workflow: Workflow) -> None:
    """At every step, forks and pickles have the same prompts and state and end the same way.

    A script that is not pure fails here: its replay asks something else.
    """
    pickle_bytes(workflow)
    env = WorkflowEnv(workflow)
    env.reset(seed=3)
    copies: list[WorkflowEnv] = []
    while env.agents:
        state = state_hash(env.episode)
        thawed = pickle.loads(pickle.dumps(env))  # noqa: S301 - made one line before
        for twin in (env.fork(), thawed):
            require(state_hash(twin.episode) == state, "a copy has another state hash")
            original = [prompt_digest(turn.messages) for turn in env.episode.waiting]
            forked = [prompt_digest(turn.messages) for turn in twin.episode.waiting]
            require(original == forked, "a copy asks something else")
            require(twin.agent_selection == env.agent_selection, "a copy selects another agent")
            require(twin.last() == env.last(), "last() of a copy says something else")
            copies.append(twin)
        env.step(_forked_reply(env))
    final = record(env.episode)
    for twin in copies:
        while twin.agents:
            twin.step(_forked_reply(twin))
        require(record(twin.episode) == final, "a copy that got the same replies ended otherwise")


def _forked_reply(env: WorkflowEnv) -> str | None:
    if env.episode.done:
        return None
    return sampled_reply(env.workflow, "fork", env.episode.waiting[0].call)


def check_isolation(workflow: Workflow, episodes: int = 200) -> None:
    """Many episodes moved in random order, their effects in shared batches.

    No problem's text reaches another's prompts, and an episode ends as it does alone.
    """
    problems = [_mark(problem_at(workflow, index), index) for index in range(episodes)]
    finished = [Episode(workflow, problem, str(number)) for number, problem in enumerate(problems)]
    _move_together(finished, random.Random(0))
    for episode in finished:
        marker = _marker(episode.key)
        for turn in episode.turns:
            for message in turn.messages:
                rest = message["content"].replace(marker, "")
                require("marker-" not in rest, f"{turn.agent} saw text of another episode")
    for episode in finished[:ALONE]:
        alone = Episode(workflow, episode.problem, episode.key)
        _move_together([alone], random.Random(1))
        require(record(alone) == record(episode), "an episode ends otherwise among others")


def _move_together(episodes: list[Episode], rng: random.Random) -> None:
    alive = list(episodes)
    while alive:
        few = rng.sample(alive, min(len(alive), 16))
        jobs = [(e, (e.problem, effect)) for e in few for effect in e.effects]
        if jobs:
            workflow = few[0].workflow
            results = resolve(workflow.task, [job for _, job in jobs], workflow.judge)
            for episode in few:
                own_results = [r for (of, _), r in zip(jobs, results, strict=True) if of is episode]
                if own_results:
                    episode.resolve(own_results)
        for episode in few:
            if episode.waiting:
                turn = rng.choice(episode.waiting)
                text = sampled_reply(episode.workflow, episode.key, turn.call)
                episode.reply(turn.agent, f"{_marker(episode.key)} {text}")
        alive = [episode for episode in alive if not episode.done]


def _marker(key: str | int) -> str:
    return f"marker-{key}-end"


def _mark(problem: Problem, number: int) -> Problem:
    return replace(problem, text=f"{problem.text} ({_marker(number)})")
