"""Per task: which workflows a pocket model learns from, on which problems, and its bad habit.

A habit (`pocket_habits`) is what hasty experts do to some of their replies. The model cannot tell
when the habit will fail, so it starts reinforcement learning with something that it can find out
quickly. (A math model that merely stopped early, without the habit, started from the same accuracy
and gained 6 points in 60 steps of GRPO with 32 problems of 8 samples in single_v0; with the habit
40 points came within 10 steps of half that size.)
"""

from __future__ import annotations

import random
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from flowzoo.envs import Message, Problem, Workflow
from flowzoo.errors import unknown
from tools.pocket.habits import HABITS, Habit

SOLVERS = ("generator", "worker", "synthesizer", "aggregator")
"""Roles whose replies are solutions."""


@dataclass(frozen=True, slots=True)
class MixtureWorkflow:
    """A workflow with its options, and how often it is played beside the others."""

    workflow: str
    share: float
    preset: str = "strict"
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MixtureTask:
    """Options of the task, and how often problems of this kind are played beside the others."""

    share: float
    options: Mapping[str, Any] = field(default_factory=dict)


def option_words(options: Mapping[str, Any]) -> str:
    """Options as NAME=VALUE words, the way `--options` takes them."""
    return " ".join(f"{name}={value}" for name, value in options.items())


@dataclass(frozen=True, slots=True)
class Recipe:
    """What the pocket model of a task learns from."""

    task: str
    variants: tuple[MixtureTask, ...]
    """The first one is what the model is measured on."""
    sources: tuple[MixtureWorkflow, ...]
    habit: Habit
    about: str
    """What the model does and what its habit is, for the model card."""
    problems: str
    """The variants in words, for the model card."""
    hasty: tuple[str, ...] = SOLVERS
    """Roles with the habit."""
    vocabulary: tuple[MixtureTask, ...] = ()
    """What the tokenizer sees; default: the variants."""
    atoms: tuple[str, ...] = ()
    """Regular expressions of pieces of text that the tokenizer never merges with others."""
    least_skill: float = 0.0
    """Chance that a team-mate's reply is right in the worst episodes; in the best it is 1."""
    steps: int = 2000
    """Optimizer steps of the making, unless other numbers are given."""
    hasty_steps: int = 500
    """How many of the steps, the last ones, teach the habit."""
    max_tokens: int = 64
    """Most tokens of a reply when the model is measured."""
    world_episodes: int = 0
    """Episodes after which the task gets another seed, for tasks whose problems share a world that
    would be learned by heart; 0: never."""

    @property
    def measured(self) -> Mapping[str, Mapping[str, Any]]:
        """The workflows that the model is measured in, with their options: the first of a name."""
        return {source.workflow: source.options for source in reversed(self.sources)}

    @property
    def options(self) -> Mapping[str, Any]:
        """Options of the task that the model is measured on."""
        return self.variants[0].options

    @property
    def made_for(self) -> Mapping[str, Any]:
        """What `flowzoo.agents.pocket.pocket_options` reads."""
        workflows = {name: dict(options) for name, options in self.measured.items() if options}
        return {"task": self.task, "options": dict(self.options), "workflows": workflows}

    def for_vocabulary(self) -> Recipe:
        """The recipe with the variants that the tokenizer sees."""
        return replace(self, variants=self.vocabulary or self.variants)

    def respond(
        self,
        workflow: Workflow,
        role: str,
        messages: Sequence[Message],
        problem: Problem,
        rng: random.Random,
        right: bool,
        hasty: bool,
    ) -> str:
        """The scripted expert's reply; a hasty one's may have gone through the habit.

        Who was told to try again always works it out.
        """
        reply = workflow.expert(role, list(messages), problem, rng, right)
        first = role in self.hasty and len(messages) == 1
        luck = rng.random()  # drawn whatever the role: the draws that follow depend on nothing
        if not (hasty and first):
            return reply
        return self.habit(workflow, problem, messages[-1]["content"], luck, reply)


def _read(name: str, table: dict[str, Any], lists: Mapping[str, Any]) -> Recipe:
    sources = table["sources"]
    rows = lists[sources] if isinstance(sources, str) else sources
    kinds = {
        kind: tuple(MixtureTask(**row) for row in table.get(kind, ()))
        for kind in ("variants", "vocabulary")
    }
    texts = {key: tuple(table[key]) for key in ("hasty", "atoms") if key in table}
    read: dict[str, Any] = {
        "task": name, **table, **kinds, **texts, "habit": HABITS[table["habit"]],
        "sources": tuple(MixtureWorkflow(**row) for row in rows),
    }  # fmt: skip
    return Recipe(**read)


_TABLES = tomllib.loads(Path(__file__).with_name("recipes.toml").read_text(encoding="utf-8"))
RECIPES: Mapping[str, Recipe] = {
    name: _read(name, table, _TABLES["sources"])
    for name, table in _TABLES.items()
    if name != "sources"
}
"""By the name of the model: its task, or TASK_teams for other workflows than the usual mixture."""


def recipe_of(name: str) -> Recipe:
    """The recipe of the model `name`.

    Raises:
        UsageError: there is none.
    """
    if name not in RECIPES:
        raise unknown("task with a pocket recipe", name, RECIPES)
    return RECIPES[name]
