"""Layers in the number format of sampling: exact in bfloat16, bounded in int8, checked in both."""

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import nn
from transformers import GPTNeoConfig, GPTNeoForCausalLM

from flowzoo.agents.hf import int8_linear, kept_linears
from flowzoo.agents.hf.decode import DecodeOutput, DecodeRequest, decode
from flowzoo.agents.hf.int8_linear import Int8Linear, PackedLevels, PlainLevels, quantize
from flowzoo.agents.hf.int8_product import ITEM_SIZES, instructions
from flowzoo.agents.hf.kept_linears import KeptLinears
from flowzoo.agents.pocket import load
from flowzoo.agents.policy import Sampling
from flowzoo.baselines.learner.lora import LoraBase, LoraSettings
from flowzoo.errors import UsageError

ROWS = [
    DecodeRequest(tuple(3 + (7 * row + step) % 60 for step in range(4 + row)), row, 6)
    for row in range(9)
]
"""Prompts of unequal length."""


@pytest.fixture(scope="module")
def model() -> Any:
    return load("math", "xs").model


def sample(model: Any, rows: list[DecodeRequest] = ROWS) -> list[DecodeOutput]:
    return decode(model, rows, Sampling(), frozenset(), lambda: False)[0]


def layer(*, bias: bool = True) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(24, 10, bias=bias)


def test_kept_bfloat16_layers_sample_what_autocast_does(model):
    kept = KeptLinears(model, "bfloat16")
    before = sample(model)
    with torch.autocast("cpu", torch.bfloat16):
        converted = sample(model)
        with kept.active():
            assert sample(model) == converted
    assert sample(model) == before, "the model has its layers back"


