"""Planners who propose at the same time; a simulation of the world chooses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from flowzoo.envs.script import Ask, Grade, Outcome, Reply, Script
from flowzoo.envs.settings import check_whole
from flowzoo.envs.tasks.games.game import START, Game
from flowzoo.envs.tasks.task import Problem
from flowzoo.envs.workflow import Workflow
from flowzoo.errors import UsageError


@dataclass(frozen=True)
class PlanExplorers(Workflow):
    """Several plans from the start; the first that ends the world well is carried out."""

    name: ClassVar[str] = "plan_explorers_v0"
    roles: ClassVar[Mapping[str, int]] = {"planner": 4}
    kinds: ClassVar[tuple[str, ...]] = ("actions",)
    default_task: ClassVar[str] = "plan_path"
    simultaneous: ClassVar[bool] = True

    explorers: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.task, Game):
            raise UsageError(f"{self.name} plays tasks derived from Game, got {self.task!r}")
        check_whole("explorers", self.explorers, 1, 16)

    def role_counts(self) -> Mapping[str, int]:
        """As many planners as there are plans."""
        return {"planner": self.explorers}

    def play(self, problem: Problem) -> Script:
        """One phase of plans, and the choice among them."""
        game = self.task
        assert isinstance(game, Game)
        prompt = game.prompt(problem)
        plans = yield [
            Ask(f"planner_{i}", prompt, game.answer, game.answer_lenient)
            for i in range(self.explorers)
        ]
        yield [Grade(self.read(plan), of=plan) for plan in plans]
        moves = self.choice(problem, plans)
        grade = yield Grade(moves)
        solved = [
            game.ended(problem, game.join(START, self.read(plan) or START)) == "solved"
            for plan in plans
        ]
        first = solved.index(True) + 1 if any(solved) else len(plans)
        return Outcome(moves, grade.score, {"needed": first, "solved": any(solved)})

    def choice(self, problem: Problem, plans: Sequence[Reply]) -> str:
        """Moves of the first plan that solves the world, else of the first plan."""
        game = self.task
        assert isinstance(game, Game)
        moves = [game.join(START, self.read(plan) or START) for plan in plans]
        return next((m for m in moves if game.ended(problem, m) == "solved"), moves[0])
