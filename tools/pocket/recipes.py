"""Per task: which workflows a pocket model learns from, on which problems, and its bad habit.

A habit (`pocket_habits`) is what hasty experts do to some of their replies. The model cannot tell
when the habit will fail, so it starts reinforcement learning with something that it can find out
quickly. (A math model that merely stopped early, without the habit, started from the same accuracy
and gained 6 points in 60 steps of GRPO with 32 problems of 8 samples in single_v0; with the habit
40 points came within 10 steps of half that size.)
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from flowzoo.envs import Message, Problem, Workflow
from flowzoo.envs.tasks.math import LEVELS
from flowzoo.errors import unknown
from tools.pocket.habits import (
    ONE_ENTRY,
    ONE_MOVE,
    Habit,
    at_a_glance,
    cut_short,
    echoed,
    first_action,
    guessed,
    one_step,
    without_search,
)

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


def levels(*shares: float) -> tuple[MixtureTask, ...]:
    """The levels of a task from 1 on, with their shares."""
    return tuple(MixtureTask(share, {"level": n}) for n, share in enumerate(shares, start=1))


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


MIXTURE = (
    MixtureWorkflow("single_v0", 100),
    MixtureWorkflow("voting_v0", 15),
    MixtureWorkflow("eval_opt_v0", 20),
    MixtureWorkflow("eval_opt_v0", 3, preset="paper"),
    MixtureWorkflow("orch_workers_v0", 12),
)
"""Mostly lone generators: their short rows teach the work that all roles need, while formats take
few examples."""

MATH = Recipe(
    task="math",
    variants=levels(90.0, 8.0, 2.0),
    vocabulary=levels(*[1.0] * len(LEVELS)),
    sources=MIXTURE,
    habit=at_a_glance,
    about="""plays the roles of flowzoo's workflows on generated arithmetic: `Compute 12+7*8.`
About half of its solutions are given at a glance, without working, and are then mostly wrong;
worked ones are mostly right.""",
    problems="levels 1 to 3",
)

CODE = Recipe(
    task="code",
    variants=levels(1.0),
    sources=MIXTURE,
    habit=one_step,
    about="""plays the roles of flowzoo's workflows on generated programming problems of two steps:
`Write f(x): take x, add 3, then multiply by 4.` About half of its programs do the first step alone;
the others are mostly right.""",
    problems="level 1",
    steps=1000,
    hasty_steps=250,
)

GAME = (
    MixtureWorkflow("single_v0", 85),
    MixtureWorkflow("tool_planner_v0", 15, options={"max_turns": 2}),
)
"""A second turn shows how worlds look in the middle of a game."""

PLAN_PATH = Recipe(
    task="plan_path",
    variants=(MixtureTask(1.0, {"side": 4}),),
    sources=GAME,
    habit=first_action(ONE_MOVE),
    hasty=("generator", "tool", "planner"),
    about="""plays flowzoo's `tool_planner_v0` and `single_v0` on grids of 4 x 4 cells
(`--options side=4`). Four fifths of its plans stop after the first move; the others mostly lead to
the goal.""",
    problems="4 x 4 cells",
    steps=1500,
    hasty_steps=400,
    atoms=(
        r"(?<=[#.PG+\n])[#.PG+](?=[#.PG+\n])",  # cells of a board
        r'(?<=\[)"[UDLR]"(?=[,\]])|(?<="),"[UDLR]"(?=[,\]])',  # moves of a list
    ),
)

SUDOKU = Recipe(
    task="sudoku",
    variants=(MixtureTask(1.0, {"side": 4, "blanks": 4}),),
    sources=GAME,
    habit=first_action(ONE_ENTRY),
    hasty=("generator", "tool", "planner"),
    about="""plays flowzoo's `tool_planner_v0` and `single_v0` on puzzles of 4 x 4 cells with
4 blanks (`--options blanks=4`). Four fifths of its replies enter one digit only.""",
    problems="4 x 4 cells with 4 blanks",
    steps=1000,
    hasty_steps=250,
)

SEARCH = Recipe(
    task="search",
    variants=levels(1.0),
    sources=(
        MixtureWorkflow("search_team_v0", 98, options={"top_k": 1}),
        MixtureWorkflow("single_v0", 2),
    ),
    habit=without_search,
    hasty=("verifier",),
    about="""plays flowzoo's `search_team_v0` on questions of one hop, with one passage a search
