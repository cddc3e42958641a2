"""Replies from any endpoint that speaks OpenAI's chat-completions protocol.

The API key is read from the environment when a request is sent, is kept in no attribute, and is cut
out of every error text.
"""

from __future__ import annotations

import asyncio
import email.utils
import logging
import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from flowzoo.agents.chat.prompts import Span, cut, shorten
from flowzoo.agents.policy import Batching, Completion, Request, Sampling, reply_cap
from flowzoo.envs.records import FinishReason, Usage
from flowzoo.envs.script import Message
from flowzoo.envs.text import encodable
from flowzoo.errors import FlowzooError, UsageError, missing_extra
from flowzoo.seeding import key_int, key_rng

_LENGTH = re.compile(
    r"context[ _]length|context window|maximum context|maximum (?:model )?(?:input )?length"
    r"|prompt is too long|too many (?:input )?tokens",
    re.IGNORECASE,
)
_LEAST = 64
"""Characters to which no prompt is shortened: a server that refuses fewer means something else."""


def whole_text(message: Mapping[str, Any], cut_off: bool, thinking: bool | None) -> str:
    """Text of a message, with its thoughts in `<think>` tags."""
    # Servers that part thoughts from the rest send them as `reasoning` or `reasoning_content`. One
    # that does not, and whose chat template opens the thought, sends a text whose first tag is the
    # closing one; if thoughts were asked for and the reply was cut off, that tag is missing too.
    content = message.get("content")
    thoughts = message.get("reasoning") or message.get("reasoning_content")
    for name, value in (("content", content), ("reasoning", thoughts)):
        if not isinstance(value, (str, type(None))):
            raise TypeError(f"message.{name} is {type(value).__name__}, expected text")
    text = content or ""
    if thoughts:
        closing = "" if cut_off and not text else "</think>"
        return f"<think>{thoughts}{closing}{text}"
    opened = cut_off and thinking and "think>" not in text
    return f"<think>{text}" if opened else text


def read_usage(body: Mapping[str, Any]) -> Usage | None:
    """Token counts in a server's answer; None for values that are not counts."""
    usage = body.get("usage")
    if not isinstance(usage, Mapping):
        return None
    counts = [
        count if type(count) is int and count >= 0 else None
        for count in (usage.get("prompt_tokens"), usage.get("completion_tokens"))
    ]
    return None if counts == [None, None] else Usage(*counts)


def read_completion(body: Any, thinking: bool | None = None) -> Completion:
    """The completion in a server's answer; another layout raises a builtin error."""
    # vLLM's server adds `prompt_token_ids` and `token_ids` on request.
    choice = body["choices"][0]
    tokens = (choice.get("logprobs") or {}).get("content") or ()
    finish: FinishReason = "length" if choice.get("finish_reason") == "length" else "stop"
    return Completion(
        text=whole_text(choice["message"], finish == "length", thinking),
        prompt_ids=tuple(body.get("prompt_token_ids") or ()),
        output_ids=tuple(choice.get("token_ids") or ()),
        logps=tuple(float(token["logprob"]) for token in tokens),
        finish=finish,
        usage=read_usage(body),
    )


def was_filtered(body: Any) -> bool:
    """Return True if the server cut the reply for its content."""
    return body["choices"][0].get("finish_reason") == "content_filter"


def refused_for_length(status: int, message: str) -> bool:
    """Return True if a server refused a prompt because it is too long for the model."""
    return status in (400, 413, 422) and _LENGTH.search(message) is not None


def size(messages: Sequence[Message]) -> int:
    """Characters of a chat."""
    return sum(len(message["content"]) for message in messages)


