"""Layouts of a plan, of models whose shapes are known."""

import gc
import json
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch", reason="the trainer needs flowzoo[train]")

import torch
from transformers import AutoModelForCausalLM

from benchmarks.plan.layouts import layout_fits
from benchmarks.plan.memory import GIB
from benchmarks.plan.models import ModelFolders, files_bytes
from benchmarks.plan.shape import read_config, shape_of
from benchmarks.plan.sizes import RunSizes
from flowzoo.agents.pocket import pocket_path
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.errors import UsageError


@pytest.mark.usual(1)
@pytest.mark.parametrize(
    ("size", "weights", "cache_kib", "adapter"),
    [("0.6B", 8.9, 112, 40_370_176), ("1.7B", 25.6, 112, None), ("4B", 59.9, 144, 132_120_576)],
)
def test_shapes_of_qwen3_have_the_published_sizes(size, weights, cache_kib, adapter, tmp_path):
    folder = ModelFolders(tmp_path).find(f"qwen3:{size}", "math")
    shape = shape_of(read_config(folder), "linear")
    assert 16 * shape.parameters / GIB == pytest.approx(weights, abs=0.05)
    assert (2 * shape.cache / 1024, shape.tied) == (cache_kib, True)
    if adapter:
        assert shape.adapter(64) == adapter
    assert shape.parameters == shape.outside + sum(
        torch.Size(one).numel() for layer in shape.layers for one in layer
    )


def test_layouts_are_those_that_can_be_started():
    shared = RunSizes(TrainConfig(max_tokens=64, lr=1e-4, kl=0.1, coherence=0.5))
    found = {(one.training, one.ranks, one.shard): one for one in shared.layouts(4, 10 * GIB)}
    assert {key[1] for key in found} == {1, 2, 4}
    assert set(found["full", 1, "none"].needs) == {
        "transformers", "colocated", "split", "split, own GPUs",
    }  # fmt: skip
    assert set(found["full", 2, "full"].needs) == {"split", "split, own GPUs"}
    assert set(found["lora", 4, "none"].needs) == {"transformers", "split"}
    one = found["full", 1, "none"]
    assert one.needs["split"] == one.learner + int(0.4 * 10 * GIB), "vLLM takes its share"
    huge = shared.layouts(1, GIB // 1000)[0]
    assert huge.needs["split"] - huge.learner == (
        shared.engine_weights("full") + shared.least_cache("full")
    ), "or what it cannot do without"


LLAMA_70B: dict[str, Any] = {
    "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80,
    "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 128256,
    "max_position_embeddings": 131072, "tie_word_embeddings": False,
}  # fmt: skip


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> RunSizes:
    """A run of a model of 70 billion weights, of which only the config.json is here."""
    folder = tmp_path_factory.mktemp("llama-70b")
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", **LLAMA_70B}))
    return RunSizes(
        TrainConfig(
            model=str(folder), weights="bfloat16", compute="bfloat16", engine="vllm",
            engine_dtype="bfloat16", gradient_checkpointing=True, max_prompt=3072,
        )
    )  # fmt: skip


def test_a_model_of_70_billion_weights_fits_16_ranks_and_engines_over_several_gpus(llama):
    found = {(one.training, one.ranks, one.shard): one for one in llama.layouts(64, 80 * GIB)}
    assert {key[1] for key in found} == {1, 2, 4, 8, 16, 32, 64}
    assert {one.ranks for one in llama.layouts(24, GIB)} == {1, 2, 4, 8, 16, 24}
    eight, sixteen = (found["full", ranks, "full"] for ranks in (8, 16))
    assert eight.learner / GIB == pytest.approx(109.5, abs=0.1)
    # Weights, AdamW, gradients and those of a second role over 16; then gathered layers,
    # activations and logits, which are not spread.
    assert sixteen.learner / GIB == pytest.approx((131.4 + 262.8 + 131.4 + 131.4) / 16 + 27, abs=1)
    assert sixteen.engine_gpus == 2, "131 GiB of weights"
    assert layout_fits(sixteen, "split, own GPUs", 72 * GIB)
    assert not layout_fits(eight, "split, own GPUs", 72 * GIB)
    assert "float32" in llama.unsharded
    assert llama.lent, "nothing says whether it thinks"


def test_rollout_gpus_spread_the_engines_of_a_plan(tmp_path):
    ray: dict[str, Any] = {
        "backend": "ray", "ray_address": "HEAD:1", "rollout_workers": 2, "engine": "vllm",
        "placement": "split",
    }  # fmt: skip
    config = TrainConfig(max_tokens=64, lr=1e-4, model="qwen3:4B", max_prompt=64, **ray)
    for gpus, spread in ((1.0, 1), (4.0, 4)):
        sizes = RunSizes(replace(config, rollout_gpus=gpus))
        assert sizes.layouts(8, 80 * GIB)[0].engine_gpus == spread


def test_the_least_cache_is_that_of_the_longest_sequence_an_engine_is_started_for():
    whole, bounded = (
        RunSizes(TrainConfig(max_tokens=64, model="qwen3:0.6B", max_prompt=prompt))
        for prompt in (0, 4032)
    )
    assert (whole.longest("shared"), bounded.longest("shared")) == (40960, 4096)
    token = whole.shape("shared").cache * 2  # bfloat16, for a model of this size
    assert whole.least_cache("full") == (40960 + 16) * token, "a block more, see cache_bytes"
    assert bounded.least_cache("full") == (4096 + 16) * token


def test_models_are_found_on_this_machine_or_not_at_all(tmp_path, monkeypatch):
    folders = ModelFolders(tmp_path)
    with pytest.raises(UsageError, match="unknown shape of qwen3 '7B'"):
        folders.find("qwen3:7B", "math")
    with pytest.raises(UsageError, match=r"was not downloaded to this machine.*hf download"):
        folders.find("nobody/has-this-model", "math")
    with pytest.raises(UsageError, match=r"holds no config\.json"):
        folders.find(str(tmp_path), "math")
    assert files_bytes(pocket_path()) == sum(
        value.nbytes for value in AutoModelForCausalLM.from_pretrained(pocket_path()).parameters()
    )
    assert files_bytes(tmp_path) == 0
    (tmp_path / "a.safetensors").write_bytes(b"no such file")
    with pytest.raises(UsageError, match="is no safetensors file"):
        files_bytes(tmp_path)
    gc.collect()
