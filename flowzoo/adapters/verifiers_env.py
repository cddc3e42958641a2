r"""A workflow as an environment of verifiers 0.4, every role a seat with its own model.

verifiers finds an environment by the name of a top-level module, and the seats are fields of a
class. So a workflow is published as a small file; this is all of `flowzoo_voting.py`:

    from flowzoo.adapters.verifiers_env import CallHarness, plugin

    VotingTasks, VotingEnv = plugin("voting")
    __all__ = ["CallHarness", "VotingEnv", "VotingTasks"]

Installed, or in a folder of PYTHONPATH, it is evaluated by

    vf-eval flowzoo_voting --model M --env.aggregator.model N --no-push \
        --client.base-url http://localhost:8000/v1 --client.api-key-var OPENAI_API_KEY

where the variable has to be set. Without `--client.base-url` verifiers asks Prime Intellect's
endpoint, and without `--no-push` it uploads the results there.

A seat that names no model plays with the run's, which makes it self-play. Agents that `others`
names have no seat: `plugin("voting", others={"generator": "scripted:0.5"})`. Every call of an
episode is a run of its seat with a fresh context and makes one trace, which carries what the
workflow paid that call as the reward `workflow`, and the episode's score and the role score as
metrics.
Calls are made in this process, by the harness that comes with it; programs that a workflow runs are
confined by flowzoo's sandbox.
Needs the package verifiers, which no extra of flowzoo brings.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import verifiers.v1 as vf
from openai import AsyncOpenAI
from pydantic import create_model
from verifiers.v1.dialects.chat import message_to_wire

from flowzoo.adapters.outside import (
    Others,
    check_served,
    free_agents,
    policies_of,
)
from flowzoo.agents.policy import Batching, Completion, Policy, Request
from flowzoo.agents.policy_map import PolicyMap, role_of
from flowzoo.agents.problems import distinct_problems
from flowzoo.agents.rollout.episodes import EpisodeJob, Rollout
from flowzoo.envs import Message, Workflow, make_workflow
from flowzoo.envs.tasks.task import get_problem
from flowzoo.errors import UsageError

REWARD = "workflow"
_KINDS: dict[str, Any] = {
    "system": vf.SystemMessage, "user": vf.UserMessage, "assistant": vf.AssistantMessage
}  # fmt: skip


class CallHarness(vf.Harness[vf.HarnessConfig]):
    """One call of the model with the task's messages, in this process."""

    APPENDS_SYSTEM_PROMPT = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: vf.ModelContext,
        trace: Any,
        runtime: vf.Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: vf.TaskData,
        tool_interception_url: str | None = None,
    ) -> vf.ProgramResult:
        """Send it to the run's endpoint, which records it."""
        messages = [message_to_wire(message) for message in data.prompt or []]
        async with AsyncOpenAI(base_url=endpoint, api_key=secret, max_retries=0) as client:
            await client.chat.completions.create(model=ctx.model, messages=messages)  # type: ignore[arg-type]
        return vf.ProgramResult(0, "", "")


class ProblemData(vf.TaskData):
    """A problem; `id` is its reference."""

    index: int = 0
    text: str = ""


class WorkflowTask(vf.Task[ProblemData]):
    """A problem of the workflow's task. The workflow pays, not the task."""


class SeatPolicy:
    """A seat of verifiers as a policy: every request is a run of it."""

    batching: Batching = "stream"

    def __init__(self, role: str, seat: vf.Agent, task: vf.Task) -> None:
        self.name, self._seat, self._task = role, seat, task
        self.traces: dict[tuple[str, int], vf.Trace] = {}
        """Agent and turn -> its run."""

    async def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """See `Policy`; the seat's own bound says how many runs are under way."""
        return list(await asyncio.gather(*map(self._run, requests)))

    async def _run(self, request: Request) -> Completion:
        task = self._task.with_data(prompt=chat_of(request.messages), system_prompt=None)
        trace = await self._seat.run(task)
        if trace.last_error is not None:
            raise RuntimeError(f"{request.agent} did not answer: {trace.last_error.message}")
        agent, turn = request.key[3], request.key[4]
        self.traces[str(agent), int(turn)] = trace
        finish = "length" if trace.is_truncated else "stop"
        return Completion(trace.last_reply, finish=finish)

    async def close(self) -> None:
        """No-op: nothing to release."""


