"""Training with vLLM: sync and its proof, crashes, transfers, rollouts that overlap learning."""

import itertools
import json
import os
import shutil
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
from flowzoo.agents.identity import identify
from flowzoo.agents.pocket import pocket_path
from flowzoo.agents.vllm.backend import EngineDeadError, EngineOutOfMemoryError, shared_memory
from flowzoo.agents.vllm.engine import VLLMEngine
from flowzoo.baselines.backends.sync_check import SyncError
from flowzoo.baselines.engines.hf import load_policies, policy_models
from flowzoo.baselines.engines.vllm import VLLMEngines, adapter_rank, endpoints
from flowzoo.baselines.learner.config import LearnerConfig
from flowzoo.baselines.learner.update import Learner
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.settings.policies import starting_models
from flowzoo.baselines.training.build import start_run
from flowzoo.baselines.training.trainer import Trainer, train
from flowzoo.envs import make_workflow
from flowzoo.errors import UsageError
from tests.baselines.rows import copy_after

SMALL: dict[str, Any] = {
    "engine": "vllm", "steps": 3, "problems": 2, "samples": 4, "eval_problems": 2,
    "eval_every": 3, "checkpoint_every": 2, "threads": 1, "max_batch": 64, "engine_memory": 0.06,
    "max_tokens": 32, "sync_check_every": 1,
}  # fmt: skip


def config(root: Path, **changes: Any) -> TrainConfig:
    return TrainConfig(**{**SMALL, **changes, "out": str(root)})


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the small settings to which nothing happened, only to be read."""
    root = tmp_path_factory.mktemp("calm")
    train(config(root))
    return root


def check_agreement(rows: list[dict[str, Any]], names: list[str]) -> None:
    """The engines had the learners' weights in every step."""
    kept = rows[1:]
    assert len(kept) == 3
    for row in kept:
        for name in names:
            assert row[f"sync/gap_max/{name}"] < 1e-3
            assert row[f"learn/logp_gap_max/{name}"] < 1e-3  # of the rows trained on
    assert sum(row[f"learn/steps/{name}"] for row in kept for name in names) >= 2 * len(names)


@pytest.mark.vllm
def test_engine_and_learner_agree_after_every_step(calm, repeated_rows):
    check_agreement(repeated_rows(calm), ["shared"])


@pytest.mark.vllm
@pytest.mark.full
@pytest.mark.parametrize("lora_rank", [0, 8])
def test_a_skipped_sync_is_caught(tmp_path, monkeypatch, lora_rank):
    trainer = Trainer(
        start_run(config(tmp_path, lora_rank=lora_rank, lr=1e-3 if lora_rank else 2e-4))
    )
    trainer.iterate(1)
    monkeypatch.setattr(VLLMEngine, "load_weights", lambda self, tensors: None)
    monkeypatch.setattr(VLLMEngine, "load_adapter", lambda self, name, save: None)
    with pytest.raises(SyncError, match=r"policy 'shared' does not have the learner's weights"):
        trainer.iterate(2)
    trainer.close()


def one_layer_left(tensors: Any) -> Any:
    """The weights without those of the last layer."""
    last = max(name for name in dict(tensors) if ".layers." in name).split(".layers.")[1]
    return {name: one for name, one in tensors.items() if f".layers.{last[0]}." not in name}


@pytest.mark.vllm
@pytest.mark.full
@pytest.mark.parametrize("left", ["everything", "a layer", "an adapter"])
def test_between_probes_the_rows_show_a_stale_engine(tmp_path, monkeypatch, left):
    rank = 8 if left == "an adapter" else 0
    changes = {"sync_check_every": 0, "eval_at": (3,), "eval_every": 0, "lora_rank": rank}
    trainer = Trainer(start_run(config(tmp_path, **changes, problems=4, lr=1e-3 if rank else 2e-4)))
    first = trainer.iterate(1)
    assert "sync/gap_max/shared" not in first
    assert first["time/sync_check"] == 0
    load = VLLMEngine.load_weights
    lose = {"everything": lambda self, tensors: None,
            "a layer": lambda self, tensors: load(self, one_layer_left(tensors))}  # fmt: skip
    monkeypatch.setattr(VLLMEngine, "load_weights", lose.get(left, load))
    if rank:
        monkeypatch.setattr(VLLMEngine, "load_adapter", lambda self, name, save: None)
    trainer.iterate(2)  # whose sync is lost
    with pytest.raises(SyncError, match="tokens trained on differ"):
        trainer.iterate(3)
    with pytest.raises(SyncError, match="probe tokens differ"):
        trainer.evaluate(3)
    trainer.close()


