"""What a plan counts, against what is there when it is done: weights, state, saved tensors."""

import shutil
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch", reason="the trainer needs flowzoo[train]")

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks.plan.activations import Activations, Saved, UncountedError, count_activations
from benchmarks.plan.memory import (
    GIB,
    EngineBytes,
    LearnerMemory,
    gpus_of_each,
    learner_memory,
    optimizer_bytes,
    with_cache,
)
from benchmarks.plan.shape import shape_of
from benchmarks.plan.sizes import RunSizes
from flowzoo.agents.pocket import pocket_path
from flowzoo.baselines.learner.batch import tensors
from flowzoo.baselines.learner.hidden_states import fitting_layout, last_hidden
from flowzoo.baselines.learner.lora import LoraBase, LoraSettings
from flowzoo.baselines.settings.config import TrainConfig


@pytest.fixture(scope="module")
def config() -> Any:
    """Of the pocket model."""
    return AutoConfig.from_pretrained(pocket_path())


@pytest.fixture(scope="module")
def shared() -> RunSizes:
    """A run of one policy for two roles."""
    return RunSizes(TrainConfig(max_tokens=64, lr=1e-4, kl=0.1, coherence=0.5))


def real_bytes(config: Any, length: int, rank: int, lower: bool) -> int:
    """What autograd keeps of a real forward pass, but for weights."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    if rank:
        LoraBase(model, "", LoraSettings(rank)).add("one", 0)
    layout, _ = fitting_layout(model, "auto")

    class Row:
        prompt_ids, output_ids, logps = [1 + place % 90 for place in range(length)], [1], [0.0]

    batch = tensors([Row()], [0.0], layout)
    own = {one.untyped_storage().data_ptr() for one in model.parameters()}
    seen: dict[int, torch.UntypedStorage] = {}

    def pack(value: Tensor) -> Tensor:
        storage = value.untyped_storage()
        if storage.data_ptr() not in own:
            seen[storage.data_ptr()] = storage
        return value

    with (
        torch.autograd.graph.saved_tensors_hooks(pack, lambda value: value),
        torch.autocast("cpu", torch.bfloat16, enabled=lower),
    ):
        last_hidden(model, batch)
    return sum(one.nbytes() for one in seen.values())


@pytest.mark.usual(1)
@pytest.mark.parametrize(
    ("rank", "compute"), [(0, "float32"), (0, "bfloat16"), (4, "float32"), (4, "bfloat16")]
)
def test_what_a_backward_pass_keeps_is_counted_without_memory(rank, compute, config):
    lora = LoraSettings(rank) if rank else None
    counted = count_activations(config, lora, "float32", compute)
    assert len(counted.layers) == config.num_hidden_layers > 2
    length = 700
    real = real_bytes(config, length, rank, compute == "bfloat16")
    mine = counted.kept(length, again=False) + counted.copies
    assert mine == pytest.approx(real, rel=0.05)
    assert (counted.copies > 0) == (compute == "bfloat16")
    assert counted.kept(length, again=True) < counted.kept(length, again=False)


SMALL: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 4, "vocab_size": 128, "max_position_embeddings": 4096,
    "num_experts_per_tok": 2, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
EXPERTS: dict[str, dict[str, Any]] = {
    "qwen3_moe": {"head_dim": 16, "num_experts": 8, "moe_intermediate_size": 48},
    "mixtral": {"num_local_experts": 8},
    "deepseek_v3": {
        "n_routed_experts": 8, "moe_intermediate_size": 48, "n_group": 2, "topk_group": 1,
        "first_k_dense_replace": 1, "q_lora_rank": 32, "kv_lora_rank": 16, "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8, "v_head_dim": 16, "n_shared_experts": 1,
    },
}  # fmt: skip


@pytest.mark.parametrize(("rank", "compute"), [(0, "float32"), (0, "bfloat16"), (4, "float32")])
@pytest.mark.parametrize("kind", EXPERTS)
def test_experts_are_counted_as_a_real_pass_keeps_them(kind, rank, compute):
    config = AutoConfig.for_model(kind, **SMALL, **EXPERTS[kind])
    counted = count_activations(config, LoraSettings(rank) if rank else None, "float32", compute)
    real = real_bytes(config, 700, rank, compute == "bfloat16")
    assert counted.kept(700, again=False) + counted.copies == pytest.approx(real, rel=0.001)
    if kind == "deepseek_v3":
        dense, *rest = counted.layers
        assert all(dense.per_token < layer.per_token for layer in rest[1:]), "experts keep more"


def test_activations_that_cannot_be_counted_are_unknown_and_stop_nothing(tmp_path):
    sinks = AutoConfig.for_model(
        "gpt_oss", **SMALL, head_dim=16, num_local_experts=8, sliding_window=16
    )
    with pytest.raises(UncountedError, match="tables of all pairs of tokens"):
        count_activations(sinks, None, "float32", "float32")
    shutil.copytree(pocket_path(), tmp_path, dirs_exist_ok=True)
    sinks.save_pretrained(tmp_path)
    sizes = RunSizes(TrainConfig(max_tokens=64, lr=1e-4, model=str(tmp_path)))
    assert not sizes.layout("full", 1, "none", 1, 80 * GIB).counted
    (reason,) = sizes.uncounted.values()
    assert reason.startswith("the activations of gpt_oss: it keeps tables")
    assert "activations" not in sizes.learner("shared", "full").learning


@pytest.mark.parametrize("kind", ["adamw", "sgd", "adafactor", "muon"])
def test_the_state_of_an_optimiser_is_counted(kind, config):
    from flowzoo.baselines.learner.config import LearnerConfig
    from flowzoo.baselines.learner.optimizers import make_optimizer
    from flowzoo.baselines.learner.weights import Weights

    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    settings = LearnerConfig(optimizer=kind, lr=1e-3)
    optimizer = make_optimizer(Weights(model), settings)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    held = sum(
        value.nbytes
        for state in optimizer.state.values()
        for value in state.values()
        if isinstance(value, Tensor) and value.ndim
    )
    assert optimizer_bytes(shape_of(config), settings) == held


def test_ranks_share_weights_and_checkpointing_saves_activations(shared):
    plan = shared
    full = plan.learner("shared", "full")
    assert full.held["weights"] == 4 * plan.shape("shared").parameters
    assert full.held["optimizer"] == 2 * full.held["weights"]
    assert full.held["reference of the KL term"] == full.held["weights"]
    assert full.held["running mean of gradients"] == full.held["weights"]
    assert full.learning["gradients of further roles"] == full.learning["gradients"]
    half = plan.learner("shared", "full", 2, "full")
    assert half.held["weights"] * 2 == full.held["weights"]
    assert half.learning["gathered"] > 0
    assert plan.learner("shared", "full", 2, "none") == full
    lora = plan.learner("shared", "lora")
    assert lora.held["weights"] == full.held["weights"]
    assert lora.held["optimizer"] == 2 * lora.held["adapter"]
    assert "reference of the KL term" not in lora.held
    assert lora.peak < full.peak
    again = replace(plan.plan.learners["shared"], gradient_checkpointing=True)
    less = learner_memory(plan.shape("shared"), plan.activations("shared", "full"), again)
    assert less.learning["activations"] < full.learning["activations"]


def test_the_peak_is_of_what_is_there_at_one_time():
    found = LearnerMemory({"weights": 100}, {"gradients": 10, "activations": 30}, step=20)
    assert found.peak == 140
    assert replace(found, step=50).peak == 160


def test_engines_are_spread_over_as_few_gpus_as_hold_them_or_as_many_as_asked():
    one = EngineBytes(weights=120, cache=16, heads=12, groups=2)
    assert (one.on(1), one.on(2), one.on(4)) == (136, 68, 38), "keys and values of 2 heads"
    assert gpus_of_each([one], 8, room=136) == 1
    assert gpus_of_each([one], 8, room=100) == 2
    assert gpus_of_each([one], 8, room=40) == 4
    assert gpus_of_each([one], 8, room=30) == 1, "12 heads are not to be divided by 8"
    assert gpus_of_each([one, one], 8, room=136) == 2, "each has its own"
    assert gpus_of_each([one], 3, room=40) == 1, "there are no four"
    assert gpus_of_each([one, one], 8, room=1000, given=8) == 4
    assert with_cache([one], 1000, None, 2) == 400, "vLLM takes its share"
    assert with_cache([one], 1000, 1.0, 2) == 60 + GIB


def test_a_plan_needs_no_data_set():
    options = ("data=nobody/nothing:en", "columns=text:a", "n_votes=5")
    sizes = RunSizes(TrainConfig(max_tokens=64, lr=1e-4, options=options))
    assert sizes.agents["generator"] == 5


def test_isolated_adapters_share_a_base_and_full_policies_do_not(shared):
    alone = shared
    apart = RunSizes(
        TrainConfig(max_tokens=64, lr=1e-4, kl=0.1, coherence=0.5, sharing=("isolated",))
    )
    weights = 4 * alone.shape("shared").parameters
    assert len(apart.trained) == 2
    assert apart.held("full", 1, "none") == 2 * alone.held("full", 1, "none")
    more = apart.held("lora", 1, "none") - alone.held("lora", 1, "none")
    assert 0 < more < weights
    assert apart.engine_weights("full") == 2 * alone.engine_weights("full")


def test_checkpointing_keeps_one_layer_and_the_states_between():
    found = Activations((Saved(100.0, 7.0),) * 5, Saved(10.0, 1.0), stream=8)
    assert found.kept(3, again=False) == 3 * (10 + 5 * 100)
    assert found.kept(3, again=True) == 3 * (10 + 100 + 5 * 8)
    assert found.copies == 1 + 5 * 7
