"""A policy without a model: each role does its job rightly with a given probability.

It knows the gold answers through a channel that no model has: a request carries the name of its
problem, and this policy holds the task that resolves it.
"""

from collections.abc import Sequence
from functools import lru_cache, partial

from flowzoo.agents.policy import Batching, Completion, Request
from flowzoo.envs.readers.judgments import judged_text, verdict_line
from flowzoo.envs.script import JUDGE
from flowzoo.envs.tasks.task import Problem, Task
from flowzoo.envs.workflow import Workflow
from flowzoo.errors import UsageError
from flowzoo.seeding import key_rng


def problem_from_id(task: Task, reference: str) -> Problem:
    """The problem of `task` whose `Problem.id` is `reference`."""
    parts = reference.split("/", 3)
    index = parts[-1].rpartition(":")[2]
    if len(parts) != 4 or not (index.isascii() and index.isdigit()):
        raise UsageError(
            f"expected a problem reference such as 'math/validation/0/17' or "
            f"'math/all/0/test.jsonl:17', got {reference!r}."
        )
    problem = task.problem(int(index), parts[1])
    if problem.id != reference:
        raise UsageError(
            f"the oracle's task resolves {reference!r} to {problem.id!r}: give the scripted policy "
            f"a workflow with the same task, data and seed as the one that is played."
        )
    return problem


class ScriptedPolicy:
    """Every reply is its role's job done rightly with probability `skill`, else wrongly.

    Whether a reply is right, and its wording, are functions of (seed, request key).
    """

    batching: Batching = "stream"

    def __init__(
        self, oracle: Workflow, skill: float = 1.0, seed: int = 0, name: str = "scripted"
    ) -> None:
        """Hold the workflow whose experts answer.

        Args:
            oracle: the workflow that is played, or one with the same task.
            skill: probability in [0, 1] that a reply does its job.
            seed: of the policy; added to every request's key.
            name: name of the policy in policy maps and records.
        """
        if not 0.0 <= skill <= 1.0:
            raise UsageError(f"skill must be a probability in [0, 1], got {skill}.")
        self.name, self.skill = name, skill
        self._oracle, self._seed = oracle, seed
        # An episode asks about its problem several times, and generating one takes time.
        self._resolve = lru_cache(4096)(partial(problem_from_id, oracle.task))

    async def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Answer `requests`, in their order."""
        return [Completion(self._reply(request), finish="scripted") for request in requests]

    async def close(self) -> None:
        """No-op."""

    def _reply(self, request: Request) -> str:
        problem = self._resolve(request.problem)
        rng = key_rng("scripted", self._seed, *request.key)
        right = rng.random() < self.skill
        if request.key[0] == JUDGE:
            return self._judge(request, problem, right)
        return self._oracle.expert(request.role, list(request.messages), problem, rng, right)

    def _judge(self, request: Request, problem: Problem, right: bool) -> str:
        # The grade of the judged text, or its opposite.
        task = self._oracle.task
        answer = task.answer(judged_text(request.messages))
        (graded,) = task.grade_batch([problem], [answer])
        return verdict_line(request.messages, graded.score if right else 1 - graded.score)
