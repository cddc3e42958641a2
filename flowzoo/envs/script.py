"""Items that a workflow script may yield, and their results."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from flowzoo.envs.tools import Tool, ToolCall, ToolSource, before_calls
from flowzoo.sandbox.program import Limits, Test

# Items are NamedTuples: immutable, and five times cheaper to make than frozen dataclasses.

Message = dict[str, Any]
"""A chat message: `{"role": "system" | "user" | "assistant" | "tool", "content": text}`.

Calls of an assistant's message are in `tool_calls`; the result of one has `tool_call_id`, `name`.
"""

Responder = Callable[[str, list[Message]], str]
"""A callable that answers for a role: `(role, messages) -> reply`."""


class ReplyCounts(NamedTuple):
    """Why a reply ended, and its tokens as its policy counted them."""

    finish: str = "stop"
    """`length`: it was cut off."""
    prompt_tokens: int = 0
    """0 where the policy counts no tokens."""
    output_tokens: int = 0


NO_COUNTS = ReplyCounts()


class CountedReply(str):
    """The text of a reply with its counts, which a log keeps with it."""

    counts: ReplyCounts

    def __new__(cls, text: str, counts: ReplyCounts = NO_COUNTS) -> CountedReply:
        """Make it of a text."""
        reply = super().__new__(cls, text)
        reply.counts = counts
        return reply


class Reply(NamedTuple):
    """The reply of an agent, read with the ask's two parsers.

    Thoughts (text in `<think>` tags, closed or not) are no part of `text`, unless the
    workflow was told to show them; the parsers never see them.

    `strict` and `lenient` are None where the reply could not be read; an ask without a parser
    reads as its whole text. `call` is the index of the call in the episode.
    """

    call: int
    agent: str
    text: str
    strict: Any
    lenient: Any
    counts: ReplyCounts | None = None
    """Only for workflows that ask for it: see `Workflow.counts_replies`."""
    tool_calls: tuple[ToolCall, ...] = ()
    """Calls of the ask's tools. `strict` and `lenient` are these calls where there are any."""
    fault: str = ""
    """Reason why the calls of an unreadable reply cannot be read."""

    def message(self) -> Message:
        """The reply as a message of a chat, with its calls in place of their text."""
        if not self.tool_calls:
            return {"role": "assistant", "content": self.text}
        calls = [call.plain() for call in self.tool_calls]
        return {"role": "assistant", "content": before_calls(self.text), "tool_calls": calls}


class Ask(NamedTuple):
    """One turn of one agent.

    `messages` is the chat the agent sees (a string means one user message). `parse` turns
    the reply into a value or None (unreadable); `lenient` is the forgiving variant that some
    published systems use (default: the same as `parse`). Both are logged, whichever one rules.
    """

    agent: str
    messages: Sequence[Message] | str
    parse: Callable[[str], Any] | None = None
    lenient: Callable[[str], Any] | None = None
    tools: Sequence[Tool] = ()
    """Tools that the reply may call, for roles in `Workflow.tool_roles`."""
    max_tool_calls: int = 1
    """Most calls of the reply."""


class Graded(NamedTuple):
    """Result of a `Grade`: score in [0, 1], a status code of the task's grader, named parts.

    The status SE, with a score of NaN, says that the sandbox could not judge the answer.
    `parts` says what a score is made of where the task has more to say than right or wrong.
    """

    score: float
    status: str
    parts: tuple[tuple[str, float], ...] = ()


class Grade(NamedTuple):
    """Ask the task's grader whether `answer` is right. Result: `Graded`.

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
    """Run an untrusted program in the sandbox. Result: `Ran`.

    With `tests`, each is one run, and all of them are made. Without, the program is run once on
    `stdin`, and its `entry` is ignored (a program that only defines a function ends at once).
    `limits` None takes the task's.
    """

    source: str
    tests: tuple[Test, ...] = ()
    entry: str | None = None
    """Function that call tests and check tests call; None: the program reads stdin and prints."""
    stdin: str = ""
    limits: Limits | None = None


class RanCase(NamedTuple):
    """Result of one run, without measurements, which differ from run to run."""

    status: str
    """`AC`, or why not: WA, RE, TLE, MLE, OLE, CE (see `flowzoo.sandbox.program.Status`)."""
    output: str
    """Printed text, or the repr of the returned value; cut if it is long."""
    detail: str
    """The exception's last line, the exit code, the signal …"""


class Ran(NamedTuple):
    """Result of a `Run`."""

    status: str
    """`AC` if every test passed (without tests: if the program ended well), else the status of
    the first case that is not; SE: the sandbox could not run it."""
    cases: tuple[RanCase, ...]

    @property
    def output(self) -> str:
        """Output of the first case."""
        return self.cases[0].output if self.cases else ""

    @property
    def passed(self) -> int:
        """Number of cases that passed."""
        return sum(case.status == "AC" for case in self.cases)


class Passage(NamedTuple):
    """A passage that a search found; `score` is the retriever's, higher is better."""

    id: str
    text: str
    score: float


class Found(NamedTuple):
    """Result of a `Search`: the passages, best first; fewer than asked for if no more match."""

    passages: tuple[Passage, ...]


class Search(NamedTuple):
    """Ask the task's retriever for the `k` best passages for `query`. Result: `Found`."""

    query: str
    k: int = 3


class UseTool(NamedTuple):
    """Have `source` compute the result of a tool call. Result: `ToolResult`."""

    call: ToolCall
    source: ToolSource


