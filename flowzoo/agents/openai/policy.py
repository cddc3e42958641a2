"""Replies from any endpoint that speaks OpenAI's chat-completions protocol.

The API key is read from the environment when a request is sent, is kept in no attribute, and is cut
out of every error text. Limits per minute are kept, and answers may be kept in a file.
"""

from __future__ import annotations

import asyncio
import email.utils
import json
import logging
import re
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from flowzoo.agents.answers import AnswerCache
from flowzoo.agents.chat.prompts import Span, cut, shorten
from flowzoo.agents.openai.endpoint import Endpoint, api_key, chat_url
from flowzoo.agents.policy import Batching, Completion, Request, Sampling, reply_cap
from flowzoo.envs.records import FinishReason, Usage
from flowzoo.envs.script import Message
from flowzoo.envs.text import encodable
from flowzoo.envs.tools import call_text
from flowzoo.errors import FlowzooError, UsageError, missing_extra
from flowzoo.seeding import key_int, key_rng

RequestBody: TypeAlias = dict[str, Any]
"""Body of a request, as the endpoint takes it."""
_SPAN = 60.0
"""Seconds."""


class Pace:
    """Requests and tokens of the last minute, and the time at which more may be sent.

    In no span of a minute are there more requests, or more tokens, than the limits. A request of
    more tokens than the limit is sent alone.
    """

    def __init__(self, requests: int, tokens: int) -> None:
        """Set the limits; 0: none."""
        self._most, self._most_tokens = requests, tokens
        self._sent: deque[list[float]] = deque()  # time and tokens of each request

    def delay(self, now: float, tokens: int) -> float:
        """Seconds until a request of `tokens` may be sent; 0: it may be sent `now`."""
        while self._sent and self._sent[0][0] <= now - _SPAN:
            self._sent.popleft()
        ends = float("-inf")
        if self._most and len(self._sent) >= self._most:
            ends = self._sent[-self._most][0]
        if self._most_tokens:
            total = tokens + sum(count for _, count in self._sent)
            for start, count in self._sent:
                if total <= self._most_tokens:
                    break
                total -= count
                ends = max(ends, start)
        return max(0.0, ends + _SPAN - now)

    def send(self, now: float, tokens: int) -> list[float]:
        """Count a request; its entry [time, tokens] takes the real number of tokens later."""
        entry = [now, float(tokens)]
        if self._most or self._most_tokens:
            self._sent.append(entry)
        return entry


_LENGTH = re.compile(  # of a prompt that is too long for the model
    r"context[ _]length|context window|maximum context|maximum (?:model )?(?:input )?length"
    r"|prompt is too long|too many (?:input )?tokens",
    re.IGNORECASE,
)


def message_texts(message: Mapping[str, Any]) -> tuple[str, str]:
    """Content and thoughts of a message; a refusal is its content."""
    # Servers that part thoughts from the rest send them as `reasoning`, `reasoning_content` or as
    # parts of the content.
    content = message.get("content")
    thoughts = message.get("reasoning") or message.get("reasoning_content")
    if isinstance(content, list):
        thoughts = thoughts or "".join(_texts(content, "thinking"))
        content = "".join(_texts(content, "text"))
    for name, value in (("content", content), ("reasoning", thoughts)):
        if not isinstance(value, (str, type(None))):
            raise TypeError(f"message.{name} is {type(value).__name__}, expected text")
    refusal = message.get("refusal")
    return content or (refusal if isinstance(refusal, str) else ""), thoughts or ""


def _texts(parts: list[Any], kind: str) -> list[str]:
    texts: list[str] = []
    for part in parts:
        if part["type"] == kind:
            value = part[kind]
            texts += _texts(value, "text") if isinstance(value, list) else [value]
    return texts


def whole_text(message: Mapping[str, object], cut_off: bool, thinking: bool | None) -> str:
    """Text of a message, with its thoughts in `<think>` tags."""
    # A server that does not part thoughts from the rest, and whose chat template opens the thought,
    # sends a text whose first tag is the closing one; if thoughts were asked for and the reply was
    # cut off, that tag is missing too.
    text, thoughts = message_texts(message)
    if thoughts:
        closing = "" if cut_off and not text else "</think>"
        return f"<think>{thoughts}{closing}{text}"
    opened = cut_off and thinking and "think>" not in text
    return f"<think>{text}" if opened else text


