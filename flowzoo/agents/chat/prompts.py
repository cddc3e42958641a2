"""Prompts within their budgets, and what policies with a chat template share."""

import copy
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, Self

from flowzoo.agents.chat.template import ChatTokenizer, TokenizedPrompt
from flowzoo.agents.policy import Completion, Request, Sampling, prompt_budget
from flowzoo.envs.script import Message
from flowzoo.errors import UsageError
from flowzoo.reward.visible import strip_thinking

MARK = " [...] "
"""Marks a cut."""

_LEAST = 24
"""Characters below which a text is not searched for: a short answer may occur anywhere."""


class Span(NamedTuple):
    """Characters `start` to `end` of a message that may be shortened; quotes go before the rest."""

    message: int
    start: int
    end: int
    quote: bool


def middle_out(text: str, cap: int) -> str:
    """The first and last characters of `text`, `cap` in all, with a mark between them."""
    # A text that the mark would not make shorter stays.
    if len(text) <= cap + len(MARK):
        return text
    head = (cap + 1) // 2
    return f"{text[:head]}{MARK}{text[len(text) - cap + head :]}"


def find_spans(messages: Sequence[Message], keep: str, quotes: Sequence[str]) -> list[Span]:
    """Spans of `messages` that may be shortened, in order: all but the first `keep`."""
    # A workflow marks no quotes: what the transcript holds is searched for, word for word.
    forms = {form.strip() for quote in quotes for form in (quote, strip_thinking(quote))}
    patterns = sorted((form for form in forms if len(form) >= _LEAST), key=lambda t: (-len(t), t))
    spans: list[Span] = []
    keep_found = not keep
    for number, message in enumerate(messages):
        text = message["content"]
        claimed: list[tuple[int, int, bool]] = []
        start_of_keep = -1 if keep_found else text.find(keep)
        if start_of_keep >= 0:
            keep_found = True
            claimed.append((start_of_keep, start_of_keep + len(keep), False))
        for form in patterns:
            start = text.find(form)
            while start >= 0:
                end = start + len(form)
                if all(end <= low or high <= start for low, high, _ in claimed):
                    claimed.append((start, end, True))
                start = text.find(form, end)
        spans += [Span(number, low, high, True) for low, high, quote in claimed if quote]
        edges = [(0, 0, False), *sorted(claimed), (len(text), len(text), False)]
        spans += [
            Span(number, left[1], right[0], False)
            for left, right in pairwise(edges)
            if right[0] - left[1] >= _LEAST
        ]
    return sorted(spans)


def cut(messages: Sequence[Message], spans: Sequence[Span], cap: int) -> list[Message]:
    """`messages` in which no span has more than `cap` characters (and the mark)."""
    texts = [message["content"] for message in messages]
    for number, start, end, _ in reversed(spans):  # from the back, so that offsets stay right
        text = texts[number]
        texts[number] = text[:start] + middle_out(text[start:end], cap) + text[end:]
    return [{**message, "content": text} for message, text in zip(messages, texts, strict=True)]


def shorten(
    messages: Sequence[Message],
    keep: str,
    quotes: Sequence[str],
    fits: Callable[[Sequence[Message]], bool],
) -> list[Message] | None:
    """`messages` made to fit by shortening all but `keep`; None where that is not enough."""
    # Quotes lose their middle beyond a cap, the largest that fits, so that long candidates give way
    # first and equals stay equal. Where that is not enough, everything but the problem falls under
    # the cap.
    spans = find_spans(messages, keep, quotes)
    for chosen in ([span for span in spans if span.quote], spans):
        best = cut(messages, chosen, 0)
        if not chosen or not fits(best):
            continue
        low, high = 0, max(span.end - span.start for span in chosen)
        while high - low > max(2, low // 64):
            cap = (low + high) // 2
            tried = cut(messages, chosen, cap)
            if fits(tried):
                low, best = cap, tried
            else:
                high = cap
        return best
    return None


_log = logging.getLogger("flowzoo")


@dataclass(slots=True)
class EngineStats:
    """Counts of an engine for one policy."""

    requests: int = 0
    prompt_tokens: int = 0
    """Prompt tokens of all requests, shared ones counted each time."""
    read_tokens: int = 0
    """Prompt tokens the model read; equal prompts and prefixes are read once."""
    output_tokens: int = 0
    shortened: int = 0
    """Prompts that were over their budget and were shortened."""

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


def fit(
    chat: ChatTokenizer, request: Request, prompt: TokenizedPrompt, budget: int
) -> TokenizedPrompt:
    """Return the prompt of `request` (`prompt` in full) in at most `budget` tokens."""
    texts = shorten(
        request.messages,
        request.keep,
        request.quotes,
        lambda messages: len(chat.measure(messages, request.tools).ids) <= budget,
    )
    fitted = prompt.cut(budget) if texts is None else chat.measure(texts, request.tools)
    return fitted._replace(shortened=len(prompt.ids) - len(fitted.ids))


def fitted_prompts(
    chat: ChatTokenizer,
    requests: Sequence[Request],
    budgets: Sequence[int],
    stats: EngineStats,
    name: str,
) -> list[TokenizedPrompt]:
    """Prompts of `requests` within their `budgets`; counts in `stats`, logs the first cut."""
    encoded = chat.encode(
        [request.messages for request in requests],
        [request.tools for request in requests],
        [request.earlier for request in requests],
    )
    fitted_by_key: dict[tuple[object, ...], TokenizedPrompt] = {}
    prompts: list[TokenizedPrompt] = []
    for request, prompt, budget in zip(requests, encoded, budgets, strict=True):
        if len(prompt.ids) <= budget:
            prompts.append(prompt)
            continue
        key = prompt.ids, budget, request.keep, request.quotes
        if key not in fitted_by_key:
            fitted_by_key[key] = fit(chat, request, prompt, budget)
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


class TemplatedPolicy:
    """A policy that renders prompts with a chat template, as one with a switch for thoughts."""

    name: str
    sampling: Sampling
    stats: EngineStats
    template_id: str
    thinking: bool | None
    _chat: ChatTokenizer

    def thinking_as(self, thinking: bool | None) -> Self:
        """The same policy, what it shares included, with another switch for thoughts."""
        other = copy.copy(self)
        other._chat, other.stats = self._chat.thinking_as(thinking), EngineStats()
        other.thinking, other.template_id = thinking, other._chat.template_id
        other.name = f"{self.name} (thinking: {thinking})"
        return other

    def _prompts(self, requests: Sequence[Request], context: int) -> list[TokenizedPrompt]:
        budgets = [prompt_budget(request, self.sampling, context) for request in requests]
        return fitted_prompts(self._chat, requests, budgets, self.stats, self.name)

    def _completion(
        self,
        request: Request,
        prompt: TokenizedPrompt,
        tokens: Sequence[int],
        logps: Sequence[float],
        stopped: bool,
        version: int | None = None,
    ) -> Completion:
        self.stats.requests += 1
        self.stats.output_tokens += len(tokens)
        body = tokens[:-1] if stopped else tokens
        return Completion(
            text=self._chat.decode(body, request.tools),
            prompt_ids=prompt.ids,
            output_ids=tuple(tokens),
            logps=tuple(logps),
            finish="stop" if stopped else "length",
            version=version,
            shortened=prompt.shortened,
            writers=prompt.writers,
        )
