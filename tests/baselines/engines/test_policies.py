"""Weights of each policy: full or adapter, own base or shared, trained or frozen."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch

from flowzoo.agents import Request, Sampling
from flowzoo.agents.pocket import load, pocket_path
from flowzoo.baselines.engines.hf import TransformersEngines, load_policies, policy_models
from flowzoo.baselines.engines.vllm import VLLMEngines, engine_keys
from flowzoo.baselines.learner.config import LearnerConfig
from flowzoo.baselines.learner.update import Learner
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.settings.policy_map import starting_models
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
