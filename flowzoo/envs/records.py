"""Plain records that rollouts write and training, diagnostics and reports read."""

import json
import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NamedTuple

from flowzoo.envs.script import Message, TokenSpan, Writer
from flowzoo.errors import UsageError, check_choice
from flowzoo.provenance import redact_json

FinishReason = Literal["stop", "length", "scripted"]


class Usage(NamedTuple):
    """Token counts of a server; None: not given."""

    prompt: int | None = None
    output: int | None = None


class SampledReply(str):
    """A reply with data of its sampler, for `env.step` in place of a plain str.

        env.step(SampledReply(text, policy="generator", prompt_ids=..., output_ids=..., logps=...))

    It is a str and passes through every wrapper. Its data are stored in the call in `env.record()`,
    on which flowzoo's learner trains.

    Raises:
        UsageError: log-probabilities and output tokens differ in number, a token is not an integer,
            or a log-probability is above 0 or not finite.
    """

    policy: str
    prompt_ids: list[int]
    output_ids: list[int]
    logps: list[float]
    finish: FinishReason
    version: int | None
    writers: tuple[TokenSpan, ...]

    def __new__(
        cls,
        text: str,
        *,
        policy: str = "",
        prompt_ids: Iterable[int] = (),
        output_ids: Iterable[int] = (),
        logps: Iterable[float] = (),
        finish: FinishReason = "stop",
        version: int | None = None,
        writers: Iterable[tuple[Writer, int]] = (),
    ) -> "SampledReply":
        """Make a reply; one-dimensional arrays and tensors are accepted.

        Args:
            text: the reply.
            policy: name of the policy that sampled it; the learner of that name trains on it.
            prompt_ids: token ids of the prompt, as the model saw it.
            output_ids: sampled token ids, the end-of-turn token included when it was sampled.
            logps: natural-log probability of each output token under the distribution it was
                sampled from.
            finish: `stop`, or `length` for a reply that was cut off.
            version: optimizer steps of the weights that sampled it, if known.
            writers: writers of the tokens of the prompt in order, each with their number.
        """
        check_choice("finish", finish, FinishReason)
        reply = super().__new__(cls, text)
        reply.policy, reply.finish, reply.version = policy, finish, version
        reply.writers = tuple(TokenSpan(*span) for span in writers)
        try:
            reply.prompt_ids = [operator.index(token) for token in prompt_ids]
            reply.output_ids = [operator.index(token) for token in output_ids]
            reply.logps = [float(logp) for logp in logps]
        except TypeError as error:
            raise UsageError(f"token ids must be integers and log-probs numbers: {error}") from None
        if len(reply.logps) != len(reply.output_ids):
            raise UsageError(
                f"a reply needs one log-prob for each output token, got {len(reply.logps)} for "
                f"{len(reply.output_ids)}"
            )
        wrong = [logp for logp in reply.logps if not -math.inf < logp <= 1e-3]
        if wrong:
            raise UsageError(f"log-probs must be finite and at most 0, got {wrong[0]}")
        return reply

    def engine(self) -> dict[str, Any]:
        """Fields of `Call`."""
        return dict(vars(self))


