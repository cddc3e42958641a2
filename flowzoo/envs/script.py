"""Items that a workflow script may yield, and their results."""

# Messages about wrong items show annotations as they are written here.
from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from flowzoo.aliases import T
from flowzoo.envs.tools import Tool, ToolCall, ToolSource, before_calls
from flowzoo.sandbox.program import Limits, Test
from flowzoo.seeding import key_digest

# Items are NamedTuples: immutable, and five times faster to create than frozen dataclasses.

Message = dict[str, Any]
"""A chat message: `{"role": "system" | "user" | "assistant" | "tool", "content": text}`.

Calls of an assistant's message are in `tool_calls`; the result of one has `tool_call_id`, `name`.
"""

CHAT_ROLES = frozenset({"system", "user", "assistant", "tool"})
"""Values of a message's `role`."""

Responder = Callable[[str, list[Message]], str]
"""A callable that plays a role: `(role, messages) -> reply`."""


class ReplyCounts(NamedTuple):
    """Finish reason of a reply, and its policy's token counts."""

    finish: str = "stop"
    """`length`: it was cut off."""
    prompt_tokens: int = 0
    """0 if the policy does not count tokens."""
    output_tokens: int = 0


NO_COUNTS = ReplyCounts()


Writer = Literal["template", "user", "sampled"]
"""Writer of a token: the chat template, an author of messages, or the model that sampled it."""


class TokenSpan(NamedTuple):
    """Neighboring tokens of one writer."""

    writer: Writer
    tokens: int


class SampledRow(NamedTuple):
    """Token ids of a prompt and of its reply, without the end of the turn."""

    prompt: Sequence[int]
    reply: Sequence[int]
    writers: Sequence[TokenSpan] = ()
    """Writers of the tokens of the prompt; empty: unknown."""


class CountedReply(str):
    """The text of a reply with its counts and token ids, kept in a log."""

    counts: ReplyCounts
    row: SampledRow | None
    """None if the ids are unknown, or the prompt was shortened."""

    def __new__(
        cls, text: str, counts: ReplyCounts = NO_COUNTS, row: SampledRow | None = None
    ) -> CountedReply:
        """Make a reply from a text."""
        reply = super().__new__(cls, text)
        reply.counts, reply.row = counts, row
        return reply


class Reply(NamedTuple):
    """The reply of an agent, read with the ask's two parsers.

    Thoughts (text in `<think>` tags, closed or not) are not part of `text` unless the workflow
    shows them; parsers never see them.

    `strict` and `lenient` are None if the reply could not be read; without a parser they are the
    whole text. `call` is the index of the call in the episode.
    """

    call: int
    agent: str
    text: str
    strict: Any
    lenient: Any
    counts: ReplyCounts | None = None
    """Only if `Workflow.counts_replies` is True."""
    tool_calls: tuple[ToolCall, ...] = ()
    """Calls of the ask's tools; if there are any, `strict` and `lenient` are these calls."""
    fault: str = ""
    """Reason why the calls of an unreadable reply cannot be read."""

    def __str__(self) -> str:
        """The text, as in a prompt."""
        return self.text

    def message(self) -> Message:
        """The reply as a chat message, with parsed calls instead of their text."""
        if not self.tool_calls:
            return {"role": "assistant", "content": self.text}
        calls = [call.plain() for call in self.tool_calls]
        return {"role": "assistant", "content": before_calls(self.text), "tool_calls": calls}


class Ask(NamedTuple):
    """One turn of one agent.

    `messages` is the chat the agent sees (a string means one user message). `parse` converts the
    reply to a value or None (unreadable); `lenient` is the lenient variant of some published
    systems (default: the same as `parse`). Both values are logged.
    """

    agent: str
    messages: Sequence[Message] | str
    parse: Callable[[str], Any] | None = None
    lenient: Callable[[str], Any] | None = None
    tools: Sequence[Tool] = ()
    """Tools that the reply may call, for roles in `Workflow.tool_roles`."""
    max_tool_calls: int = 1
    """Most calls of the reply."""


def refuse_truth(result: object) -> bool:
    """Refuse a result with a score as a condition, which would always hold."""
    raise TypeError(f"a {type(result).__name__} always holds as a condition: compare its score")


class GradeResult(NamedTuple):
    """Result of a `Grade`: score in [0, 1], a status code of the task's grader, named parts.

    An unknown status (`flowzoo.reward.unknown`) with a score of NaN means that the reference answer
    or the sandbox is at fault. `parts` are the components of a graded score.
    """

    score: float
    status: str
    parts: tuple[tuple[str, float], ...] = ()
    __bool__ = refuse_truth