class ToolResult(NamedTuple):
    """Result of a `UseTool`."""

    text: str


JUDGE = "judge"
"""Name by which a policy map, a command line and requests call the policy that judges."""


class Judge(NamedTuple):
    """Ask a judge, a policy that is never trained, about the reply `of`. Result: `Judged`.

    The judge sees the problem, the reply's text in a fence, the question and the scale.
    """

    of: Reply
    question: str
    scale: tuple[float, float] = (0.0, 1.0)
    """The lowest and the highest number that the judge may give."""
    name: str = ""
    """Name of the criterion in records."""


class Judged(NamedTuple):
    """Result of a `Judge`."""

    score: float | None
    """0 to 1, from the lowest to the highest number of the scale; None: the judge's reply could
    not be read, which is never a 0."""
    text: str
    """The judge's whole reply."""


class RoleScore(NamedTuple):
    """Record that `of` did its own job to the degree `value` (0 to 1). Result: None.

    Team reward hides who was right ("generator reward" is not generator accuracy); role
    scores never do. They feed `info`, local credit and diagnostics, and must not steer the script.
    `form` (0 to 1) says to what degree the reply had the form asked for, where there is more to
    say than whether it could be read (None): a program may be there and not run.
    """

    of: Reply
    value: float
    form: float | None = None


class InterimScore(NamedTuple):
    """Record what the episode would score if it ended here (0 to 1). Result: None.

    It holds until another is recorded. Tree sampling takes it for the team's immediate reward; like
    a role score it must not steer the script, and it pays nothing by itself.
    """

    score: float


class Payoffs(NamedTuple):
    """Rewards that an external environment paid its agents, in place of role scores.

    An agent's return is the reward part `local` of all its calls.
    """

    returns: Mapping[str, float]
    """Agent -> its return."""
    rewards: tuple[float, ...]
    """By call: what its agent was paid from then until its next call. Summed over the calls of an
    agent they are its return, less its pay before the first."""


class Outcome(NamedTuple):
    """The end of an episode: either `score` (0 to 1), or `answer`, which is then graded."""

    answer: str | None = None
    score: float | None = None
    facts: Mapping[str, Any] = MappingProxyType({})
    payoffs: Payoffs | None = None


class AgentProgram(NamedTuple):
    """A program that asks its agents by an OpenAI client, and the limits of one run of it."""

    run: Any
    """A function `(problem, base_url, api_key) -> answer`, perhaps async, or a tuple of words: a
    command that gets `OPENAI_BASE_URL`, `OPENAI_API_KEY` and the problem on standard input, and
    prints its answer."""
    models: tuple[str, ...]
    """Names that the field `model` of a request may have."""
    at_once: int
    """Number of open requests that are a phase at once."""
    settle: float
    """Seconds without a new request after which the open ones are a phase."""
    calls: int
    """Most requests of a run."""
    seconds: float
    """Most seconds of a run, without its waiting for replies."""
    request_bytes: int
    """Most bytes of a request's body."""
    most_open: int
    """Most runs that wait for replies at the same time."""
    repeatable: bool
    """True if a further run with the same replies asks the same."""


class ProgramRequest(NamedTuple):
    """The part of a request that a reply can depend on."""

    model: str
    messages: tuple[tuple[str, ...], ...]
    """Role and content of every message; where it has calls of tools, or is the result of one, then
    also the JSON of what it has more."""
    stop: tuple[str, ...] = ()
    """Texts before which the program wants a reply to end."""
    tools: tuple[Tool, ...] = ()
    """Tools that the reply may call."""
    most_calls: int = 1
    """Most calls of the reply."""
    needs_call: bool = False
    """True if the program wants a call. No reply is forced."""


class ProgramReply(NamedTuple):
    """The reply to a request of an agent program."""

    text: str
    """Text of the reply; before its calls if it has any."""
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
    """`answer`, or why there is none: crash, timeout, calls, output, refusals, threads."""
    reason: str = ""
    """Text for people: the error, the exit status …"""
    refused: int = 0
    """Number of requests that were answered with an error."""
    refusal: str = ""
    """Code of the last of these errors."""
    unread: int = 0
    """Number of turns whose reply the program did not wait for, or did not read to its end."""


class Progress(NamedTuple):
    """Result of an `Advance`: all open requests of the program in canonical order, or its end."""

    requests: tuple[ProgramRequest, ...]
    end: ProgramEnd | None = None


class Advance(NamedTuple):
    """Let an agent program run on until it waits for replies, or ends. Result: `Progress`.

    The result is a function of `program`, `question` and `history`. A run that waits with this
    history goes on; without one the program is run again, with the replies of the history.
    """

    program: AgentProgram
    question: str
    """The problem as the program gets it."""
    history: tuple[Exchange, ...]
    spot: bytes
    """Digest of `history` without its last replies; see `course_digest`."""
    key: bytes
    """Digest of the question and `history`."""


Effect = Grade | EquivalenceClasses | Run | Search | UseTool | Judge | Advance
EffectResult = Graded | tuple[int, ...] | Ran | Found | ToolResult | Judged | Progress
RESULTS: Mapping[type, type] = MappingProxyType(
    {
        Grade: Graded,
        EquivalenceClasses: tuple,
        Run: Ran,
        Search: Found,
        UseTool: ToolResult,
        Judge: Judged,
        Advance: Progress,
    }
)
"""Every kind of effect, with the exact type of its result."""
Script = Generator[Any, Any, Outcome]
"""The type of `Workflow.play`; what may be yielded is checked by the episode, with good errors."""
