"""Model families of the transformers library, tiny and random: `pytest -s -m full` prints a table.

Every row of the table is compared with the family's own forward pass on single rows: log-probs of
the learner's layouts, and those that batched sampling records. A step with gradient checkpointing
is compared with one without, where dropout would show.
"""

from __future__ import annotations

import copy
import functools
import sys
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from flowzoo.agents.hf.decode import DecodeRequest, check_decoding, decode
from flowzoo.agents.policy import Sampling
from flowzoo.baselines.learner.batch import tensors
from flowzoo.baselines.learner.config import LearnerConfig, RowLayout
from flowzoo.baselines.learner.hidden_states import prepare, token_logps
from flowzoo.baselines.learner.lora import LoraBase, LoraSettings
from flowzoo.baselines.learner.update import Learner
from flowzoo.baselines.learner.vocabulary import head_of
from flowzoo.envs.records import Call
from flowzoo.errors import UsageError
from tests.baselines.rows import new_call

TEMPERATURE, CLOSE = 0.7, 2e-5
"""Log-probs in float32 may differ by `CLOSE`; those of tokens are between -1 and -10 here."""

SIZES: dict[str, Any] = {
    "vocab_size": 40, "hidden_size": 16, "n_embd": 16, "d_model": 16, "word_embed_proj_dim": 16,
    "ffn_dim": 24, "num_hidden_layers": 2, "n_layer": 2, "n_layers": 2, "num_layers": 2,
    "num_attention_heads": 4, "n_head": 4, "n_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 24, "n_inner": 24, "ffn_hidden_size": 24, "max_position_embeddings": 64,
    "n_positions": 64, "max_seq_len": 64, "pad_token_id": 0, "eos_token_id": 0, "bos_token_id": 0,
    "initializer_range": 0.3, "moe_intermediate_size": 12, "shared_expert_intermediate_size": 12,
    "intermediate_size_mlp": 24, "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4,
    "num_experts_per_tok": 2, "head_dim": 8, "rotary_dim": 4, "sliding_window": 4,
    "query_pre_attn_scalar": 8,
}  # fmt: skip
"""Fields by name; a family takes those that it has."""
WINDOWED = {"layer_types": ["sliding_attention", "full_attention"]}
HYBRID: dict[str, Any] = {
    "layer_types": ["linear_attention", "full_attention"], "linear_num_value_heads": 2,
    "linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
}  # fmt: skip
MAMBA: dict[str, Any] = {
    "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_n_groups": 1, "mamba_d_state": 8,
    "mamba_chunk_size": 8,
}  # fmt: skip
LATENT: dict[str, Any] = {
    "q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4,
    "v_head_dim": 8, "n_group": 1, "topk_group": 1, "n_shared_experts": 1,
    "first_k_dense_replace": 1, "num_key_value_heads": 4, "head_dim": 4,
}  # fmt: skip


@dataclass(frozen=True)
class Family:
    """Expectations of one family."""

    packed: bool = True
    samples: bool = True
    """The transformers engine samples from it."""
    checkpoints: bool = True
    form: tuple[float, float | None] = (1.0, None)
    """Scale and cap of its logits."""
    routers: int = 0
    """Linear layers that route, which LoRA leaves alone."""
    options: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def of(cls, expected: dict[str, Any] | None = None, **options: Any) -> Family:
        return cls(**(expected or {}), options=tuple(options.items()))


