"""Settings of vLLM engines and what crosses their interface, gate and server; no vLLM needed."""

import asyncio
import json
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import pytest
from processes import wait_for

from flowzoo.agents.policy import Sampling
from flowzoo.agents.vllm.backend import (
    EngineDeadError,
    EngineOutOfMemoryError,
    GenerationRequest,
    engine_error,
    fail_all,
    sampling_fields,
)
from flowzoo.agents.vllm.engine import WeightsGate
from flowzoo.agents.vllm.settings import (
    EngineSettings,
    cache_bytes,
    cache_note,
    cache_numbers,
    engine_fields,
    serve_command,
)
from flowzoo.errors import UsageError


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"placement": "splitt"}, "Did you mean 'split'"),
        ({"dtype": "float8"}, "`dtype`: unknown choice 'float8'"),
        ({"max_batch": 0}, "`max_batch` must be greater than 0, got 0"),
        ({"kv_gib": -1.0}, "`kv_gib` must be at least 0"),
        ({"gpu_share": 1.5}, "`gpu_share` must be at most 1, got 1.5"),
        ({"devices": "1"}, "`devices` is for a split engine"),
        ({"weight_transfer": "icp"}, "Did you mean 'ipc'"),
        ({"weight_transfer": "ipc"}, "`weight_transfer` ipc is for a split engine"),
    ],
)
def test_bad_settings_say_what_is_wrong(fields, message):
    with pytest.raises(UsageError, match=message):
        EngineSettings(**fields)


def test_log_probs_are_those_of_the_sampled_distribution_on_every_machine():
    for cpu in (True, False):
        fields = engine_fields("model", EngineSettings(), cpu=cpu)
        assert fields["logprobs_mode"] == "processed_logprobs"
        assert fields["enable_prefix_caching"] is True
        assert fields["trust_remote_code"] is False
        assert "enable_lora" not in fields


def test_a_cpu_engine_reads_prompts_whole_and_reserves_little():
    fields = engine_fields("model", EngineSettings(max_context=20_000), cpu=True)
    assert fields["enable_chunked_prefill"] is False
    assert fields["max_num_batched_tokens"] >= 20_000
    assert fields["kv_cache_memory_bytes"] == 2**28
    with pytest.raises(UsageError, match="only release a GPU's memory"):
        engine_fields("model", EngineSettings(sleep=True), cpu=True)


def test_the_cache_of_a_cpu_engine_holds_a_longest_sequence():
    """Shape of Qwen3-0.6B; without it vLLM does not start."""
    text = SimpleNamespace(
        num_hidden_layers=28, num_attention_heads=16, num_key_value_heads=8, head_dim=128,
        layer_types=["full_attention"] * 28,
    )  # fmt: skip
    config = SimpleNamespace(get_text_config=lambda decoder=False: text)
    assert cache_numbers(config) * 2 == 112 * 2**10
    needed = cache_bytes(config, "float32", 8192, 32)
    assert needed == (8192 + 32) * 2 * 112 * 2**10
    assert cache_bytes(config, "bfloat16", 8190, 32) == needed // 2
    settings = EngineSettings(max_context=8192, sequence_bytes=needed)
    fields = engine_fields("model", settings, cpu=True)
    assert fields["kv_cache_memory_bytes"] == needed
    assert "takes 1.76 GiB, for one sequence of 8,192 tokens" in cache_note(fields, settings)
    given = EngineSettings(kv_gib=0.5, sequence_bytes=needed)
    fields = engine_fields("model", given, cpu=True)
    assert (fields["kv_cache_memory_bytes"], cache_note(fields, given)) == (2**29, "")
    small = EngineSettings(sequence_bytes=2**20)
    fields = engine_fields("model", small, cpu=True)
    assert (fields["kv_cache_memory_bytes"], cache_note(fields, small)) == (2**28, "")
    assert "kv_cache_memory_bytes" not in engine_fields("model", settings, cpu=False)
    text.layer_types = ["linear_attention"] * 21 + ["full_attention"] * 7
    assert cache_numbers(config) * 2 == 28 * 2**10


