"""Model families, tiny and random (`-s`: what each can), and rope that depends on the batch."""

import asyncio
import copy
import functools
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedTokenizerBase
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from flowzoo.agents.hf.decode import DecodeRequest, check_decoding, check_int8, decode
from flowzoo.agents.hf.kept_linears import KeptLinears
from flowzoo.agents.hf.policy import TransformersPolicy
from flowzoo.agents.pocket import load
from flowzoo.agents.policy import Completion, Request, Sampling
from flowzoo.agents.traits import context_of
from flowzoo.baselines.learner.batch import tensors
from flowzoo.baselines.learner.config import LearnerConfig, RowLayout
from flowzoo.baselines.learner.hidden_states import prepare
from flowzoo.baselines.learner.lora import LoraBase, LoraSettings
from flowzoo.baselines.learner.update import Learner
from flowzoo.baselines.learner.vocabulary import head_of
from flowzoo.baselines.sft.rows import RowTokenizer
from flowzoo.envs.records import Call
from flowzoo.errors import UsageError
from tests.baselines.learner.descent import token_logps
from tests.baselines.rows import new_call

TEMPERATURE, CLOSE = 0.7, 2e-5
"""Log-probs in float32 may differ by `CLOSE`; those of tokens are between -1 and -10 here."""


@dataclass(frozen=True)
class Family:
    """Expectations of one family."""

    packed: bool = True
    samples: bool = True
    """The transformers engine samples from it."""
    checkpoints: bool = True
    scale: float = 1.0
    """Factor of its logits, which `cap` bounds."""
    cap: float | None = None
    routers: int = 0
    """Linear layers that route, which LoRA leaves alone."""
    options: dict[str, Any] = field(default_factory=dict)


DATA = json.loads(Path(__file__).with_name("families.json").read_text(encoding="utf-8"))
SIZES: dict[str, Any] = DATA["sizes"]
"""Fields by name; a family takes those that it has."""
FAMILIES = {name: Family(**expected) for name, expected in DATA["families"].items()}
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
    fields = {key: value for key, value in fields.items() if not _is_read_only(kind, key)}
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(kind(**(fields | FAMILIES[name].options))).eval()


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
        base.add("a", 0), LearnerConfig(lr=0.1, layout=layout, gradient_checkpointing=checkpointing)
    )
    adapted = {id(p) for p in learner.parameters}
    rest = [p for p in learner.model.parameters() if id(p) not in adapted]
    before = [p.clone() for p in (*learner.parameters, *rest)]
    learner.update(make_calls(), [1.0, -1.0, 0.7, 0.3, 0.0])
    after = learner.model.named_parameters()
    # B begins as zeros, and A's gradient with it.
    assert [key for key, p in after if ".lora_B." in key and p.requires_grad and not p.any()] == []
    assert all(map(torch.equal, rest, before[len(adapted) :]))
    routers = [
        one for one, _ in learner.model.named_parameters()
        if "lora" in one and {"router", "gate", "shared_expert_gate"} & set(one.split("."))
    ]  # fmt: skip
    assert routers == []
    return learner.notes[-1]


def examine(name: str) -> list[str]:
    """What a family can, each claim asserted."""
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
    assert (head.scale, head.cap) == (family.scale, family.cap)
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
        if (head.scale, head.cap) == (1.0, None)
        else f"×{head.scale:g}" + (f", cap {head.cap:g}" if head.cap else "")
    )
    return [
        name, packed, f"{padded:.0e}", "" if family.packed else "said", sampled,
        "yes" if family.checkpoints else "refused", form, note.partition(" on ")[2],
    ]  # fmt: skip


@pytest.mark.usual(3)
@pytest.mark.parametrize(
    "name",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.full) for name in FAMILIES],
)
def test_families(name):
    sys.stdout.write("\n" + "  ".join(filter(None, examine(name))))


@pytest.mark.parametrize("name", ["mamba", "jamba"])
def test_bfloat16_trains_weights_that_a_model_reads_itself(name):
    resting = []
    for compute in ("float32", "bfloat16"):
        model = build(name)
        before = {key: value.clone() for key, value in model.named_parameters()}
        learner = Learner(model, LearnerConfig(compute=compute, layout="auto", lr=0.01))
        learner.update(make_calls()[:4], [1.0, -1.0, 0.5, -0.5])
        after = learner.model.named_parameters()
        resting.append([key for key, value in after if torch.equal(value, before[key])])
    assert resting[0] == resting[1] == []


def sample_in_int8(model: Any) -> None:
    KeptLinears(model, "int8").install()
    check_int8(model)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mamba", "MambaForCausalLM cannot be sampled in int8"),
        ("jamba", "of the weights of JambaForCausalLM"),
        ("gpt2", "have 0% of the weights of GPT2LMHeadModel"),
        ("mixtral", "of the weights of MixtralForCausalLM"),
    ],
)
def test_families_that_int8_is_not_for_are_refused(name, message):
    with pytest.raises(UsageError, match=message):
        sample_in_int8(build(name))