PADDED = {"packed": False}
FAMILIES: dict[str, Family] = {
    "llama": Family(),
    "llama4_text": Family.of(
        PADDED | {"routers": 1}, moe_layers=[1], attention_chunk_size=6, no_rope_layers=[1, 0],
        layer_types=["chunked_attention", "full_attention"],
    ),
    "mistral": Family.of(PADDED),
    "mixtral": Family.of(sliding_window=None),
    "qwen2": Family(),
    "qwen2_moe": Family.of({"routers": 2}),
    "qwen3": Family(),
    "qwen3_moe": Family(),
    "qwen3_next": Family.of(PADDED | {"routers": 2}, **HYBRID),
    "qwen3_5_text": Family.of(PADDED, **HYBRID),
    "gemma": Family(),
    "gemma2": Family.of(PADDED | {"form": (1.0, 30.0)}),
    "gemma3_text": Family.of(PADDED),
    "vaultgemma": Family.of(PADDED | {"form": (1.0, 30.0)}),
    "recurrent_gemma": Family.of(
        PADDED | {"samples": False, "form": (1.0, 30.0)}, lru_width=16, attention_window_size=6,
        block_types=["recurrent", "attention"],
    ),
    "phi": Family(),
    "phi3": Family.of(sliding_window=None),
    "phimoe": Family.of({"routers": 2}, sliding_window=None),
    "gpt2": Family(),
    "gpt_bigcode": Family.of(PADDED),
    "gpt_neo": Family.of(PADDED, attention_types=[[["global", "local"], 1]], window_size=4),
    "gpt_neox": Family(),
    "gpt_neox_japanese": Family.of(PADDED | {"checkpoints": False}),
    "gptj": Family.of(PADDED),
    "codegen": Family.of(PADDED),
    "opt": Family(),
    "xglm": Family.of(PADDED, attention_heads=4),
    "biogpt": Family(),
    "falcon": Family.of(PADDED),
    "bloom": Family.of(PADDED),
    "mpt": Family.of(PADDED),
    "stablelm": Family.of(PADDED),
    "cohere": Family.of({"form": (0.0625, None)}),
    "cohere2": Family.of(PADDED | {"form": (0.0625, None)}, **WINDOWED),
    "granite": Family.of({"form": (0.25, None)}, logits_scaling=4.0),
    "granitemoe": Family.of({"form": (0.25, None)}, logits_scaling=4.0),
    "granitemoehybrid": Family.of(
        PADDED | {"form": (0.5, None)}, layer_types=["linear_attention", "full_attention"],
        logits_scaling=2.0, shared_intermediate_size=12, **MAMBA,
    ),
    "hyperclovax": Family.of({"form": (0.5, None)}, logits_scaling=0.5),
    "minicpm3": Family.of({"form": (0.5, None)}, dim_model_base=8, **LATENT),
    "nanochat": Family.of({"form": (1.0, 15.0)}),
    "olmo": Family(),
    "olmo2": Family(),
    "olmo3": Family.of(PADDED, **WINDOWED),
    "olmoe": Family(),
    "starcoder2": Family.of(sliding_window=None),
    "smollm3": Family.of(sliding_window=None),
    "glm4": Family(),
    "glm4_moe": Family.of(first_k_dense_replace=1),
    "nemotron": Family.of(PADDED),
    "deepseek_v2": Family.of(**LATENT),
    "deepseek_v3": Family.of(**LATENT),
    "gpt_oss": Family.of(PADDED),
    "mamba": Family.of(PADDED, state_size=4),
    "mamba2": Family.of(PADDED, num_heads=4, expand=2, state_size=8, n_groups=1, chunk_size=8),
    "falcon_mamba": Family.of(PADDED, state_size=4),
    "falcon_h1": Family.of(
        PADDED | {"form": (2.0, None)}, mamba_d_ssm=32, lm_head_multiplier=2.0, **MAMBA
    ),
    "jamba": Family.of(
        PADDED | {"routers": 1}, mamba_d_state=4, use_mamba_kernels=False, attn_layer_period=2,
        attn_layer_offset=1, expert_layer_period=2, expert_layer_offset=1,
    ),
    "lfm2": Family.of(
        PADDED, layer_types=["conv", "full_attention"], block_auto_adjust_ff_dim=False
    ),
    "minimax": Family.of(
        PADDED | {"samples": False}, layer_types=["linear_attention", "full_attention"],
        block_size=8,
    ),
}  # fmt: skip
QUICK = ("llama4_text", "gemma2", "granite", "mamba", "qwen3_next", "opt")
"""Those that stand for one trait each, in the default selection."""

