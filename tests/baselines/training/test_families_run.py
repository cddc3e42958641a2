"""Whole runs of models that other people bring: rows that cannot be packed, a recurrent family."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import MambaConfig, MambaForCausalLM, MistralConfig, MistralForCausalLM

from flowzoo.agents.pocket import load
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.training.build import start_run
from flowzoo.baselines.training.trainer import Trainer
from flowzoo.cli import main
from flowzoo.errors import UsageError

SMALL: dict[str, Any] = {
    "workflow": "single", "steps": 2, "problems": 2, "samples": 4, "eval_problems": 2,
    "max_tokens": 8, "threads": 1, "truncated": "train", "lr": 1e-2,
    "entropy": 0.01,
}  # fmt: skip
"""With an entropy bonus, since a random model is never paid."""


@pytest.fixture
def brought(tmp_path: Path) -> dict[str, str]:
    """Folders of tiny random models with the pocket model's tokenizer."""
    tokenizer = load().tokenizer
    sizes: dict[str, Any] = {
        "vocab_size": len(tokenizer), "hidden_size": 16, "num_hidden_layers": 1,
        "pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id,
        "initializer_range": 0.3,
    }  # fmt: skip
    torch.manual_seed(0)
    attention: dict[str, Any] = {
        "intermediate_size": 24, "num_attention_heads": 2, "num_key_value_heads": 1,
        "sliding_window": 8, "max_position_embeddings": 512,
    }  # fmt: skip
    models: dict[str, Any] = {
        "mistral": MistralForCausalLM(MistralConfig(**sizes, **attention)),
        "mamba": MambaForCausalLM(MambaConfig(**sizes, state_size=4)),
    }
    for name, model in models.items():
        model.save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
    return {name: str(tmp_path / name) for name in models}


def gaps(trainer: Trainer) -> list[float]:
    """Largest difference of the log-probs of sampler and learner, at every step."""
    rows = (trainer.run.directory.root / "metrics.jsonl").read_text().splitlines()[1:]
    return [json.loads(row)["learn/logp_gap_max/shared"] for row in rows]


def test_a_windowed_model_is_padded_and_a_line_says_so(brought, tmp_path, capsys):
    words = [f"--{name.replace('_', '-')}={value}" for name, value in SMALL.items()
             if name != "workflow"]  # fmt: skip
    model, out = brought["mistral"], str(tmp_path / "run")
    assert main(["train", "single", *words, f"--model={model}", f"--out={out}"]) == 0
    said = capsys.readouterr().err
    assert "note: shared: MistralForCausalLM cannot read packed rows" in said
    trainer = Trainer(start_run(TrainConfig(**SMALL, model=model, out=out)))
    assert trainer.run.config.layout == "auto"
    assert trainer.run.learners["shared"].layout == "padded"
    assert max(gaps(trainer)) < 1e-4
    trainer.close()
    with pytest.raises(UsageError, match="use `layout` padded, or auto"):
        Trainer(
            start_run(TrainConfig(**SMALL, model=model, layout="packed", out=str(tmp_path / "no")))
        )


@pytest.mark.full
@pytest.mark.parametrize("rank", [0, 2])
def test_a_recurrent_model_trains(brought, tmp_path, rank):
    config = TrainConfig(
        **SMALL, model=brought["mamba"], lora_rank=rank, gradient_checkpointing=True,
        out=str(tmp_path / "run"),
    )  # fmt: skip
    trainer = Trainer(start_run(config))
    assert any("not on dt_proj ×1, out_proj ×1" in note for note in trainer.notes) == bool(rank)
    trainer.train()
    assert max(gaps(trainer)) < 1e-4
    assert trainer.run.learners["shared"].steps > 0
