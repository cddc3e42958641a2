"""Engines that are given weights, and the proof that they have them; no Ray is needed."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch

from flowzoo.agents import PolicyMap, Sampling
from flowzoo.agents.evaluation.protocol import decoding
from flowzoo.agents.vllm.backend import EngineDeadError, EngineOutOfMemoryError
from flowzoo.baselines.backends.backend import policies_of
from flowzoo.baselines.backends.ray.weights import ReplicaProof
from flowzoo.baselines.backends.ray.worker import Loaded
from flowzoo.baselines.backends.sync_check import SyncError
from flowzoo.baselines.engines.hf import (
    EnginesElsewhere,
    TransformersEngines,
    load_policies,
    policy_models,
)
from flowzoo.baselines.engines.vllm import engine_keys, share_of_bundle
from flowzoo.baselines.learner.config import LearnerConfig
from flowzoo.baselines.learner.update import Learner
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.settings.policies import starting_models
from flowzoo.baselines.training.factories import open_replica
from flowzoo.baselines.training.plan import Replies
from flowzoo.envs import make_workflow
from flowzoo.errors import FlowzooError

NAMES = ["judge", "solver"]


class World(NamedTuple):
    """Two policies with all weights, of which no two are equal, and an engine for each."""

    replica: Any
    learners: dict[str, Learner]
    proof: ReplicaProof


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    config = TrainConfig(
        model="pocket:xs", device="cpu", threads=1, engine="vllm", max_batch=8, engine_restarts=1,
        engine_memory=0.06, engine_dtype="float32", temperature=0.7, top_p=1.0, top_k=0,
    )  # fmt: skip
    task = make_workflow("voting", "math").task
    learners = {
        name: Learner(one.weights, LearnerConfig(temperature=0.7))
        for name, one in load_policies(
            config, policy_models(config, starting_models(config, NAMES), "math")
        ).items()
    }
    for number, learner in enumerate(learners.values()):
        torch.manual_seed(number)
        with torch.no_grad():
            for weight in learner.parameters:
                weight.add_(0.05 * torch.randn_like(weight))
    problems = [task.problem(index, "validation") for index in range(4)]
    replica = open_replica(
        config,
        policy_models(config, starting_models(config, NAMES), "math"),
        problems,
        Replies(16, 16),
    )
    proof = ReplicaProof(exact=True, tolerance=0.0)
    proof.probes = replica.probes()
    yield World(replica, learners, proof)
    replica.close()


def give(world: World, policy: str, version: int, source: str = "") -> Loaded:
    """Load what a policy has, or another one, and say what the engine says then."""
    state = world.learners[source or policy].weights.state()
    return Loaded("", version, world.replica.take(policy, version, state))


@pytest.mark.vllm
@pytest.mark.full
def test_an_engine_for_each_policy_proves_its_own_weights(world):
    replica, learners, proof = world
    assert len(set(map(id, replica.by_policy.values()))) == 2
    for name, learner in learners.items():
        learner.steps = 3
        proof.remember(name, learner)
        learner.steps = 4
        with torch.no_grad():  # what the learner holds later is of no matter
            learner.parameters[0].mul_(1.5)
        proof.remember(name, learner)
    with pytest.raises(SyncError, match=r"rollout worker 7 for policy 'judge' does not have the l"):
        proof(7, "judge", give(world, "judge", 3))
    assert proof.metrics() == {}
    for name in NAMES:
        proof(0, name, give(world, name, 4))
    found = proof.metrics()
    assert sorted(found) == [
        f"sync/gap_{kind}/{name}" for kind in ("max", "mean") for name in NAMES
    ]
    assert 0 < max(found.values()) < 1e-3
    assert replica.lost() == []
    assert replica.train_policies["judge"].version == replica.eval_policies["judge"].version == 4
    with pytest.raises(SyncError, match="does not have the learner's weights"):
        proof(0, "judge", give(world, "judge", 4, "solver"))
    with pytest.raises(SyncError, match="has not said its log-probs of version 5"):
        proof(0, "judge", Loaded("", 5, give(world, "judge", 4).logps))


@pytest.mark.vllm
@pytest.mark.full
def test_an_engine_that_died_has_no_weights_until_they_come_again(world):
    replica, learners, proof = world
    for name in NAMES:
        proof.remember(name, learners[name])
        give(world, name, learners[name].steps)
    replica.by_policy["judge"].backend.close()
    assert replica.lost() == ["judge"]
    error = EngineDeadError("it is gone")
    with pytest.raises(EngineDeadError, match="it is gone"):
        replica.recover(error)
    proof(0, "judge", give(world, "judge", learners["judge"].steps))
    assert replica.lost() == []
    replica.by_policy["solver"].backend.close()
    with pytest.raises(EngineDeadError) as caught:
        give(world, "solver", 4)
    assert "engine_restarts" in caught.value.__notes__[0]
    replica.played()
    with pytest.raises(EngineOutOfMemoryError):
        replica.recover(EngineOutOfMemoryError("lower something"))
    with pytest.raises(EngineOutOfMemoryError, match="lower something"):
        give(world, "solver", 4)


def test_the_gpus_of_a_worker_are_shared_evenly(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    assert share_of_bundle(0.0, 2, 0) == ("", 1, 0.4)
    assert share_of_bundle(0.5, 1, 0) == ("", 1, 0.4)
    assert share_of_bundle(1.0, 2, 1) == ("", 1, 0.4)
    assert share_of_bundle(4.0, 2, 0) == ("4,5", 2, 0.8)
    assert share_of_bundle(4.0, 2, 1) == ("6,7", 2, 0.8)
    assert share_of_bundle(2.0, 2, 1) == ("5", 1, 0.8)


async def test_a_driver_has_names_and_no_engine():
    config = TrainConfig(
        model="pocket:xs", lora_rank=4, device="cpu", threads=1, engine_dtype="float32"
    )
    trained = load_policies(config, policy_models(config, starting_models(config, NAMES), "math"))
    assert engine_keys(trained) == engine_keys(
        policy_models(config, starting_models(config, NAMES), "math")
    )
    plain, greedy = (dict.fromkeys(trained, Sampling(temperature=heat)) for heat in (1.0, 0.0))
    engines = EnginesElsewhere(config, trained, plain, greedy)
    assert engines.eval_policies["judge"].sampling.temperature == 0
    own = TransformersEngines(config, trained, plain, greedy)
    for name in NAMES:
        for one, other in (
            (engines.train_policies, own.train_policies),
            (engines.eval_policies, own.eval_policies),
        ):
            assert decoding(one[name]) == decoding(other[name])
            assert one[name].batching == other[name].batching == "static"
            assert policies_of(PolicyMap({"r": one[name]})) == policies_of(
                PolicyMap({"r": other[name]})
            )
    streams = EnginesElsewhere(replace(config, engine="vllm"), trained, plain, plain)
    assert streams.train_policies["judge"].batching == "stream"
    with pytest.raises(FlowzooError, match="'judge' samples in rollout workers, and not here"):
        await engines.train_policies["judge"].generate([])