ROWS = [
    ((3, 4, 5, 6, 7, 8, 9), (2, 9, 4, 4, 1, 7, 0)), ((3, 4, 5, 6, 7, 8, 9), (2, 9, 11, 3)),
    ((3, 4), (8, 8, 8, 1, 5, 13, 21, 34, 0)), ((17,), (5,)), ((3, 4), ()),
]  # fmt: skip
"""Prompt and reply: a group, a row that is longer than every window, one without tokens."""


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def build(name: str) -> Any:
    """The model of `name`, the same every time and nobody else's."""
    return copy.deepcopy(whole(name))


@functools.lru_cache(maxsize=1)
def whole(name: str) -> Any:
    """The same for those who leave it as it is."""
    kind = CONFIG_MAPPING[name]
    usual = kind()
    fields = {key: value for key, value in SIZES.items() if key in vars(usual) or key in dir(usual)}
    own = dict(FAMILIES[name].options)
    fields = {key: value for key, value in fields.items() if not _is_read_only(kind, key)}
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(kind(**(fields | own))).eval()


def _is_read_only(kind: type, name: str) -> bool:
    found = getattr(kind, name, None)
    return isinstance(found, property) and found.fset is None


def make_calls() -> list[Call]:
    return [
        new_call(episode=f"e{number}", prompt_ids=prompt, output_ids=output)
        for number, (prompt, output) in enumerate(ROWS)
    ]


@torch.no_grad()
def own_logps(model: Any, prompt: tuple[int, ...], output: tuple[int, ...]) -> Tensor:
    """Log-probs of a reply by the model's own forward pass on this row alone."""
    ids = torch.tensor([[*prompt, *output]])
    logps = (model(input_ids=ids, use_cache=False).logits[0] / TEMPERATURE).log_softmax(-1)
    places = torch.arange(len(prompt) - 1, len(prompt) + len(output) - 1)
    return logps[places, torch.tensor(output, dtype=torch.int64)]


@functools.lru_cache(maxsize=1)
def own_rows(name: str) -> list[Tensor]:
    """`own_logps` of every row."""
    return [own_logps(whole(name), *row) for row in ROWS]


def learner_gap(name: str, layout: RowLayout) -> float:
    """Largest difference between the log-probs of a layout and the model's own."""
    model = build(name) if layout == "packed" else whole(name)
    model, calls = prepare(model, layout), make_calls()
    with torch.no_grad():
        logps, _ = token_logps(model, tensors(calls, [0.0] * len(calls), layout), TEMPERATURE)
    gaps = [
        (logps[place, : len(output)] - own).abs()
        for place, ((_, output), own) in enumerate(zip(ROWS, own_rows(name), strict=True))
    ]
    return float(torch.cat(gaps).max())


def sampling_gap(name: str) -> float:
    """Likewise of the log-probs that batched sampling records."""
    model = whole(name)
    check_decoding(model)
    rows = [DecodeRequest(prompt, key, 3 + key) for key, (prompt, _) in enumerate(ROWS)]
    sampling = Sampling(temperature=TEMPERATURE, max_tokens=8)
    found, _ = decode(model, rows, sampling, frozenset(), lambda: False)
    gaps = [
        (own_logps(model, row.prompt, tuple(one.tokens)) - torch.tensor(one.logps)).abs()
        for row, one in zip(rows, found, strict=True)
    ]
    return float(torch.cat(gaps).max())


def stepped(name: str, checkpointing: bool) -> tuple[Learner, Tensor]:
    """A learner after a step under `auto`, and all its weights."""
    # A large eps, so that a rounding error is not made a whole step of Adam's.
    config = LearnerConfig(
        lr=0.1, adam_eps=1e-2, temperature=TEMPERATURE, layout="auto",
        gradient_checkpointing=checkpointing,
    )  # fmt: skip
    learner = Learner(build(name), config)
    learner.update(make_calls(), [1.0, -1.0, 0.7, 0.3, 0.0])
    return learner, torch.cat([p.detach().flatten() for p in learner.parameters])


