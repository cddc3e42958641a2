"""Tokens, cost and latency of an evaluation by role, and the limits of what it may use."""

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from flowzoo.agents.evaluation.summary import critical_path
from flowzoo.agents.judge import JudgePolicy
from flowzoo.agents.openai.policy import OpenAIPolicy
from flowzoo.agents.policy import Completion, Policy, Request
from flowzoo.agents.policy_map import Lengths, PolicyMap
from flowzoo.envs import Call, EpisodeRecord
from flowzoo.envs.episode.turn import prompt_digest
from flowzoo.envs.script import JUDGE, Message
from flowzoo.errors import DataError, FlowzooError, UsageError, unknown
from flowzoo.files import read_toml

Seconds = Sequence[float | None]
"""Latency of every call of an episode, in their order; None: not measured."""


class BudgetError(FlowzooError, RuntimeError):
    """An evaluation has used what it may; what it has played is kept."""


class Price(NamedTuple):
    """Dollars per million tokens of a model."""

    model: str
    input: float
    """Price of prompts."""
    output: float
    """Price of replies."""

    def cost(self, prompt: int, output: int) -> float:
        """Dollars for these numbers of tokens."""
        return (prompt * self.input + output * self.output) / 1e6


def read_prices(path: Path) -> dict[str, Price]:
    """Prices by model, from a TOML file with a table `input` and `output` for each.

    Raises:
        DataError: the file is not TOML, or an entry is no such table.
        UsageError: the file cannot be read now.
    """
    return {model: _price(model, row, path) for model, row in read_toml(path).items()}


def _price(model: str, row: object, path: Path) -> Price:
    values = row if isinstance(row, dict) else {}
    numbers = [
        float(value) for value in values.values()
        if type(value) in (int, float) and 0 <= value < math.inf
    ]  # fmt: skip
    if values.keys() != {"input", "output"} or len(numbers) < 2:
        raise DataError(
            f'`{model}` in {path} must be the dollars per million tokens, e.g. "{model}" = '
            f"{{ input = 0.15, output = 0.6 }}, got {row!r}"
        )
    return Price(model, float(values["input"]), float(values["output"]))