class Grade(NamedTuple):
    """Grade `answer` with the task's grader. Result: `GradeResult`.

    With `of`, the score is also recorded as that reply's role score (see `RoleScore`).
    """

    answer: str | None
    of: Reply | None = None


class EquivalenceClasses(NamedTuple):
    """Ask the task which answers are equivalent.

    Result: a tuple of class ids, numbered from 0 in order of first appearance; -1 for None.
    """

    answers: tuple[str | None, ...]


class Run(NamedTuple):
    """Run an untrusted program in the sandbox. Result: `RunResult`.

    With `tests`, the program is run on each of them. Without, it is run once on
    `stdin`, and its `entry` is ignored (a program that only defines a function ends at once).
    `limits` None takes the task's.
    """

    source: str
    tests: tuple[Test, ...] = ()
    entry: str | None = None
    """Function that call tests and check tests call; None: the program reads stdin and prints."""
    stdin: str = ""
    limits: Limits | None = None


class RunCase(NamedTuple):
    """Result of one run, without measurements, which vary."""

    status: str
    """`AC` or a failure: WA, RE, TLE, MLE, OLE, CE (see `flowzoo.sandbox.program.Status`)."""
    output: str
    """Printed text, or the repr of the returned value; cut if it is long."""
    detail: str
    """The exception's last line, the exit code, the signal …"""


class RunResult(NamedTuple):
    """Result of a `Run`."""

    status: str
    """`AC` if every test passed (without tests: if the program ended normally), else the status of
    the first failed case; SE: the sandbox could not run it."""
    cases: tuple[RunCase, ...]

    @property
    def output(self) -> str:
        """Output of the first case."""
        return self.cases[0].output if self.cases else ""

    @property
    def passed(self) -> int:
        """Number of cases that passed."""
        return sum(case.status == "AC" for case in self.cases)


class Passage(NamedTuple):
    """A retrieved passage; `score` is the retriever's, higher is better."""

    id: str
    text: str
    score: float


class SearchResult(NamedTuple):
    """Result of a `Search`: at most `k` passages, best first."""

    passages: tuple[Passage, ...]


class Search(NamedTuple):
    """Ask the task's retriever for the `k` best passages for `query`. Result: `SearchResult`."""

    query: str
    k: int = 3


class UseTool(NamedTuple):
    """Compute the result of a tool call with `source`. Result: `ToolResult`."""

    call: ToolCall
    source: ToolSource
    caller: str = ""
    """Workflow and agent, for messages; the episode sets it."""


class ToolResult(NamedTuple):
    """Result of a `UseTool`."""

    text: str


JUDGE = "judge"
"""Name of the judging policy in policy maps, commands and requests."""


class Judge(NamedTuple):
    """Ask a judge, a policy that is never trained, about the reply `of`. Result: `JudgeResult`.

    The judge sees the problem, the reply's text in a fence, the question and the scale.
    """

    of: Reply
    question: str
    scale: tuple[float, float] = (0.0, 1.0)
    """The lowest and the highest number that the judge may give."""
    name: str = ""
    """Name of the criterion in records."""
    caller: str = ""
    """Workflow and agent, for messages; the episode sets it."""


class JudgeResult(NamedTuple):
    """Result of a `Judge`."""

    score: float | None
    """0 to 1, from the lowest to the highest number of the scale; None (never 0) if the judge's
    reply could not be read."""
    text: str
    """The judge's whole reply."""
    __bool__ = refuse_truth


class RoleScore(NamedTuple):
    """Record the quality `value` (0 to 1) of the reply `of` at its role's job. Result: None.

    A team reward does not show which role was right; a role score does. Role scores are used in
    `info`, local credit and diagnostics, and must not affect the script. `form` (0 to 1) is the
    quality of the reply's format if that is more than readable or not (None): a program may be
    readable and fail to run.
    """

    of: Reply
    value: float
    form: float | None = None


class InterimScore(NamedTuple):
    """Record the score of the episode if it ended now (0 to 1). Result: None.

    It is valid until the next one. Tree sampling uses it as the team's immediate reward; like a
    role score it must not affect the script, and it adds no reward by itself.
    """

    score: float


class Payoffs(NamedTuple):
    """Pay of every agent, in its own unit and of any sign, in place of role scores.

    An agent's return is the reward part `local` of all its calls.
    """

    returns: Mapping[str, float]
    """Return by agent."""
    rewards: tuple[float, ...] = ()
    """Rewards by call: the agent's rewards from this call to its next one. Their sum over an
    agent's calls is its return minus its rewards before the first call. Empty: every agent is
    paid with its last call."""


