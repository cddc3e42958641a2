"""A planner with the turns of `tool_planner` and no tool."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from flowzoo.envs.script import Ask, Grade, InterimScore, Outcome, Reply, Script
from flowzoo.envs.settings import check_whole
from flowzoo.envs.tasks.games.game import START, Game
from flowzoo.envs.tasks.task import Problem
from flowzoo.envs.workflow import Workflow
from flowzoo.errors import UsageError


@dataclass(frozen=True)
class PlannerAlone(Workflow):
    """One agent moves, sees the world as it is then, and moves again."""

    name: ClassVar[str] = "planner_alone_v0"
    roles: ClassVar[Mapping[str, int]] = {"planner": 1}
    presets: ClassVar[tuple[str, ...]] = ("strict", "paper")
    kinds: ClassVar[tuple[str, ...]] = ("actions",)
    default_task: ClassVar[str] = "plan_path"

    max_turns: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.task, Game):
            raise UsageError(f"{self.name} plays tasks derived from Game, got {self.task!r}")
        check_whole("max_turns", self.max_turns, 1)

    def play(self, problem: Problem) -> Script:
        """Ask for moves until the world has ended or the turns are spent."""
        game = self.task
        assert isinstance(game, Game)
        done, turns = START, 0
        while True:
            turns += 1
            plan = yield Ask(
                "planner_0", game.prompt_at(problem, done), game.answer, game.answer_lenient
            )
            done = game.join(done, self.read(plan) or START)
            grade = yield Grade(done, of=plan)
            yield InterimScore(grade.score)
            end = game.ended(problem, done)
            if end or turns == self.max_turns:
                break
        facts = {"turns": turns, "end": end or "turns", "solved": grade.status == "solved"}
        return Outcome(done, grade.score, facts)

    def world(self, replies: Sequence[Reply]) -> str | None:
        """All moves so far."""
        game = self.task
        assert isinstance(game, Game)
        plans = [self.read(reply) for reply in replies]
        return game.join(START, *(plan for plan in plans if plan))