@dataclass(frozen=True, slots=True)
class Call:
    """One reply of one agent: one training row."""

    problem: str
    """Id of the problem, unique over tasks, splits and seeds."""
    episode: str
    """Id of the episode, unique within a batch of rollouts."""
    agent: str
    role: str
    slot: int
    """Position within the phase, from 0."""
    turn: int
    """Number of earlier asks of this agent in this episode."""
    phase: int
    """Index of the phase in the episode; a single ask is a phase too."""
    messages: tuple[Message, ...]
    reply: str
    strict: bool
    """True if the strict parser could read the reply; always True without a parser."""
    lenient: bool
    role_score: float | None
    """Quality of the reply at its role's job, in [0, 1]; None: not recorded."""
    parts: Mapping[str, float]
    """Reward parts before weighting: `team`, `local` and `format`."""
    reward: float
    """Reward of this call under the environment's credit rule."""
    state_hash: str
    """Hash of all replies and results before this call's phase."""
    prompts: str
    """Version and hash of the workflow's prompt texts."""
    policy: str = ""
    prompt_ids: Sequence[int] = ()
    output_ids: Sequence[int] = ()
    """Sampled tokens, the end-of-turn token included when it was sampled; never pads."""
    logps: Sequence[float] = ()
    """Log-probability of each output token under the distribution it was sampled from."""
    finish: FinishReason = "stop"
    shortened: int = 0
    """Parts cut from a prompt over its budget; see `Completion.shortened`."""
    immediate: float = 0.0
    """The part of `reward` that this call earned by itself, without the team's share. With an
    external environment: the agent's rewards between this call and its next."""
    name: str = ""
    """Trajectory name of this call, for groups as in the published code of arXiv:2605.24202."""
    node: str = ""
    """Tree sampling: id of the decision with this reply as a candidate."""
    candidate: int = 0
    """Tree sampling: index among the decision's candidates."""
    executed: bool = True
    """True if the episode continued from this reply; False for a candidate that was only valued."""
    version: int | None = None
    """Number of optimizer steps of the weights that sampled it, as synced to a vLLM engine. None:
    the learner's own module, a frozen policy or an untrained one."""
    value: float | None = None
    """Tree sampling: value of the candidate; None if it was not valued."""
    share: float | None = None
    """The team's share of `reward`, if it is not `reward` minus `immediate`: with per-step rewards
    of an environment, `reward` is the whole return and `immediate` the part of a step."""
    abstained: bool = False
    """True if the reply could not be read and does not share the team's outcome (strict preset)."""
    usage: Usage | None = None
    """Token counts of an endpoint. None: not given, or the token ids are known."""
    tools: tuple[dict[str, Any], ...] = ()
    """Tools that the reply could call, in the format of chat templates."""
    fault: str = ""
    """Reason why the tool calls of an unreadable reply cannot be read."""
    writers: Sequence[TokenSpan] = ()
    """Writers of the tokens of the prompt, in order; empty: unknown. Output tokens are sampled."""

    def to_json(self) -> dict[str, Any]:
        """A dict of the fields, like that of `asdict`.

        Token ids and log-probs are not copied: the copies of `asdict` took longer than the writing.
        """
        row = call_values(self)
        row["messages"] = tuple(dict(message) for message in self.messages)
        for name in ("tools", "fault", "writers"):  # many calls have none
            if not row[name]:
                del row[name]
        row["parts"] = dict(self.parts)
        row["usage"] = None if self.usage is None else self.usage._asdict()
        return row

    @property
    def prompt_tokens(self) -> int | None:
        """Tokens of the prompt; None: not counted."""
        return len(self.prompt_ids) or (self.usage.prompt if self.usage else None)

    @property
    def output_tokens(self) -> int | None:
        """Tokens of the reply; None: not counted."""
        return len(self.output_ids) or (self.usage.output if self.usage else None)

    @property
    def team_share(self) -> float:
        """The part of `reward` that is the team's outcome, counted once per agent."""
        return self.reward - self.immediate if self.share is None else self.share


class Judgment(NamedTuple):
    """A judge's verdict on one reply."""

    call: int
    """Index of the judged reply among the episode's calls."""
    name: str
    """Name of the criterion; may be empty."""
    messages: tuple[Message, ...]
    """The judge's chat, with question and scale."""
    reply: str
    score: float | None
    """0 to 1; None: the reply could not be read."""
    truth: float | None
    """Role score of the judged reply; None: not recorded."""


@dataclass(frozen=True, slots=True)
class EpisodeRecord:
    """A finished episode."""

    workflow: str
    task: str
    problem: str
    episode: str
    text: str
    gold: str
    score: float
    answer: str | None
    truncated: bool
    """True if `max_cycles` cut the episode off; its score is that of no answer."""
    facts: Mapping[str, Any]
    returns: Mapping[str, float]
    """Return by agent in the AEC environment."""
    calls: tuple[Call, ...] = field(default=())
    judgments: tuple[Judgment, ...] = ()
    """Verdicts of judges, in the order of the questions."""
    level: int | str | None = None
    """Level of the problem, `meta["level"]`; None: the task has no levels."""
    pay: Mapping[str, float] = field(default_factory=dict)
    """Pay by agent, where every agent has its own: the returns of `Payoffs`, or the mean role
    score of an agent in an episode that neither grades an answer nor may run a program. Empty:
    role scores are truth."""

    def to_json(self) -> dict[str, Any]:
        """A dict of plain values for one JSONL line."""
        row = call_values(self)
        row["facts"] = asdict(_Facts(dict(self.facts)))["values"]
        row["returns"] = dict(self.returns)
        row["calls"] = tuple(call.to_json() for call in self.calls)
        row["judgments"] = [judgment._asdict() for judgment in self.judgments]
        row["pay"] = dict(self.pay)
        for name in ("judgments", "pay"):  # most workflows ask no judge, and pay no agent
            if not row[name]:
                del row[name]
        return row


_IDS = {"prompt_ids", "output_ids"}


def call_values(call: Call | EpisodeRecord) -> dict[str, Any]:
    """The fields of a call or a record."""
    return {name: getattr(call, name) for name in call.__slots__}


def json_line(row: dict[str, Any]) -> str:
    """A line of JSON without the values of secret variables.

    In calls with such a value, token ids become 0.

    Args:
        row: a new row of `to_json`, or any other.
    """
    line = json.dumps(row)
    if redact_json(line) == line:
        return line + "\n"
    for call in row.get("calls", [row]):
        text = json.dumps(call)
        if redact_json(text) != text:
            call.update({name: [0] * len(call[name]) for name in _IDS & call.keys()})
    return redact_json(json.dumps(row)) + "\n"


@dataclass(frozen=True, slots=True)
class _Facts:
    """Facts, for `asdict`, which copies them and makes plain values of dataclasses in them."""

    values: dict[str, Any]
