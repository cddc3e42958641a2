"""Sampling in another number format than the learner's: synced, proved, stopped if wrong."""

from typing import Any

import pytest
import torch

from flowzoo.agents import Sampling
from flowzoo.agents.hf.int8_linear import Int8Linear
from flowzoo.baselines.backends.sync_check import LogprobGap, SyncError
from flowzoo.baselines.engines.hf import TransformersEngines, load_policies, policy_models
from flowzoo.baselines.learner.config import LearnerConfig
from flowzoo.baselines.learner.update import Learner
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.settings.policy_map import starting_models
from tests.baselines.engines.test_policies import play, row_of

NAMES = ["judge", "solver"]


def open_engines(dtype: Any, **settings: Any) -> tuple[Any, Any]:
    config = TrainConfig(
        model="pocket:xs",
        device="cpu",
        threads=1,
        engine_dtype=dtype,
        frozen=("judge",),
        **settings,
    )
    trained = load_policies(config, policy_models(config, starting_models(config, NAMES), "math"))
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
