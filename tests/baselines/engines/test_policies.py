"""Weights and number formats of each policy's engine; allowed differences, counted restarts."""

import asyncio
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from flowzoo.agents import Request, Sampling
from flowzoo.agents.hf.int8_linear import Int8Linear
from flowzoo.agents.pocket import load, pocket_path
from flowzoo.agents.vllm.backend import EngineDeadError
from flowzoo.agents.vllm.engine import WeightsGate
from flowzoo.baselines.backends.sync_check import (
    LogprobGap,
    LogprobGapError,
    SyncError,
    check,
    check_bound,
)
from flowzoo.baselines.engines.hf import TransformersEngines, load_policies, policy_models
from flowzoo.baselines.engines.vllm import VLLMEngines, engine_keys
from flowzoo.baselines.learner.config import LearnerConfig
from flowzoo.baselines.learner.update import Learner
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.settings.policies import starting_models
from flowzoo.envs import make_workflow
from flowzoo.envs.records import Call
from flowzoo.errors import UsageError
from tests.baselines.rows import new_call

POCKET = str(pocket_path("math"))

NAMES = ["judge", "solver", "writer"]
HERE: Any = {"device": "cpu", "threads": 1, "engine_dtype": "float32"}


@pytest.fixture(scope="module")
def halved(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Another model: the pocket model with half its output head."""
    folder = tmp_path_factory.mktemp("halved")
    other = load(dtype="float32")
    with torch.no_grad():
        other.model.lm_head.weight.mul_(0.5)
    other.model.save_pretrained(folder)
    other.tokenizer.save_pretrained(folder)
    return str(folder)


def play(engines: Any, name: str) -> Any:
    chat = [{"role": "user", "content": "3 + 4"}]
    return asyncio.run(engines.train_policies[name].generate([Request(("k",), "a_0", "a", chat)]))[
        0
    ]


def row_of(reply: Any) -> Call:
    return new_call(prompt_ids=reply.prompt_ids, output_ids=reply.output_ids, logps=reply.logps)


def logits(weights: Any) -> Any:
    with weights.active(), torch.no_grad():
        return weights.model(torch.arange(12)[None], use_cache=False).logits


def test_adapters_on_different_bases_train_apart(halved):
    config = TrainConfig(lora_rank=4, models=(f"judge={halved}",), **HERE)
    trained = load_policies(config, policy_models(config, starting_models(config, NAMES), "math"))
    models = {name: one.weights.model for name, one in trained.items()}
    assert models["solver"] is models["writer"] is not models["judge"]
    assert engine_keys(trained) == {"judge": halved, "solver": POCKET, "writer": POCKET}
    before = {name: logits(one.weights) for name, one in trained.items()}
    assert torch.equal(before["judge"], before["solver"] * 0.5)
    sampling = dict.fromkeys(trained, Sampling())
    reply = play(TransformersEngines(config, trained, sampling, sampling), "judge")
    learner = Learner(trained["judge"].weights, LearnerConfig(lr=1e-2))
    for _ in range(2):
        learner.update([row_of(reply)], [1.0])
    for name, one in trained.items():
        assert torch.equal(logits(one.weights), before[name]) is (name != "judge")


@pytest.mark.parametrize("rank", [0, 4])
def test_a_frozen_policy_plays_and_keeps_its_weights(rank):
    config = TrainConfig(lora_rank=rank, **HERE, frozen=("judge", "writer"))
    trained = load_policies(config, policy_models(config, starting_models(config, NAMES), "math"))
    assert [one.frozen for one in trained.values()] == [True, False, True]
    judge, solver, writer = (one.weights for one in trained.values())
    assert judge.model is writer.model, "frozen ones share a model"
    assert (judge.model is solver.model) is bool(rank), "and adapters of its path share it too"
    assert judge.parameters() == []
    keys = engine_keys(trained)
    assert keys == {"judge": POCKET, "solver": POCKET if rank else "solver", "writer": POCKET}
    greedy = dict.fromkeys(trained, Sampling(temperature=0.0))
    engines = TransformersEngines(config, trained, greedy, greedy)
    start, first = logits(judge), play(engines, "judge")
    assert play(engines, "solver") == first
    learner = Learner(solver, LearnerConfig(lr=1e-2))
    for _ in range(3):
        learner.update([row_of(first)], [-1.0])
    assert torch.equal(logits(judge), start)
    assert not torch.equal(logits(solver), start)
    assert play(engines, "judge") == first
    with pytest.raises(UsageError, match="frozen policy"):
        judge.save(Path("nowhere"))
    with pytest.raises(UsageError, match="frozen policy"):
        judge.load(Path("nowhere"))


@pytest.mark.vllm
@pytest.mark.full
@pytest.mark.parametrize("rank", [0, 4])
def test_a_frozen_policy_samples_from_a_vllm_engine(rank):
    config = TrainConfig(
        lora_rank=rank, **HERE, engine="vllm", max_batch=8, engine_memory=0.125, frozen=("judge",)
    )
    trained = load_policies(
        config, policy_models(config, starting_models(config, ["judge", "solver"]), "math")
    )
    learner = Learner(trained["solver"].weights, LearnerConfig(lr=3e-2))
    greedy, problems = dict.fromkeys(trained, Sampling(temperature=0.0, max_tokens=16)), [
        make_workflow("voting", "math").task.problem(i, "validation") for i in range(4)
    ]  # fmt: skip
    engines: Any = VLLMEngines(config, trained, greedy, greedy, problems, {"solver": learner})
    try:
        assert set(engines.sync()) >= {"sync/gap_max/solver"}
        first = play(engines, "judge")
        assert play(engines, "solver").output_ids == first.output_ids
        engines.before_learning()
        for _ in range(6):
            learner.update([row_of(first)], [-1.0])
        assert engines.sync()["sync/gap_max/solver"] < 1e-3
        assert play(engines, "judge").output_ids == first.output_ids
        assert play(engines, "solver").output_ids != first.output_ids
    finally:
        engines.close()


KEPT_NAMES = ["judge", "solver"]


def open_engines(dtype: Any, **settings: Any) -> tuple[Any, Any]:
    config = TrainConfig(
        model="pocket:xs",
        device="cpu",
        threads=1,
        engine_dtype=dtype,
        frozen=("judge",),
        **settings,
    )
    trained = load_policies(
        config, policy_models(config, starting_models(config, KEPT_NAMES), "math")
    )
    sampling = dict.fromkeys(trained, Sampling(max_tokens=8))
    return TransformersEngines(config, trained, sampling, sampling), trained


@pytest.mark.parametrize("settings", [{}, {"lora_rank": 4}, {"weights": "bfloat16"}], ids=str)
@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_every_update_reaches_the_layers_that_sample(dtype, settings):
    engines, trained = open_engines(dtype, **settings)
    weights = trained["solver"].weights
    before, judge = play(engines, "solver"), play(engines, "judge")
    with torch.no_grad():
        for parameter in weights.parameters():
            parameter += 0.02
    engines.sync()
    after = play(engines, "solver")
    assert after.logps != before.logps
    sampling = dict.fromkeys(trained, Sampling(max_tokens=8))
    fresh = TransformersEngines(engines._config, trained, sampling, sampling)
    assert play(fresh, "solver") == after
    assert play(engines, "judge") == judge, "a frozen policy samples as before"


def test_rows_sampled_in_int8_differ_from_the_learners_log_probs_by_rounding():
    engines, trained = open_engines("int8")
    learner = Learner(trained["solver"].weights, LearnerConfig(old_logp="recomputed"))
    reply = play(engines, "solver")
    row = learner.update([row_of(reply)], [1.0])
    assert 1e-5 < row["learn/logp_gap_mean"] < 0.1
    gap = LogprobGap(row["learn/logp_gap_max"], row["learn/logp_gap_mean"], len(reply.logps))
    engines.compare({"solver": gap})
    with pytest.raises(SyncError, match=r"int8 is too coarse for policy 'solver': .* 0\.15 is"):
        engines.compare({"solver": gap._replace(mean=0.16)})


def test_a_layer_with_wrong_scales_stops_the_run(monkeypatch):
    engines, trained = open_engines("int8")
    assert engines.prove() == {}, "nothing was synced yet"
    assert set(engines.sync()) == {"time/sync", "time/sync_check"}
    target = trained["solver"].weights.model.model.layers[1].mlp.down_proj
    take = Int8Linear.take

    def faulty(self: Int8Linear, source: torch.nn.Linear) -> None:
        take(self, source)
        if source is target:
            self.levels.scales.mul_(1.05)

    monkeypatch.setattr(Int8Linear, "take", faulty)
    engines.sync(probe=False)
    fault = "int8 copy that policy 'solver' .*: 1 layers differ .* model.layers.1.mlp.down_proj"
    with pytest.raises(SyncError, match=fault):
        engines.prove()


ENGINE = "the engine of policy 'shared'"


@pytest.mark.parametrize(
    ("gap", "exact", "tolerance"),
    [
        (LogprobGap(9e-4, 1e-4, 96), True, 0.0),
        (LogprobGap(0.14, 0.019, 96), False, 0.0),  # as measured with both in bfloat16
        (LogprobGap(0.5, 0.09, 96), False, 0.1),
    ],
)
def test_rounding_passes(gap, exact, tolerance):
    check(gap, ENGINE, exact=exact, tolerance=tolerance)


@pytest.mark.parametrize(
    ("gap", "exact", "tolerance", "allowed"),
    [
        (LogprobGap(2e-3, 1e-5, 96), True, 0.0, "0.001 at most"),
        (LogprobGap(0.34, 0.16, 96), False, 0.0, "0.15 in the mean"),
        (LogprobGap(2e-3, 1e-3, 96), False, 1e-4, "0.0001 in the mean"),
        (LogprobGap(math.nan, math.nan, 96), False, 0.0, "0.15 in the mean"),
    ],
)
def test_other_weights_do_not(gap, exact, tolerance, allowed):
    with pytest.raises(SyncError, match=f"'shared' does not have .* and {allowed} is allowed"):
        check(gap, ENGINE, exact=exact, tolerance=tolerance)


@pytest.mark.parametrize(
    ("settings", "remedies"),
    [
        (
            {"engine_dtype": "bfloat16"},
            "set engine_dtype=float32 in place of bfloat16 or old_logp=recomputed, .*, or cont",
        ),
        (
            {"engine_dtype": "float32", "old_logp": "recomputed", "max_staleness": 2},
            "set max_staleness below 2, or continue",
        ),
        ({"engine_dtype": "float32", "old_logp": "recomputed"}, "allows 0.1: continue from the"),
    ],
)
def test_rows_beyond_the_bound_end_the_run_with_what_to_change(settings, remedies):
    gaps = {"a": LogprobGap(3.0, 0.1, 96), "b": LogprobGap(0.5, 0.2, 7)}
    config = TrainConfig(max_logp_gap=0.1, **settings)
    message = rf"^step 3: .* 0.2 nats a token .* 7 trained tokens of policy 'b' .*{remedies}"
    with pytest.raises(LogprobGapError, match=message):
        check_bound(gaps, 3, config)
    for bound in (0.0, 0.2):
        check_bound(gaps, 3, TrainConfig(max_logp_gap=bound))


class Engine:
    """An engine that is dead until it is restarted."""

    def __init__(self) -> None:
        self.gate, self.adapters, self.starts = WeightsGate(), dict[str, Any](), 0
        self.backend = SimpleNamespace(alive=False, reset_cache=lambda: None)

    def restart(self) -> None:
        self.starts += 1
        self.backend.alive = True


@pytest.fixture
def engine() -> Engine:
    return Engine()


@pytest.fixture
def engines(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> VLLMEngines:
    made = VLLMEngines.__new__(VLLMEngines)
    config = SimpleNamespace(shard="none", engine_restarts=1, engine_sleep=False)
    vars(made).update(
        _engines={"p": engine}, by_policy={"p": engine}, _learners={}, _unproved=set(),
        _asleep=False, _restarted=False, _config=config, _restarts=1,
    )  # fmt: skip

    def sync(self: VLLMEngines, probe: bool = True) -> dict[str, float]:
        if not engine.backend.alive:
            raise EngineDeadError("it died")
        return {}

    monkeypatch.setattr(VLLMEngines, "_sync", sync)
    return made


def test_a_death_that_a_sync_has_mended_is_not_counted_again(engines, engine):
    engines.sync(probe=False)
    engines.recover(EngineDeadError("it died"))  # as a batch reports that it cut off
    assert engine.starts == 1


def test_the_next_death_is_counted(engines, engine):
    engines.sync(probe=False)
    engines.recover(EngineDeadError("it died"))
    with pytest.raises(EngineDeadError):
        engines.recover(EngineDeadError("it died"))
    engines.before_learning()
    engine.backend.alive = False
    engines.recover(EngineDeadError("it died"))
    assert engine.starts == 2