def test_a_gpu_engine_takes_its_share_and_may_sleep():
    fields = engine_fields("model", EngineSettings(sleep=True, gpu_share=0.3), cpu=False)
    assert (fields["gpu_memory_utilization"], fields["enable_sleep_mode"]) == (0.3, True)
    assert "kv_cache_memory_bytes" not in fields
    assert engine_fields("m", EngineSettings(kv_gib=2.0), cpu=False)["kv_cache_memory_bytes"] == (
        2 * 2**30
    )


def test_weights_are_taken_by_the_way_that_is_set():
    def receiver(way: Any, cpu: bool) -> Any:
        settings = EngineSettings(placement="split", weight_transfer=way)
        return engine_fields("model", settings, cpu=cpu)["weight_transfer_config"]

    assert receiver("file", True) == receiver("file", False) == {"backend": "flowzoo_file"}
    assert receiver("ipc", False) == {"backend": "flowzoo_ipc"}
    assert receiver("nccl", False) == {"backend": "nccl"}
    for way in ("ipc", "nccl"):
        with pytest.raises(UsageError, match=f"`weight_transfer` {way} goes from GPU to GPU"):
            receiver(way, True)


def test_adapters_have_room_for_the_next_version():
    fields = engine_fields("model", EngineSettings(adapters=3, adapter_rank=8), cpu=True)
    assert (fields["max_loras"], fields["max_lora_rank"]) == (3, 8)
    assert fields["max_cpu_loras"] >= 2 * 3


def test_the_line_that_serves_a_model_is_for_this_machine_and_holds_the_settings():
    args = serve_command("some/model", EngineSettings(adapters=1), 8123, cpu=True)
    assert args[args.index("--host") + 1] == "127.0.0.1"
    assert args[args.index("--port") + 1] == "8123"
    assert args[args.index("--logprobs-mode") + 1] == "processed_logprobs"
    assert {"--enable-lora", "--enforce-eager", "--no-enable-chunked-prefill"} <= set(args)
    assert args[args.index("--weight-transfer-config") + 1] == '{"backend": "flowzoo_file"}'
    assert "None" not in args


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"),
    ],
)
def test_lack_of_memory_is_told_from_other_deaths(error):
    results = engine_error(error)
    assert isinstance(results, EngineOutOfMemoryError)
    assert "lower --max-batch" in str(results)
    other = engine_error(ValueError("shape mismatch"))
    assert type(other) is EngineDeadError
    assert "ValueError: shape mismatch" in str(other)


def test_failing_futures_skips_those_that_are_done_or_cancelled():
    waiting: Future[int] = Future()
    done: Future[int] = Future()
    cancelled: Future[int] = Future()
    done.set_result(1)
    cancelled.cancel()
    fail_all([waiting, done, cancelled], lambda: EngineDeadError("gone"))
    with pytest.raises(EngineDeadError, match="gone"):
        waiting.result(0)
    assert done.result(0) == 1
    assert cancelled.cancelled()


def test_a_job_asks_for_the_sampled_tokens_log_prob_alone():
    job = GenerationRequest((1, 2), 7, 5, Sampling(temperature=0.5, top_p=0.9, top_k=3), (2,))
    fields = sampling_fields(job)
    assert fields == {
        "temperature": 0.5, "top_p": 0.9, "top_k": 3, "max_tokens": 5, "seed": 7,
        "stop_token_ids": [2], "logprobs": 0,
    }  # fmt: skip


