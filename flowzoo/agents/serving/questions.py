"""Plays of free questions: by the whole workflow, or by one role.

A question has no reference answer, so nothing is graded. A script may ask for grades all the same,
to record them; it gets `UNKNOWN`, and after its end the log is replayed with right grades in their
place. A script that then asks or answers something else was steered by a grade that there is not.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from flowzoo.agents.policy import Completion, Request
from flowzoo.agents.policy_map import PolicyMap
from flowzoo.agents.rollout.drivers import drive
from flowzoo.agents.rollout.engine import (
    PendingEffect,
    Play,
    RequestBatch,
    Response,
    Step,
    resolve_here,
)
from flowzoo.envs import Episode, Problem, Workflow, WorkflowError
from flowzoo.envs.script import JUDGE, EffectResult, Grade, GradeResult, Message
from flowzoo.envs.tasks.task import Task
from flowzoo.envs.tools import Tool, ToolCall, before_calls, read_calls
from flowzoo.errors import DivergedError, UsageError
from flowzoo.reward.visible import visible
from flowzoo.seeding import key_digest

NO_ANSWER = "The workflow ended without an answer: its replies could not be read as one."
UNKNOWN = GradeResult(0.0, "unknown")
"""In place of the grade of an answer to a question; it reaches no reward and no client."""
_RIGHT = GradeResult(1.0, "unknown")


class SpokenTurn(NamedTuple):
    """A reply of an agent, for those who wait for the answer."""

    agent: str
    text: str


class TeamAnswer(NamedTuple):
    """The result of a play."""

    text: str | None
    """None: the workflow ended without an answer."""
    finish: str
    """`stop`; `length` if a reply that was cut off left no answer, or is the answer."""
    completions: Sequence[Completion]
    """Completions of all calls, also of judges."""
    transcript: Sequence[Mapping[str, Any]]
    """A dict per turn; see `Episode.transcript`."""
    calls: Sequence[ToolCall] = ()
    """Calls of the client's tools, in place of an answer."""


class Draw(NamedTuple):
    """Key of the randomness of an answer, and its cap."""

    seed: int
    sample: int
    cap: int | None
    """Most tokens of a reply."""


class ClientTools(NamedTuple):
    """Tools of the client, which the last speaker may call."""

    tools: tuple[Tool, ...] = ()
    most_calls: int = 1
    exchange: Sequence[Message] = ()
    """Earlier calls of them about the question, with their results."""
    number: int = 0
    """Number of the messages before the reply, for the ids of its calls."""

    def read(self, text: str) -> tuple[ToolCall, ...]:
        """The calls in a reply; none if it has others, or none that can be read."""
        if not self.tools:
            return ()
        return read_calls(visible(text), self.tools, self.most_calls, self.number).calls


def finished_answer(
    episode: Episode, answers: Mapping[int, Response]
) -> tuple[str | None, str, list[dict[str, Any]]]:
    """Text, finish reason and transcript of a finished episode, which has no record.

    Raises:
        WorkflowError: grades steered the script.
    """
    answer = episode.finished().answer
    check_steering(episode, answer)
    cut = any(answer.completion.finish == "length" for answer in answers.values())
    finish = "length" if answer is None and cut else "stop"
    return answer, finish, episode.transcript()


def check_steering(episode: Episode, answer: str | None) -> None:
    """Raise `WorkflowError` if a finished episode would go on otherwise with other grades."""
    log = [_RIGHT if entry is UNKNOWN else entry for entry in episode.log]
    try:
        steered = episode.fork(log=log).finished().answer != answer
    except DivergedError:
        steered = True
    if steered:
        raise WorkflowError(
            f"{episode.workflow.name} asks or answers by the grades of its answers, and a question "
            "has none: it cannot be served",
            episode.problem.id,
        )


async def resolve_ungraded(task: Task, effects: Sequence[PendingEffect]) -> list[EffectResult]:
    """`resolve` in a thread, where grades are `UNKNOWN`."""
    others = [job for job in effects if type(job[1]) is not Grade]
    results = iter(await resolve_here(task, others) if others else ())
    return [UNKNOWN if type(job[1]) is Grade else next(results) for job in effects]


def check_served(workflow: Workflow) -> None:
    """Raise `UsageError` unless the workflow can play a question."""
    try:
        Episode(workflow, workflow.task.question("What is 2 + 3?"))
    except WorkflowError as error:
        raise UsageError(f"a free question cannot be played: {error}") from error


def asked_problem(task: Task, question: str) -> Problem:
    """The problem of a question, without the instruction that prompts of the task end with."""
    problem = task.question(question)
    instruction = task.prompt(problem).removeprefix(question).strip()
    bare = question.rstrip().removesuffix(instruction).rstrip()
    return problem if not bare or bare == question.rstrip() else task.question(bare)


