"""What type checkers see of flowzoo from outside; checked by mypy and pyright, never run.

The annotations are claims: `assert_type` fails the check if flowzoo's `py.typed` is missing (then
everything is Any) or if a public function gives something else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, assert_type

from flowzoo import voting_v0
from flowzoo.agents import Completion, Policy, PolicyMap, Request, Sampling
from flowzoo.agents.policy import Batching
from flowzoo.envs import (
    Ask,
    Call,
    EpisodeRecord,
    Grade,
    Outcome,
    Problem,
    SampledReply,
    Script,
    Workflow,
)
from flowzoo.envs.tasks import Task, make_task
from flowzoo.envs.testing import check_workflow
from flowzoo.errors import FlowzooError, UsageError
from flowzoo.reward import MathOptions, Scores, equivalence_classes, score_batch


class Twice(Workflow):
    """A workflow of a user's."""

    name: ClassVar[str] = "twice_v0"
    roles: ClassVar[Mapping[str, int]] = {"author": 1}

    def play(self, problem: Problem) -> Script:
        """Ask, and ask again."""
        assert_type(self.task, Task)
        question = self.task.prompt(problem)
        assert_type(question, str)
        yield Ask("author_0", question, self.task.answer)
        last = yield Ask("author_0", question, self.task.answer)
        yield Grade(last.strict, of=last)
        return Outcome(answer=last.strict, facts={"asked": 2})


class Echo:
    """A policy of a user's; the protocol is structural."""

    name = "echo"
    batching: Batching = "stream"

    async def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """The last message of every request."""
        return [Completion(request.messages[-1]["content"]) for request in requests]

    async def close(self) -> None:
        """Nothing to close."""


def use() -> None:
    """Public functions and what they give."""
    task = make_task("math", level=2)
    assert_type(task, Task)
    check_workflow(Twice(task=task))
    scores = score_batch(["1"], ["1"], MathOptions(read="strict"))
    assert_type(scores, Scores)
    assert_type(equivalence_classes(["1", "2"]), tuple[int, ...])
    env = voting_v0.env(task="math")
    env.reset(seed=1)
    record: EpisodeRecord = env.record()
    assert_type(record.calls, tuple[Call, ...])
    assert_type(SampledReply("text").logps, list[float])
    assert_type(Sampling().max_tokens, int)
    caught: type[FlowzooError] = UsageError
    assert issubclass(caught, Exception)


def mapped_to_all(policy: Policy) -> PolicyMap:
    """A policy map of one policy for two roles."""
    policy_map = PolicyMap.shared(policy, ("generator", "aggregator"))
    assert_type(policy_map, PolicyMap)
    return policy_map


mapped_to_all(Echo())