class Outcome(NamedTuple):
    """The end of an episode: `score`, or `answer`, which is then graded, or `payoffs`.

    The score of `payoffs` alone is the mean return of all agents. `score` is from 0 to 1, or in the
    workflow's `score_range`.
    """

    answer: str | None = None
    score: float | None = None
    facts: Mapping[str, Any] = MappingProxyType({})
    payoffs: Payoffs | None = None


class AgentProgram(NamedTuple):
    """A program that calls its agents with an OpenAI client, and the limits of a run."""

    run: Any
    """A function `(problem, base_url, api_key) -> answer`, optionally async, or a command as a
    tuple of its arguments. The command gets `OPENAI_BASE_URL`, `OPENAI_API_KEY` and the problem on
    standard input, and prints its answer."""
    models: tuple[str, ...]
    """Valid values of a request's field `model`."""
    at_once: int
    """Number of open requests that start a phase immediately."""
    settle: float
    """Seconds without a new request that start a phase."""
    calls: int
    """Most requests of a run."""
    seconds: float
    """Most seconds of a run, not counting waits for replies."""
    request_bytes: int
    """Most bytes of a request's body."""
    max_open: int
    """Most runs that wait for replies at the same time."""
    repeatable: bool
    """True if another run with the same replies sends the same requests."""
    variables: tuple[str, ...] = ()
    """Environment variables that a command gets beside the usual ones."""
    strict: bool = False
    """True if fields of requests that would have no effect are refused."""


class ProgramRequest(NamedTuple):
    """The fields of a request that can affect a reply."""

    model: str
    messages: tuple[tuple[str, ...], ...]
    """Role and content of every message; for a tool call or result, also the JSON of the further
    fields."""
    stop: tuple[str, ...] = ()
    """Stop texts of the reply."""
    tools: tuple[Tool, ...] = ()
    """Tools that the reply may call."""
    most_calls: int = 1
    """Most calls of the reply."""
    needs_call: bool = False
    """True if the program requires a call; replies are not forced to have one."""


class ProgramReply(NamedTuple):
    """The reply to a request of an agent program."""

    text: str
    """Text of the reply, up to its calls if it has any."""
    counts: ReplyCounts = NO_COUNTS
    calls: tuple[ToolCall, ...] = ()


class Exchange(NamedTuple):
    """Requests of an agent program that were open at the same time, with their replies."""

    requests: tuple[ProgramRequest, ...]
    replies: tuple[ProgramReply, ...]


class ProgramEnd(NamedTuple):
    """The end of an agent program."""

    answer: str | None
    status: str
    """`answer`, or the failure: crash, timeout, calls, output, refusals, threads."""
    reason: str = ""
    """Description: the error, the exit status …"""
    refused: int = 0
    """Number of requests that were answered with an error."""
    refusal: str = ""
    """Code of the last of these errors."""
    unread: int = 0
    """Number of turns whose reply the program did not wait for, or did not read to its end."""
    repeated: int = 0
    """Number of requests that were sent again and are no new turns."""


class Progress(NamedTuple):
    """Result of an `Advance`: all open requests of the program in canonical order, or its end."""

    requests: tuple[ProgramRequest, ...]
    end: ProgramEnd | None = None


class Advance(NamedTuple):
    """Run an agent program until it waits for replies or ends. Result: `Progress`.

    The result is a function of `program`, `question` and `history`. A parked run with this history
    is resumed; without one the program is run again with the replies of the history.
    """

    program: AgentProgram
    question: str
    """Text of the problem for the program."""
    history: tuple[Exchange, ...]
    spot: bytes
    """Digest of `history` without its last replies; see `course_digest`."""
    key: bytes
    """Digest of the question and `history`."""


def spot_digest(key: bytes, progress: Progress) -> bytes:
    """Digest of a program's requests after the course that `key` identifies."""
    return key_digest(key.hex(), repr(progress.requests))


def course_digest(spot: bytes, exchange: Exchange) -> bytes:
    """Digest of the course after one more exchange at `spot`."""
    return key_digest(spot.hex(), repr(exchange))


Effect = Grade | EquivalenceClasses | Run | Search | UseTool | Judge | Advance
EffectResult = (
    GradeResult | tuple[int, ...] | RunResult | SearchResult | ToolResult | JudgeResult | Progress
)
RESULTS: Mapping[type, type] = MappingProxyType(
    {
        Grade: GradeResult,
        EquivalenceClasses: tuple,
        Run: RunResult,
        Search: SearchResult,
        UseTool: ToolResult,
        Judge: JudgeResult,
        Advance: Progress,
    }
)
"""Type of the result by kind of effect."""
ScriptPart = Generator[Any, Any, T]
"""Part of a script that returns a T."""
Script = ScriptPart[Outcome]
"""Type of `Workflow.play`; the episode checks the yielded items."""