@pytest.mark.vllm
@pytest.mark.full
def test_an_engine_is_probed_where_rows_prove_nothing(tmp_path):
    trainer = Trainer(start_run(config(tmp_path, sync_check_every=2, eval_every=3)))
    engines = trainer.run.engines
    assert engines.prove() == {}, "opening it has probed it"
    assert "sync/gap_max/shared" not in trainer.iterate(1)
    assert "sync/gap_max/shared" in engines.prove(), "an evaluation comes"
    assert "sync/gap_max/shared" in trainer.iterate(2), "the second step"
    engines.sync(probe=False)
    assert "sync/gap_max/shared" in engines.sync(probe=False), "no rows since the last sync"
    trainer.close()


@pytest.mark.vllm
@pytest.mark.parametrize("file", ["chat_template.jinja", "config.json", "model.safetensors"])
def test_a_model_that_is_another_one_when_its_engine_starts_again_is_refused_by_name(
    tmp_path, file
):
    base = shutil.copytree(pocket_path("math", "xs"), tmp_path / "base")
    trainer = Trainer(start_run(config(tmp_path / "run", model=str(base))))
    (engine,), began = trainer.run.engines.by_policy.values(), trainer.run.state.trained["shared"]
    assert began.model.changes(identify(engine.path)) == []  # after the first sync
    content = (base / file).read_bytes()
    # A byte of the weights' header is a blank.
    changed = content.replace(b"  ", b" \t", 1) if file == "model.safetensors" else content + b" "
    (base / file).write_bytes(changed)
    engine.backend.close()
    with pytest.raises(UsageError, match=rf"base is not the model that the run in .* \({file} "):
        trainer.run.engines.recover(EngineDeadError("gone"))
    assert not engine.backend.alive
    trainer.close()


@pytest.mark.vllm
@pytest.mark.full
def test_a_prompt_cache_that_outlives_its_weights_is_caught(tmp_path, monkeypatch):
    trainer = Trainer(start_run(config(tmp_path, lr=5e-3)))
    backend = next(iter(trainer.run.engines.by_policy.values())).backend
    monkeypatch.setattr(backend, "_forget_prompts", lambda: None)
    with pytest.raises(SyncError):
        trainer.iterate(1)
    trainer.close()


def crash_at(monkeypatch: pytest.MonkeyPatch, step: int, times: int, error: BaseException) -> None:
    """Let engines fail in the middle of the rollout of `step`, `times` times."""
    import flowzoo.agents.vllm.thread as thread

    left = {"crashes": times, "rollouts": 0}
    submit, before = thread.InProcessBackend.submit, VLLMEngines.before_learning

    def counted(self: Any) -> None:
        left["rollouts"] += 1
        before(self)

    def failing(self: Any, jobs: Any) -> Any:
        futures = submit(self, jobs)
        in_rollout = left["rollouts"] == step - 1 and len(jobs) > 20
        if in_rollout and left["crashes"]:
            left["crashes"] -= 1
            engine, steps = self._engine, iter(range(3))
            real = engine.step

            def step_or_die() -> Any:
                if next(steps, None) is None:
                    raise error
                return real()

            engine.step = step_or_die
        return futures

    monkeypatch.setattr(thread.InProcessBackend, "submit", failing)
    monkeypatch.setattr(VLLMEngines, "before_learning", counted)


@pytest.mark.vllm
@pytest.mark.full
def test_a_step_whose_engine_dies_is_repeated_and_gives_the_same_numbers(
    calm, tmp_path, monkeypatch, caplog, repeated_rows
):
    crash_at(monkeypatch, step=2, times=2, error=RuntimeError("injected fault"))
    train(config(tmp_path))
    said = [r.getMessage() for r in caplog.records if "started again" in r.getMessage()]
    assert len(said) == 2
    assert "injected fault" in said[0]
    assert repeated_rows(tmp_path) == repeated_rows(calm)
    assert repeated_rows(calm)[2]["learn/rows/shared"] == 2 * 4 * 4


