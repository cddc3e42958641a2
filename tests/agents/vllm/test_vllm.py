"""One set of tests for every back-end of a vLLM engine: thread, own processes, server."""

import asyncio
import copy
import importlib
import json
import multiprocessing
import os
import random
import runpy
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
import pytest

pytest.importorskip("torch", reason="the vllm engine needs flowzoo[train]")

import llvmlite.binding  # noqa: F401 - its library object has odd attributes
import torch
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM

from flowzoo.agents.chat.template import ChatTokenizer
from flowzoo.agents.hf.policy import TransformersPolicy
from flowzoo.agents.pocket import load, pocket_path
from flowzoo.agents.policy import Completion, Policy, Request, Sampling
from flowzoo.agents.vllm.backend import EngineDeadError, EngineOutOfMemoryError
from flowzoo.agents.vllm.engine import VLLMEngine
from flowzoo.agents.vllm.policy import VLLMPolicy
from flowzoo.agents.vllm.settings import EngineSettings, serve_command
from flowzoo.baselines.learner.lora import LoraBase, LoraSettings, LoraWeights
from flowzoo.envs import Episode, make_workflow
from flowzoo.errors import UsageError

pytestmark = pytest.mark.vllm

POCKET = pocket_path("math")

SETTINGS = EngineSettings(adapters=2, adapter_rank=8, max_batch=64, kv_gib=0.0625)


def serve(arguments: list[str], folder: Path) -> None:
    """Become, in a fork, what the command `python -m ...` is in a session of its own."""
    os.setsid()
    os.chdir(folder)
    log = os.open(folder / "log.txt", os.O_WRONLY | os.O_CREAT)
    for number in (1, 2):
        os.dup2(log, number)
    engines: Any = importlib.import_module("vllm.v1.engine.utils")
    engines.get_mp_context = lambda: multiprocessing.get_context("fork")
    assert arguments[:2] == [sys.executable, "-m"]
    sys.argv = arguments[2:]
    runpy.run_module(arguments[2], run_name="__main__", alter_sys=True)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, forks: Any) -> Iterator[str]:
    """A server, as its command line starts it; vLLM is imported in it and in its engine already."""
    variables = {
        "OMP_NUM_THREADS": "1",
        "TORCHDYNAMO_DISABLE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
    }
    folder = tmp_path_factory.mktemp("server")
    with socket.socket() as holder:
        # Keeps the port from others without listening; the server may bind it all the same.
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind(("127.0.0.1", 0))
        port = holder.getsockname()[1]
        arguments = serve_command(str(POCKET), SETTINGS, port, cpu=True)
        process = forks.Process(target=serve, args=(arguments, folder))
        with pytest.MonkeyPatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            process.start()
        try:
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            process.join(60)
            if process.exitcode is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.join(60)


@pytest.fixture(scope="module")
def engine_of(request: pytest.FixtureRequest) -> Iterator[Callable[[str], VLLMEngine]]:
    """One engine of each kind for all tests that can share it, started when it is asked for."""
    started: dict[str, VLLMEngine] = {}

    def find(kind: str) -> VLLMEngine:
        if kind not in started:
            if kind == "server":
                from flowzoo.agents.vllm.remote import connect

                url = request.getfixturevalue("server")
                started[kind] = connect(str(POCKET), url, patience_s=600)
            else:
                settings = replace(SETTINGS, placement=kind)
                started[kind] = VLLMEngine.local(POCKET, settings)
        return started[kind]

    yield find
    for engine in started.values():
        engine.close()


full = pytest.mark.full


@pytest.fixture(
    scope="module",
    params=["colocated", pytest.param("split", marks=full), pytest.param("server", marks=full)],
)
def engine(request: pytest.FixtureRequest, engine_of: Callable[[str], VLLMEngine]) -> VLLMEngine:
    return engine_of(request.param)


@pytest.fixture(scope="module")
def thread_engine(engine_of: Callable[[str], VLLMEngine]) -> VLLMEngine:
    return engine_of("colocated")


class Tied(NamedTuple):
    """An engine of another model, whose output head is tied."""

    model: Any
    engine: VLLMEngine
    drawn: tuple[tuple[Any, ...], tuple[Any, ...]]
    """Random numbers without and with the start of the engine after the seeds were set."""


