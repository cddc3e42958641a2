"""Settings by policy: a value of one policy changes that policy, and no bit of another's."""

import json
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
from safetensors.torch import load_file

from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.settings.policies import by_policy
from flowzoo.baselines.training.trainer import train
from flowzoo.cli import main

BASE: dict[str, Any] = {
    "lora_rank": 2, "lora_alpha": 8, "temperature": 0.9, "top_p": 0.8, "top_k": 2, "lr": 0.004,
    "optimizer": "adamw", "beta1": 0.8, "beta2": 0.9, "clip_low": 0.1, "clip_high": 0.1,
    "dual_clip": 2.02, "clip_norm": 1e-3, "updates": 4, "coherence": 0.9,
}  # fmt: skip
"""A value of every setting by policy, all of which have an effect together."""
RUN: dict[str, Any] = {
    "model": "pocket:xs", "sharing": ("isolated",), "algorithm": "dr_mas", "samples": 4,
    "options": ("level=1", "credit=local"), "correction": "renormalize", "problems": 4,
    "coherence_form": "published", "steps": 1, "warmup": 0, "max_tokens": 24, "device": "cpu",
    "threads": 1, "eval_problems": 1,
}  # fmt: skip
"""With `credit` local nothing of the first role, the generator, depends on the aggregator."""
SETTINGS = by_policy(TrainConfig)


def changed(setting: str) -> Any:
    """Another value of a setting, from its type."""
    kind, value = SETTINGS[setting], BASE[setting]
    if get_origin(kind) is Literal:
        return next(choice for choice in get_args(kind) if choice != value)
    return value * 2 if isinstance(value, int) else value / 2


def play(out: Path, **settings: Any) -> dict[str, dict[str, Any]]:
    """Metrics and weights of each policy of a run of one step."""
    train(TrainConfig(**{**RUN, **BASE, **settings, "out": str(out)}))
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return {
        name: {
            f"{row['step']}: {key}": value
            for row in rows
            for key, value in row.items()
            if name in key.split("/") and not key.startswith(("time/", "perf/", "eval/"))
        }
        | {
            f"{path.parts[-4]}: {key}": weight.numpy().tobytes()
            for path in sorted(out.glob(f"checkpoints/step-*/policies/{name}/*.safetensors"))
            for key, weight in load_file(path).items()
        }
        for name in ("generator", "aggregator")
    }


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    return play(tmp_path_factory.mktemp("plain") / "run")


def test_every_setting_by_policy_has_a_value_here():
    assert BASE.keys() == SETTINGS.keys()


@pytest.mark.parametrize("setting", sorted(SETTINGS))
def test_a_value_of_one_policy_leaves_every_bit_of_the_other(setting, plain, tmp_path):
    words = (str(BASE[setting]), f"aggregator={changed(setting)}")
    found = play(tmp_path / "run", **{setting: words})
    assert len(plain["generator"]) > 40, "metrics and weights were compared"
    assert found["generator"] == plain["generator"]
    assert found["aggregator"] != plain["aggregator"]
    weights = [key for key in plain["aggregator"] if key.startswith("step-00000001")]
    assert any(found["aggregator"].get(key) != plain["aggregator"][key] for key in weights)


def test_a_policy_with_all_weights_beside_an_adapter_is_continued_and_plays(tmp_path):
    ranks, updates = ("4", "aggregator=0"), ("generator=2",)
    settings: dict[str, Any] = {**RUN, **BASE, "lora_rank": ranks, "updates": updates}
    whole, parted = tmp_path / "whole", tmp_path / "parted"
    train(TrainConfig(**settings | {"steps": 2, "out": str(whole)}))
    train(TrainConfig(**settings | {"out": str(parted)}))
    summary = train(TrainConfig(**settings | {"steps": 2, "out": str(parted)}))
    assert summary["policy_updates"] == {"aggregator": 2, "generator": 4}
    policies = "checkpoints/step-00000002/policies"
    for file in ("aggregator/model.safetensors", "generator/adapter_model.safetensors"):
        assert (whole / policies / file).read_bytes() == (parted / policies / file).read_bytes()
    record = json.loads((parted / "run.json").read_text(encoding="utf-8"))["settings"]
    assert (record["lora_rank"], record["updates"]) == (list(ranks), list(updates))
    assert main(["eval", "voting", "--policy", str(parted), "--n", "2"]) == 0