def test_a_family_with_layers_between_body_and_head_is_refused_in_one_line():
    kind = CONFIG_MAPPING["modernbert-decoder"]
    config = kind(
        vocab_size=40, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=24, pad_token_id=0, layer_types=["full_attention"],
    )  # fmt: skip
    with pytest.raises(UsageError, match="take a model of another family") as caught:
        prepare(AutoModelForCausalLM.from_config(config), "padded")
    assert "\n" not in str(caught.value)


BORDER, LIMIT, ROPE_CLOSE = 64, 256, 2e-5
SHAPE: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "initializer_range": 0.3, "max_position_embeddings": LIMIT,
    "tie_word_embeddings": False,
}  # fmt: skip
TWO_SETS: dict[str, Any] = {
    "rope_type": "longrope", "original_max_position_embeddings": BORDER,
    "short_factor": [1.0] * 8, "long_factor": [1.0, 2, 4, 8, 16, 24, 32, 48],
}  # fmt: skip
MSCALES = {"short_mscale": 1.0, "long_mscale": 1.3}
LLAMA3 = {
    "rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": BORDER,
}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": BORDER}
DYNAMIC = {"rope_type": "dynamic", "factor": 4.0}
SHORT = {"original_max_position_embeddings": BORDER}
ROPE_FAMILIES: dict[str, tuple[str, dict[str, Any], dict[str, Any], int]] = {
    "two sets": ("phi3", TWO_SETS, SHORT, BORDER),
    "two sets and scales": (
        "phimoe",
        TWO_SETS | MSCALES,
        {"num_local_experts": 2, **SHORT},
        BORDER,
    ),
    "two equal sets": ("phi3", TWO_SETS | {"short_factor": TWO_SETS["long_factor"]}, SHORT, LIMIT),
    "growing": ("llama", DYNAMIC, {"max_position_embeddings": BORDER}, BORDER),
    "llama 3": ("llama", LLAMA3, {}, LIMIT),
    "yarn": ("qwen2", YARN, {}, LIMIT),
    "default": ("qwen2", {"rope_type": "default"}, {}, LIMIT),
}
"""Kind of model, parameters of its rope, further fields, and most tokens of a row."""


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return load().tokenizer


@pytest.fixture(params=ROPE_FAMILIES)
def family(request: pytest.FixtureRequest, tokenizer: PreTrainedTokenizerBase) -> tuple[Any, int]:
    """A random model, and the most tokens of its rows."""
    kind, rope, fields, context = ROPE_FAMILIES[request.param]
    fields = {"vocab_size": len(tokenizer), "eos_token_id": tokenizer.eos_token_id, **fields}
    fields |= {"pad_token_id": 0, "rope_parameters": {"rope_theta": 10000.0, **rope}}
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = CONFIG_MAPPING[kind](**SHAPE | fields)
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval(), context


@torch.no_grad()
def rope_logps(model: Any, row: Completion) -> Tensor:
    """Log-probs of a reply by a forward pass of a model that has read nothing else."""
    ids = torch.tensor([[*row.prompt_ids, *row.output_ids]])
    steps = copy.deepcopy(model)(input_ids=ids, use_cache=False).logits[0].log_softmax(-1)
    return steps[len(row.prompt_ids) - 1 : -1].gather(1, ids[0, len(row.prompt_ids) :, None])[:, 0]


def test_a_row_is_sampled_and_learned_as_it_is_alone(family, tokenizer):
    fresh, context = family
    model = copy.deepcopy(fresh)
    policy = TransformersPolicy(model, tokenizer, sampling=Sampling(max_tokens=40))
    texts = "1+1", "1+2=" * 6, "1+2-3+4=" * 40  # short, across the border, beyond every limit
    chats = [[{"role": "user", "content": text}] for text in texts]
    requests = [Request((place,), "a", "a", chat) for place, chat in enumerate(chats)]
    sampled = asyncio.run(policy.generate(requests))
    lengths = [len(row.prompt_ids) + len(row.output_ids) for row in sampled]
    assert lengths[0] < BORDER
    assert (max(lengths) > BORDER) == (context > BORDER)
    learner = Learner(model, LearnerConfig(layout="auto"))
    learned = [torch.tensor(logps) for logps in learner.plain_logps(sampled)]
    for row, logps in zip(sampled, learned, strict=True):
        own = rope_logps(fresh, row)
        torch.testing.assert_close(torch.tensor(row.logps), own, atol=ROPE_CLOSE, rtol=0)
        torch.testing.assert_close(logps, own, atol=ROPE_CLOSE, rtol=0)


def test_a_row_that_would_change_others_is_refused(family, tokenizer):
    model, context = family
    assert context_of(model.config) == context
    assert RowTokenizer.of(model, tokenizer, None, 0).most == context
    learner = Learner(model, LearnerConfig())
    just, more = (
        new_call(prompt_ids=(5,) * size, output_ids=(7,)) for size in (context - 1, context)
    )
    assert len(learner.plain_logps([just])) == 1
    with pytest.raises(
        UsageError, match=f"a row has {context + 1} tokens, .* context is {context}"
    ):
        learner.update([just, more], [1.0, -1.0])
