"""Weights on their way to a split engine that stops or dies; in which order memory comes back."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from processes import is_running

from flowzoo.agents import Sampling
from flowzoo.agents.vllm.backend import EngineDeadError, shared_memory
from flowzoo.baselines.engines.hf import load_policies, policy_models
from flowzoo.baselines.learner.config import LearnerConfig
from flowzoo.baselines.learner.update import Learner
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.settings.policy_map import starting_models
from flowzoo.envs import make_workflow

pytestmark = [pytest.mark.vllm, pytest.mark.full]

CHANGES = ["start_weight_update", "update_weights", "finish_weight_update"]


def open_engines(**settings: Any) -> tuple[Any, Learner]:
    """A policy with all weights, its learner and its engine."""
    from flowzoo.baselines.engines.vllm import VLLMEngines

    config = TrainConfig(
        model="pocket:xs", device="cpu", threads=1, engine="vllm", max_batch=8, engine_memory=0.06,
        **{"engine_dtype": "float32", **settings},
    )  # fmt: skip
    trained = load_policies(
        config, policy_models(config, starting_models(config, ["solver"]), "math")
    )
    learner = Learner(trained["solver"].weights, LearnerConfig())
    task = make_workflow("voting", "math").task
    problems = [task.problem(index, "validation") for index in range(4)]
    greedy = {"solver": Sampling(temperature=0.0, max_tokens=16)}
    engines = VLLMEngines(config, trained, greedy, greedy, problems, {"solver": learner})
    return engines, learner


def move(learner: Learner, seed: int) -> None:
    """Other weights than the engine can have by chance."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for weight in learner.parameters:
            weight.add_(0.05 * torch.randn_like(weight))


def core_of(engines: Any) -> int:
    """The process that computes."""
    backend = engines.by_policy["solver"].backend
    (process,) = backend._engine.engine_core.resources.engine_manager.processes
    return process.pid


def files() -> set[Path]:
    """Weights that are on their way through shared memory."""
    return set(Path(shared_memory() or "/tmp").glob("flowzoo-weights-*/weights.safetensors"))


@pytest.fixture
def split(forked_engines: None) -> Iterator[tuple[Any, Learner]]:
    engines, learner = open_engines(placement="split", engine_restarts=1)
    yield engines, learner
    engines.close()


def test_an_engine_that_dies_or_stops_while_it_takes_weights(split, monkeypatch, caplog):
    from vllm.v1.engine.async_llm import AsyncLLM

    from flowzoo.agents.vllm import async_engine
    from flowzoo.baselines.backends import sync_check

    engines, learner = split
    said: list[str] = []
    for name in CHANGES:
        real = getattr(AsyncLLM, name)

        async def told(self, *given, name=name, real=real):
            await real(self, *given)
            said.append(name)

        monkeypatch.setattr(AsyncLLM, name, told)
    before = files()
    move(learner, 1)
    assert engines.sync()["sync/gap_max/solver"] < 1e-3
    assert said == CHANGES

    # Killed when the weights are in the file and the engine cannot have read them.
    move(learner, 2)
    first = core_of(engines)
    os.kill(first, signal.SIGSTOP)

    def kill_in_transfer():
        end = time.monotonic() + 60
        while files() == before and time.monotonic() < end:
            time.sleep(0.01)
        os.kill(first, signal.SIGKILL)

    killer = threading.Thread(target=kill_in_transfer)
    killer.start()
    found = engines.sync()
    killer.join()
    assert found["sync/gap_max/solver"] < 1e-3
    (line,) = [one for one in caplog.messages if "started again" in one]
    assert "it is gone" in line or "EngineDeadError" in line
    assert said == CHANGES * 2, "the first engine was told nothing of the second weights"
    assert files() == before

    # Stopped when it has the weights: it cannot prove that, so another one has to.
    engines.before_learning()  # the restarts of another step
    move(learner, 4)
    caplog.clear()
    second = core_of(engines)
    load = engines.by_policy["solver"].load_weights

    def load_and_stop(tensors):
        done = load(tensors)
        stops = core_of(engines) == second
        if stops:
            os.kill(second, signal.SIGSTOP)
        monkeypatch.setattr(sync_check, "CHANGED_WITHIN_S", 3.0 if stops else 600.0)
        return done

    with monkeypatch.context() as patch:
        patch.setattr(engines.by_policy["solver"], "load_weights", load_and_stop)
        assert engines.sync()["sync/gap_max/solver"] < 1e-3
    (line,) = [one for one in caplog.messages if "started again" in one]
    assert "has not answered 8 requests in 3 s" in line

    # Stopped: it neither answers nor dies, and no restart is left.
    move(learner, 3)
    third = core_of(engines)
    assert len({first, second, third}) == 3
    monkeypatch.setattr(async_engine, "CHANGED_WITHIN_S", 3.0)
    os.kill(third, signal.SIGSTOP)
    began = time.monotonic()
    with pytest.raises(EngineDeadError, match="has not answered in 3 s") as caught:
        engines.sync()
    assert 3 <= time.monotonic() - began < 60
    assert "engine_restarts" in caught.value.__notes__[0]
    with pytest.raises(EngineDeadError, match="has not answered in 3 s"):
        engines.by_policy["solver"].load_weights(learner.weights.state())
    engines.close()
    end = time.monotonic() + 60
    while (
        is_running(second) or is_running(third) or files() != before
    ):  # it holds no memory, and neither do the weights
        assert time.monotonic() < end
        time.sleep(0.05)


def test_caches_wake_when_weights_are_there(monkeypatch):
    engines, learner = open_engines()
    try:
        backend, order = engines.by_policy["solver"].backend, []
        load = backend.load_weights

        def loaded(tensors, version):
            load(tensors, version)
            order.append("load")

        monkeypatch.setattr(backend, "load_weights", loaded)
        monkeypatch.setattr(backend, "wake", lambda what=None: order.append(what))
        assert engines.sync()["sync/gap_max/solver"] < 1e-3
        assert order == ["load"]
        engines._asleep = True
        move(learner, 1)
        for _ in range(2):  # the second time it is awake
            assert engines.sync()["sync/gap_max/solver"] < 1e-3
        assert order == ["load", ("weights",), "load", ("kv_cache",), "load"]
    finally:
        engines.close()