def _call(call: object) -> str:
    # A call in the notation of replies, also a broken one. Arguments are a text of JSON that the
    # model wrote, and that may be none.
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call_text(json.dumps(call))
    name, arguments = json.dumps(function.get("name")), function["arguments"] or "{}"
    return call_text(f'{{"name": {name}, "arguments": {arguments}}}')


def read_usage(body: Mapping[str, object]) -> Usage | None:
    """Token counts in a server's answer; None for values that are not counts."""
    usage = body.get("usage")
    if not isinstance(usage, Mapping):
        return None
    counts = [
        count if type(count) is int and count >= 0 else None
        for count in (usage.get("prompt_tokens"), usage.get("completion_tokens"))
    ]
    return None if counts == [None, None] else Usage(*counts)


def read_completion(body: Any, thinking: bool | None = None, tools: bool = False) -> Completion:
    """The completion in a server's answer; another layout raises a builtin error.

    With `tools`, its tool calls are part of the text.
    """
    # vLLM's server adds `prompt_token_ids` and `token_ids` on request.
    choice = body["choices"][0]
    tokens = (choice.get("logprobs") or {}).get("content") or ()
    finish: FinishReason = "length" if choice.get("finish_reason") == "length" else "stop"
    message = choice["message"]
    calls = message.get("tool_calls") or () if tools else ()
    return Completion(
        text=whole_text(message, finish == "length", thinking) + "".join(map(_call, calls)),
        prompt_ids=tuple(body.get("prompt_token_ids") or ()),
        output_ids=tuple(choice.get("token_ids") or ()),
        logps=tuple(float(token["logprob"]) for token in tokens),
        finish=finish,
        usage=read_usage(body),
    )


def error_status(body: Any) -> int | None:
    """Status of an error that a gateway sends as an answer with status 200; None: it is none."""
    error = body.get("error") if isinstance(body, dict) else None
    if not error or body.get("choices"):
        return None
    code = error.get("code") if isinstance(error, dict) else None
    return code if type(code) is int and 400 <= code < 600 else 502


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


_LEAST = 64
"""Characters to which no prompt is shortened: a server that refuses fewer means something else."""


def size(messages: Sequence[Message]) -> int:
    """Characters of a chat."""
    return sum(len(message["content"]) for message in messages)


def _message_row(message: Message) -> Message:
    # As endpoints take it: arguments are JSON in a text.
    row: Message = {**message, "content": encodable(message["content"])}
    if "tool_calls" in message:
        row["tool_calls"] = [
            {**call, "function": {**call["function"], "arguments": arguments}}
            for call in message["tool_calls"]
            for arguments in [json.dumps(call["function"]["arguments"])]
        ]
    return row


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
    cached: int = 0
    """Replies from the cache, which are in no other number."""
    shortened: int = 0
    """Prompts that were shortened because the server refused their length."""


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
_LONGEST_WAIT = 300.0


class Failure(NamedTuple):
    """An attempt without a reply."""

    problem: str
    kind: Literal["retry", "busy", "changed", "long", "final"]
    """To be tried again, later if the server is `busy`; tried again at once with a `changed` body;
    the prompt is too `long`."""
    wait: float = 0.0
    """Seconds that the server asks to wait."""


class Answer(NamedTuple):
    """A server's answer, with the completion that was read from it."""

    body: Any
    completion: Completion


