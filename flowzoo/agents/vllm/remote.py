"""A running `vllm serve` as the back-end of an engine: token ids in, token ids and log-probs out.

New weights reach the server as a file in a folder that both see, through the development endpoints
that `serve_command` turns on. The API key is read from OPENAI_API_KEY when a request is sent.
"""

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

from flowzoo.agents.openai.endpoint import api_key, chat_url, check_receiver
from flowzoo.agents.vllm.backend import (
    Adapter,
    EngineDeadError,
    GenerationOutput,
    GenerationRequest,
    LoopBackend,
    Tensors,
    check_idle,
    engine_error,
    sampling_fields,
)
from flowzoo.agents.vllm.engine import VLLMEngine
from flowzoo.agents.vllm.transfer import send_file
from flowzoo.errors import UsageError, missing_extra

try:
    import httpx
except ImportError as error:
    raise missing_extra("httpx", "openai", "a vLLM server") from error

_KEY = "OPENAI_API_KEY"
_ANSWERED_WITHIN_S = 600.0
_log = logging.getLogger(__name__)


def connect(path: str, url: str, **options: Any) -> VLLMEngine:
    """An engine behind the server at `url`, which serves the model whose tokenizer is at `path`.

    Args:
        path: local folder or hub id; read for tokenizer and config.
        url: up to and including the version, e.g. `http://localhost:8000/v1`.
        options: as for `ServerBackend`.

    Raises:
        UsageError: a bad URL, or a server that reports other log-probs than those sampled from.
        EngineDeadError: nothing answers at `url`.
    """
    return VLLMEngine(path, lambda: ServerBackend(url, **options))


def read_choice(body: Any) -> GenerationOutput:
    """The sample in the server's answer; another layout raises a builtin error."""
    choice = body["choices"][0]
    details = (body.get("usage") or {}).get("prompt_tokens_details") or {}
    return GenerationOutput(
        tuple(int(token) for token in choice["token_ids"]),
        tuple(float(logp) for logp in choice["logprobs"]["token_logprobs"]),
        choice["finish_reason"] == "stop",
        int(details.get("cached_tokens") or 0),
    )


