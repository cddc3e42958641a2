"""Log-probs and gradients of packed, padded and single rows, over model families."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partialmethod
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from flowzoo.baselines.learner.batch import cut_microbatches, tensors
from flowzoo.baselines.learner.config import LossConfig, RowLayout
from flowzoo.baselines.learner.hidden_states import last_hidden, prepare, scatter
from flowzoo.baselines.learner.loss import LossNormalizer, policy_loss
from flowzoo.errors import UsageError
from tests.baselines.learner.descent import token_logps

VOCAB = 23
EOS = PAD = 0
SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 24, "max_position_embeddings": 64, "pad_token_id": PAD,
    "eos_token_id": EOS, "initializer_range": 0.3,
}  # fmt: skip
SMALL = {"vocab_size": VOCAB, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64,
         "eos_token_id": EOS, "bos_token_id": EOS}  # fmt: skip
FAMILIES: dict[str, Callable[[], Any]] = {
    "qwen3": lambda: Qwen3ForCausalLM(
        Qwen3Config(**SHAPE, head_dim=6, num_key_value_heads=2, tie_word_embeddings=False)
    ),
    "qwen2": lambda: Qwen2ForCausalLM(
        Qwen2Config(**SHAPE, num_key_value_heads=1, tie_word_embeddings=True)
    ),
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE, num_key_value_heads=4)),
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(**SMALL)),
}


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@dataclass(frozen=True)
class Row:
    """As much of a call as tensors need."""

    prompt_ids: tuple[int, ...]
    output_ids: tuple[int, ...]
    advantage: float

    @property
    def logps(self) -> tuple[float, ...]:
        return tuple(-2.0 - token / VOCAB for token in self.output_ids)


def model_of(family: str) -> Any:
    torch.manual_seed(0)
    return prepare(FAMILIES[family]())


def make_rows(seed: int = 0) -> list[Row]:
    """Groups of one prompt, single rows, an empty reply, equal rows, the pad id inside a reply."""
    rng = random.Random(seed)
    rows: list[Row] = []
    for size in (4, 1, 3):
        prompt = tuple(rng.randrange(VOCAB) for _ in range(rng.randint(1, 9)))
        for _ in range(size):
            output = tuple(rng.randrange(4) for _ in range(rng.choice((1, 2, 5, 9))))
            rows.append(Row(prompt, (*output, EOS), rng.uniform(-2, 2)))
    rows.append(Row(rows[0].prompt_ids, (), 1.0))
    rows.append(rows[0])
    rows.append(Row(rows[0].prompt_ids[:1], (5, PAD, 5), 0.5))
    return rows


def alone(model: Any, row: Row, temperature: float) -> tuple[Tensor, Tensor]:
    """Log-probs and entropies of one row without batching: the whole model on its tokens."""
    ids = torch.tensor([[*row.prompt_ids, *row.output_ids]])
    logps = (model(input_ids=ids, use_cache=False).logits[0] / temperature).log_softmax(-1)
    start = len(row.prompt_ids) - 1
    logps = logps[start : start + len(row.output_ids)]
    targets = torch.tensor(row.output_ids, dtype=torch.int64)
    return logps.gather(-1, targets[:, None])[:, 0], -(logps.exp() * logps).sum(-1)


def gradient(
    model: Any, rows: list[Row], layout: RowLayout, max_rows: int, **options: Any
) -> Tensor:
    """The gradient of a loss with entropy bonus, all parameters as one vector."""
    model.zero_grad()
    totals = LossNormalizer(len(rows), sum(len(row.output_ids) for row in rows))
    config = LossConfig(entropy_coef=0.1, clip_low=None, clip_high=None, dual_clip=None)
    for part in cut_microbatches(rows, layout, 10**6, max_rows):
        batch = tensors([rows[i] for i in part], [rows[i].advantage for i in part], layout)
        logps, entropies = token_logps(model, batch, 0.8, entropy="grad", **options)
        loss, _ = policy_loss(
            logps, batch.behavior_logps, batch.advantages, batch.mask, config,
            totals=totals, entropies=entropies,
        )  # fmt: skip
        loss.backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("layout", ["packed", "padded"])
def test_logps_equal_those_of_single_rows(family, layout):
    model, rows = model_of(family), make_rows()
    batch = tensors(rows, [0.0] * len(rows), layout)
    with torch.no_grad():
        logps, entropies = token_logps(model, batch, 0.7, entropy="value")
        states = scatter(last_hidden(model, batch)[batch.positions[batch.sources], 0], batch.mask)
        for place, row in enumerate(rows):
            length = len(row.output_ids)
            own = alone(model, row, 0.7)
            torch.testing.assert_close(logps[place, :length], own[0], atol=1e-5, rtol=0)
            torch.testing.assert_close(entropies[place, :length], own[1], atol=1e-5, rtol=0)
            ids = torch.tensor([[*row.prompt_ids, *row.output_ids]])
            hidden = model.base_model(input_ids=ids).last_hidden_state[0, :, 0]
            hidden = hidden[len(row.prompt_ids) - 1 :][:length]
            torch.testing.assert_close(states[place, :length], hidden, atol=1e-5, rtol=0)
            for values in (logps, entropies):
                assert bool((values[place, length:] == 0).all())


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_are_equal_packed_and_padded_for_any_microbatch(family):
    model, rows = model_of(family), make_rows()
    whole = gradient(model, rows, "padded", 0)
    assert float(whole.abs().max()) > 0.01
    for layout in ("packed", "padded"):
        for max_rows in (1, 3, 0):
            other = gradient(model, rows, layout, max_rows)
            torch.testing.assert_close(other, whole, atol=1e-5, rtol=0)


def test_gradient_equals_that_of_single_rows_through_the_whole_model():
    model, rows = model_of("qwen3"), make_rows()
    model.zero_grad()
    tokens = sum(len(row.output_ids) for row in rows)
    for row in rows:
        logps, entropies = alone(model, row, 0.8)
        ratio = (logps - torch.tensor(row.logps)).exp()
        ((-ratio * row.advantage - 0.1 * entropies).sum() / tokens).backward()
    plain = torch.cat([p.grad.flatten() for p in model.parameters()])
    torch.testing.assert_close(gradient(model, rows, "packed", 0), plain, atol=1e-5, rtol=0)


def test_chunks_do_not_change_the_gradient():
    model, rows = model_of("qwen2"), make_rows()
    whole = gradient(model, rows, "packed", 0)
    for chunk in (1, 7):
        other = gradient(model, rows, "packed", 0, chunk=chunk)
        torch.testing.assert_close(other, whole, atol=1e-6, rtol=0)


def test_long_whole_rows():
    torch.manual_seed(0)
    config = Qwen3Config(**{**SHAPE, "max_position_embeddings": 1024}, num_key_value_heads=2)
    model = prepare(Qwen3ForCausalLM(config))
    rng = random.Random(0)
    prompt = tuple(rng.randrange(VOCAB) for _ in range(600))
    rows = [Row(prompt, (1, 2, EOS), 1.0), Row(prompt, (1, 3), -1.0), Row(prompt[:3], (4,), 0.3)]
    torch.testing.assert_close(
        gradient(model, rows, "packed", 0), gradient(model, rows, "padded", 1), atol=1e-5, rtol=0
    )


def test_lower_precision():
    model, rows = model_of("qwen3"), make_rows()
    exact = gradient(model, rows, "packed", 0)
    with torch.autocast("cpu", torch.bfloat16):
        rough = gradient(model, rows, "packed", 0)
    assert float((rough - exact).norm() / exact.norm()) < 0.1


def test_adapters():
    from flowzoo.baselines.learner.lora import LoraBase, LoraSettings

    base = LoraBase(FAMILIES["qwen3"](), "", LoraSettings(rank=2))
    weights = base.add("one", 0)
    model, rows = prepare(base.model), make_rows()
    for parameter in weights.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    found = []
    for layout, options in (("padded", {}), ("packed", {}), ("packed", {"chunk": 4})):
        model.zero_grad()
        batch = tensors(rows, [0.0] * len(rows), layout)
        token_logps(model, batch, 1.0, **options)[0].sum().backward()
        found.append(torch.cat([p.grad.flatten() for p in weights.parameters()]))
    assert float(found[0].abs().max()) > 0.1
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("layout", ["packed", "padded"])
def test_gradient_checkpointing(layout):
    model, rows = model_of("qwen3"), make_rows()
    sizes = []

    def count(tensor):
        sizes[-1] += tensor.numel()
        return tensor

    found = []
    for checkpointing in (False, True):
        prepare(model, gradient_checkpointing=checkpointing)
        sizes.append(0)
        with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
            found.append(gradient(model, rows, layout, 0))
        assert not any(module.training for module in model.modules())
    torch.testing.assert_close(found[1], found[0], atol=1e-6, rtol=0)
    assert sizes[1] < 0.5 * sizes[0]


def test_every_layer_is_compiled_once_for_any_shape(monkeypatch):
    asked: list[tuple[Any, dict[str, Any]]] = []

    def note(layer, **options):
        """As the library's, with the layer's own call in place of a compiled one."""
        layer._compiled_call_impl = layer._call_impl
        asked.append((layer, options))

    monkeypatch.setattr(torch.nn.Module, "compile", note)
    model, rows = model_of("qwen3"), make_rows()
    whole = gradient(model, rows, "packed", 0)
    prepare(prepare(model, compile=True), compile=True)
    assert asked == [(layer, {"dynamic": True}) for layer in model.model.layers]
    torch.testing.assert_close(gradient(model, rows, "packed", 0), whole, atol=0, rtol=0)


@pytest.mark.full
def test_compiled_layers(monkeypatch):
    """The same gradient, from batches of several shapes, and a second call changes nothing.

    Without the generation of code, which takes minutes and is the library's own.
    """
    monkeypatch.setattr(
        torch.nn.Module, "compile", partialmethod(torch.nn.Module.compile, backend="aot_eager")
    )
    config = Qwen3Config(**{**SHAPE, "num_hidden_layers": 1}, head_dim=6, num_key_value_heads=2)
    torch.manual_seed(0)
    model, rows = prepare(Qwen3ForCausalLM(config)), make_rows()
    whole = gradient(model, rows, "packed", 0)
    names = list(model.state_dict())
    prepare(prepare(model, compile=True), compile=True)
    assert list(model.state_dict()) == names
    torch.testing.assert_close(gradient(model, rows, "packed", 6), whole, atol=1e-5, rtol=0)


def test_a_prepared_model_decodes_as_before(tmp_path):
    from flowzoo.agents.hf.attention import decoding

    plain = FAMILIES["qwen3"]()
    prompt = torch.tensor([[3, 5, 2]])
    before = plain.generate(prompt, max_new_tokens=6, do_sample=False, pad_token_id=PAD)
    model = prepare(plain)
    after = model.generate(prompt, max_new_tokens=6, do_sample=False, pad_token_id=PAD)
    assert after.tolist() == before.tolist()
    name = model.config._attn_implementation
    with decoding(model):
        assert model.config._attn_implementation != name
    assert model.config._attn_implementation == name
    model.save_pretrained(tmp_path)
    again = Qwen3ForCausalLM.from_pretrained(tmp_path)
    assert again.config._attn_implementation == "sdpa"


def test_an_unprepared_model_does_not_read_packed_rows():
    batch = tensors(make_rows(), [0.0] * 11, "packed")
    with pytest.raises(UsageError, match="prepare"):
        token_logps(FAMILIES["llama"](), batch, 1.0)


def test_families_that_cannot_be_packed_are_refused():
    windowed = Qwen3Config(
        **SHAPE, num_key_value_heads=2, use_sliding_window=True, sliding_window=4,
        max_window_layers=0,
    )  # fmt: skip
    bloom = BloomConfig(vocab_size=VOCAB, hidden_size=16, n_layer=1, n_head=2)
    for model in (Qwen3ForCausalLM(windowed), BloomForCausalLM(bloom)):
        attention = model.config._attn_implementation
        with pytest.raises(UsageError, match="padded"):
            prepare(model)
        assert model.config._attn_implementation == attention
        prepare(model, "padded")


def test_a_layer_with_memory_of_its_own_is_refused():
    class Mixing(Qwen3ForCausalLM):
        pass

    model = Mixing(Qwen3Config(**SHAPE, num_key_value_heads=2))

    def mix(_module, args, output):
        return output + torch.nn.functional.pad(output, (0, 0, 1, 0))[:, :-1]

    model.model.layers[0].mlp.register_forward_hook(mix)
    with pytest.raises(UsageError, match="Mixing"):
        prepare(model)


def test_a_model_without_a_plain_head_is_refused():
    model = FAMILIES["qwen3"]()
    with pytest.raises(UsageError, match="none"):
        prepare(model.model)
    model.lm_head = torch.nn.Sequential(model.lm_head)
    with pytest.raises(UsageError, match="Sequential"):
        prepare(model)


def test_scatter():
    mask = torch.tensor([[True, True, False], [False, False, False], [True, False, False]])
    assert scatter(torch.tensor([1.0, 2.0, 3.0]), mask).tolist() == [
        [1, 2, 0], [0, 0, 0], [3, 0, 0]
    ]  # fmt: skip