def rotation(width: int, block: int) -> torch.Tensor:
    """Walsh functions in natural order, of features that are as far apart as possible."""
    signs = [
        [(-1.0) ** (row & column).bit_count() for column in range(block)] for row in range(block)
    ]
    walsh = torch.tensor(signs, dtype=torch.float64) / block**0.5
    return torch.kron(walsh, torch.eye(width // block, dtype=torch.float64))


def rounded(rows: torch.Tensor) -> torch.Tensor:
    scales = rows.abs().amax(-1, keepdim=True) / 127
    return torch.where(scales > 0, (rows / scales).round() * scales, 0)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_int8_products_are_those_of_rounded_rotated_rows(bias, dtype):
    source = layer(bias=bias).to(dtype)
    inputs = torch.randn(2, 3, 24).to(dtype)
    inputs[1, 2] = 0.0
    int8 = Int8Linear(source)
    int8.take(source)
    turn = rotation(24, 8)
    expected = rounded(inputs.double() @ turn) @ rounded(source.weight.detach().double() @ turn).T
    expected += source.bias.double() if bias else 0
    out = int8(inputs)
    assert out.dtype == dtype
    torch.testing.assert_close(
        out.double(), expected, atol=1e-5 if dtype == torch.float32 else 0.02, rtol=0
    )


@pytest.mark.parametrize("width", [24, 512, 576, 896, 1536])
def test_levels_are_those_of_rotated_rows(width):
    torch.manual_seed(3)
    rows = torch.randn(20, width)
    levels, scales = map(torch.from_numpy, quantize(rows))
    rotated = rows.double() @ rotation(width, math.gcd(width, 32))
    torch.testing.assert_close(scales.double(), rotated.abs().amax(-1) / 127, rtol=1e-6, atol=0)
    exact = rotated / scales[:, None]
    assert (levels - exact).abs().max() < 0.5 + 1e-4


# Every CPU that has AVX-512 VNNI has AVX2, too.
HERE = {"AVX-512 VNNI": list(ITEM_SIZES), "AVX2": ["AVX2"], None: []}[instructions()]


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    usual = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(usual)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("kind", HERE)
@pytest.mark.parametrize(
    ("width", "out_features"), [(24, 10), (30, 17), (64, 16), (7, 33), (1536, 576)]
)
def test_packed_levels_have_the_numbers_of_plain_ones(width, out_features, kind):
    torch.manual_seed(2)
    weight = torch.randn(out_features, width)
    plain, packed = PlainLevels(), PackedLevels(out_features, width, kind)
    plain.take(weight)
    packed.take(weight)
    assert torch.equal(packed.scales, plain.scales)
    weights = torch.from_numpy(quantize(weight)[0]).long()
    for rows in (1, 3, 4, 8, 12, 15, 16, 17, 29, 40):
        levels = quantize(torch.randn(rows, width))
        sums = torch.from_numpy(levels[0]).long() @ weights.T
        exact = sums.float() * plain.scales * torch.from_numpy(levels[1])[:, None]
        assert torch.equal(packed.multiply(*levels), exact)
        assert torch.equal(plain.multiply(*levels), exact)


def test_a_large_feature_does_not_drown_the_others():
    torch.manual_seed(1)
    source, inputs = nn.Linear(128, 64), torch.randn(50, 128)
    inputs[:, 5] *= 70  # as of attention's inputs in SmolLM2-135M
    int8 = Int8Linear(source)
    int8.take(source)
    exact = source(inputs)
    plain = rounded(inputs) @ rounded(source.weight).T + source.bias
    assert (int8(inputs) - exact).norm() < 0.5 * (plain - exact).norm()


def test_int8_samples_do_not_depend_on_the_batch(model):
    kept = KeptLinears(model, "int8")
    with kept.active():
        together, again = sample(model), sample(model)
        alone = [sample(model, [row])[0] for row in ROWS]
    assert together == again
    assert [out.tokens for out in alone] == [out.tokens for out in together]


def test_int8_log_probs_are_near_those_of_the_weights(model):
    ids = torch.tensor([row.prompt[:4] for row in ROWS])
    logps = []
    kept = KeptLinears(model, "int8")
    for context in (nullcontext(), kept.active()):
        with context, torch.no_grad():
            logps.append(model(ids, use_cache=False).logits.log_softmax(-1))
    gap = ((logps[0] - logps[1]).abs() * logps[0].exp()).sum(-1)
    assert 1e-4 < gap.mean() < 0.05


@torch.no_grad()
def test_layers_that_read_one_tensor_quantize_it_once():
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query, self.key, self.out = layer(), layer(), nn.Linear(10, 4)

        def forward(self, hidden: torch.Tensor) -> torch.Tensor:
            return self.out(self.query(hidden) * self.key(hidden))

    net, inputs = Attention(), torch.randn(3, 24)
    kept = KeptLinears(net, "int8")
    calls: list[int] = []

    def results() -> list[torch.Tensor]:
        with kept.active(), pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                int8_linear, "quantize", lambda rows: calls.append(len(rows)) or quantize(rows)
            )
            return [net(inputs), net(inputs.clone()), net(inputs[:2] * 2)]

    shared = results()
    assert calls == [3, 3, 3, 3, 2, 2], "of query and key once, of out once"
    for child in (net.query, net.key, net.out):
        int8 = Int8Linear(child)
        int8.take(child)
        setattr(net, child_name(net, child), int8)
    for output, alone in zip(shared, [net(inputs), net(inputs), net(inputs[:2] * 2)], strict=True):
        assert torch.equal(output, alone)


def child_name(net: nn.Module, child: nn.Module) -> str:
    return next(name for name, module in net.named_children() if module is child)


def shift_weights(kept: Any) -> None:
    other = layer()
    with torch.no_grad():
        other.weight[3, 2] += 6 * kept.levels.scales[3]
    kept.take(other)


FAULTS: dict[str, Callable[[Any], object]] = {
    "scales": lambda kept: kept.levels.scales[:2].mul_(2),
    "weights": shift_weights,
    "bias": lambda kept: kept.bias[0].add_(1e-3),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_wrong_int8_weights_are_noticed(fault):
    source = layer()
    int8 = Int8Linear(source)
    int8.take(source)
    assert int8.holds(source)
    FAULTS[fault](int8)
    assert not int8.holds(source)


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_layers_follow_the_weights_when_refreshed(dtype):
    net = nn.Sequential(layer(), nn.ReLU(), layer().requires_grad_(False))
    kept = KeptLinears(net, dtype)
    assert kept.differing() == []
    with torch.no_grad():
        net[0].weight.mul_(1.1)
    assert kept.differing() == ["0"]
    kept.refresh()
    assert kept.differing() == []


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_new_layers_hold_weights_that_changed_since_others_were_made(dtype):
    net = nn.Sequential(layer())
    first = KeptLinears(net, dtype)
    with torch.no_grad():
        net[0].weight.mul_(2)
    net.requires_grad_(False)
    assert KeptLinears(net, dtype).differing() == []
    assert first.differing() == (["0"] if dtype == "int8" else [])


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_a_bias_is_trained_beside_frozen_weights(dtype):
    net = nn.Sequential(layer())
    net[0].weight.requires_grad_(False)
    kept = KeptLinears(net, dtype)
    with torch.no_grad():
        net[0].bias.add_(1)
    kept.refresh()
    assert kept.differing() == []
    if dtype == "bfloat16":
        with torch.autocast("cpu", torch.bfloat16), kept.active():
            net(torch.randn(3, 24)).sum().backward()
        assert net[0].bias.grad.tolist() == [3.0] * 10


def test_a_copy_of_int8_layers_multiplies_as_they_do():
    net = nn.Sequential(nn.Linear(576, 320))
    KeptLinears(net, "int8").install()
    inputs = torch.randn(5, 576)
    for _ in range(8):  # of which some would lie at other addresses of a cache line
        assert torch.equal(copy.deepcopy(net)(inputs), net(inputs))


def test_int8_layers_are_not_saved():
    net = nn.Sequential(layer())
    KeptLinears(net, "int8").install()
    with pytest.raises(UsageError, match="cannot be saved"):
        net.state_dict()


def test_int8_needs_a_cpu():
    with pytest.raises(UsageError, match="int8 is for models on a CPU, and this one is on meta"):
        KeptLinears(layer().to("meta"), "int8")


PREFIX = tuple(range(3, 23))


@pytest.mark.parametrize(
    ("prompts", "read"),
    [
        ([(*PREFIX, 30), (*PREFIX, 31, 32, 33), (*PREFIX, 31, 32), (*PREFIX, 30)], 20 + 1 + 3 + 2),
        ([PREFIX, (*PREFIX, 40), (*PREFIX[:-1], 50, 51)], 19 + 1 + 2 + 2),
        ([PREFIX, PREFIX], 20),
        ([(*PREFIX[:10], 60), (*PREFIX[:10], 61)], 22),
        ([(2, *PREFIX), PREFIX], 41),
    ],
)
def test_a_prefix_that_all_prompts_have_is_read_once(model, prompts, read):
    rows = [DecodeRequest(prompt, key, 6) for key, prompt in enumerate(prompts)]
    shared, tokens = decode(model, rows, Sampling(), frozenset(), lambda: False, True)
    assert tokens == read
    for output, expected in zip(shared, sample(model, rows), strict=True):
        assert output.tokens == expected.tokens
        assert output.logps == pytest.approx(expected.logps, abs=1e-4)


@torch.no_grad()
def test_adapters_on_int8_layers_add_what_peft_adds(monkeypatch):
    base = LoraBase(load("math", "xs").model, "", LoraSettings(rank=2))
    torch.manual_seed(0)
    for weights in (base.add("one", 0), base.add("two", 1)):
        for parameter in weights.parameters():
            parameter.add_(torch.randn_like(parameter))
    mlp = base.model.base_model.layers[0].mlp
    inputs = torch.randn(2, 3, mlp.up_proj.in_features)

    def outputs() -> list[torch.Tensor]:
        with KeptLinears(base.model, "int8").active():
            with base.plain():
                results = [mlp.up_proj(inputs)]
            for label in ("p0", "p1"):
                with base.use(label):
                    results.append(mlp.up_proj(inputs))
        return results

    with_calls_of_two = outputs()
    monkeypatch.setattr(kept_linears, "_has_plain_adapters", lambda module: False)
    for got, expected in zip(with_calls_of_two, outputs(), strict=True):
        torch.testing.assert_close(got, expected)
    assert len({float(result.sum()) for result in with_calls_of_two}) == 3


def test_windows_that_count_positions_share_no_prefix():
    layers = {"attention_types": [[["global", "local"], 1]], "num_layers": 2, "window_size": 8}
    config = GPTNeoConfig(vocab_size=97, hidden_size=32, num_heads=4, **layers)
    torch.manual_seed(0)
    neo = GPTNeoForCausalLM(config).eval()
    rows = [DecodeRequest(prompt, key, 4) for key, prompt in enumerate([(*PREFIX, 30), 2 * PREFIX])]
    shared, _ = decode(neo, rows, Sampling(), frozenset(), lambda: False, True)
    for output, row in zip(shared, rows, strict=True):
        ids = torch.tensor([[*row.prompt, *output.tokens]])
        with torch.no_grad():
            logps = neo(ids, use_cache=False).logits[0, len(row.prompt) - 1 : -1].log_softmax(-1)
        expected = logps.gather(1, ids[0, len(row.prompt) :, None])[:, 0]
        assert output.logps == pytest.approx(expected.tolist(), abs=1e-4)
