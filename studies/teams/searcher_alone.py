"""A lone agent with the search of `search_team`."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from flowzoo.envs.script import Ask, Grade, Message, Outcome, RoleScore, Script, Search
from flowzoo.envs.settings import check_whole
from flowzoo.envs.tasks.task import Problem
from flowzoo.envs.workflow import Workflow
from flowzoo.envs.workflows.search_team import (
    RetrievedPassages,
    SearchTeam,
    follow,
    read_query,
)


@dataclass(frozen=True)
class SearcherAlone(Workflow):
    """One agent searches `searches` times, then answers; it reads the prompts of the team."""

    name: ClassVar[str] = "searcher_alone_v0"
    roles: ClassVar[Mapping[str, int]] = {"agent": 1}
    kinds: ClassVar[tuple[str, ...]] = ("search",)
    default_task: ClassVar[str] = "search"
    prompts: ClassVar[Mapping[str, str]] = SearchTeam.prompts

    searches: int = 1
    top_k: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("searches", self.searches, 1)
        check_whole("top_k", self.top_k, 1)

    def play(self, problem: Problem) -> Script:
        """Ask for the searches, then for the answer."""
        evidence = RetrievedPassages(frozenset(problem.meta.get("gold_ids", ())))
        for _ in range(self.searches):
            reply = yield Ask("agent_0", self.request("search", problem, evidence), read_query)
            gain = 0.0
            if reply.strict is not None:
                result = yield Search(reply.strict, self.top_k)
                gain = evidence.add(reply.strict, result.passages)
            if evidence.gold:
                yield RoleScore(reply, gain)
        prompt = self.request("answer", problem, evidence)
        final = yield Ask("agent_0", prompt, self.task.answer)
        grade = yield Grade(final.strict, of=final)
        facts = {"searches": len(evidence.texts), "recall": evidence.recall}
        return Outcome(final.strict, grade.score, facts)

    def request(self, name: str, problem: Problem, evidence: RetrievedPassages) -> str:
        """Prompt of a turn: the problem, the passages so far, and a request of the team's."""
        return self.prompts["state"].format(
            problem=problem.text,
            history="\n\n".join(evidence.texts) or self.prompts["nothing"],
            request=self.prompts[name],
        )

    def expert(
        self, role: str, messages: list[Message], problem: Problem, rng: random.Random, right: bool
    ) -> str:
        """Follows the question's relations through the passages it is shown, and no further."""
        prompt = messages[-1]["content"]
        entity, missing = follow(problem, prompt)
        other = self.task.answer(self.task.solve(problem, rng, False)) or ""
        if prompt.endswith(self.prompts["search"]):
            return f"<search>{(missing or problem.text) if right else other}</search>"
        return f"<answer>{(entity if missing is None else 'unknown') if right else other}</answer>"

    def samples(self) -> tuple[str, ...]:
        """Replies of random play."""
        return (*self.task.samples(), "<search>the founder of Bacecorp</search>")