class ServerBackend(LoopBackend):
    """A server as an engine; see `flowzoo.agents.vllm.backend.VLLMBackend`."""

    def __init__(self, url: str, *, max_pending: int = 256, patience_s: float = 60.0) -> None:
        """Wait for the server and look at what it serves.

        Args:
            url: up to and including the version.
            max_pending: most requests under way.
            patience_s: how long a server may take to come up.
        """
        check_receiver(url, _KEY)
        self._url = chat_url(url).removesuffix("/chat/completions")
        self._root = self._url.rsplit("/", 1)[0]
        super().__init__("flowzoo-vllm-remote", max_pending)
        # A server closes what was idle for 5 s (uvicorn): a request that it crosses would be lost.
        limits = httpx.Limits(max_connections=max_pending, keepalive_expiry=2.0)
        self._client = httpx.AsyncClient(timeout=_ANSWERED_WITHIN_S, limits=limits)
        try:
            self._loop.wait(self._reach(patience_s))
            self.model = str(self._loop.wait(self._get("/models"))["data"][0]["id"])
            self._loop.wait(self._check_logps())
        except BaseException:
            self.close()
            raise

    def load_weights(self, tensors: Tensors, version: int) -> None:
        """See `VLLMBackend`."""
        check_idle("the server's weights", self._under_way)
        send_file(self, tensors)
        self.reset_cache()

    def start_weight_update(self) -> None:
        """See `UpdateCalls`."""
        self._post(f"{self._root}/start_weight_update", {})

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """See `UpdateCalls`."""
        self._post(f"{self._root}/update_weights", {"update_info": update_info})

    def finish_weight_update(self) -> None:
        """See `UpdateCalls`."""
        self._post(f"{self._root}/finish_weight_update", {})

    def load_adapter(self, adapter: Adapter) -> None:
        """See `VLLMBackend`."""
        body = {"lora_name": adapter.name, "lora_path": str(adapter.folder)}
        self._post(f"{self._url}/load_lora_adapter", body)

    def drop_adapter(self, adapter: Adapter) -> None:
        """See `VLLMBackend`."""
        self._post(f"{self._url}/unload_lora_adapter", {"lora_name": adapter.name})

    def reset_cache(self) -> None:
        """See `VLLMBackend`."""
        self._post(f"{self._root}/reset_prefix_cache", {})

    def sleep(self, level: int) -> None:
        """See `VLLMBackend`."""
        self._post(f"{self._root}/sleep?level={level}", {})

    def wake(self, what: Sequence[str] | None = None) -> None:
        """See `VLLMBackend`."""
        tags = "&".join(f"tags={name}" for name in what or ())
        self._post(f"{self._root}/wake_up?{tags}", {})

    def close(self) -> None:
        """Close the connections; the server runs on."""
        if self._error is None:
            self._error = EngineDeadError("the connection to the vLLM server was closed")
        if not self._loop.loop.is_closed():
            self._loop.wait(self._client.aclose())
            self._loop.close()

    def _post(self, url: str, body: Mapping[str, object]) -> None:
        reply = self._loop.wait(self._send(url, body))
        if reply.status_code != 200:
            raise UsageError(
                f"{url} answered {reply.status_code}: {reply.text[:500]}. To train with a server, "
                "start it as docs/engines.md shows (VLLM_SERVER_DEV_MODE=1, and "
                "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 for adapters)."
            )

    async def _reach(self, patience_s: float) -> None:
        deadline, warned = time.monotonic() + patience_s, False
        while True:
            try:
                reply = await self._client.get(f"{self._root}/health", timeout=5.0)
                if reply.status_code == 200:
                    return
                problem = f"status {reply.status_code}"
            except httpx.HTTPError as error:
                problem = f"{type(error).__name__}: {error}"
            if time.monotonic() > deadline:
                raise EngineDeadError(f"no vLLM server answers at {self._root}: {problem}")
            if not warned:
                warned = True
                _log.warning(
                    "no vLLM server answers at %s yet (%s); waiting up to %g s",
                    self._root, problem, patience_s,
                )  # fmt: skip
            await asyncio.sleep(0.5)

    async def _get(self, path: str) -> Any:
        reply = await self._client.get(f"{self._url}{path}", headers=_headers())
        if reply.status_code != 200:
            raise EngineDeadError(
                f"{self._url}{path} answered {reply.status_code}: {reply.text[:500]}"
            )
        return reply.json()

    async def _check_logps(self) -> None:
        # vLLM's default ignores the temperature.
        best: list[float] = []
        for temperature in (0.5, 2.0):
            body = {
                "model": self.model, "prompt": [1, 2, 3], "max_tokens": 1, "logprobs": 1,
                "temperature": temperature, "seed": 0,
            }  # fmt: skip
            reply = await self._send(f"{self._url}/completions", body)
            top = reply.json()["choices"][0]["logprobs"]["top_logprobs"][0]
            best.append(max(top.values()))
        if best[0] == best[1]:
            raise UsageError(
                f"the server at {self._url} reports log-probs that ignore the temperature: start "
                "it with --logprobs-mode processed_logprobs."
            )

    async def _sample(self, job: GenerationRequest) -> GenerationOutput:
        name = job.adapter.name if job.adapter else self.model
        body = {
            **sampling_fields(job),
            "model": name,
            "prompt": list(job.prompt),
            "return_token_ids": True,
        }
        reply = await self._send(f"{self._url}/completions", body)
        if reply.status_code != 200:
            raise self._died(f"status {reply.status_code}: {reply.text[:500]}")
        try:
            return read_choice(reply.json())
        except (KeyError, TypeError, IndexError, ValueError) as error:
            raise self._died(f"an answer without token ids or log-probs ({error!r})") from error

    async def _send(self, url: str, body: Mapping[str, object]) -> httpx.Response:
        self._check_alive()
        try:
            return await self._client.post(url, json=dict(body), headers=_headers())
        except httpx.HTTPError as error:
            raise self._died(f"{type(error).__name__}: {error}") from error

    def _died(self, what: str) -> EngineDeadError:
        self._error = engine_error(RuntimeError(f"{self._url}: {what}"))
        return self._error


def _headers() -> dict[str, str]:
    key = api_key(_KEY)
    return {"Authorization": f"Bearer {key}"} if key else {}