@pytest.fixture(scope="module")
def tied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tied]:
    config = Qwen3Config.from_pretrained(
        POCKET, tie_word_embeddings=True, hidden_size=64, num_hidden_layers=2,
        layer_types=["full_attention"] * 2, initializer_range=0.2,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("tied")
    torch.manual_seed(0)
    built = Qwen3ForCausalLM(config).eval()
    built.save_pretrained(folder)
    load().tokenizer.save_pretrained(folder)

    def draws() -> tuple[Any, ...]:
        return torch.rand(1).item(), np.random.rand(), random.random()

    def seed() -> None:
        torch.manual_seed(5)
        np.random.seed(5)
        random.seed(5)

    seed()
    want = draws()
    seed()
    results = VLLMEngine.local(folder, EngineSettings(max_batch=8, kv_gib=0.01))
    yield Tied(built, results, (want, draws()))
    results.close()
    results.close()


@pytest.fixture(scope="module")
def model() -> Any:
    return fresh()


def fresh() -> Any:
    return AutoModelForCausalLM.from_pretrained(POCKET, dtype=torch.float32).eval()


def moved(model: Any, size: float, seed: int = 0) -> Any:
    """Move every weight of `model` by noise."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(size * torch.randn_like(weight))
    return model


def asks(count: int, samples: int = 1, tag: str = "t", **fields: Any) -> list[Request]:
    """First questions of voting episodes."""
    workflow = make_workflow("voting", "math")
    results = []
    for index in range(count):
        problem = workflow.task.problem(index, "train")
        turn = Episode(workflow, problem, problem.id).waiting[0]
        results += [
            Request((tag, problem.id, sample), turn.agent, "generator", turn.messages, **fields)
            for sample in range(samples)
        ]
    return results


def long_asks(count: int, tag: str = "long", **fields: Any) -> list[Request]:
    """One prompt of several cache blocks, asked `count` times."""
    content = " ".join(f"{i} + {i}" for i in range(60))
    chat = [{"role": "user", "content": content}]
    return [Request((tag, i), "a_0", "a", chat, **fields) for i in range(count)]


def gap(model: Any, done: list[Completion], temperature: float = 1.0) -> float:
    """Largest |model - engine| over the log-probs of the sampled tokens."""
    largest = 0.0
    for row in done:
        ids = torch.tensor([[*row.prompt_ids, *row.output_ids]])
        with torch.no_grad():
            logits = model(input_ids=ids, use_cache=False).logits[0].float() / temperature
        steps = logits.log_softmax(-1)[len(row.prompt_ids) - 1 : -1]
        selected = steps.gather(1, torch.tensor(row.output_ids)[:, None])[:, 0]
        largest = max(largest, float((selected - torch.tensor(row.logps)).abs().max()))
    return largest


def policy(engine: VLLMEngine, **fields: Any) -> VLLMPolicy:
    sampling = Sampling(**{"max_tokens": 40, **fields})
    return VLLMPolicy(engine, sampling=sampling)


def test_greedy_tokens_are_those_of_transformers(engine, model):
    engine.load_weights(model.state_dict())
    sampling = Sampling(temperature=0.0, max_tokens=40)
    peer_results = load(sampling=sampling)
    requests = asks(24)
    selected = asyncio.run(VLLMPolicy(engine, sampling=sampling).generate(requests))
    want = asyncio.run(peer_results.generate(requests))
    assert [row.prompt_ids for row in selected] == [row.prompt_ids for row in want]
    assert [row.output_ids for row in selected] == [row.output_ids for row in want]
    assert [(row.text, row.finish) for row in selected] == [(row.text, row.finish) for row in want]
    for entry, other in zip(selected, want, strict=True):
        assert list(entry.logps) == pytest.approx(list(other.logps), abs=1e-3)


def rendered(engine: VLLMEngine, chat: list[dict[str, str]]) -> list[int]:
    """Ids of a prompt by the tokenizer and the template of vLLM's own copy of the model."""
    backend: Any = engine.backend
    if engine.dtype is None:
        asked = backend._send(f"{backend._root}/tokenize", {"messages": chat})
        return backend._loop.wait(asked).json()["tokens"]
    from vllm.renderers.params import ChatParams

    opened = ChatParams(chat_template_kwargs={"add_generation_prompt": True})
    _, (prompt,) = backend._engine.renderer.render_chat([chat], opened)
    return list(prompt["prompt_token_ids"])


def test_prompts_are_those_of_vllms_own_template(engine, model):
    engine.load_weights(model.state_dict())
    says = (
        "2 + 2 = ?",
        "It is 4.\n",
        " And 3 + 3?  ",
        "<think>6</think>6",
        "",
        "é 数 🙂",
        "Thanks.",
    )
    roles = ("user", "assistant")
    turns = [{"role": roles[n % 2], "content": text} for n, text in enumerate(says)]
    system = {"role": "system", "content": "Be brief."}
    chats = [begin + turns[:size] for begin in ([], [system]) for size in range(1, 8, 2)]
    ours = ChatTokenizer(engine.tokenizer).encode(chats)
    assert [list(prompt.ids) for prompt in ours] == [rendered(engine, chat) for chat in chats]


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_sampled_log_probs_are_those_of_a_full_forward(engine, model, temperature):
    engine.load_weights(model.state_dict())
    done = policy(engine, temperature=temperature, max_tokens=12).answer(asks(12, samples=3))
    assert {row.finish for row in done} == {"stop", "length"}
    assert gap(model, done, temperature) < 1e-4
    if temperature != 1.0:
        assert gap(model, done, 1.0) > 0.01  # the test can fail


@full
def test_truncated_distributions_are_the_ones_reported(engine, model):
    engine.load_weights(model.state_dict())
    done = policy(engine, top_k=1).answer(asks(4))
    assert max(abs(logp) for row in done for logp in row.logps) < 1e-6
    assert len({row.output_ids for row in policy(engine, top_p=0.9).answer(asks(1, 24))}) > 1


def test_a_request_draws_the_same_tokens_alone_and_in_any_batch(engine):
    requested = asks(3, samples=4)
    together = policy(engine).answer(requested)
    alone = [policy(engine).answer([request])[0] for request in requested[::3]]
    assert [row.output_ids for row in together[::3]] == [row.output_ids for row in alone]
    mirrored = policy(engine).answer(requested[::-1])[::-1]
    assert [row.output_ids for row in mirrored] == [row.output_ids for row in together]
    assert len({row.output_ids for row in together}) > 6


@full
def test_caps_of_policy_and_request(engine):
    results = policy(engine, max_tokens=6, temperature=0.0)
    caps = [None, 1, 3, 50]
    done = [results.answer(asks(1, max_tokens=cap))[0] for cap in caps]
    longest = done[0].output_ids
    assert [row.output_ids for row in done] == [longest, longest[:1], longest[:3], longest]
    with pytest.raises(UsageError, match="at least 1, got 0"):
        results.answer(asks(1, max_tokens=0))


@full
def test_prompts_over_their_budget_are_those_of_the_other_engine(engine, model):
    (ask,) = long_asks(1, max_prompt=50, quotes=(" ".join(f"{i} + {i}" for i in range(60)),))
    (done,) = policy(engine, max_tokens=3).answer([ask])
    other = TransformersPolicy(model, engine.tokenizer, sampling=Sampling(max_tokens=3))
    (same,) = asyncio.run(other.generate([ask]))
    assert done.prompt_ids == same.prompt_ids
    assert done.shortened == same.shortened > 0
    assert len(done.prompt_ids) <= 50
    with pytest.raises(UsageError, match="does not think"):
        VLLMPolicy(engine, thinking=True)


def test_equal_prompts_are_read_once_and_new_weights_forget_them(engine, model):
    engine.load_weights(model.state_dict())
    reader = policy(engine, max_tokens=8)
    reader.answer(long_asks(1))
    before = reader.stats.read_tokens
    reader.answer(long_asks(8, "again"))
    requested = 8 * (reader.stats.prompt_tokens // 9)
    assert reader.stats.read_tokens - before < 0.3 * requested
    assert reader.stats.cache_hits > 0.5
    other = moved(fresh(), 0.05)
    engine.load_weights(other.state_dict())
    done = policy(engine, max_tokens=8).answer(long_asks(8, "after"))
    assert gap(other, done) < 1e-3
    assert gap(model, done) > 0.1
    engine.load_weights(model.state_dict())


@full
async def test_cancelled_requests_leave_the_engine(engine, model):
    endless = VLLMPolicy(engine, sampling=Sampling(max_tokens=1500))
    stop, engine.stop_ids = engine.stop_ids, ()
    # Minutes of work, so that what comes back soon was not waiting for its end.
    task = asyncio.create_task(endless.generate(long_asks(1024, "cancel")))
    await asyncio.sleep(0.3)
    assert not task.done()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    engine.stop_ids = stop
    end = time.monotonic() + 60
    while True:  # other processes need a moment to hear of it
        try:
            engine.load_weights(model.state_dict())
            break
        except UsageError:
            assert time.monotonic() < end
            await asyncio.sleep(0.05)
    done = await asyncio.wait_for(policy(engine, max_tokens=8).generate(asks(2)), 30)
    assert gap(model, done) < 1e-3


def lora(model: Any, name: str) -> LoraWeights:
    base = LoraBase(model, str(POCKET), LoraSettings(rank=4, alpha=8))
    weights = base.add(name, 0)
    nudge(weights, 0.1)
    return weights


def nudge(weights: LoraWeights, size: float) -> None:
    with torch.no_grad():
        for weight in weights.parameters():
            weight.add_(size * torch.randn_like(weight))


@full
def test_adapters_share_a_batch_and_each_new_version_counts(engine, model):
    engine.load_weights(model.state_dict())
    roles = {name: lora(fresh(), name) for name in ("generator", "aggregator")}
    players = {
        name: VLLMPolicy(engine, name=name, sampling=Sampling(max_tokens=8), adapter=name)
        for name in roles
    }
    with pytest.raises(UsageError, match="unknown adapter 'generator'"):
        players["generator"].answer(asks(1))

    async def both() -> list[list[Completion]]:
        requests = long_asks(4) + asks(4)
        return await asyncio.gather(*(player.generate(requests) for player in players.values()))

    seen = []
    for _ in range(2):
        for name, weights in roles.items():
            seen.append(engine.load_adapter(name, weights.save))
        for weights, done in zip(roles.values(), asyncio.run(both()), strict=True):
            assert gap(weights.model, done) < 1e-3
            assert gap(model, done) > 0.01
        for weights in roles.values():
            nudge(weights, 0.1)
    assert len({adapter.name for adapter in seen}) == 4
    assert len({adapter.number for adapter in seen}) == 4
    assert [adapter.folder.exists() for adapter in seen] == [False, False, True, True]


def test_the_protocol_is_the_policies(engine):
    assert isinstance(policy(engine), Policy)
    assert policy(engine).batching == "stream"


@full
def test_weights_at_work_cannot_be_changed(thread_engine, model):
    slow = policy(thread_engine, max_tokens=1500)
    stop, thread_engine.stop_ids = thread_engine.stop_ids, ()
    futures = thread_engine.submit(slow.jobs(long_asks(32)))
    thread_engine.stop_ids = stop
    with pytest.raises(UsageError, match="await or cancel them first"):
        thread_engine.load_weights(model.state_dict())
    for future in futures:
        future.cancel()
    thread_engine.load_weights(model.state_dict())
    assert thread_engine.backend.alive


def break_once(backend: Any, error: BaseException) -> None:
    """Let the next step of an engine fail."""

    def step() -> Any:
        raise error

    backend._engine.step = step


def check_death(
    engine: VLLMEngine, model: Any, error: BaseException, kind: type, message: str
) -> None:
    """Every request of an engine whose step fails says so, and whatever comes after."""
    player = policy(engine, max_tokens=8)
    break_once(engine.backend, error)
    futures = engine.submit(player.jobs(asks(8)))
    for future in futures:
        with pytest.raises(kind, match=message):
            future.result(120)
    assert not engine.backend.alive
    with pytest.raises(kind, match=message):
        player.answer(asks(1))
    with pytest.raises(kind, match=message):
        engine.load_weights(model.state_dict())


@full
def test_starting_an_engine_leaves_the_random_generators_alone(tied):
    want, results = tied.drawn
    assert results == want


@full
def test_a_dead_engine_fails_every_request_and_can_be_restarted(tied, thread_engine, model):
    thread_engine.load_weights(model.state_dict())
    player = policy(tied.engine, max_tokens=8)
    before = player.answer(asks(2))
    refused = [replace(job, sampling=Sampling(temperature=3)) for job in player.jobs(asks(2))]
    for future in tied.engine.submit(refused):
        with pytest.raises(EngineDeadError, match="temperature must be"):
            future.result(120)
    tied.engine.restart()
    with pytest.raises(UsageError, match="up to 2, got 3: lower it"):
        policy(tied.engine, temperature=3)
    error = RuntimeError("illegal memory access")
    check_death(tied.engine, tied.model, error, EngineDeadError, "illegal memory access")
    tied.engine.restart()
    assert [row.output_ids for row in player.answer(asks(2))] == [row.output_ids for row in before]
    assert gap(model, policy(thread_engine, max_tokens=8).answer(asks(4))) < 1e-3


@full
def test_two_engines_of_different_models_and_a_tied_head(tied, thread_engine, model):
    thread_engine.load_weights(model.state_dict())
    second, built = tied.engine, copy.deepcopy(tied.model)
    second.load_weights(built.state_dict())
    assert gap(built, policy(second, max_tokens=8).answer(asks(4))) < 1e-3
    second.load_weights(moved(built, 0.1).state_dict())
    assert gap(built, policy(second, max_tokens=8).answer(asks(4))) < 1e-3
    assert gap(model, policy(thread_engine, max_tokens=8).answer(asks(4))) < 1e-3
    second.load_weights(tied.model.state_dict())
    assert gap(model, policy(thread_engine, max_tokens=8).answer(asks(4))) < 1e-3


@full
def test_more_prompt_tokens_than_one_step_takes_and_a_lack_of_memory(thread_engine, model):
    thread_engine.load_weights(model.state_dict())
    small = VLLMEngine.local(
        POCKET, EngineSettings(max_batch=64, kv_gib=0.06, max_step_tokens=400, max_context=400)
    )
    chats = [f"{i}: " + " ".join(f"{i} + {j}" for j in range(12)) for i in range(40)]
    requests = [
        Request(("step", i), "a_0", "a", [{"role": "user", "content": text}])
        for i, text in enumerate(chats)
    ]
    done = policy(small, max_tokens=8).answer(requests)
    assert sum(len(row.prompt_ids) for row in done) > 1000
    assert gap(model, done) < 1e-3
    error = RuntimeError("cpu: can't allocate memory")
    check_death(small, model, error, EngineOutOfMemoryError, "--placement")
    small.close()
    assert gap(model, policy(thread_engine, max_tokens=8).answer(asks(4))) < 1e-3


@full
def test_wrong_set_ups_are_explained(tmp_path):
    with pytest.raises(UsageError, match=r"cannot load a .* from .*nowhere"):
        VLLMPolicy.from_pretrained(tmp_path / "nowhere")
    (tmp_path / "adapter").mkdir()
    config = json.dumps({"base_model_name_or_path": str(POCKET)})
    (tmp_path / "adapter" / "adapter_config.json").write_text(config)
    with pytest.raises(UsageError, match=r"holds an adapter, .* --merge --out FOLDER"):
        VLLMPolicy.from_pretrained(tmp_path / "adapter", settings=EngineSettings())
    with pytest.raises(UsageError, match="vLLM cannot start with the model"):
        VLLMEngine.local(POCKET, EngineSettings(kv_gib=1e-6))


@full
def test_a_killed_engine_process_is_noticed_and_replaced(engine_of, model, request):
    split = engine_of("split")
    split.load_weights(model.state_dict())
    player = policy(split, max_tokens=8)
    before = player.answer(asks(2))
    stop, split.stop_ids = split.stop_ids, ()
    # Minutes of work: the last of it is not done, however late the kill comes.
    futures = split.submit(policy(split, max_tokens=1500).jobs(long_asks(256)))
    split.stop_ids = stop
    time.sleep(0.3)
    # The server of other tests has one, too, but as a child of its own.
    (core,) = [entry for entry in psutil.Process().children() if "EngineCore" in entry.name()]
    core.kill()
    ends = [future.exception(120) for future in futures]
    assert isinstance(ends[-1], EngineDeadError)
    assert all(end is None or isinstance(end, EngineDeadError) for end in ends)
    assert not split.backend.alive
    request.getfixturevalue("forked_engines")
    split.restart()
    after = player.answer(asks(2))
    assert [row.output_ids for row in after] == [row.output_ids for row in before]


def test_engines_start_beside_compiled_kernels(thread_engine):
    assert "llvmlite.binding" in sys.modules  # what numba loads, before any engine of this file
    assert thread_engine.backend.alive
