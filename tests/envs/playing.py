"""Episodes, toy workflows and data files of the tests of environments."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from flowzoo.envs import Ask, Episode, Grade, Outcome, Problem, Task, Workflow, make_workflow
from flowzoo.envs.episode.recording import record
from flowzoo.envs.tasks.math import MathTask
from flowzoo.envs.testing.playthrough import advance, play_with

Env = TypeVar("Env", bound=Any)
SUM = Problem("math", "test", 0, 0, "Compute 2+3*4.", "14")


def play_experts(
    workflow: Workflow, problem: Problem, skill: float = 1.0, seed: int = 0
) -> Episode:
    """A finished episode of scripted experts."""
    respond, agents = workflow.responder(problem, skill, seed), workflow.agents
    return play_with(
        Episode(workflow, problem, "e"),
        lambda turn: respond(agents[turn.agent][0], turn.observe()),
    )


def play_lists(workflow: Workflow, problem: Problem, replies: Mapping[str, list[str]]) -> Any:
    """Record of an episode in which every agent gives its replies in order, and all of them."""
    left = {agent: list(texts) for agent, texts in replies.items()}

    def reply(turn: Any) -> str:
        assert left.get(turn.agent), f"{turn.agent} was asked once more than expected"
        return left[turn.agent].pop(0)

    episode = play_with(Episode(workflow, problem, "e"), reply)
    unused = {agent: texts for agent, texts in left.items() if texts}
    assert not unused, f"never asked for: {unused}"
    return record(episode)


def play(name: Any, replies: Mapping[str, list[str]], **options: Any) -> Any:
    """Record of a workflow on `SUM` with scripted replies: agent -> replies in order."""
    return play_lists(make_workflow(name, **options), SUM, replies)


def play_turns(workflow: Workflow, problem: Problem, *turns: Mapping[str, str]) -> Any:
    """Play turns of replies by agent; returns the record, or the episode if it goes on."""
    episode = Episode(workflow, problem, "e")
    for replies in turns:
        assert not episode.done
        for agent, text in replies.items():
            episode.reply(agent, text)
        advance(episode)
    return record(episode) if episode.done else episode


def toy(play: Callable[..., Any], task: Task | None = None, **attributes: Any) -> Workflow:
    """A workflow of three writers and a judge whose script is `play(self, problem)`."""
    names = {
        "name": "toy_v0",
        "roles": {"writer": 3, "judge": 1},
        "play": play,
        "__module__": play.__module__,
        **attributes,
    }
    return dataclass(frozen=True)(type("Toy", (Workflow,), names))(task=task or MathTask())


def start(play: Callable[..., Any], task: Task | None = None) -> Episode:
    """An episode of `toy(play)` on its first problem."""
    workflow = toy(play, task)
    return Episode(workflow, workflow.task.problem(0))


def opened(env: Env) -> Env:
    """An environment in its first episode."""
    env.reset(seed=0)
    return env


def echo(self: Any, problem: Problem) -> Any:
    """Draft, grade, review."""
    draft = yield Ask("writer_0", "write")
    grade = yield Grade(draft.text, of=draft)
    review = yield Ask("judge_0", f"judge {draft.text}")
    return Outcome(review.text, grade.score)


def write_rows(path: Path, *rows: Any) -> str:
    """A JSON Lines file; a row that is a string is written as it is."""
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)
