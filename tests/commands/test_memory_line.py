"""The line about memory that `flowzoo train` prints on a GPU."""

from __future__ import annotations

import json
import shutil
from collections import namedtuple
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the trainer needs flowzoo[train]")

import torch

from flowzoo.agents.pocket import pocket_path
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.commands import train

GIB = 2**30


def test_a_plan_never_stops_a_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    card = namedtuple("card", ["total_memory"])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: card(80 * GIB))
    small = {
        "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 128,
        "num_attention_heads": 4, "num_key_value_heads": 2, "num_experts_per_tok": 2,
        "num_experts": 8, "moe_intermediate_size": 48,
    }  # fmt: skip
    shutil.copytree(pocket_path(), tmp_path, dirs_exist_ok=True)
    config = TrainConfig(lr=1e-4, max_tokens=64, engine_dtype="bfloat16", model=str(tmp_path))
    for args, message in (
        ({"model_type": "qwen3_moe", **small}, "memory: about "),
        ({"model_type": "ctrl"}, "memory: unknown (CTRLLMHeadModel has no decoder layers"),
        ({"model_type": "qwen3", "hidden_size": "64"}, "memory: unknown ("),
    ):
        (tmp_path / "config.json").write_text(json.dumps(args))
        train.tell_memory(config)
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(message)


def test_training_on_a_gpu_says_its_memory_before_anything_is_loaded(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = TrainConfig(engine="vllm", lr=1e-4, max_tokens=64)
    train.tell_memory(config)
    assert capsys.readouterr().err == "", "there is no GPU here"
    card = namedtuple("card", ["total_memory"])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: card(80 * GIB))
    train.tell_memory(config)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("memory: about ")
    assert "of each GPU's 80.0 for learning, 3" in line, "vLLM takes its share"
    train.tell_memory(TrainConfig(device="cpu"))
    assert capsys.readouterr().err == ""
