"""What a plan counts, against what is there when it is done: weights, state, saved tensors."""

import gc
import json
import platform
import shutil
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch", reason="the trainer needs flowzoo[train]")

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks.plan.__main__ import main
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
from benchmarks.plan.models import ModelFolders, files_bytes
from benchmarks.plan.process import ProcessMemory, sampling_bytes
from benchmarks.plan.shape import read_config, shape_of
from benchmarks.plan.sizes import RunSizes, layout_fits
from flowzoo.agents.pocket import pocket_path
from flowzoo.baselines.learner.batch import tensors
from flowzoo.baselines.learner.hidden_states import fitting_layout, last_hidden
from flowzoo.baselines.learner.lora import LoraBase, LoraSettings
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.errors import UsageError
from tests.processes import run_python


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


# -- Layouts of a plan, of models whose shapes are known -------------------------------------------


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


# -- `python -m benchmarks.plan` as a user types it ------------------------------------------------


WORDS = ["voting", "--model", "qwen3:0.6B", "--gpus", "2", "--gpu-gib", "24"]


def test_a_plan_says_what_fits(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert main([*WORDS, "--json", "--lora-rank", "16", "--engine", "vllm"]) == 0
    results = json.loads(capsys.readouterr().out)
    (policy,) = results["policies"].values()
    assert policy["parameters"] == 596_049_920
    assert policy["adapter_rank"] == 16
    assert policy["sync_bytes"]["lora"] == 4 * policy["adapter_parameters"]
    full, lora = policy["full"], policy["lora"]
    assert full["held"]["weights"] + full["held"]["optimizer"] + full["learning"]["gradients"] == (
        16 * policy["parameters"]
    )
    assert lora["peak"] < full["peak"]
    chosen = [item for item in results["layouts"] if item["chosen"]]
    assert [(item["training"], item["ranks"]) for item in chosen] == [("lora", 1)]
    for item in results["layouts"]:
        room = 24 * GIB * (1 - results["spare"])
        assert item["fits"] == {index: size <= room for index, size in item["bytes"].items()}
    assert main([*WORDS, "--gradient-checkpointing"]) == 0
    message = capsys.readouterr().out
    assert "596,049,920 weights" in message
    assert "… with --gradient-checkpointing" in message
    assert "* full" in message


def test_a_plan_says_what_each_learner_group_of_learner_workers_holds(capsys):
    ray = ["--backend", "ray", "--ray-address", "HEAD:1", "--rollout-workers", "2"]
    ray += ["--compute", "float32"]
    args = [*WORDS, *ray, "--sharing", "isolated", "--shard", "full", "--learner-gpus", "1"]
    assert main([*args, "--json", "--learner-workers", "generator=4", "aggregator=2"]) == 0
    results = json.loads(capsys.readouterr().out)
    aggregator, generator = results["learner_groups"]
    assert aggregator["policies"] == ["aggregator"]
    assert (generator["workers"], generator["gpus"]) == (4, 4)
    assert generator["learner_bytes"] < aggregator["learner_bytes"], "more ranks, smaller parts"
    assert [aggregator["fits"], generator["fits"]] == [False, True]
    pair = next(
        item for item in results["layouts"] if item["ranks"] == 2 and item["shard"] == "full"
    )
    assert aggregator["learner_bytes"] < pair["learner_bytes"], "one policy, not both"
    assert not any(item["chosen"] for item in results["layouts"])
    assert main([*args, "--learner-workers", "2"]) == 0
    assert "aggregator, generator" in capsys.readouterr().out
    assert main([*args, "--learner-workers", "generator=2"]) == 2
    assert "there are none for aggregator" in capsys.readouterr().err


def test_a_plan_needs_a_configuration_and_neither_tokenizer_nor_data(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", **LLAMA_70B}))
    args = ["--model", str(tmp_path), "--gpus", "32", "--gpu-gib", "72", "--max-prompt", "3072"]
    low = [
        "--weights",
        "bfloat16",
        "--compute",
        "bfloat16",
        "--gradient-checkpointing",
        "--engine-dtype",
        "bfloat16",
    ]
    assert main(["voting", *args, *low]) == 0
    message = capsys.readouterr().out
    table, remarks = message.split("own GPUs", 1)[1].split("Not counted", 1)
    assert "…" not in table, "it fits 80 columns"
    assert "yes×4" in table.replace(" ", "")
    assert "† a run refuses it as the settings are: `shard` full keeps weights" in remarks
    assert f"no tokenizer of {tmp_path} is here" in remarks
    assert main(["--config", "paper/voting-math", "--model", "qwen3:0.6B"]) == 0
    message = capsys.readouterr().out
    assert "no tokenizer" not in message, "the settings have the length of replies"


def test_a_model_without_decoder_layers_is_a_mistake_of_one_line(capsys, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "ctrl"}))
    assert main(["voting", "--model", str(tmp_path), "--max-tokens", "64"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "CTRLLMHeadModel has no decoder layers that a plan can count" in line


def test_a_plan_takes_a_file_of_settings(capsys):
    assert main(["--config", "paper/voting-math@pocket", "--json"]) == 0
    results = json.loads(capsys.readouterr().out)
    assert results["workflow"] == "voting_v0"
    assert next(iter(results["policies"].values()))["files_bytes"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--gpus", "-1"], "--gpus must be at least 0"),
        (["--gpus", "0", "--engine", "vllm"], "leave out `engine`"),
        (["--gpu-gib", "inf"], "--gpu-gib must be a finite number, got inf"),
        (["--model", "nobody/nothing"], "or one of the shapes qwen3:0.6B, qwen3:1.7B"),
    ],
)
def test_mistakes_are_one_line(args, message, capsys):
    assert main(["voting", *args]) == 2
    assert message in capsys.readouterr().err
    assert main([]) == 2
    assert "name a workflow, e.g. `python -m benchmarks.plan voting`" in capsys.readouterr().err


# -- Memory of a process on a CPU: the parts of a plan, and a run against their sum ----------------


GLIBC = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")


@pytest.fixture(scope="module")
def sizes() -> RunSizes:
    """A run of the pocket model on this CPU."""
    return RunSizes(TrainConfig(max_tokens=16, lr=1e-4, problems=2, samples=3), cpu=True)


BLOCKS = """
from benchmarks.plan.allocations import Heap
heap = Heap()
# The ends that alignment cuts off go to a cache of each small size, and keep blocks apart there.
# Once it is full, they are joined with the blocks that are freed beside them.
for size in (24, 40, 56):
    for address in [heap.allocate(size) for _ in range(16)]:
        heap.free(address)
blocks = [heap.allocate(100 * 2**20) for _ in range(3)]
print(heap.growth // 2**20)
heap.free(blocks[0])
heap.free(blocks[1])
heap.allocate(190 * 2**20)
print(heap.growth // 2**20)
heap.allocate(20 * 2**20)
print(heap.growth // 2**20)
"""


@GLIBC
def test_a_heap_reuses_what_fits_and_never_shrinks():
    before, reused, grown = map(int, run_python(BLOCKS).split())
    assert 299 <= before <= 301
    assert reused == before, "190 MiB are in the gap of 200"
    assert 319 <= grown <= 322, "20 MiB are not in the 10 that are left of it"


TENSORS = """
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from benchmarks.plan.allocations import AllocatedTensors, Heap
MIB = 2**20
with FakeTensorMode():
    weight = torch.empty(100 * MIB, dtype=torch.uint8)
    torch.ones(3).requires_grad_().sqrt().sum().backward()  # imports take memory, too
    heap = Heap()
    with AllocatedTensors(heap, [weight]):
        weight.view(-1)[:10].add_(1)
        print(heap.growth // MIB)
        first = torch.empty(12 * MIB, dtype=torch.float32)
        first[:10].mul_(2)
        root = first.requires_grad_().sqrt()
        loss = root.sum()
        del root
        print(heap.growth // MIB)
        loss.backward()
        print(heap.growth // MIB)
        del loss, first
        torch.empty(90 * MIB, dtype=torch.uint8)
        print(heap.growth // MIB)
        print(float(torch.ones(3).sum()), bool((torch.ones(3) > 2).any()), torch.ones(3).tolist())
        print(tuple(torch.ones(4, 5, 6)[torch.ones(4, 5) > 2].shape))
"""


@GLIBC
def test_tensors_are_allocated_for_as_long_as_they_are_used():
    """Of 48 MiB each: a tensor, its root, and while that is kept two for the gradient."""
    outside, forward, backward, later, values, shape = run_python(TENSORS).splitlines()
    assert int(outside) == 0
    assert 94 <= int(forward) <= 98, "autograd keeps the root"
    assert 190 <= int(backward) <= 196
    assert later == backward
    assert (values, shape) == ("1.0 False [1.0, 1.0, 1.0]", "(20, 6)")


@GLIBC
def test_sampling_takes_a_cache_and_logits(sizes):
    """Numbers of a token are keys and values of each head of each layer, in float32."""
    text = sizes.configs["pocket"]
    cache = 4 * 2 * text.num_hidden_layers * text.num_key_value_heads * text.head_dim
    longest = max(len(call.prompt_ids) for call in sizes.rows) + 16
    assert sampling_bytes(sizes) == 6 * (longest * cache + 22 * text.vocab_size)


@GLIBC
def test_rows_of_a_step_have_its_prompts_and_full_replies(sizes):
    assert len(sizes.rows) == 6 * sum(sizes.agents.values())
    assert {len(call.output_ids) for call in sizes.rows} == {16}
    assert {call.policy for call in sizes.rows} == {"shared"}
    assert all(call.prompt_ids for call in sizes.rows)
    assert not RunSizes(TrainConfig(max_tokens=16, lr=1e-4)).rows


LEARNING = """
from benchmarks.plan.process import learning_bytes
from benchmarks.plan.sizes import RunSizes
from flowzoo.baselines.settings.config import TrainConfig
sizes = RunSizes(TrainConfig(max_tokens=16, lr=1e-4, problems=2, samples=3), cpu=True)
print(sizes.shape("shared").parameters, learning_bytes(sizes))
"""


@GLIBC
def test_learning_takes_gradients_state_and_activations():
    parameters, size = map(int, run_python(LEARNING).split())
    assert 12 * parameters < size < 12 * parameters + 200 * 2**20


@GLIBC
def test_work_comes_one_kind_after_another():
    memory = ProcessMemory({"libraries": 100, "weights": 10}, {"sampling": 5, "learning": 20})
    assert memory.peak == 130