def ask_workflow(
    workflow: Workflow,
    policy_map: PolicyMap,
    question: str,
    draw: Draw,
    client: ClientTools,
    on_turn: Callable[[SpokenTurn], None],
) -> Play:
    """The play of a question by all roles; returns its `TeamAnswer`.

    Seed, question and sample are the key of its randomness, so that a request that is repeated with
    its seed has the same draws.
    """
    problem = asked_problem(workflow.task, question)
    completions: list[Completion] = []

    def on_reply(request: Request, completion: Completion) -> None:
        completions.append(completion)
        on_turn(SpokenTurn(request.agent, completion.text))

    def start() -> Play:
        opened = partial(Episode, workflow, problem, f"{problem.id}#{draw.sample}")
        return drive(opened, policy_map, draw.seed, draw.sample, finish=finished_answer)

    past: list[tuple[Step, list[Any]]] = []
    text, finish, transcript = yield from observed(start(), draw.cap, on_reply, past)
    while past and not is_spoken(past[-1][0]):
        past.pop()
    if past and (client.tools or client.exchange):
        request, response = yield from _ask_last(past, draw.cap, client)
        done = response.completion
        on_reply(request, done)
        if calls := client.read(done.text):
            head = before_calls(visible(done.text))
            turns = [*transcript[:-1], {**transcript[-1], "reply": done.text}]
            return TeamAnswer(head, "tool_calls", completions, turns, calls)
        text, finish, transcript = yield from observed(start(), draw.cap, on_reply, past)
    return TeamAnswer(text, finish, completions, transcript)


def is_spoken(step: Step) -> bool:
    """True for requests to agents, not to a judge alone."""
    return isinstance(step, RequestBatch) and step.requests[-1].agent != JUDGE


def _ask_last(
    past: list[tuple[Step, list[Any]]], cap: int | None, client: ClientTools
) -> Generator[Step, list[Any], tuple[Request, Response]]:
    # Asks the last speaker of a play again, who sees the client's tools and their results; the past
    # of the play then ends with this new reply. Who speaks last is known at its end only.
    batch, results = past.pop()
    assert isinstance(batch, RequestBatch)
    last = batch.requests[-1]
    request = replace(
        last, messages=[*last.messages, *client.exchange], tools=(*last.tools, *client.tools),
        key=(*last.key, "tools", client.number), earlier=None,
    )  # fmt: skip
    (response,) = yield RequestBatch([capped(request, cap)])
    past.append((batch, [*results[:-1], response]))
    return request, response


def observed(
    play: Play,
    cap: int | None,
    on_reply: Callable[[Request, Completion], None],
    past: list[tuple[Step, list[Any]]],
) -> Generator[Any, list[Any], Any]:
    """The same play with capped replies, which go to `on_reply` as they come.

    It begins with the results of `past`, to which the others are added.
    """
    batch, number = next(play), 0
    while True:
        if isinstance(batch, RequestBatch):
            batch = RequestBatch([capped(request, cap) for request in batch.requests])
        if number == len(past):
            past.append((batch, (yield batch)))
            if isinstance(batch, RequestBatch):
                for request, response in zip(batch.requests, past[-1][1], strict=True):
                    on_reply(request, response.completion)
        number += 1
        try:
            batch = play.send(past[number - 1][1])
        except StopIteration as stop:
            return stop.value


def capped(request: Request, cap: int | None) -> Request:
    """A request whose reply has at most `cap` tokens."""
    if cap is None or (request.max_tokens is not None and request.max_tokens <= cap):
        return request
    return replace(request, max_tokens=cap)


def ask_role(
    workflow: Workflow,
    policy_map: PolicyMap,
    name: str,
    messages: Sequence[Message],
    draw: Draw,
    client: ClientTools,
) -> Play:
    """The play of a chat with a role or an agent, which gets the messages as they are."""
    role = workflow.agents[name][0] if name in workflow.agents else name
    lengths = policy_map.lengths(name)
    digest = key_digest(*(str(part) for message in messages for part in message.values())).hex()
    request = Request(
        (draw.seed, digest, draw.sample, name, 0), name, role, messages, max_tokens=lengths.reply,
        max_prompt=lengths.prompt, keep=messages[-1]["content"], tools=client.tools,
    )  # fmt: skip
    (response,) = yield RequestBatch([capped(request, draw.cap)])
    done = response.completion
    turn = {"agent": name, "turn": 0, "phase": 0, "messages": messages, "reply": done.text}
    finish, calls = "length" if done.finish == "length" else "stop", client.read(done.text)
    text = before_calls(visible(done.text)) if calls else done.text
    return TeamAnswer(text, finish, [done], [turn], calls)
