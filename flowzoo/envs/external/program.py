"""# Agent programs

Any program that calls its agents with an OpenAI client, as a workflow: only the base URL changes.
Each request is a turn of the agent that its field `model` names, and the task grades the program's
answer.

| | |
|---|---|
| Creation | `OpenAIProgram(run, task="math", roles={"writer": 1})`; `--program` |
| Agents | see `roles` |
| Observation | the messages and tools of the request |
| Action | the reply |
| Reward | `credit="team"`: the score of the answer, to every call |
| End | when the program ends, or at a limit |

`run` is the name of a function (`module:solve`, `path/to/file.py:solve`), a function, or a command
(`node agent.js`). The function is `solve(problem, base_url, api_key) -> answer`, optionally async,
and may leave out the last arguments; a parameter with a default keeps it, unless it is named
`base_url`, `api_key` or `key`. A command gets the problem on standard input and prints its answer.
Named functions and commands find the door in `OPENAI_BASE_URL` and `OPENAI_API_KEY`.

A named function runs in a new process for each episode, a fork in which its module is executed
anew: clients in globals, event loops and threads end with the episode. Of what all episodes print
the first 5 lines are logged. Installed packages other than the program's own are imported once,
without the key of a run. A function object runs in a thread of this process, where episodes
share its globals.

Of other variables a command inherits paths, locale, proxies and the like (`INHERITED` in
`flowzoo/sandbox/children.py`) and the names in `env`; a function can read all. What a command has
started ends with it, and where the kernel allows namespaces of processes it sees no process of
other commands, whose keys are in their environments. The task parses the answer like a reply; a
text that it cannot parse is the answer itself.

Requests that are open at the same time form a phase: when `at_once` of them are open, or none has
arrived for `settle` seconds. Within a phase they are sorted by role, agent and text, so timing does
not affect the order. A request may name an agent (`generator_2`) or a role; a role means its agent
with the fewest turns.

A run of the program must be a function of the problem and the replies. To continue a copy of an
episode, the program is run again with the same replies; if its requests then differ,
`DivergedError` is raised.

## Arguments
| name | default | meaning |
|---|---|---|
| `roles` | `ROLES` of the function's module | agents by role: a mapping, or `generator:3,aggregator` |
| `at_once` | the number of agents | number of open requests that start a phase immediately; 1 for a program that waits for every reply |
| `settle` | 0.25 | seconds without a new request |
| `max_calls` | 1000 | most requests; then the program is stopped |
| `seconds` | 120 | most seconds of a run, not counting waits for replies |
| `request_bytes` | 4,194,304 | most bytes of a request |
| `max_open` | 512; named functions: 128; commands: 32 | most programs that run at the same time |
| `env` | none | environment variables that a command gets too: `HF_TOKEN,MY_SETTING` |
| `strict` | false | true: a field of a request that would have no effect is refused |
| `repeatable` | true | false: the same replies may lead to other requests; then only plain rollouts work, not copies of episodes |

A request is a turn even if its client disconnects. If the client had not read its whole reply, or
its stream's finish reason, an equal request is the same turn; so is one that the official client
says to be the next try of the only equal one. Of two with an `Idempotency-Key` the keys decide.
`repeated` counts such requests, `unread` turns whose reply was not read to its end. Other equal
requests are different turns, and one with `n` is as many.

A program that fails ends its episode without an answer. Facts in `info` at the end: `ended`
(`answer`, `crash`, `timeout`, `calls`, `output`: more than 1 MiB, of a function 32 MiB, `refusals`:
100, `threads`: 1,024 functions of earlier episodes still run), `reason`, `failed`, `refused` (number
of requests that were answered with an error), `refusal` (code of the last), `unread`, `repeated` and
`uncalled` (number of replies without a tool call where `tool_choice` required one).

## Version history
* v0: first version.
"""  # noqa: E501 - rows of tables