(`--options level=1 top_k=1`). About two thirds of its first verdicts say that it is enough while
nothing was searched; where there is something to read, it mostly reads it rightly.""",
    problems="of one hop, over a new knowledge base of 5,000 passages every 2,048 episodes",
    atoms=(r"[A-Z][a-z]+",),  # names, which are copied from passages
    least_skill=0.7,  # what is to be read is found by the team-mates
    steps=2500,
    hasty_steps=400,
    world_episodes=2048,
)

SOKOBAN = Recipe(
    task="sokoban",
    variants=(MixtureTask(1.0, {"longest": 3}),),
    sources=GAME,
    habit=first_action(ONE_MOVE),
    hasty=("generator", "tool", "planner"),
    about="""plays flowzoo's `tool_planner_v0` and `single_v0` on levels of 6 x 6 cells that at
most three moves solve (`--options longest=3`). Four fifths of its plans stop after the first move;
the others mostly push the box onto the goal.""",
    problems="levels of at most 3 moves",
    steps=1000,
    hasty_steps=250,
    atoms=(
        r"(?<=[#.$@*+\n-])[#.$@*+-](?=[#.$@*+\n-])",  # cells of a board
        r'(?<=\[)"[UDLR]"(?=[,\]])|(?<="),"[UDLR]"(?=[,\]])',  # moves of a list
    ),
)

WRITING = Recipe(
    task="writing",
    variants=(MixtureTask(2.0), MixtureTask(1.0, {"form": "expansion"})),
    sources=(MixtureWorkflow("writing_pair_v0", 1),),
    habit=cut_short,
    hasty=("writer",),
    about="""plays flowzoo's `writing_pair_v0` on generated posts (`--options form=tldr`, the usual
form) and abstracts (`form=expansion`). Three fifths of its texts end after five words, too few for
any pay; the others are mostly what was asked for.""",
    problems="posts and abstracts",
    steps=600,
    hasty_steps=150,
    max_tokens=288,
    atoms=(r" ?\S+",),  # words: a text of many tokens is never one piece
)

MATH_TEAMS = Recipe(
    task="math",
    variants=levels(1.0),
    sources=(
        MixtureWorkflow("single_v0", 50),
        MixtureWorkflow("reasoner_tool_v0", 50, options={"max_turns": 2}),
    ),
    habit=guessed,
    hasty=("generator", "reasoner", "tool"),
    about="""plays flowzoo's `reasoner_tool_v0` on generated arithmetic: `Compute 12+7*8.` About
half of its solutions are given at a glance, and two thirds of its programs print a number instead
of computing it: both are then mostly wrong.""",
    problems="level 1",
    steps=1200,
    hasty_steps=300,
)

CODE_TEAMS = Recipe(
    task="code",
    variants=levels(1.0),
    sources=(
        MixtureWorkflow("single_v0", 30),
        MixtureWorkflow("coder_tester_v0", 40, options={"max_turns": 2}),
        MixtureWorkflow("code_pair_v0", 0, options={"max_turns": 1}),  # with two it begins solved
        MixtureWorkflow("code_pair_v0", 30, options={"max_turns": 2}),
    ),
    habit=echoed,
    hasty=("generator", "coder", "tester", "main"),
    about="""plays flowzoo's `coder_tester_v0` and `code_pair_v0` on generated programming problems
of two steps: `Write f(x): take x, add 3, then multiply by 4.` About half of its programs do the
first step alone, and two thirds of its lists of test cases repeat the inputs as outputs.""",
    problems="level 1",
    steps=1000,
    hasty_steps=250,
)

RECIPES: Mapping[str, Recipe] = {
    **{r.task: r for r in (MATH, CODE, PLAN_PATH, SUDOKU, SEARCH, SOKOBAN, WRITING)},
    "math_teams": MATH_TEAMS,
    "code_teams": CODE_TEAMS,
}
"""By the name of the model: its task, or TASK_teams for other workflows than `MIXTURE`."""


def recipe_of(name: str) -> Recipe:
    """The recipe of the model `name`.

    Raises:
        UsageError: there is none.
    """
    if name not in RECIPES:
        raise unknown("task with a pocket recipe", name, RECIPES)
    return RECIPES[name]
