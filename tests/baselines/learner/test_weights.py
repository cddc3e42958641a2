"""Full weights and LoRA adapters as a learner, a checkpoint and a sampler see them."""

import asyncio
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from flowzoo.agents.hf.policy import TransformersPolicy
from flowzoo.agents.pocket import load, pocket_path
from flowzoo.agents.policy import Request, Sampling
from flowzoo.baselines.learner.lora import LoraBase, LoraSettings, LoraWeights
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.training.build import start_run
from flowzoo.baselines.training.trainer import Trainer
from flowzoo.envs.settings import read_named
from flowzoo.errors import UsageError

POCKET = pocket_path("math")

SMALL: dict[str, Any] = {
    "steps": 2, "problems": 2, "samples": 4, "eval_problems": 4, "eval_every": 2,
    "checkpoint_every": 1, "threads": 1, "lora_rank": 4, "lr": 5e-3,
}  # fmt: skip


@pytest.fixture
def base() -> LoraBase:
    model = AutoModelForCausalLM.from_pretrained(POCKET, dtype=torch.float32).eval()
    return LoraBase(model, str(POCKET), LoraSettings(rank=4, alpha=8))


def logits(weights: LoraWeights) -> Any:
    with weights.active(), torch.no_grad():
        return weights.model(torch.arange(12)[None], use_cache=False).logits


def nudge(weights: LoraWeights) -> None:
    with torch.no_grad():
        for weight in weights.parameters():
            weight.add_(0.1)


def test_a_new_adapter_changes_nothing_and_moving_one_leaves_the_other(base):
    plain = load(dtype="float32").model(torch.arange(12)[None], use_cache=False).logits.detach()
    one, two = base.add("one", 0), base.add("two.b", 0)
    assert torch.equal(logits(one), plain)
    nudge(one)
    assert (logits(one) - plain).abs().max() > 0.1
    assert torch.equal(logits(two), plain)


def test_first_weights_depend_on_name_and_seed_and_not_on_the_global_generator():
    def first(name, seed):
        torch.manual_seed(len(name) + seed)
        model = AutoModelForCausalLM.from_pretrained(POCKET, dtype=torch.float32)
        weights = LoraBase(model, str(POCKET), LoraSettings(rank=4, alpha=8)).add(name, seed)
        torch.rand(3)
        return weights.parameters()[0]

    assert torch.equal(first("a", 1), first("a", 1))
    assert not torch.equal(first("a", 1), first("a", 2))
    assert not torch.equal(first("a", 1), first("b", 1))


def test_only_the_active_adapter_gets_gradients_and_the_base_none(base):
    one, two = base.add("one", 0), base.add("two", 0)
    with one.active():
        base.model(torch.arange(12)[None], use_cache=False).logits.square().mean().backward()
    assert any(weight.grad is not None for weight in one.parameters())
    assert all(weight.grad is None for weight in two.parameters())
    trained = {id(weight) for part in (one, two) for weight in part.parameters()}
    assert all(w.grad is None for w in base.model.parameters() if id(w) not in trained)


def test_an_adapter_survives_its_files(base, tmp_path):
    one, two = base.add("one", 0), base.add("two", 0)
    nudge(one)
    one.save(tmp_path)
    two.load(tmp_path)
    assert torch.equal(logits(one), logits(two))
    again = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    with torch.no_grad():
        theirs = again(torch.arange(12)[None], use_cache=False).logits
    assert torch.allclose(theirs, logits(one), atol=1e-5)
    other = LoraBase(load(dtype="float32").model, str(POCKET), LoraSettings(rank=2, alpha=8))
    with pytest.raises(UsageError, match="of another shape"):
        other.add("one", 0).load(tmp_path)


def test_two_policies_sample_from_their_own_adapter_of_one_model(base):
    tokenizer = load().tokenizer
    parts = {name: base.add(name, 0) for name in ("one", "two")}
    nudge(parts["two"])
    players = {
        name: TransformersPolicy(
            base.model, tokenizer, name=name, sampling=Sampling(temperature=0.0, max_tokens=16),
            active=part.active,
        )
        for name, part in parts.items()
    }  # fmt: skip
    chat = [{"role": "user", "content": "3 + 4"}]
    requests = [Request((i,), "a_0", "a", chat) for i in range(4)]

    async def both():
        return await asyncio.gather(*(p.generate(requests) for p in players.values()))

    alone = [asyncio.run(player.generate(requests)) for player in players.values()]
    assert asyncio.run(both()) == alone
    assert alone[0] != alone[1]


@pytest.mark.full
def test_isolated_adapters_train_apart(tmp_path):
    trainer = Trainer(start_run(TrainConfig(**SMALL, sharing=("isolated",), out=str(tmp_path))))
    trainer.train()
    models = {id(learner.model) for learner in trainer.run.learners.values()}
    assert len(models) == 1
    one, two = (learner.weights for learner in trainer.run.learners.values())
    assert not torch.equal(one.parameters()[1], two.parameters()[1])
    folder = trainer.run.directory.checkpoints / "step-00000002" / "policies" / "aggregator"
    assert (folder / "adapter_model.safetensors").stat().st_size < 500_000
    assert not (folder / "model.safetensors").exists()
    trainer.close()


def test_policies_may_start_from_different_models(tmp_path):
    other = load(dtype="float32")
    with torch.no_grad():
        other.model.lm_head.weight.mul_(0.5)
    other.model.save_pretrained(tmp_path / "other")
    other.tokenizer.save_pretrained(tmp_path / "other")
    trainer = Trainer(start_run(
        TrainConfig(
            **{**SMALL, "lora_rank": 0}, sharing=("isolated",),
            models=(f"aggregator={tmp_path / 'other'}",), out=str(tmp_path / "run"),
        )
    ))  # fmt: skip
    heads = {name: one.model.lm_head.weight for name, one in trainer.run.learners.items()}
    assert torch.equal(heads["aggregator"], heads["generator"] * 0.5)
    trainer.close()


@pytest.mark.parametrize(
    ("words", "message"),
    [(("a",), "POLICY=VALUE, got 'a'"), (("c=x",), "unknown policy 'c'"), (("a=",), "got 'a='")],
)
def test_maps_over_policies_name_what_is_wrong(words, message):
    with pytest.raises(UsageError, match=message):
        read_named(words, ["a", "b"], "models")
    assert read_named(("a=x=y",), ["a", "b"], "models") == {"a": "x=y"}