def chat_of(messages: Sequence[Message]) -> list[Any]:
    """A chat as messages of verifiers."""
    return [_KINDS[message["role"]](content=message["content"]) for message in messages]


def plugin(
    workflow: Any,
    task: Any = None,
    *,
    others: Others | None = None,
    played: str | Sequence[str] = (),
    split: str = "train",
    problems: int = 512,
    **options: Any,
) -> tuple[type[vf.Taskset], type[vf.Env]]:
    """The two classes that a module of verifiers exports beside `CallHarness`.

    Args:
        workflow: name of a workflow, `module:Class`, a Workflow subclass or instance.
        task: name of a task, or a Task; by default the workflow's own.
        others: policies in place of seats, by role or agent, as `flowzoo eval --policy` takes them
            ("scripted:0.5", "hf:PATH") or Policy objects; or one for all but `played`.
        played: roles or agents that are seats, with one policy for all others.
        split: of the problems.
        problems: number of distinct problems.
        options: of the workflow and its task.

    Raises:
        UsageError: a name or an option that there is not, a role that has the name of a field of
            `EnvConfig`, policies that leave no seat, or a workflow with a judge or tools in a seat.
    """
    flow: Workflow = make_workflow(workflow, task, **options)
    others = {} if others is None else others
    free = free_agents(flow, others, played)
    roles = list(dict.fromkeys(map(role_of, free)))
    check_served(flow, roles)
    beside = policies_of(flow, others, free)
    reserved = sorted(set(roles) & set(vf.EnvConfig.model_fields))
    if reserved:
        raise UsageError(
            f"role {reserved[0]!r} is a field of verifiers' EnvConfig: rename the role."
        )
    seat = vf.AgentConfig(runtime=vf.SubprocessConfig())
    fields: dict[str, Any] = dict.fromkeys(roles, (vf.AgentConfig, seat))
    config = create_model(f"{type(flow).__name__}EnvConfig", __base__=vf.EnvConfig, **fields)

    class WorkflowTasks(vf.Taskset[WorkflowTask, vf.TasksetConfig]):
        """The first problems of the split with different texts."""

        def load(self) -> Iterator[WorkflowTask]:
            """See `vf.Taskset`."""
            for problem in distinct_problems(flow.task, split, problems):
                data = ProblemData(id=problem.id, index=problem.index, text=problem.text)
                yield WorkflowTask(data, self.config.task)

    class WorkflowSeats(vf.Env[config]):  # type: ignore[valid-type]
        """Plays the workflow's episode on a problem."""

        async def run(self, task: vf.Task, agents: vf.Agents) -> None:
            """See `vf.Env`."""
            seats = {role: SeatPolicy(role, getattr(agents, role), task) for role in roles}
            policies = {**beside, **{agent: seats[role_of(agent)] for agent in free}}
            await play(flow, policies, getattr(task.data, "index"), split)  # noqa: B009

    return WorkflowTasks, WorkflowSeats


async def play(workflow: Workflow, policies: Mapping[str, Policy], index: int, split: str) -> None:
    """Play an episode, and write the reward of every call of a seat on its trace."""
    problem = get_problem(workflow.task, index, split)
    policy_map = PolicyMap(policies)
    rollout = Rollout(workflow, policy_map, deterministic=False)
    (record,) = await rollout.arun([EpisodeJob(problem)])
    for call in record.calls:
        seat = policy_map.policy(call.agent)
        if isinstance(seat, SeatPolicy):
            trace = seat.traces[call.agent, call.turn]
            trace.record_reward(REWARD, call.reward)
            trace.record_metrics({"score": record.score, "phase": call.phase, "slot": call.slot})
            if call.role_score is not None:
                trace.record_metric("role_score", call.role_score)