class Changing:
    """A version that changes under a gate while threads with loops of their own ask for it."""

    def __init__(self, seed: int) -> None:
        self.gate, self.version, self.rng = WeightsGate(), 0, random.Random(seed)
        self.replies: list[tuple[int, int]] = []

    async def ask(self, delay: float) -> None:
        async with self.gate.request():
            before = self.version
            await asyncio.sleep(delay)
            self.replies.append((before, self.version))

    def play(self, delays: list[list[float]]) -> None:
        async def turns(of_episode: list[float]) -> None:
            for delay in of_episode:
                await self.ask(delay)

        async def episodes() -> None:
            await asyncio.gather(*map(turns, delays))

        asyncio.run(episodes())


def test_no_reply_sees_two_versions_and_episodes_go_on_with_the_next():
    changing = Changing(0)
    delays = [[changing.rng.choice([0, 0.001, 0.005]) for _ in range(6)] for _ in range(20)]
    threads = [threading.Thread(target=changing.play, args=(delays,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        with changing.gate.closed(10.0) as idle:
            assert idle
            changing.version += 1
        time.sleep(0.001)
    assert len(changing.replies) == 2 * 20 * 6
    assert all(before == after for before, after in changing.replies)
    assert len({before for before, _ in changing.replies}) > 3


def test_a_request_that_does_not_end_is_told_and_others_wait_until_the_gate_opens():
    gate, order, asked = WeightsGate(), list[str](), threading.Event()

    async def main() -> None:
        release = asyncio.Event()

        async def hold() -> None:
            async with gate.request():
                await release.wait()

        async def late() -> None:
            async with gate.request():
                order.append("late")

        def close() -> bool:
            with gate.closed(0.05) as idle:
                assert asked.wait(60)
                order.append("opened")
                return idle

        holding = asyncio.create_task(hold())
        await asyncio.sleep(0)
        closing = asyncio.create_task(asyncio.to_thread(close))
        await asyncio.to_thread(wait_for, lambda: gate._closed)
        waiting, cancelled = asyncio.create_task(late()), asyncio.create_task(late())
        await asyncio.to_thread(wait_for, lambda: len(gate._waiting) == 2)
        cancelled.cancel()
        asked.set()
        assert await closing is False
        await waiting
        release.set()
        await holding
        await asyncio.gather(cancelled, return_exceptions=True)
        assert cancelled.cancelled()

    asyncio.run(main())
    assert order == ["opened", "late"]
    with gate.closed(0.0) as idle:
        assert idle


class SlowServer:
    """Answers what a client asks at the start, and nothing that is longer than one token."""

    def __init__(self) -> None:
        self.asked, self.ended = threading.Event(), threading.Event()
        slow = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.say({"data": [{"id": "model"}]})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if body["max_tokens"] > 1:
                    slow.asked.set()
                    slow.ended.wait()
                self.say(
                    {"choices": [{"logprobs": {"top_logprobs": [{"a": -body["temperature"]}]}}]}
                )

            def say(self, value: Any) -> None:
                data = json.dumps(value).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *arguments: Any) -> None:
                """Say nothing."""

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.handle_error = lambda request, client_address: None  # the client has gone
        threading.Thread(target=self.http.serve_forever, daemon=True).start()


@pytest.fixture
def server() -> Iterator[SlowServer]:
    pytest.importorskip("httpx", reason="a server needs flowzoo[openai]")
    pytest.importorskip("torch", reason="the engine needs flowzoo[train]")
    slow = SlowServer()
    yield slow
    slow.ended.set()
    slow.http.shutdown()
    slow.http.server_close()


def test_requests_under_way_and_waiting_fail_when_the_connection_is_closed(server):
    from flowzoo.agents.vllm.remote import ServerBackend

    url = f"http://127.0.0.1:{server.http.server_address[1]}/v1"
    backend = ServerBackend(url, max_pending=1)
    job = GenerationRequest((1, 2), 0, 8, Sampling(), (0,))
    under_way, waiting = backend.submit([job, job])
    assert server.asked.wait(120)
    backend.close()
    for future in (under_way, waiting):
        with pytest.raises(EngineDeadError):
            future.result(timeout=120)