def prices_by_policy(policy_map: PolicyMap, prices: Mapping[str, Price]) -> dict[str, Price]:
    """The price of every policy that samples from a model, by the policy's name.

    A model is looked up by its name at its endpoint, or by the policy's name (`hf:PATH`).

    Raises:
        UsageError: a model has no price.
    """
    by_policy: dict[str, Price] = {}
    for name, policy in policy_map.policies.items():
        if getattr(policy, "sampling", None) is None:
            continue
        model = getattr(policy, "model", name)
        price = prices.get(model) or prices.get(name)
        if price is None:
            raise unknown("model in the price file", model, prices)
        by_policy[name] = price
    return by_policy


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits of an evaluation; None: no limit.

    Raises:
        UsageError: a limit that is not above 0.
    """

    cost: float | None = None
    """Dollars."""
    tokens: int | None = None
    """Tokens of prompts and replies together."""

    def __post_init__(self) -> None:
        for option, limit in (("--max-cost", self.cost), ("--max-tokens-total", self.tokens)):
            if limit is not None and not 0 < limit < math.inf:
                raise UsageError(f"{option} must be above 0, got {limit}")


@dataclass(slots=True)
class Meter:
    """Counts what the evaluations of a command use while played, and stops them at its budget."""

    prices: Mapping[str, Price] = field(default_factory=dict)
    """Price by policy."""
    budget: Budget = field(default_factory=Budget)
    tokens: int = 0
    cost: float = 0.0
    """Dollars."""
    before: tuple[int, float] = (0, 0.0)
    """Tokens and cost of evaluations that are over."""
    calls: set[asyncio.Future[list[Completion]]] = field(default_factory=set)
    """Calls of policies that are under way."""
    _seconds: dict[tuple[Any, ...], float | None] = field(default_factory=dict)
    _verdicts: dict[str, tuple[str, Completion]] = field(default_factory=dict)

    def successor(self) -> "Meter":
        """The meter of the command's next evaluation."""
        return Meter(budget=self.budget, before=(self.tokens, self.cost))

    def watch(self, policy_map: PolicyMap, records: Sequence[EpisodeRecord]) -> PolicyMap:
        """`policy_map` with policies that count here, beginning with the calls of `records`.

        Raises:
            UsageError: there is a budget, and tokens of earlier verdicts are not known.
        """
        judge = policy_map.judge
        self.tokens, self.cost = self.before
        self._verdicts.clear()
        for record in records:
            for call in record.calls:
                self._count(call.policy, call)
        if judge is not None and getattr(judge, "sampling", None) is not None:
            self._count_earlier_verdicts(judge, records, policy_map.lengths(JUDGE))
        watched: dict[str, Policy] = {}
        for name, policy in policy_map.policies.items():
            unpaid = policy is judge and getattr(policy, "sampling", None) is None
            watched[name] = policy if unpaid else MeteredPolicy(policy, self)
            if isinstance(policy, OpenAIPolicy):  # which holds requests back by itself
                policy.check_budget = self.check
        return policy_map.with_policies(watched)

    def check(self) -> None:
        """Raise `BudgetError` if nothing more may be asked."""
        cost, tokens = self.budget.cost, self.budget.tokens
        used = ""
        if cost is not None and self.cost >= cost:
            used = f"cost ${self.cost:,.4f} of --max-cost {cost:g}"
        elif tokens is not None and self.tokens >= tokens:
            used = f"used {self.tokens:,} tokens of --max-tokens-total {tokens:,}"
        if used:
            raise BudgetError(f"the evaluation has {used}: raise it to play on")

    def add(self, policy: str, request: Request, reply: Completion) -> None:
        """Count a reply.

        Raises:
            UsageError: there is a budget, and the policy does not count its tokens.
        """
        if request.key[0] == JUDGE:
            self._add_verdict(policy, request.messages, reply)
            return
        _, problem, sample, agent, turn = request.key[:5]
        self._seconds[f"{problem}#{sample}", agent, turn] = reply.seconds
        self._count(policy, reply)

    def seconds(self, record: EpisodeRecord) -> list[float | None]:
        """Latencies of the calls of a finished episode, which the meter then forgets."""
        keys = [(record.episode, call.agent, call.turn) for call in record.calls]
        return [self._seconds.pop(key, None) for key in keys]

    def judge_usage(self) -> dict[str, Any] | None:
        """Usage of the judge, with equal questions counted once; None: no model judged."""
        if not self._verdicts:
            return None
        verdicts = list(self._verdicts.values())
        policy, replies = verdicts[0][0], [reply for _, reply in verdicts]
        usage: dict[str, Any] = {"calls": len(replies), **_tokens(replies)}
        if policy in self.prices:
            usage["cost"] = _cost_at(self.prices[policy], replies)
        return usage

    def _count_earlier_verdicts(
        self, judge: Policy, records: Sequence[EpisodeRecord], lengths: Lengths
    ) -> None:
        chats = [verdict.messages for record in records for verdict in record.judgments]
        replies: Sequence[Completion | None] = [None] * len(chats)
        if isinstance(judge, JudgePolicy):
            replies = judge.earlier_replies(chats, lengths.prompt, lengths.reply)
        for chat, reply in zip(chats, replies, strict=True):
            if reply is not None:
                self._add_verdict(judge.name, chat, reply)
            elif self.budget != Budget():
                raise UsageError(
                    "the tokens of the judge's earlier verdicts are not in its cache any more, so "
                    "the evaluation cannot keep a budget: leave out --max-cost and "
                    "--max-tokens-total, or choose another --out"
                )

    def _add_verdict(self, policy: str, chat: Sequence[Message], reply: Completion) -> None:
        # A judge is asked once about the same content, by this command or by an earlier one.
        key = prompt_digest(chat).hex()
        if key not in self._verdicts:
            self._verdicts[key] = policy, reply
            self._count(policy, reply)

    def _count(self, policy: str, reply: Call | Completion) -> None:
        prompt, output = reply.prompt_tokens, reply.output_tokens
        if prompt is None or output is None:
            if self.budget != Budget() and reply.finish != "scripted":
                raise UsageError(
                    f"policy {policy!r} does not count tokens, so the evaluation cannot keep a "
                    "budget: leave out --max-cost and --max-tokens-total"
                )
            return
        self.tokens += prompt + output
        if policy in self.prices:
            self.cost += self.prices[policy].cost(prompt, output)