def lora_step(name: str, checkpointing: bool, layout: RowLayout) -> str:
    """The line that says what is adapted; the step moved adapters and nothing else."""
    base = LoraBase(build(name), "", LoraSettings(rank=2))
    learner = Learner(
        base.add("a", 0),
        LearnerConfig(lr=0.1, layout=layout, gradient_checkpointing=checkpointing),
    )
    adapted = {id(p) for p in learner.parameters}
    rest = [p for p in learner.model.parameters() if id(p) not in adapted]
    before = [p.clone() for p in (*learner.parameters, *rest)]
    learner.update(make_calls(), [1.0, -1.0, 0.7, 0.3, 0.0])
    assert any(map(lambda p, q: not torch.equal(p, q), learner.parameters, before))
    assert all(map(torch.equal, rest, before[len(adapted) :]))
    routers = [
        one for one, _ in learner.model.named_parameters()
        if "lora" in one and {"router", "gate", "shared_expert_gate"} & set(one.split("."))
    ]  # fmt: skip
    assert routers == []
    return learner.notes[-1]


def examine(name: str) -> list[str]:
    """A row of the table, each of its claims asserted."""
    family = FAMILIES[name]
    if family.packed:
        packed = f"{learner_gap(name, 'packed'):.0e}"
    else:
        with pytest.raises(UsageError, match=r"cannot read packed rows .*use `layout` padded"):
            prepare(build(name), "packed")
        packed = "no"
    padded = learner_gap(name, "padded")
    assert max(padded, 0.0 if packed == "no" else float(packed)) <= CLOSE
    head = head_of(whole(name))
    assert (head.scale, head.cap) == family.form
    if family.samples:
        gap = sampling_gap(name)
        assert gap <= CLOSE
        sampled = f"{gap:.0e}"
    else:
        with pytest.raises(UsageError, match="use `engine` vllm"):
            sampling_gap(name)
        sampled = "vllm only"
    plain, weights = stepped(name, False)
    said = [note for note in plain.notes if "cannot read packed rows" in note]
    assert len(said) == (0 if family.packed else 1)
    assert plain.layout == ("packed" if family.packed else "padded")
    if family.checkpoints:
        _, again = stepped(name, True)
        torch.testing.assert_close(again, weights, atol=1e-4, rtol=1e-4)
    else:
        with pytest.raises(UsageError, match="leave out `gradient_checkpointing`"):
            stepped(name, True)
    note = lora_step(name, family.checkpoints, plain.layout)
    left = note.partition("; not on ")[2]
    counts = [part.split(" ×") for part in left.split(", ") if part]
    assert family.routers == sum(int(n) for one, n in counts if one in ("router", "gate") or
                                 one == "shared_expert_gate")  # fmt: skip
    form = (
        ""
        if family.form == (1.0, None)
        else f"×{head.scale:g}" + (f", cap {head.cap:g}" if head.cap else "")
    )
    return [
        name, packed, f"{padded:.0e}", "" if family.packed else "said", sampled,
        "yes" if family.checkpoints else "refused", form, note.partition(" on ")[2],
    ]  # fmt: skip


@pytest.mark.usual(3)
@pytest.mark.parametrize("name", QUICK)
def test_families_with_traits_of_their_own(name):
    examine(name)


@pytest.mark.full
def test_families(capsys):
    rows = [examine(name) for name in FAMILIES]
    assert len(rows) >= 28
    head = ["family", "packed", "padded", "fallback", "sampled", "checkpointing", "logits", "LoRA"]
    widths = [max(len(row[place]) for row in [head, *rows]) for place in range(len(head))]
    with capsys.disabled():
        for row in [head, *rows]:
            cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            sys.stdout.write("\n" + "  ".join(cells).rstrip())


def test_a_family_with_layers_between_body_and_head_is_refused_in_one_line():
    kind = CONFIG_MAPPING["modernbert-decoder"]
    config = kind(
        vocab_size=40, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=24, pad_token_id=0, layer_types=["full_attention"],
    )  # fmt: skip
    with pytest.raises(UsageError, match="take a model of another family") as caught:
        prepare(AutoModelForCausalLM.from_config(config), "padded")
    assert "\n" not in str(caught.value)
