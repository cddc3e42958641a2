"""Workflows as tasks of Inspect (`inspect_ai`): its models answer, our rewards score.

    from flowzoo.adapters.inspect_task import workflow_task
    eval(workflow_task("voting", n=100), model="openai/gpt-4o", model_roles={"aggregator": ...})

A sample is a problem, an epoch an episode of it. Every role is answered by Inspect's model of that
role (`model_roles`), or by the model that is evaluated, under Inspect's limits, caches and logs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from inspect_ai import Task, task
from inspect_ai import model as models
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.scorer import Score, Target, mean, scorer, stderr
from inspect_ai.solver import Generate, Solver, TaskState, solver

from flowzoo.adapters.outside import check_served
from flowzoo.agents.policy import Batching, Completion, Request
from flowzoo.agents.policy_map import PolicyMap
from flowzoo.agents.problems import distinct_problems
from flowzoo.agents.rollout.episodes import EpisodeJob, Rollout
from flowzoo.envs import EpisodeRecord, Message, Workflow, make_workflow
from flowzoo.envs.tasks.task import get_problem

_KEPT = "flowzoo"
"""Key of an episode's outcome in the store of a sample."""
_KINDS: Mapping[str, Any] = {
    "system": models.ChatMessageSystem,
    "user": models.ChatMessageUser,
    "assistant": models.ChatMessageAssistant,
    "tool": models.ChatMessageTool,
}


class InspectPolicy:
    """Inspect's model of the role that is asked, or the one that is evaluated."""

    batching: Batching = "stream"
    name = "inspect"

    async def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """See `Policy`."""
        return [await self._answer(request) for request in requests]

    async def _answer(self, request: Request) -> Completion:
        config = models.GenerateConfig(max_tokens=request.max_tokens)
        output = await models.get_model(role=request.role).generate(
            chat_of(request.messages), config=config
        )
        cut_off = output.stop_reason in ("max_tokens", "model_length")
        return Completion(output.completion, finish="length" if cut_off else "stop")

    async def close(self) -> None:
        """No-op: nothing to release."""


def chat_of(messages: Sequence[Message]) -> list[models.ChatMessage]:
    """A chat as Inspect's messages."""
    return [_KINDS[message["role"]](content=message["content"]) for message in messages]


@solver
def play_workflow(workflow: Workflow, split: str, seed: int = 0) -> Solver:
    """Plays the episode of a sample; its outcome is in the sample's store."""
    policy_map = PolicyMap.shared(InspectPolicy(), workflow.role_counts())

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        problem = get_problem(workflow.task, state.metadata["index"], split)
        rollout = Rollout(workflow, policy_map, seed=seed, deterministic=False)
        (record,) = await rollout.arun([EpisodeJob(problem, state.epoch - 1)])
        state.store.set(_KEPT, outcome(record))
        state.output = models.ModelOutput.from_content(str(state.model), record.answer or "")
        state.completed = True
        return state

    return solve


def outcome(record: EpisodeRecord) -> dict[str, Any]:
    """Outcome of an episode for the scorer, as plain values."""
    role_scores: dict[str, list[float]] = {}
    for call in record.calls:
        if call.role_score is not None:
            role_scores.setdefault(call.role, []).append(call.role_score)
    return {
        "score": record.score,
        "answer": record.answer,
        "returns": dict(record.returns),
        "role_scores": {role: fmean(scores) for role, scores in role_scores.items()},
        "calls": len(record.calls),
    }


@scorer(metrics=[mean(), stderr()])
def workflow_score() -> Any:
    """The episode's score."""

    async def score(state: TaskState, target: Target) -> Score:
        outcome = state.store.get(_KEPT)
        return Score(value=outcome["score"], answer=outcome["answer"], metadata=outcome)

    return score


@task
def workflow_task(
    workflow: Any = "voting",
    task_name: str | None = None,
    split: str = "test",
    n: int = 100,
    seed: int = 0,
    **options: Any,
) -> Task:
    """A workflow on the first `n` distinct problems of a split.

    Args:
        workflow: name of a workflow, `module:Class`, a Workflow subclass or instance.
        task_name: name of a task; by default the workflow's own.
        split: of the problems.
        n: number of problems.
        seed: part of the keys of the requests.
        options: of the workflow and its task.

    Raises:
        UsageError: a name, a number or an option that there is not, or a workflow with tools or a
            judge.
    """
    flow = make_workflow(workflow, task_name, **options)
    check_served(flow)
    samples = [
        Sample(
            input=problem.text,
            target=problem.gold,
            id=problem.id,
            metadata={"index": problem.index},
        )
        for problem in distinct_problems(flow.task, split, n)
    ]
    return Task(
        dataset=MemoryDataset(samples, name=f"{flow.name} on {flow.task.name}"),
        solver=play_workflow(flow, split, seed),
        scorer=workflow_score(),
        name=flow.name,
    )
