"""Episodes without a model: plausible replies as a function of a key."""

import contextlib
import gc
import inspect
import pickle
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from flowzoo.envs.api.aec import Guard, WorkflowEnv
from flowzoo.envs.episode.effects import resolve
from flowzoo.envs.episode.episode import Episode
from flowzoo.envs.episode.turn import Turn
from flowzoo.envs.tasks.task import Problem, Task
from flowzoo.envs.workflow import Workflow
from flowzoo.errors import UsageError
from flowzoo.seeding import key_rng

# PettingZoo's warnings about environments without arrays, and with tools for some roles.
KNOWN_WARNINGS = (
    "Observation is not a NumPy array",
    "Observation space for each agent probably should be",
    "Action space for each agent probably should be",
    "Agents have different observation space sizes",
)

PLAYTHROUGHS = 12  # number of episodes of the leak checks


# Replies that models produce in practice; they must be scored and never raise.
HOSTILE = {
    "empty": "",
    "long": "x" * 100_000,
    "NUL": "\x00\\boxed{\x00}",
    "surrogates": "\ud800\\boxed{\udfff}",
    "right-to-left": "\u202e\\boxed{\u0661\u0662}\u202c",
    "braces": "{" * 5_000 + "\\boxed{" * 500 + "}" * 5_000,
    "brackets": "[" * 900 + "]" * 900,
    "digits": "\\boxed{" + "9" * 1_000_000 + "}",
    "code": "```python\nprint(\x00\ud800)\n```",
    "fences": "```python\n" * 20_000,
    "long code": "```python\nx = 1" + "0" * 100_000 + "\n```",
    "repeated letter": "a" * 60 + "!",
    "repeated word": "word " * 60 + "!",
    "repeated digit": "\\boxed{" + "1" * 60 + "!",
    "repeated item": "[[" + "1, " * 60 + "!",
}


def require(condition: bool, message: str) -> None:
    """Raise AssertionError with `message` unless `condition` (also under `python -O`)."""
    if not condition:
        raise AssertionError(message)


def pickle_bytes(subject: object) -> bytes:
    """`subject` as `pickle` stores it."""
    try:
        return pickle.dumps(subject)
    except Exception as error:
        raise AssertionError(
            f"it cannot be pickled ({error!r}): define the class at the top level of a module, "
            "with plain values as attributes"
        ) from error


@contextlib.contextmanager
def strict_warnings(workflow: Workflow) -> Iterator[None]:
    """Turn warnings into errors, except `KNOWN_WARNINGS`.

    The sandbox is started before, since its warnings are not the workflow's.
    """
    if workflow.grading():
        gc.collect()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for message in KNOWN_WARNINGS:
            warnings.filterwarnings("ignore", message=message)
        yield


def guard(workflow: Workflow, **options: object) -> Guard:
    """A guarded environment of `workflow`."""
    return Guard(WorkflowEnv(workflow, **options))  # type: ignore[arg-type]


def advance(episode: Episode) -> None:
    """Resolve effects until asks are open or the episode is done."""
    while episode.effects:
        workflow = episode.workflow
        episode.resolve(resolve(workflow.task, episode.pending_effects, workflow.judge))


def sampled_reply(workflow: Workflow, *key: str | int) -> str:
    """One of the workflow's plausible replies, as a function of `key`."""
    return key_rng("conformance", *key).choice(workflow.samples() or ("",))


def problem_at(workflow: Workflow, number: int) -> Problem:
    """Training problem `number`, modulo the number of problems."""
    size = workflow.task.size("train")
    return workflow.task.problem(number % size if size else number)


def play_with(episode: Episode, respond: Callable[[Turn], str]) -> Episode:
    """Reply to every open turn, as `respond` says, until the episode is done."""
    advance(episode)
    while not episode.done:
        for turn in episode.waiting:
            episode.reply(turn.agent, respond(turn))
        advance(episode)
    return episode


def play_out(episode: Episode, *key: str | int) -> Episode:
    """Reply to every open turn with plausible replies as a function of `key`."""
    workflow = episode.workflow
    return play_with(episode, lambda turn: sampled_reply(workflow, *key, turn.agent, turn.turn))


def expert_episodes(workflow: Workflow, count: int, skill: float = 1.0) -> Iterator[Episode]:
    """Finished episodes of scripted experts, whose replies are right with probability `skill`."""
    for number in range(count):
        problem = problem_at(workflow, number)
        expert = workflow.responder(problem, skill, number)

        def respond(turn: Turn, expert: Callable[..., object] = expert) -> str:
            role = workflow.agents[turn.agent][0]
            try:
                reply = expert(role, turn.observe())
            except (TypeError, AttributeError, LookupError) as error:
                fault = f"{method_place(type(workflow).expert)}: expert() raised {error!r}"
                raise AssertionError(f"{fault} for {role}") from error
            require(
                isinstance(reply, str),
                f"{method_place(type(workflow).expert)}: expert() must return a text, got "
                f"{type(reply).__name__} for {role}",
            )
            return str(reply)

        yield play_with(Episode(workflow, problem), respond)


def expert_roles(workflow: Workflow) -> set[str]:
    """Roles that are asked in `PLAYTHROUGHS` episodes of scripted experts."""
    episodes = expert_episodes(workflow, PLAYTHROUGHS)
    return {workflow.agents[turn.agent][0] for episode in episodes for turn in episode.turns}


def method_place(method: Any) -> str:
    """File and line of a method, for messages."""
    code = inspect.unwrap(method).__code__
    return f"{Path(code.co_filename).name}, line {code.co_firstlineno}"


def expert_replies(task: Task, problem: Problem) -> list[str]:
    """A right and a wrong expert reply to a problem; [] if its answer is unknown."""
    with contextlib.suppress(UsageError):
        return [task.solve(problem, key_rng("replies", problem.index), r) for r in (True, False)]
    return []