class OpenAIPolicy:
    """A model behind a chat-completions endpoint.

    Optional parameters that a server refuses by name (log-probabilities, the seed, a temperature or
    top_p of 1) are left out from then on, which is logged once; servers that want
    `max_completion_tokens` get it.
    """

    batching: Batching = "stream"
    counts_tokens = False
    """False: only the server counts tokens, so prompt budgets are refused."""

    def __init__(
        self,
        model: str,
        endpoint: Endpoint | str,
        *,
        name: str | None = None,
        sampling: Sampling | None = None,
        logprobs: bool = True,
        thinking: bool | None = None,
    ) -> None:
        """Describe the model; nothing is sent yet.

        Args:
            model: the model's name at the endpoint.
            endpoint: the server, or its base URL.
            name: name of the policy in policy maps and records; default `model`.
            sampling: temperature and lengths; default `Sampling()`.
            logprobs: ask for the log-probabilities of the sampled tokens.
            thinking: `enable_thinking` of the chat template, which vLLM and SGLang understand;
                None: the server's default.

        Raises:
            UsageError: a wrong URL, or a temperature, top_p or top_k that the endpoint is never
                sent.
            MissingExtraError: httpx is not installed.
        """
        self.endpoint = Endpoint(endpoint) if isinstance(endpoint, str) else endpoint
        self.model, self.name, self.thinking = model, name or model, thinking
        self.sampling = sampling or Sampling()
        self.stats = EndpointStats()
        self.check_budget: Callable[[], None] = lambda: None
        """Called before every request; an error that it raises ends `generate`."""
        self._url = chat_url(self.endpoint.url)
        self._without = {*self.endpoint.without, *(() if logprobs else ("logprobs",))}
        for field, neutral in (("temperature", 1), ("top_p", 1), ("top_k", 0)):
            if field in self._without and getattr(self.sampling, field) != neutral:
                raise UsageError(
                    f"{self._url} is sent no {field} (`without`), so {field} must be {neutral}, "
                    f"got {getattr(self.sampling, field):g}"
                )
        self._extra = dict(self.endpoint.extra_body)
        if thinking is not None:
            variables = self._extra.get("chat_template_kwargs", {})
            self._extra["chat_template_kwargs"] = {**variables, "enable_thinking": thinking}
        self._cap_field = "max_tokens"
        self._pace = Pace(self.endpoint.requests_per_minute, self.endpoint.tokens_per_minute)
        self._busy_until = 0.0
        self.answers: Path | None = Path(self.endpoint.cache) if self.endpoint.cache else None
        """File of answers: what is in it is not asked again; None: there is none."""
        self._cache: AnswerCache | None = None
        self._logged = {"retry": 0, "busy": 0}
        """Attempts whose failure was logged, by kind."""
        # Batches that are played beside each other have a loop each.
        self._clients: dict[
            asyncio.AbstractEventLoop, tuple[httpx.AsyncClient, asyncio.Semaphore]
        ] = {}
        self._httpx = import_httpx()
        try:
            self._httpx.URL(self._url)
        except self._httpx.InvalidURL as error:
            raise UsageError(f"{self._url!r} is no URL: {error}") from error

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
        """Close the connections and the file of answers; a later request opens them again."""
        cache, self._cache = self._cache, None
        if cache is not None:
            cache.close()
        entry = self._clients.pop(asyncio.get_running_loop(), None)
        if entry is not None:
            await entry[0].aclose()

    def _connect(self) -> tuple[httpx.AsyncClient, asyncio.Semaphore]:
        # Connections belong to an event loop.
        loop = asyncio.get_running_loop()
        entry = self._clients.get(loop)
        if entry is None:
            for ended in [other for other in list(self._clients) if other.is_closed()]:
                self._clients.pop(ended, None)
            limits = self._httpx.Limits(max_connections=self.endpoint.concurrency)
            client = self._httpx.AsyncClient(timeout=self.endpoint.timeout, limits=limits)
            entry = self._clients[loop] = client, asyncio.Semaphore(self.endpoint.concurrency)
        return entry

    def _body(self, request: Request, messages: Sequence[Message]) -> RequestBody:
        sampling = self.sampling
        fields = {
            "model": self.model,
            "messages": [_message_row(message) for message in messages],
            **({"tools": [tool.schema() for tool in request.tools]} if request.tools else {}),
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            self._cap_field: reply_cap(request, sampling),
            **({"top_k": sampling.top_k} if sampling.top_k else {}),
            "seed": key_int("endpoint", *request.key) % 2**31,
            "logprobs": True,
        }
        sent = {name: value for name, value in fields.items() if name not in self._without}
        return {**sent, **self._extra}

    async def _answer(
        self, client: httpx.AsyncClient, slots: asyncio.Semaphore, request: Request
    ) -> Completion:
        if request.max_prompt is not None:
            raise UsageError(
                f"policy {self.name!r} sends text and cannot count tokens, so the prompt budget of "
                f"{request.agent} has no effect: leave it out, or use vllm:PATH@URL."
            )
        if self._cache is None and self.answers is not None:
            self._cache = AnswerCache(self.answers)
        content = self._content(request)
        row = self._cache.get(content) if self._cache else None
        if row is not None:
            self.stats.cached += 1
            completion = read_completion(row["answer"], self.thinking, bool(request.tools))
            return replace(completion, seconds=row["seconds"], shortened=row["shortened"])
        answer, shortened = await self._ask(client, slots, request)
        completion = replace(answer.completion, shortened=shortened)
        if self._cache:
            row = {"answer": answer.body, "seconds": completion.seconds, "shortened": shortened}
            self._cache.put(content, row)
        self.stats.requests += 1
        self.stats.shortened += shortened > 0
        self._logged["retry"] = 0
        return completion

    def _content(self, request: Request) -> list[object]:
        # All that an answer depends on, also what a server refuses. The key tells samples of one
        # prompt apart.
        sampling = self.sampling
        decoding = [sampling.temperature, sampling.top_p, sampling.top_k]
        return [
            self._url, self.model, [dict(message) for message in request.messages], decoding,
            reply_cap(request, sampling), self._extra, sorted(self.endpoint.without), *request.key,
            *([tool.schema() for tool in request.tools]),
        ]  # fmt: skip

    async def _ask(
        self, client: httpx.AsyncClient, slots: asyncio.Semaphore, request: Request
    ) -> tuple[Answer, int]:
        # Also the number of characters that the prompt had to lose.
        attempt, removed, answered = 0, 0, self.stats.requests
        messages = request.messages
        while True:
            async with slots:  # the wait between attempts frees the slot
                entry = await self._turn(
                    size(messages) // 3 + reply_cap(request, self.sampling), attempt
                )
                self.check_budget()
                outcome = await self._attempt(client, self._body(request, messages))
            if isinstance(outcome, Answer):
                usage = outcome.completion.usage
                if usage is not None:
                    entry[1] = (usage.prompt or 0) + (usage.output or 0)
                return outcome, removed
            if outcome.kind == "changed":
                continue
            shortened = shorter(request, messages) if outcome.kind == "long" else None
            if shortened is not None:
                messages, removed = shortened
                continue
            # Others that got through say that the server works, and that this one's turn will come.
            if outcome.kind == "busy" and self.stats.requests > answered:
                attempt = max(0, attempt - 1)
            answered = self.stats.requests
            await self._pause(outcome, attempt, request)
            attempt += 1

    async def _turn(self, tokens: int, attempt: int) -> list[float]:
        """Wait until the limits, and a server that was busy, allow another request."""
        if attempt == 0 and (wait := self._busy_until - time.monotonic()) > 0:
            await asyncio.sleep(wait)
        while (wait := self._pace.delay(time.monotonic(), tokens)) > 0:
            await asyncio.sleep(wait)
        return self._pace.send(time.monotonic(), tokens)

    async def _pause(self, failure: Failure, attempt: int, request: Request) -> None:
        retries, wait = self.endpoint.retries, failure.wait
        can_retry = failure.kind in ("retry", "busy") and attempt < retries
        if not can_retry or wait > _LONGEST_WAIT:
            tries = f" after {attempt + 1} attempts" if attempt else ""
            raise EndpointError(f"{self._url} failed{tries}: {failure.problem}")
        # Once per attempt, not once per request; a limited rate, whose refusals never end, once.
        if attempt >= self._logged[failure.kind]:
            self._logged[failure.kind] = attempt + 1
            _log.warning(
                "%s: %s; trying again (%d of %d)", self._url, failure.problem, attempt + 1, retries
            )
        backoff = min(0.5 * 2**attempt, 30.0)
        jitter = key_rng("backoff", attempt, *request.key).uniform(0.5, 1.0)
        if wait:
            self._busy_until = max(self._busy_until, time.monotonic() + wait)
        await asyncio.sleep(max(wait, backoff * jitter))
        self.stats.retries += 1

    async def _attempt(self, client: httpx.AsyncClient, body: RequestBody) -> Answer | Failure:
        """Send once."""
        key = api_key(self.endpoint.api_key_env)
        start = time.perf_counter()
        try:
            # The client's own time-out is per network operation: a trickling answer passes it.
            async with asyncio.timeout(self.endpoint.timeout):
                reply = await client.post(self._url, json=body, headers=self._headers(key))
        except TimeoutError:
            return Failure(f"no answer within {self.endpoint.timeout:g} s", "retry")
        except self._httpx.HTTPError as error:
            return Failure(self._redact(f"{type(error).__name__}: {error}", key), "retry")
        seconds = time.perf_counter() - start
        try:
            answer = reply.json()
        except ValueError:
            answer = None
        status = error_status(answer) if reply.status_code == 200 else reply.status_code
        if status is None:
            return self._read(answer, reply, key, seconds, "tools" in body)
        return self._failure(status, reply, body, key)

    def _headers(self, key: str) -> dict[str, str]:
        header = self.endpoint.key_header
        value = f"Bearer {key}" if header.lower() == "authorization" else key
        return {**self.endpoint.headers, **({header: value} if key else {})}

    def _failure(self, status: int, reply: httpx.Response, body: RequestBody, key: str) -> Failure:
        message = self._redact(reply.text, key)
        problem = f"status {status}: {message}"
        # Overload and server errors are tried again.
        if status in (408, 409, 425, 429) or (status >= 500 and status not in (501, 505)):
            headers, now = reply.headers, time.time()
            wait = retry_after(headers.get("retry-after-ms"), now) / 1000
            wait = wait or retry_after(headers.get("retry-after"), now)
            return Failure(problem, "busy" if status == 429 else "retry", wait)
        if status in (400, 413, 422) and _LENGTH.search(message):
            return Failure(problem, "long")
        if self._adapt(body, message):
            return Failure(problem, "changed")
        for field in ("temperature", "top_p"):
            if field in message and body.get(field, 1) != 1:
                option = field.replace("_", "-")
                problem += f" ({field} is left out if it is 1: use --{option} 1)"
        if status in (401, 403):
            state = "is set" if key else "is not set"
            problem += f" (the key is read from {self.endpoint.api_key_env}, which {state})"
        return Failure(problem, "final")

    def _read(
        self, body: Any, reply: httpx.Response, key: str, seconds: float, tools: bool
    ) -> Answer | Failure:
        try:
            completion = read_completion(body, self.thinking, tools)
            filtered = body["choices"][0].get("finish_reason") == "content_filter"
        except (KeyError, TypeError, IndexError, ValueError, AttributeError):
            return Failure(f"not a chat completion: {self._redact(reply.text, key)}", "final")
        if completion.usage is not None:
            self.stats.prompt_tokens += completion.usage.prompt or 0
            self.stats.output_tokens += completion.usage.output or 0
        self.stats.filtered += filtered
        return Answer(body, replace(completion, seconds=seconds))

    def _adapt(self, body: RequestBody, message: str) -> bool:
        fields = body.keys() - self._extra.keys()
        if "max_tokens" in fields and "max_completion_tokens" in message:
            self._cap_field = "max_completion_tokens"
            return True
        # Without a temperature or top_p of 1 a server takes its own, which for most is 1.
        names = {"logprobs", "seed"} | {n for n in ("temperature", "top_p") if body.get(n) == 1.0}
        refused = {name for name in names if name in fields and name in message}
        for name in sorted(refused - self._without):
            _log.warning("%s refuses the parameter %s; it is left out from now on", self._url, name)
        self._without |= refused
        return bool(refused)

    @staticmethod
    def _redact(text: str, key: str) -> str:
        clean = text.replace(key, "[redacted]") if key else text
        return clean if len(clean) <= 500 else f"{clean[:500]}…"

    def __repr__(self) -> str:
        # Never the key.
        return f"OpenAIPolicy({self.name!r}, model={self.model!r}, url={self._url!r})"
