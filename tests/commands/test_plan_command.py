"""`flowzoo plan` as a user types it, and the line that `flowzoo train` says on a GPU."""

from __future__ import annotations

import json
from collections import namedtuple

import pytest

pytest.importorskip("torch", reason="the trainer needs flowzoo[train]")

import torch

from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.cli import main
from flowzoo.commands import train

GIB = 2**30
WORDS = ["plan", "voting", "--model", "qwen3:0.6B", "--gpus", "2", "--gpu-gib", "24"]


def test_a_plan_says_what_fits_and_invents_no_hours(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main([*WORDS, "--json", "--lora-rank", "16", "--engine", "vllm"]) == 0
    found = json.loads(capsys.readouterr().out)
    (policy,) = found["policies"].values()
    assert policy["parameters"] == 596_049_920
    assert policy["adapter_rank"] == 16
    assert policy["sync_bytes"]["lora"] == 4 * policy["adapter_parameters"]
    full, lora = policy["full"], policy["lora"]
    assert full["held"]["weights"] + full["held"]["optimiser"] + full["learning"]["gradients"] == (
        16 * policy["parameters"]
    )
    assert lora["peak"] < full["peak"]
    chosen = [one for one in found["layouts"] if one["chosen"]]
    assert [(one["training"], one["ranks"]) for one in chosen] == [("lora", 1)]
    for one in found["layouts"]:
        assert (one["sampling_hours"], one["learning_hours"]) == (None, None)
        room = 24 * GIB * (1 - found["spare"])
        assert one["fits"] == {place: size <= room for place, size in one["bytes"].items()}
    assert main([*WORDS, "--gradient-checkpointing"]) == 0
    said = capsys.readouterr().out
    assert said.count("unknown") >= 2
    assert "596,049,920 weights" in said
    assert "… with --gradient-checkpointing" in said
    assert "* full" in said


def test_a_plan_says_what_each_gang_of_learner_workers_holds(
    capsys: pytest.CaptureFixture[str],
) -> None:
    ray = ["--backend", "ray", "--ray-address", "HEAD:1", "--rollout-workers", "2"]
    words = [*WORDS, *ray, "--sharing", "isolated", "--shard", "full", "--learner-gpus", "1"]
    assert main([*words, "--json", "--learner-workers", "generator=4", "aggregator=2"]) == 0
    found = json.loads(capsys.readouterr().out)
    aggregator, generator = found["gangs"]
    assert aggregator["policies"] == ["aggregator"]
    assert (generator["workers"], generator["gpus"]) == (4, 4)
    assert generator["learner_bytes"] < aggregator["learner_bytes"], "more ranks, smaller parts"
    assert [aggregator["fits"], generator["fits"]] == [False, True]
    pair = next(one for one in found["layouts"] if one["ranks"] == 2 and one["shard"] == "full")
    assert aggregator["learner_bytes"] < pair["learner_bytes"], "one policy, not both"
    assert not any(one["chosen"] for one in found["layouts"])
    assert main([*words, "--learner-workers", "2"]) == 0
    assert "aggregator, generator" in capsys.readouterr().out
    assert main([*words, "--learner-workers", "generator=2"]) == 2
    assert "nobody would learn aggregator" in capsys.readouterr().err


def test_a_plan_takes_a_file_of_settings(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--config", "paper/voting-math@pocket", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["workflow"] == "voting_v0"
    assert next(iter(found["policies"].values()))["files_bytes"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--gpus", "0"], "must be above 0"),
        (["--model", "nobody/nothing"], "was not downloaded to this machine"),
        (["--measured", "absent.json"], "absent.json cannot be read"),
    ],
)
def test_mistakes_are_one_line(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "voting", *words]) == 2
    assert said in capsys.readouterr().err


def test_training_on_a_gpu_says_its_memory_before_anything_is_loaded(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = TrainConfig(engine="vllm", lr=1e-4, max_tokens=64)
    train.tell_memory(config)
    assert capsys.readouterr().err == "", "there is no GPU here"
    card = namedtuple("card", ["total_memory"])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda place: card(80 * GIB))
    train.tell_memory(config)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("memory: about ")
    assert "of each GPU's 80.0 for learning, 3" in line, "vLLM takes its share"
    train.tell_memory(TrainConfig(device="cpu"))
    assert capsys.readouterr().err == ""
