"""Layers in the number format of sampling: what autocast computes, and checked."""

from typing import Any

import pytest
import torch
from torch import nn

from flowzoo.agents.hf.decode import DecodeOutput, DecodeRequest, decode
from flowzoo.agents.hf.kept_linears import KeptLinears
from flowzoo.agents.pocket import load
from flowzoo.agents.policy import Sampling

ROWS = [
    DecodeRequest(tuple(3 + (7 * row + step) % 60 for step in range(4 + row)), row, 6)
    for row in range(9)
]
"""Prompts of unequal length."""


@pytest.fixture(scope="module")
def model() -> Any:
    return load("math", "xs").model


def sample(model: Any, rows: list[DecodeRequest]) -> list[DecodeOutput]:
    return decode(model, rows, Sampling(), frozenset(), lambda: False)[0]


def layer() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(24, 10)


def test_kept_bfloat16_layers_sample_what_autocast_does(model: Any) -> None:
    kept = KeptLinears(model, "bfloat16")
    before = sample(model, ROWS)
    with torch.autocast("cpu", torch.bfloat16):
        converted = sample(model, ROWS)
        with kept.active():
            assert sample(model, ROWS) == converted
    assert sample(model, ROWS) == before, "the model has its layers back"


def test_layers_follow_the_weights_when_refreshed() -> None:
    net = nn.Sequential(layer(), nn.ReLU(), layer().requires_grad_(False))
    kept = KeptLinears(net, "bfloat16")
    assert kept.differing() == []
    with torch.no_grad():
        net[0].weight.mul_(1.1)
    assert kept.differing() == ["0"]
    kept.refresh()
    assert kept.differing() == []
