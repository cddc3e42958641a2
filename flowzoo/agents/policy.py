"""Policies: the protocol that every engine implements, and its requests and replies.

Everything random about a completion is a function of `Request.key`, never of the batch that it
happened to share, so an episode can be replayed alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, runtime_checkable

from flowzoo.declared import NonNegative, Positive, Share, check_declared
from flowzoo.envs.records import FinishReason, Usage
from flowzoo.envs.script import Message, SampledRow, TokenSpan
from flowzoo.envs.tools import Tool
from flowzoo.errors import UsageError

Batching = Literal["static", "stream"]
Key = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling parameters of a policy; a request may tighten the lengths."""

    temperature: NonNegative[float] = 1.0
    """Divides the logits; 0 means greedy decoding."""
    top_p: Share = 1.0
    """Smallest set of tokens whose probability reaches this; 1 keeps all."""
    top_k: NonNegative[int] = 0
    """Number of most likely tokens kept; 0 keeps all."""
    max_tokens: Positive[int] = 256
    """Most tokens in one reply, the end-of-turn token included."""

    def __post_init__(self) -> None:
        check_declared(self)


class EarlierTurn(NamedTuple):
    """An answered turn whose chat, with the reply, is the beginning of a later chat."""

    messages: Sequence[Message]
    row: SampledRow


@dataclass(frozen=True, slots=True)
class Request:
    """One question to a policy."""

    key: Key
    """Names this call, e.g. (seed, problem, episode, agent, turn, candidate): the key of its
    randomness and its place in the canonical order of a batch."""
    agent: str
    role: str
    messages: Sequence[Message]
    problem: str = ""
    """A reference (`Problem.id`), never the gold answer; only scripted policies resolve it."""
    max_tokens: int | None = None
    """A tighter cap on the reply than the policy's own; a looser one has no effect."""
    max_prompt: int | None = None
    """Most tokens of the prompt; None: what the context leaves beside the reply."""
    keep: str = ""
    """The problem's text, as in `messages`: the last part that a long prompt loses."""
    quotes: tuple[str, ...] = ()
    """Texts that `messages` may quote: the first parts that a long prompt loses."""
    tools: tuple[Tool, ...] = ()
    """Tools that the reply may call."""
    earlier: EarlierTurn | None = None
    """The agent's newest turn that `messages` go on from."""


@dataclass(frozen=True, slots=True)
class Completion:
    """One reply. An engine that sees no tokens (scripts, most endpoints) leaves the ids empty."""

    text: str
    """The whole reply. Thoughts are in `<think>` tags, the opening one included if the prompt
    ended with it; a truncated thought is not closed. Calls of tools are in the one notation of
    `flowzoo.envs.tools`."""
    prompt_ids: Sequence[int] = ()
    output_ids: Sequence[int] = ()
    """Sampled tokens, the end-of-turn token included when it was sampled; never pads."""
    logps: Sequence[float] = ()
    """Natural-log probability of each output token under the distribution it was sampled from."""
    finish: FinishReason = "stop"
    version: int | None = None
    """Optimizer steps behind the weights that sampled it; None: unknown to the engine."""
    shortened: int = 0
    """Tokens cut from a prompt that was over its budget (characters, for an endpoint that reports
    no token ids)."""
    writers: Sequence[TokenSpan] = ()
    """Writers of the tokens of the prompt, in order; empty: unknown."""
    usage: Usage | None = None
    """Tokens as a server counted them that sent no ids."""
    seconds: float | None = None
    """Latency of an endpoint, from the request that it answered to the end of its answer; None: not
    measured. It is no part of records."""

    @property
    def prompt_tokens(self) -> int | None:
        """Tokens of the prompt; None: not counted."""
        return len(self.prompt_ids) or (self.usage.prompt if self.usage else None)

    @property
    def output_tokens(self) -> int | None:
        """Tokens of the reply; None: not counted."""
        return len(self.output_ids) or (self.usage.output if self.usage else None)


@runtime_checkable
class Policy(Protocol):
    """An engine under a name. Model output never raises; a broken engine does."""

    @property
    def name(self) -> str:
        """Identifies the policy in policy maps, records and metrics."""

    @property
    def batching(self) -> Batching:
        """`static`: the rollout forms large batches; `stream`: requests are sent as they come."""

    async def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Answer `requests`, in their order."""

    async def close(self) -> None:
        """Release connections and threads; calling it twice is harmless."""


def canonical(key: Key) -> tuple[tuple[bool, str | int], ...]:
    """A sort key that orders request keys of mixed strings and integers (integers first)."""
    return tuple((isinstance(part, str), part) for part in key)


def reply_cap(request: Request, sampling: Sampling) -> int:
    """Most tokens `request` may be answered with."""
    if request.max_tokens is None:
        return sampling.max_tokens
    if request.max_tokens < 1:
        raise UsageError(f"Request.max_tokens must be at least 1, got {request.max_tokens}.")
    return min(request.max_tokens, sampling.max_tokens)


def prompt_budget(request: Request, sampling: Sampling, context: int) -> int:
    """Most tokens the prompt of `request` may have where prompt and reply share `context`."""
    room = context - reply_cap(request, sampling)
    if request.max_prompt is None:
        return room
    if request.max_prompt < 1:
        raise UsageError(f"Request.max_prompt must be at least 1, got {request.max_prompt}.")
    return min(request.max_prompt, room)