class MeteredPolicy:
    """A policy whose replies a meter counts."""

    def __init__(self, policy: Policy, meter: Meter) -> None:
        self._policy, self._meter = policy, meter
        self.name, self.batching = policy.name, policy.batching

    async def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Answer `requests`, in their order, unless the budget is used up."""
        meter = self._meter
        try:
            meter.check()
            call = asyncio.ensure_future(self._policy.generate(requests))
            meter.calls.add(call)
            call.add_done_callback(meter.calls.discard)
            replies = await call
        except BudgetError:
            # Requests that were sent are paid for: their replies are waited for, and saved.
            if meter.calls:
                await asyncio.wait(meter.calls)
            raise
        for request, reply in zip(requests, replies, strict=False):
            meter.add(self.name, request, reply)
        return replies

    async def close(self) -> None:
        """Close the policy."""
        await self._policy.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._policy, name)


# -- the summary -----------------------------------------------------------------------------------


def usage_summary(
    records: Sequence[EpisodeRecord],
    seconds: Mapping[str, Seconds],
    prices: Mapping[str, Price],
    judge: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Sums over all calls, and over the calls of every role.

    Args:
        records: the episodes.
        seconds: latencies of their calls, by episode.
        prices: price by policy; empty: no costs.
        judge: usage of the judge, whose replies are no calls (`Meter.judge_usage`).

    Returns:
        `calls`; `prompt_tokens`, `output_tokens` and, with prices, `cost` in dollars (None: not
        all of them were counted); `latency` of the calls that were measured, `median` and `p95` in
        seconds (None: none were); `critical_path`, the same of an episode's critical path, over the
        episodes whose calls were all measured; `roles` with the same of every role; `prices` by
        policy; and `judge`, whose cost is part of the whole.
    """
    timed = [
        (record.calls, seconds.get(record.episode, [None] * len(record.calls)))
        for record in records
    ]
    pairs = [pair for calls, latencies in timed for pair in zip(calls, latencies, strict=True)]
    roles = sorted({call.role for call, _ in pairs})
    by_role = {role: [pair for pair in pairs if pair[0].role == role] for role in roles}
    whole = _usage_of(pairs, prices)
    whole["critical_path"] = _quantiles([critical_path(*episode) for episode in timed])
    if judge is not None:
        whole["judge"] = dict(judge)
        if "cost" in judge:
            costs = whole["cost"], judge["cost"]
            whole["cost"] = None if None in costs else sum(costs)
    return {
        **whole,
        "roles": {role: _usage_of(calls, prices) for role, calls in by_role.items()},
        "prices": {policy: price._asdict() for policy, price in prices.items()},
    }


def _usage_of(
    pairs: Sequence[tuple[Call, float | None]], prices: Mapping[str, Price]
) -> dict[str, Any]:
    calls = [call for call, _ in pairs if call.finish != "scripted"]
    usage: dict[str, Any] = {
        "calls": len(pairs),
        **_tokens(calls),
        "latency": _quantiles([second for _, second in pairs]),
    }
    if prices:
        usage["cost"] = _cost(calls, prices)
    return usage


def _quantiles(seconds: Seconds) -> dict[str, float] | None:
    measured = [second for second in seconds if second is not None]
    if not measured:
        return None
    middle, high = np.quantile(measured, (0.5, 0.95))
    return {"median": float(middle), "p95": float(high)}


def _tokens(replies: Sequence[Call | Completion]) -> dict[str, int | None]:
    sums: dict[str, int | None] = {}
    for name in ("prompt_tokens", "output_tokens"):
        counts = [getattr(reply, name) for reply in replies]
        sums[name] = sum(counts) if counts and None not in counts else None
    return sums


def _cost(calls: Sequence[Call], prices: Mapping[str, Price]) -> float | None:
    # Sums of tokens are exact, so the cost does not depend on the order of the episodes.
    by_policy = {name: [call for call in calls if call.policy == name] for name in prices}
    costs = [_cost_at(prices[name], replies) for name, replies in by_policy.items() if replies]
    sums = [cost for cost in costs if cost is not None]
    return sum(sums, 0.0) if len(sums) == len(costs) else None


def _cost_at(price: Price, replies: Sequence[Call | Completion]) -> float | None:
    prompt, output = _tokens(replies).values()
    return None if prompt is None or output is None else price.cost(prompt, output)