def shorter(request: Request, messages: Sequence[Message]) -> tuple[Sequence[Message], int] | None:
    """The prompt of `request` in three quarters of the characters of `messages`, its last form.

    Returns:
        The messages, and how many characters the original has more; None if there is nothing left.
    """
    # An endpoint does not say how long a prompt is before it refuses one. If shortening quotes is
    # not enough, every message loses its middle.
    budget = size(messages) * 3 // 4
    if budget < _LEAST:
        return None
    texts = shorten(request.messages, request.keep, request.quotes, lambda m: size(m) <= budget)
    if texts is None:
        spans = [
            Span(number, 0, len(message["content"]), False)
            for number, message in enumerate(messages)
        ]
        texts = cut(messages, spans, budget // len(messages) // 2)
        if size(texts) >= size(messages):
            return None
    return texts, size(request.messages) - size(texts)


class EndpointError(FlowzooError, RuntimeError):
    """An endpoint failed for good: the message names URL, status and the server's text."""


@dataclass(slots=True)
class EndpointStats:
    """Statistics of an endpoint; token counts as the server reports them."""

    requests: int = 0
    retries: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    filtered: int = 0
    """Replies that the server cut for their content."""
    shortened: int = 0
    """Prompts that were shortened because the server refused their length."""


def retry_after(header: str | None, now: float) -> float:
    """Seconds that a `Retry-After` header (a number or an HTTP date) asks to wait."""
    if header is None:
        return 0.0
    try:
        seconds = float(header)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(header).timestamp() - now
        except ValueError:
            return 0.0
    return seconds if 0.0 < seconds < float("inf") else 0.0


def chat_url(base_url: str) -> str:
    """The chat-completions URL below `base_url`."""
    # A password or a query would end up in logs and records.
    try:
        parts = urlsplit(base_url)
        valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # of urlsplit, and of a port that is no number
        parts, valid = urlsplit(""), False
    if not valid:
        raise UsageError(
            f"expected an endpoint URL such as http://localhost:8000/v1, got {base_url!r}."
        )
    if parts.username or parts.password or parts.query:
        raise UsageError(
            "the endpoint URL must hold no user, password or query (they would be recorded); "
            "put the key into the environment variable named by api_key_env."
        )
    return base_url.rstrip("/") + "/chat/completions"


def api_key(variable: str) -> str:
    """The key in the environment variable `variable`, or an empty string."""
    key = os.environ.get(variable, "").strip()
    if not (key.isascii() and key.isprintable()):
        raise UsageError(f"the key in {variable} holds characters other than printable ASCII.")
    return key


def import_httpx() -> Any:
    """The module `httpx`."""
    try:
        import httpx
    except ImportError as error:
        raise missing_extra("httpx", "openai", "the endpoint policy") from error
    return httpx


if TYPE_CHECKING:
    import httpx

_log = logging.getLogger("flowzoo")
# Overload and server errors, which are tried again.
_RETRIED = frozenset({408, 409, 425, 429, 500, 502, 503, 504})
_LONGEST_WAIT = 300.0
_TOO_LONG = -2.0


class OpenAIPolicy:
    """A model behind a chat-completions endpoint.

    Optional parameters that a server refuses by name (log-probabilities, the seed) are left out
    from then on, which is logged once; servers that want `max_completion_tokens` get it.
    """

    batching: Batching = "stream"
    counts_tokens = False
    """False: only the server counts tokens, so prompt budgets are refused."""

    def __init__(
        self,
        model: str,
        base_url: str,
        *,
        api_key_env: str = "OPENAI_API_KEY",
        name: str | None = None,
        sampling: Sampling | None = None,
        max_concurrency: int = 64,
        timeout_s: float = 120.0,
        retries: int = 6,
        logprobs: bool = True,
        template_kwargs: Mapping[str, Any] | None = None,
        thinking: bool | None = None,
        extra_body: Mapping[str, Any] | None = None,
    ) -> None:
        """Describe the endpoint; nothing is sent yet.

        Args:
            model: the model's name at the endpoint.
            base_url: up to and including the version, e.g. `http://localhost:8000/v1`.
            api_key_env: environment variable that holds the key; without it no key is sent.
            name: name of the policy in policy maps and records; default `model`.
            sampling: temperature and lengths; default `Sampling()`.
            max_concurrency: most requests under way at once.
            timeout_s: seconds one attempt may take.
            retries: attempts after the first.
            logprobs: ask for the log-probabilities of the sampled tokens.
            template_kwargs: variables of the chat template (`chat_template_kwargs`, which vLLM and
                SGLang understand).
            thinking: the template's `enable_thinking`; None: the server's default.
            extra_body: further fields of the request body, as the server understands them.

        Raises:
            UsageError: a URL that is not http(s) or holds a password, or a number out of range.
            MissingExtraError: httpx is not installed.
        """
        self._url = chat_url(base_url)
        if max_concurrency < 1 or retries < 0 or not timeout_s > 0:
            raise UsageError(
                f"expected max_concurrency >= 1, retries >= 0 and timeout_s > 0, got "
                f"{max_concurrency}, {retries} and {timeout_s}."
            )
        self.model = model
        self.name = name or model
        self.sampling = sampling or Sampling()
        self.stats = EndpointStats()
        self._key_env = api_key_env
        self._concurrency, self._timeout, self._retries = max_concurrency, timeout_s, retries
        self._extra = dict(extra_body or {})
        self.thinking = thinking
        variables = dict(template_kwargs or {})
        if thinking is not None:
            variables["enable_thinking"] = thinking
        if variables:
            self._extra["chat_template_kwargs"] = variables
        self._logged = 0
        """Attempts whose failure was logged since the last answer."""
        self._optional = {"seed"} | ({"logprobs"} if logprobs else set())
        self._cap_field = "max_tokens"
        self._client: httpx.AsyncClient | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._httpx = import_httpx()

    async def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Answer `requests`, in their order. The first failure cancels the others.

        Raises:
            EndpointError: the server refused a request, or failed after all retries.
            UsageError: a request's token cap is below 1.
        """
        client, slots = self._connect()
        tasks = [asyncio.create_task(self._answer(client, slots, item)) for item in requests]
        try:
            return list(await asyncio.gather(*tasks))
        except BaseException:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise

    async def close(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client is not None and self._loop is asyncio.get_running_loop():
            await client.aclose()

    def _connect(self) -> tuple[httpx.AsyncClient, asyncio.Semaphore]:
        # Connections belong to an event loop.
        loop = asyncio.get_running_loop()
        client = self._client
        if client is None or self._loop is not loop:
            limits = self._httpx.Limits(max_connections=self._concurrency)
            client = self._httpx.AsyncClient(timeout=self._timeout, limits=limits)
            self._client, self._loop = client, loop
            self._slots = asyncio.Semaphore(self._concurrency)
        return client, self._slots

    def _body(self, request: Request, messages: Sequence[Message]) -> dict[str, Any]:
        sampling = self.sampling
        optional = {"seed": key_int("endpoint", *request.key) % 2**31, "logprobs": True}
        return {
            "model": self.model,
            "messages": [
                {**message, "content": encodable(message["content"])} for message in messages
            ],
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            self._cap_field: reply_cap(request, sampling),
            **({"top_k": sampling.top_k} if sampling.top_k else {}),
            **{name: optional[name] for name in sorted(self._optional)},
            **self._extra,
        }

    async def _answer(
        self, client: httpx.AsyncClient, slots: asyncio.Semaphore, request: Request
    ) -> Completion:
        # The wait between attempts frees the slot.
        if request.max_prompt is not None:
            raise UsageError(
                f"policy {self.name!r} sends text and cannot count tokens, so the prompt budget of "
                f"{request.agent} has no effect: leave it out, or use vllm:PATH@URL."
            )
        attempt = 0
        messages, removed = request.messages, 0
        while True:
            async with slots:
                outcome, wait = await self._attempt(client, self._body(request, messages))
            if isinstance(outcome, Completion):
                self.stats.requests += 1
                self._logged = 0
                self.stats.shortened += removed > 0
                return replace(outcome, shortened=removed)
            if wait == _TOO_LONG:
                texts = shorter(request, messages)
                if texts is not None:
                    messages, removed = texts
                    continue
                wait = None
            if wait is None or attempt >= self._retries or wait > _LONGEST_WAIT:
                tries = f" after {attempt + 1} attempts" if attempt else ""
                raise EndpointError(f"{self._url} failed{tries}: {outcome}")
            if wait >= 0:
                self._log_failure(attempt, str(outcome))
                backoff = min(0.5 * 2**attempt, 30.0)
                jitter = key_rng("backoff", attempt, *request.key).uniform(0.5, 1.0)
                await asyncio.sleep(max(wait, backoff * jitter))
                attempt += 1
                self.stats.retries += 1

    def _log_failure(self, attempt: int, problem: str) -> None:
        # Once per attempt, not once per request.
        if attempt >= self._logged:
            self._logged = attempt + 1
            _log.warning(
                "%s: %s; trying again (%d of %d)", self._url, problem, attempt + 1, self._retries
            )

    async def _attempt(
        self, client: httpx.AsyncClient, body: dict[str, Any]
    ) -> tuple[Completion | str, float | None]:
        """Send once.

        Returns:
            The completion; or the problem, with the seconds to wait at least before the next
            attempt (None: there is none; -1: the body was corrected; -2: the prompt is too long).
        """
        key = api_key(self._key_env)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        try:
            # The client's own time-out is per network operation: a trickling answer passes it.
            async with asyncio.timeout(self._timeout):
                reply = await client.post(self._url, json=body, headers=headers)
        except TimeoutError:
            return f"no answer within {self._timeout:g} s", 0.0
        except self._httpx.HTTPError as error:
            return self._redacted(f"{type(error).__name__}: {error}", key), 0.0
        if reply.status_code == 200:
            return self._read(reply, key)
        message = self._redacted(reply.text, key)
        problem = f"status {reply.status_code}: {message}"
        if reply.status_code in _RETRIED:
            return problem, retry_after(reply.headers.get("retry-after"), time.time())
        if refused_for_length(reply.status_code, message):
            return problem, _TOO_LONG
        if self._adapt(body, message):
            return problem, -1.0
        if reply.status_code in (401, 403):
            state = "is set" if key else "is not set"
            problem += f" (the key is read from {self._key_env}, which {state})"
        return problem, None

    def _read(self, reply: httpx.Response, key: str) -> tuple[Completion | str, float | None]:
        try:
            body = reply.json()
            completion = read_completion(body, self.thinking)
        except (KeyError, TypeError, IndexError, ValueError, AttributeError):
            return f"not a chat completion: {self._redacted(reply.text, key)}", None
        if completion.usage is not None:
            self.stats.prompt_tokens += completion.usage.prompt or 0
            self.stats.output_tokens += completion.usage.output or 0
        self.stats.filtered += was_filtered(body)
        return completion, None

    def _adapt(self, body: dict[str, Any], message: str) -> bool:
        fields = body.keys() - self._extra.keys()
        if "max_tokens" in fields and "max_completion_tokens" in message:
            self._cap_field = "max_completion_tokens"
            return True
        refused = {name for name in ("logprobs", "seed") if name in fields and name in message}
        for name in sorted(refused & self._optional):
            _log.warning("%s refuses the parameter %s; it is left out from now on", self._url, name)
        self._optional -= refused
        return bool(refused)

    @staticmethod
    def _redacted(text: str, key: str) -> str:
        clean = text.replace(key, "[redacted]") if key else text
        return clean if len(clean) <= 500 else f"{clean[:500]}…"

    def __repr__(self) -> str:
        # Never the key.
        return f"OpenAIPolicy({self.name!r}, model={self.model!r}, url={self._url!r})"
