"""Passages that readers see apart, one each, or all of them together."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from flowzoo.envs.script import (
    Ask,
    EquivalenceClasses,
    Grade,
    Message,
    Outcome,
    Reply,
    Script,
    Search,
)
from flowzoo.envs.settings import check_whole
from flowzoo.envs.tasks.task import Problem
from flowzoo.envs.workflow import Workflow
from flowzoo.envs.workflows.search_team import SearchTeam, follow, show

UNKNOWN = "unknown"
"""Answer of a reader who sees nothing of use, as the pocket models were made to give it."""


@dataclass(frozen=True)
class Readers(Workflow):
    """Readers answer at the same time; the most frequent answer but `unknown` wins."""

    name: ClassVar[str] = "readers_v0"
    roles: ClassVar[Mapping[str, int]] = {"reader": 3}
    kinds: ClassVar[tuple[str, ...]] = ("search",)
    default_task: ClassVar[str] = "search"
    prompts: ClassVar[Mapping[str, str]] = SearchTeam.prompts
    simultaneous: ClassVar[bool] = True

    passages: int = 3
    apart: bool = True
    """True if each reader sees one passage; else each sees all of them."""
    best_last: bool = False
    """True if the passage that the search ranks first is shown last."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("passages", self.passages, 1, 32)

    def role_counts(self) -> Mapping[str, int]:
        """As many readers as there are passages."""
        return {"reader": self.passages}

    def play(self, problem: Problem) -> Script:
        """Search by a scripted query, read, and count."""
        query = follow(problem, "")[1] or problem.text
        result = yield Search(query, self.passages)
        ranking = result.passages[::-1] if self.best_last else result.passages
        texts = [show(query, [passage]) for passage in ranking]
        asks = [
            Ask(f"reader_{i}", self.prompt(problem, texts, i), self.task.answer)
            for i in range(self.passages)
        ]
        replies = yield asks
        grades = yield [Grade(reply.strict, of=reply) for reply in replies]
        answers = tuple(self.vote(reply) for reply in replies)
        classes = yield EquivalenceClasses(answers)
        votes = [number for number in classes if number >= 0]
        gold = set(problem.meta.get("gold_ids", ()))
        facts = {"evidence": gold <= {passage.id for passage in result.passages}}
        if not votes:
            return Outcome(score=0.0, facts=facts)
        index = classes.index(max(sorted(set(votes)), key=votes.count))
        return Outcome(replies[index].strict, grades[index].score, facts)

    def prompt(self, problem: Problem, texts: Sequence[str], index: int) -> str:
        """What a reader sees: passage `index`, or all of them."""
        history = texts[index : index + 1] if self.apart else texts
        return self.prompts["state"].format(
            problem=problem.text,
            history="\n\n".join(history) or self.prompts["nothing"],
            request=self.prompts["answer"],
        )

    def vote(self, reply: Reply) -> str | None:
        """The answer; None for one that says that it does not know."""
        answer = reply.strict
        return None if answer is None or answer.strip().lower() == UNKNOWN else answer

    def expert(
        self, role: str, messages: list[Message], problem: Problem, rng: random.Random, right: bool
    ) -> str:
        """Follows the question's relations through the passages it is shown."""
        entity, missing = follow(problem, messages[-1]["content"])
        other = self.task.answer(self.task.solve(problem, rng, False)) or ""
        return f"<answer>{(entity if missing is None else UNKNOWN) if right else other}</answer>"