import hashlib
import os
import shlex
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from flowzoo.envs.door.fork_server import is_installed
from flowzoo.envs.door.wire import chat_messages
from flowzoo.envs.script import (
    NO_COUNTS,
    Advance,
    AgentProgram,
    Ask,
    Exchange,
    Outcome,
    ProgramEnd,
    ProgramReply,
    ProgramRequest,
    Reply,
    Script,
    course_digest,
    spot_digest,
)
from flowzoo.envs.settings import check_number, check_whole
from flowzoo.envs.tasks import make_task
from flowzoo.envs.tasks.task import Problem
from flowzoo.envs.tools import before_calls
from flowzoo.envs.workflow import Roles, Workflow
from flowzoo.errors import UsageError, need_module
from flowzoo.functions import FunctionSetting
from flowzoo.permission import PERMISSION
from flowzoo.seeding import key_digest

MOST_RUNS, MOST_FORKS, MOST_PROCESSES = 512, 128, 32
"""Most programs at the same time: function objects (threads), named functions (forks, of 14 MiB
with a client of OpenAI's package 3.54) and commands."""
RoleCounts = Mapping[str, int] | Sequence[str] | str


@dataclass(frozen=True, init=False)
class OpenAIProgram(Workflow):
    """An agent program as a workflow; see the module's page.

    Raises:
        UsageError: `run` is neither a function nor a command, a role is missing, or a number is out
            of range.
    """

    name: ClassVar[str] = "openai_program_v0"
    counts_replies: ClassVar[bool] = True

    run: Callable[..., Any] | tuple[str, ...] = field(kw_only=True)
    roles: RoleCounts = field(default=(), kw_only=True)  # type: ignore[misc, assignment]
    at_once: int | None = field(default=None, kw_only=True)
    settle: float = field(default=0.25, kw_only=True)
    seconds: float = field(default=120.0, kw_only=True)
    request_bytes: int = field(default=2**22, kw_only=True)
    max_open: int | None = field(default=None, kw_only=True)
    repeatable: bool = field(default=True, kw_only=True)
    env: str | Sequence[str] = field(default=(), kw_only=True)
    strict: bool = field(default=False, kw_only=True)

    def __init__(self, run: Any, task: Any = "math", **settings: Any) -> None:
        """Make the workflow.

        Args:
            run: the program; see the module's page.
            task: a task, or the name of one.
            settings: arguments on the module's page and of every workflow.
        """
        values = {item.name: item.default for item in fields(self)}
        unknown = sorted(settings.keys() - values.keys())
        if unknown:
            raise UsageError(f"{self.name} has no argument {', '.join(unknown)}.")
        values |= {**settings, "run": run, "task": make_task(task)}
        for name, value in values.items():
            object.__setattr__(self, name, value)
        self.__post_init__()

    def __post_init__(self) -> None:
        object.__setattr__(self, "run", read_program(self.run))
        function = self.run.function if isinstance(self.run, FunctionSetting) else self.run
        beside = sys.modules.get(getattr(function, "__module__", ""))
        roles = self.roles or getattr(beside, "ROLES", ())
        object.__setattr__(self, "roles", read_roles(roles))
        for module in ("uvicorn", "httptools"):
            need_module(module, "an agent program")
        object.__setattr__(self, "env", read_variables(self.env, self.run))
        super().__post_init__()
        check_number("seconds", self.seconds, 0.001)
        check_number("settle", self.settle, 0, 60)
        check_whole("request_bytes", self.request_bytes, 1)
        if not isinstance(self.strict, bool):
            raise UsageError(f"strict: expected true or false, got {self.strict!r:.80}")
        for name in ("at_once", "max_open"):
            if getattr(self, name) is not None:
                check_whole(name, getattr(self, name), 1)

    @property
    def functions(self) -> Mapping[str, str]:
        return {**super().functions, **program_files(self.run)}

    @property
    def tool_roles(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(self.role_counts())

    def role_counts(self) -> Roles:
        return dict(self.roles)  # type: ignore[arg-type] # pairs after `__init__`

    @property
    def replayable(self) -> bool:  # type: ignore[override]
        return self.repeatable

    @cached_property
    def open_limit(self) -> int:  # type: ignore[override]
        usual = MOST_FORKS if isinstance(self.run, FunctionSetting) else MOST_RUNS
        return self.max_open or (MOST_PROCESSES if isinstance(self.run, tuple) else usual)

    @cached_property
    def spec(self) -> Mapping[str, Any]:
        # The number of concurrent programs does not affect episodes. Without `env` and `strict`,
        # hashes are the ones from before these settings.
        later = {name for name in ("env", "strict") if not getattr(self, name)}
        spec = super().spec.items()
        return {name: value for name, value in spec if name not in {"max_open", *later}}

    @cached_property
    def program(self) -> AgentProgram:
        """The program with its limits."""
        return AgentProgram(
            run=self.run,
            models=tuple(dict.fromkeys((*self.role_counts(), *self.agents))),
            at_once=self.at_once or len(self.agents),
            settle=float(self.settle),
            calls=self.call_limit,
            seconds=float(self.seconds),
            request_bytes=self.request_bytes,
            max_open=self.open_limit,
            repeatable=self.repeatable,
            variables=tuple(self.env),
            strict=self.strict,
        )

    def play(self, problem: Problem) -> Script:
        question, counts = self.task.prompt(problem), Counter[str]()
        spot = key = key_digest(self.name, problem.id, question)
        history, uncalled = tuple[Exchange, ...](), 0
        while True:
            progress = yield Advance(self.program, question, history, spot, key)
            if progress.end is not None:
                return self._outcome(progress.end, uncalled)
            phase = self.assigned(progress.requests, counts)
            counts.update(agent for agent, _ in phase)
            replies = yield [asked(agent, request) for agent, request in phase]
            exchange = Exchange(
                tuple(request for _, request in phase), tuple(map(program_reply, replies))
            )
            uncalled += sum(
                request.needs_call and not reply.tool_calls
                for (_, request), reply in zip(phase, replies, strict=True)
            )
            spot = spot_digest(key, progress)
            key, history = course_digest(spot, exchange), (*history, exchange)

    def assigned(
        self, requests: Sequence[ProgramRequest], counts: Mapping[str, int]
    ) -> list[tuple[str, ProgramRequest]]:
        """Agents with their requests in a phase, in order of `agents`; `counts` are earlier turns.

        A request stays open for the next phase if all its agents already have one.
        """
        phase: dict[str, ProgramRequest] = {}
        for request in requests:
            if request.model in self.agents:
                phase.setdefault(request.model, request)
        for request in requests:
            free = [
                (counts.get(agent, 0), number, agent)
                for agent, (role, number) in self.agents.items()
                if role == request.model and agent not in phase
            ]
            if free and request.model not in self.agents:
                phase[min(free)[2]] = request
        return [(agent, phase[agent]) for agent in self.agents if agent in phase]

    def _outcome(self, end: ProgramEnd, uncalled: int) -> Outcome:
        answer = end.answer
        if answer is not None:
            readable = self.task.answer(answer)
            answer = answer.strip() if readable is None else readable
        facts = {
            "ended": end.status,
            "reason": end.reason,
            "failed": end.status != "answer",
            "refused": end.refused,
            "refusal": end.refusal,
            "unread": end.unread,
            "repeated": end.repeated,
            "uncalled": uncalled,
        }
        return Outcome(answer=answer, facts=facts)


class ProgramFunction(FunctionSetting):
    """A named function of a program, whose module may make OpenAI clients without a key."""

    __slots__ = ("modules",)

    def __init__(self, setting: str, name: str) -> None:
        """Load the function, here for its roles and parameters: forks run it."""
        names = set(sys.modules)
        own_key = os.environ.get("OPENAI_API_KEY")
        os.environ.setdefault("OPENAI_API_KEY", "flowzoo")
        try:
            super().__init__(setting, name)
        finally:
            if own_key is None:
                os.environ.pop("OPENAI_API_KEY", None)
        self.modules = tuple(
            name
            for name, module in [*sys.modules.items()]
            if name not in names and is_installed(module)
        )


def read_program(run: object) -> Any:
    """Read the program in a setting: a function, its name, or a command with its arguments.

    Raises:
        UsageError: it is neither, the function cannot be loaded or the command does not exist.
    """
    if callable(run):
        return run
    command = run
    if isinstance(run, str):
        where, colon, name = run.rpartition(":")
        is_module = where.endswith(".py") or all(map(str.isidentifier, where.split(".")))
        if colon and name.isidentifier() and is_module:
            return ProgramFunction("program", run)
        PERMISSION.check(run)
        try:
            command = tuple(shlex.split(run))
        except ValueError as error:
            raise UsageError(f"program {run!r}: {error}.") from None
    if (
        not isinstance(command, tuple)
        or not command
        or not all(isinstance(word, str) for word in command)
    ):
        raise UsageError(
            "a program is a function, its name (module:function or path/to/file.py:function) or a "
            f"command, got {run!r:.80}."
        )
    if shutil.which(command[0]) is None:
        raise UsageError(f"program {' '.join(command)!r}: command {command[0]!r} does not exist.")
    return command


def read_roles(roles: Any) -> tuple[tuple[str, int], ...]:
    """Read agents by role as pairs, also from a text like `generator:3,aggregator`.

    Raises:
        UsageError: there are no roles, or a name or number is invalid.
    """
    if isinstance(roles, str):
        parts = [part.strip().partition(":") for part in roles.split(",")]
        pairs = [(name, int(count) if count.isdigit() else count or 1) for name, _, count in parts]
    elif isinstance(roles, Mapping):
        pairs = list(roles.items())
    else:
        pairs = [role if isinstance(role, tuple) else (role, 1) for role in roles]
    if not pairs:
        raise UsageError(
            "name the roles of the program (the models of its requests) with the number of agents: "
            '--options roles=generator:3,aggregator, or ROLES = {"generator": 3} in the module '
            "of the function."
        )
    names = [name for name, _ in pairs]
    for name, count in pairs:
        if not isinstance(name, str) or not name:
            raise UsageError(f"roles: expected the name of a role, got {name!r}.")
        if names.count(name) > 1:
            raise UsageError(f"roles give {name!r} twice.")
        check_whole(f"roles: the number of {name}", count, 1)
    return tuple(pairs)


def read_variables(names: str | Sequence[str], run: object) -> tuple[str, ...]:
    """Read names of environment variables, also from a text like `HF_TOKEN,MY_SETTING`.

    Raises:
        UsageError: a variable is not set, or the program is a function.
    """
    parts = names if isinstance(names, (list, tuple)) else str(names).split(",")
    variables = tuple(part.strip() for part in parts)
    if variables and not isinstance(run, tuple):
        raise UsageError(
            f"env={','.join(variables)} is for commands: a function reads all variables. "
            "Leave it out."
        )
    for name in variables:
        if name not in os.environ:
            raise UsageError(
                f"env: expected names of environment variables that are set, got {name!r}: set it, "
                "or leave it out."
            )
    return variables


def program_files(run: object) -> dict[str, str]:
    """Digests of the files of a program, by name."""
    if isinstance(run, FunctionSetting):
        return {f"program={run.name}": run.digest}
    files = [Path(word) for word in run] if isinstance(run, tuple) else []
    return {
        f"program: {file}": hashlib.sha256(file.read_bytes()).hexdigest()
        for file in files
        if file.is_file()
    }


def asked(agent: str, request: ProgramRequest) -> Ask:
    """Convert a request to an ask."""
    messages = chat_messages(request.messages)
    return Ask(agent, messages, tools=request.tools, max_tool_calls=request.most_calls)


def program_reply(reply: Reply) -> ProgramReply:
    """Convert a reply to a program's format; unreadable calls stay text."""
    counts, calls = reply.counts or NO_COUNTS, reply.tool_calls
    return ProgramReply(before_calls(reply.text) if calls else reply.text, counts, calls)
