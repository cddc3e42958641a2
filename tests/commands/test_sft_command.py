"""The command that `flowzoo sft` prints at its end is a whole one."""

import shlex
from dataclasses import fields
from typing import Any

import pytest

from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.settings.sft import SftConfig
from flowzoo.commands.line import parse
from flowzoo.commands.sft import CARRIED, train_words

PLACE = "runs/a b's; rm"
ISOLATED = {"generator": "generator", "aggregator": "aggregator"}


def next_settings(settings: SftConfig, models: dict[str, str], roles: dict[str, str]) -> Any:
    """The settings of the printed command, read as a shell and our parser read it."""
    args = train_words(settings, {"models": models, "policies": roles})
    line = " ".join(map(shlex.quote, args))
    return parse(tuple(shlex.split(line))).command.settings


@pytest.mark.parametrize(
    "changes",
    [
        {"workflow": "single", "task": "units", "model": "pocket:math"},
        {"workflow": "single", "options": ("level=1", "data=my file's.jsonl"), "seed": 7},
        {"lora_rank": 16, "lora_alpha": 8, "lora_targets": "all", "thinking": ("off",)},
        {"gradient_checkpointing": True, "compute": "bfloat16", "weights": "bfloat16"},
        {"task": "code", "sandbox": "docker", "lengths": ("generator=40/20",), "max_tokens": 64},
        {"device": "cpu", "threads": 2, "eval_problems": 300, "eval_temperature": 0.7},
        {"workflow": "my_package.flows:Debate", "microbatch_tokens": 512, "layout": "padded"},
    ],
)
def test_what_matters_is_carried_on(changes):
    settings = SftConfig(**changes)
    results = next_settings(settings, {"shared": PLACE}, dict.fromkeys(ISOLATED, "shared"))
    assert (results.workflow, results.model, results.models) == (settings.workflow, PLACE, ())
    assert {name: getattr(results, name) for name in CARRIED} == {
        name: getattr(settings, name) for name in CARRIED
    }


def test_policies_of_their_own_and_frozen_ones_go_on_too():
    settings = SftConfig(sharing=("isolated",))
    results = next_settings(settings, {"generator": "a", "aggregator": "b"}, ISOLATED)
    assert (results.model, results.sharing) == ("pocket", ("isolated",))
    assert results.models == ("generator=a", "aggregator=b")
    settings = SftConfig(
        sharing=("isolated",), frozen=("aggregator",), model="base", models=("aggregator=judge",)
    )
    results = next_settings(settings, {"generator": PLACE}, ISOLATED)
    assert (results.model, results.frozen) == ("base", ("aggregator",))
    assert results.models == ("aggregator=judge", f"generator={PLACE}")


def test_every_shared_setting_is_carried_or_left_out_on_purpose():
    shared = {item.name for item in fields(TrainConfig)} & {item.name for item in fields(SftConfig)}
    local = {
        "workflow", "model", "models",  # said first
        "out", "samples", "lr", "min_lr", "schedule", "weight_decay", "clip_norm", "stop_patience",
        "checkpoint_every", "keep_last",
    }  # fmt: skip
    assert shared - local == set(CARRIED)