@pytest.mark.vllm
@pytest.mark.full
def test_too_many_deaths_and_lack_of_memory_stop_the_run(tmp_path, monkeypatch, repeated_rows):
    with monkeypatch.context() as patch:
        crash_at(patch, step=1, times=9, error=RuntimeError("again and again"))
        with pytest.raises(EngineDeadError, match="again and again") as caught:
            train(config(tmp_path / "a", engine_restarts=1))
        assert "engine_restarts" in caught.value.__notes__[0]
    assert all("learn/rows/shared" not in row for row in repeated_rows(tmp_path / "a"))
    crash_at(monkeypatch, step=1, times=1, error=torch.OutOfMemoryError("CUDA out of memory"))
    with pytest.raises(EngineOutOfMemoryError, match="lower --max-batch, --engine-memory"):
        train(config(tmp_path / "b"))
    assert all("learn/rows/shared" not in row for row in repeated_rows(tmp_path / "b"))


@pytest.mark.vllm
@pytest.mark.full
@pytest.mark.parametrize("lora_rank", [0, 8])
def test_a_resumed_run_has_the_same_numbers(tmp_path, lora_rank, repeated_rows):
    changes: dict[str, Any] = {"lora_rank": lora_rank, "sharing": ("isolated",), "eval_every": 2}
    changes |= {"lr": 5e-3, "problems": 4} if lora_rank else {}
    killed = copy_after(2, tmp_path / "whole", tmp_path / "parts")
    train(config(tmp_path / "whole", **changes), killed)
    train(config(tmp_path / "parts", **changes))
    assert repeated_rows(tmp_path / "parts") == repeated_rows(tmp_path / "whole")
    check_agreement(repeated_rows(tmp_path / "whole"), ["aggregator", "generator"])


@pytest.mark.vllm
@pytest.mark.full
def test_requests_may_leave_as_they_come(tmp_path, repeated_rows):
    train(config(tmp_path, deterministic=False, steps=1, workflow="eval_opt"))
    assert all(row["learn/logp_gap_max/shared"] < 1e-3 for row in repeated_rows(tmp_path)[1:])


def test_the_engine_of_a_rank_that_has_a_part_of_the_weights_is_not_started_again(tmp_path):
    engines = VLLMEngines.__new__(VLLMEngines)  # nothing is started: it is refused before
    engines._config = config(tmp_path, backend="torchrun", ranks=2, shard="full")
    engines._engines, engines._restarted = {}, False
    with pytest.raises(EngineDeadError, match="gone") as caught:
        engines.recover(EngineDeadError("gone"))
    assert "spread over the ranks" in caught.value.__notes__[0]


def test_an_engine_that_is_not_there_is_an_error_and_not_another_engine(tmp_path, monkeypatch):
    import sys

    ours = ("flowzoo.agents.vllm.thread", "flowzoo.agents.vllm.convert")
    for name in list(sys.modules):
        if name in ours or name.startswith("vllm."):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(ImportError, match=r"--engine transformers.*flowzoo\[vllm"):
        Trainer(start_run(config(tmp_path)))


def test_an_endpoint_is_that_of_all_policies_or_of_each():
    url = "http://localhost:1/v1"
    assert endpoints((url,), ["a"]) == {"a": url}
    assert endpoints((f"a={url}", f"b={url}"), ["a", "b"]) == {"a": url, "b": url}
    with pytest.raises(UsageError, match="add b=URL"):
        endpoints((f"a={url}",), ["a", "b"])


def test_adapter_slots_hold_the_rank():
    assert [adapter_rank(rank) for rank in (1, 2, 8, 9, 64, 65, 512)] == [
        1, 8, 8, 16, 64, 128, 512,
    ]  # fmt: skip
    with pytest.raises(UsageError, match="512 at most"):
        adapter_rank(513)


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


@pytest.mark.vllm
@pytest.mark.full
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


@pytest.mark.vllm
@pytest.mark.full
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


SMALL_OVERLAP: dict[str, Any] = {
    "engine": "vllm", "placement": "split", "max_staleness": 1, "steps": 4, "problems": 2,
    "samples": 4, "eval_problems": 2, "eval_every": 2, "checkpoint_every": 2, "threads": 1,
    "max_batch": 64, "engine_memory": 0.06, "transcripts_every": 1, "lr": 1e-3, "keep_last": 9,
}  # fmt: skip


def overlap_config(root: Path, **changes: Any) -> TrainConfig:
    return TrainConfig(**{**SMALL_OVERLAP, **changes, "out": str(root)})


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, forked_engines: None) -> Path:
    """A finished run that sampled ahead, and `parts`: what it was on the disk at step 2."""
    root = tmp_path_factory.mktemp("overlap") / "whole"
    train(overlap_config(root), copy_after(2, root, root.parent / "parts"))
    return root


