"""Sampling in another number format than the learner's: synced, proved, stopped if wrong."""

from typing import Any

import pytest
import torch

from flowzoo.agents import Sampling
from flowzoo.baselines.engines.hf import TransformersEngines, load_policies
from flowzoo.baselines.settings.config import TrainConfig
from tests.baselines.engines.test_policies import play

NAMES = ["judge", "solver"]


def open_engines(dtype: Any, **settings: Any) -> tuple[Any, Any]:
    config = TrainConfig(model="pocket:xs", device="cpu", threads=1, engine_dtype=dtype, **settings)
    trained = load_policies(config, NAMES, "math", frozen=["judge"])
    sampling = Sampling(max_tokens=8)
    return TransformersEngines(config, trained, sampling, sampling), trained


@pytest.mark.parametrize("settings", [{}, {"lora_rank": 4}, {"weights": "bfloat16"}], ids=str)
def test_every_update_reaches_the_layers_that_sample(settings: dict[str, Any]) -> None:
    engines, trained = open_engines("bfloat16", **settings)
    weights = trained["solver"].weights
    before, judge = play(engines, "solver"), play(engines, "judge")
    with torch.no_grad():
        for parameter in weights.parameters():
            parameter += 0.02
    engines.sync()
    after = play(engines, "solver")
    assert after.logps != before.logps
    fresh = TransformersEngines(engines._config, trained, Sampling(max_tokens=8), Sampling())
    assert play(fresh, "solver") == after
    assert play(engines, "judge") == judge, "a frozen policy samples as before"
