"""Prompts that fit a model's context, and the counts that local engines keep."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from flowzoo.agents.chat.shorten import shorten
from flowzoo.agents.chat.template import ChatTokenizer, fit_prompt
from flowzoo.agents.policy import Request, Sampling
from flowzoo.errors import UsageError

_log = logging.getLogger("flowzoo")


@dataclass(slots=True)
class EngineStats:
    """Statistics of an engine for one policy; all but `seconds` are counts."""

    requests: int = 0
    prompt_tokens: int = 0
    """Prompt tokens of all requests, shared ones counted each time."""
    read_tokens: int = 0
    """Prompt tokens the model read; equal prompts and prefixes are read once."""
    output_tokens: int = 0
    shortened: int = 0
    """Prompts that were over their budget and were shortened."""
    batches: int = 0
    """Batches formed here; vLLM forms its own and counts none."""
    seconds: float = 0.0
    """Time inside the model; 0 with vLLM, whose engine may serve several policies at once."""

    @property
    def cache_hits(self) -> float:
        """Share of the prompt tokens that was not read again; 0 before the first request."""
        return 1 - self.read_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


def check_context(context: int, sampling: Sampling) -> None:
    """Raise `UsageError` unless a reply leaves room for a prompt of at least one token."""
    if context <= sampling.max_tokens:
        raise UsageError(
            f"a context of {context} tokens leaves no room for a prompt beside a reply "
            f"of {sampling.max_tokens}; lower Sampling.max_tokens."
        )


class TokenizedPrompt(NamedTuple):
    """A prompt as the model reads it, and the number of tokens cut from it."""

    ids: tuple[int, ...]
    shortened: int


def fit(
    chat: ChatTokenizer, request: Request, ids: tuple[int, ...], budget: int
) -> TokenizedPrompt:
    """Return the prompt of `request` (`ids` in full) in at most `budget` tokens."""
    if len(ids) <= budget:
        return TokenizedPrompt(ids, 0)
    texts = shorten(
        request.messages,
        request.keep,
        request.quotes,
        lambda messages: len(chat.measure(messages)) <= budget,
    )
    fitted = fit_prompt(ids, budget) if texts is None else chat.measure(texts)
    return TokenizedPrompt(fitted, len(ids) - len(fitted))


def fitted_prompts(
    chat: ChatTokenizer,
    requests: Sequence[Request],
    budgets: Sequence[int],
    stats: EngineStats,
    name: str,
) -> list[TokenizedPrompt]:
    """Prompts of `requests` within their `budgets`; counts in `stats`, logs the first cut."""
    encoded = chat.encode([request.messages for request in requests])
    fitted_by_key: dict[tuple[object, ...], TokenizedPrompt] = {}
    prompts: list[TokenizedPrompt] = []
    for request, ids, budget in zip(requests, encoded, budgets, strict=True):
        if len(ids) <= budget:
            prompts.append(TokenizedPrompt(ids, 0))
            continue
        key = ids, budget, request.keep, request.quotes
        if key not in fitted_by_key:
            fitted_by_key[key] = fit(chat, request, ids, budget)
        prompts.append(fitted_by_key[key])
    long = [prompt for prompt in prompts if prompt.shortened]
    if long and not stats.shortened:
        _log.warning(
            "policy %s: a prompt of %d tokens was shortened to %d; stats.shortened counts such "
            "prompts",
            name,
            len(long[0].ids) + long[0].shortened,
            len(long[0].ids),
        )
    stats.shortened += len(long)
    stats.prompt_tokens += sum(len(prompt.ids) for prompt in prompts)
    return prompts