@pytest.mark.vllm
@pytest.mark.full
@pytest.mark.xdist_group("overlap")
@pytest.mark.usefixtures("forked_engines")
def test_every_batch_is_sampled_by_the_weights_of_one_step_before(whole, repeated_rows):
    kept = repeated_rows(whole)[1:]
    steps = [row["learn/steps/shared"] for row in kept]
    assert steps == [1.0] * 4  # else the next line says little
    assert [row["version/shared"] for row in kept] == [0, 0, 1, 2]
    assert [row["staleness/shared"] for row in kept] == [0, 1, 1, 1]
    for row in kept:
        file = whole / "transcripts" / f"train-{row['step']:06d}.jsonl"
        calls = [call for line in file.read_text().splitlines()
                 for call in json.loads(line)["calls"]]  # fmt: skip
        assert {call["version"] for call in calls} == {row["version/shared"]}
        assert row["sync/gap_max/shared"] < 1e-3  # the engine has the newest weights afterwards
    # Recorded log-probs are the sampler's: with the weights of now in the first step only.
    assert kept[0]["learn/logp_gap_max/shared"] < 1e-3
    assert all(row["learn/logp_gap_max/shared"] > 1e-3 for row in kept[1:])


@pytest.mark.vllm
@pytest.mark.full
@pytest.mark.xdist_group("overlap")
@pytest.mark.usefixtures("forked_engines")
def test_a_resumed_run_trains_on_the_rows_that_were_sampled_ahead(whole, repeated_rows):
    parts = whole.parent / "parts"
    assert (parts / "checkpoints" / "step-00000002" / "ahead.json").is_file()
    assert not (whole / "checkpoints" / "step-00000004" / "ahead.json").exists()
    train(overlap_config(parts))
    assert repeated_rows(parts) == repeated_rows(whole)


@pytest.mark.vllm
@pytest.mark.full
@pytest.mark.xdist_group("overlap")
@pytest.mark.usefixtures("forked_engines")
def test_an_engine_that_dies_beside_the_learner_is_started_again(tmp_path, caplog):
    trainer = Trainer(start_run(overlap_config(tmp_path, lora_rank=4)))
    start = trainer.run.batches.start

    def start_dead(step):
        for engine in trainer.run.engines.by_policy.values():
            engine.backend.close()
        start(step)

    trainer.run.batches.start = start_dead
    first = trainer.iterate(1)
    trainer.run.batches.start = start
    second = trainer.iterate(2)
    trainer.close()
    assert [r for r in caplog.records if "started again" in r.getMessage()]
    assert (first["staleness/shared"], second["staleness/shared"]) == (0, 0)
    assert second["version/shared"] == first["learn/steps/shared"] == 1
    assert second["learn/logp_gap_max/shared"] < 1e-3


@pytest.mark.vllm
@pytest.mark.full
@pytest.mark.xdist_group("overlap")
@pytest.mark.usefixtures("forked_engines")
@pytest.mark.parametrize("changes", [{}, {"lora_rank": 4, "sharing": ("isolated",)}])
def test_weights_change_between_the_turns_of_episodes(changes, tmp_path, repeated_rows):
    root, parts = tmp_path / "whole", tmp_path / "parts"
    settings = {"max_staleness": 2, "deterministic": False, "steps": 5, "workflow": "eval_opt"}
    settings |= changes | {"problems": 4, "max_tokens": 32, "eval_every": 5}
    train(overlap_config(root, **settings), copy_after(2, root, parts))
    train(overlap_config(parts, **settings))
    for run in (root, parts):
        rows = repeated_rows(run)[1:]
        policies = [key.partition("/")[2] for key in rows[0] if key.startswith("version/")]
        mixed = set[str]()
        for row, policy in itertools.product(rows, policies):
            file = run / "transcripts" / f"train-{row['step']:06d}.jsonl"
            calls = [call for line in file.read_text().splitlines()
                     for call in json.loads(line)["calls"] if call["policy"] == policy]  # fmt: skip
            ages = [row[f"version/{policy}"] + row[f"staleness/{policy}"] - call["version"]
                    for call in calls]  # fmt: skip
            assert 0 <= min(ages) <= max(ages) == row[f"staleness/{policy}"] <= 2
            assert row[f"staleness_mean/{policy}"] == pytest.approx(sum(ages) / len(ages))
            assert row[f"sync/gap_max/{policy}"] < 1e-3
            mixed |= {policy} if len(set(ages)) > 1 else set()
        assert mixed, "no batch had weights of two versions"
