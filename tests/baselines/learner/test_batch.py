"""From rows to tensors, in both layouts, and packing by common prefixes."""

import copy
import random
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flowzoo.baselines.learner import hidden_states
from flowzoo.baselines.learner import packing as packing_module
from flowzoo.baselines.learner.batch import cut, cut_microbatches, tensors
from flowzoo.baselines.learner.hidden_states import fitting_layout
from flowzoo.baselines.learner.packing import Packing, grow, lay_out, sorted_rows
from flowzoo.errors import UsageError

EOS = PAD = 0


@dataclass(frozen=True)
class Row:
    """As much of a call as tensors need."""

    prompt_ids: tuple[int, ...]
    output_ids: tuple[int, ...]

    @property
    def logps(self) -> tuple[float, ...]:
        return tuple(-1.0 - token for token in self.output_ids)


def group_rows(prompts: int = 4, samples: int = 6, seed: int = 0) -> list[Row]:
    """Samples of a few prompts of unequal lengths, in mixed order."""
    rng = random.Random(seed)
    starts = [tuple(rng.randrange(1, 9) for _ in range(rng.randint(1, 30))) for _ in range(prompts)]
    rows = [
        Row(prompt, tuple(rng.randrange(9) for _ in range(rng.choice((0, 1, 2, 9)))))
        for prompt in starts
        for _ in range(samples)
    ]
    rng.shuffle(rows)
    return rows


ROWS = [Row((3, EOS, 4), (PAD, 5, EOS)), Row((3,), (7, EOS)), Row((3, EOS), ())]


@pytest.mark.parametrize("layout", ["packed", "padded"])
def test_masks_come_from_the_sampler(layout):
    batch = tensors(ROWS, [1.0, 2.0, 3.0], layout)
    assert batch.targets.tolist() == [PAD, 5, EOS, 7, EOS]
    assert batch.mask.tolist() == [[True] * 3, [True, True, False], [False] * 3]
    assert batch.behavior_logps.tolist() == [[-1, -6, -1], [-8, -1, 0], [0, 0, 0]]
    assert batch.advantages.tolist() == [1, 2, 3]


def test_padded():
    batch = tensors(ROWS, [1.0] * 3, "padded")
    assert batch.input_ids.tolist() == [[3, 0, 4, 0, 5], [3, 7, 0, 0, 0], [3, 0, 0, 0, 0]]
    assert batch.positions[batch.sources].tolist() == [2, 3, 4, 5, 6]
    assert batch.packing is None


def test_packed():
    batch = tensors(ROWS, [1.0] * 3, "packed")
    assert batch.input_ids.tolist() == [[3, 0, 4, 0, 5, 7]]
    assert batch.positions[batch.sources].tolist() == [2, 3, 4, 0, 5]
    assert batch.packing.positions.tolist() == [[0, 1, 2, 3, 4, 1]]


def test_samples_of_a_prompt_share_the_position_of_their_first_token():
    rows = [Row((1, 2), (token, 5)) for token in (3, 4, 3)]
    batch = tensors(rows, [1.0] * 3, "packed")
    assert batch.input_ids.tolist() == [[1, 2, 3, 4]]
    assert batch.positions.tolist() == [1, 2, 3]
    assert batch.sources.tolist() == [0, 1, 0, 2, 0, 1]
    assert batch.targets.tolist() == [3, 5, 4, 5, 3, 5]


@pytest.mark.parametrize("layout", ["packed", "padded"])
@pytest.mark.parametrize(("max_tokens", "max_rows"), [(1, 0), (40, 0), (100, 0), (10**6, 5)])
def test_cut_microbatches(layout, max_tokens, max_rows):
    rows = group_rows()
    batches = cut_microbatches(rows, layout, max_tokens, max_rows)
    assert sorted(idx for batch in batches for idx in batch) == list(range(len(rows)))
    for batch in batches:
        assert 1 <= len(batch) <= (max_rows or len(rows))
        size = tensors([rows[i] for i in batch], [0.0] * len(batch), layout).input_ids.numel()
        assert size <= max_tokens or len(batch) == 1
    if max_tokens == 10**6:
        assert [len(batch) for batch in batches] == [5, 5, 5, 5, 4]


def test_packed_microbatches_keep_groups_together():
    rows = group_rows(prompts=6, samples=8)
    batches = cut_microbatches(rows, "packed", 10**6, 8)
    assert all(len({rows[i].prompt_ids for i in batch}) == 1 for batch in batches)


def test_microbatches_do_not_depend_on_the_order_of_arrival():
    rows = group_rows()
    cuts = []
    for order in (rows, rows[::-1]):
        batches = cut_microbatches(order, "packed", 60)
        cuts.append(
            [[order[i].prompt_ids + order[i].output_ids[:-1] for i in batch] for batch in batches]
        )
    assert cuts[0] == cuts[1]


def test_cut():
    lengths = [3, 9, 4, 4, 20, 1]
    assert cut(lengths, 12) == [[4], [1], [2, 3, 0], [5]]
    assert [len(batch) for batch in cut(lengths, 1000, 4)] == [4, 2]


def test_mistakes():
    with pytest.raises(UsageError, match="padded"):
        tensors(ROWS, [0.0] * 3, "pad")
    with pytest.raises(UsageError, match="packed"):
        cut_microbatches(ROWS, "pack", 5)
    with pytest.raises(UsageError, match="max_tokens"):
        cut([1], 0)
    for layout in ("packed", "padded"):
        with pytest.raises(UsageError, match="max_tokens"):
            cut_microbatches(ROWS, layout, 0)
        with pytest.raises(UsageError, match="max_rows"):
            cut_microbatches(ROWS, layout, 1, -1)


def test_to():
    for layout in ("packed", "padded"):
        batch = tensors(ROWS, [1.0] * 3, layout)
        moved = batch.to(torch.device("cpu"))
        assert torch.equal(moved.input_ids, batch.input_ids)
        assert (moved.packing is None) == (batch.packing is None)


rows_of_few_tokens = st.lists(
    st.lists(st.integers(0, 2), min_size=1, max_size=9), min_size=1, max_size=12
)


def sights(packing: Packing) -> dict[int, list[list[int]]]:
    """For every packed position the lists of keys that its queries see, fillers left out."""
    found: dict[int, list[list[int]]] = {}
    queries = [
        (int(query), keys, None if bucket.bias is None else bucket.bias[row, 0, place])
        for bucket in packing.buckets
        for row, keys in enumerate(bucket.keys.tolist())
        for place, query in enumerate(bucket.queries[row])
    ]
    for position, place in enumerate(packing.places.tolist()):
        query, keys, bias = queries[place]
        assert query == position
        seen = [key for key, value in zip(keys, bias.tolist(), strict=True) if value == 0]
        found.setdefault(position, []).append(seen)
    return found


@settings(max_examples=150, deadline=None)
@given(rows_of_few_tokens)
def test_every_distinct_prefix_stands_once_and_sees_itself(rows):
    tree = grow(rows)
    prefixes = {tuple(row[:end]) for row in rows for end in range(1, len(row) + 1)}
    assert len(tree.ids) == len(prefixes)
    packing = lay_out(tree)
    seen = sights(packing)
    for row, path in zip(rows, tree.paths, strict=True):
        assert tree.ids[path].tolist() == row
        assert packing.positions[0, path].tolist() == list(range(len(row)))
        for end, position in enumerate(path.tolist(), 1):
            assert seen[position] == [path[:end].tolist()]


def test_rows_without_a_common_prefix_stand_one_after_another():
    tree = grow([[5, 1], [7], [6, 6, 6]])
    assert tree.ids.tolist() == [5, 1, 6, 6, 6, 7]
    assert [path.tolist() for path in tree.paths] == [[0, 1], [5], [2, 3, 4]]


def test_equal_rows_are_one():
    tree = grow([[1, 2], [1, 2], [1, 2]])
    assert tree.ids.tolist() == [1, 2]
    assert [path.tolist() for path in tree.paths] == [[0, 1]] * 3
    assert sorted_rows([[1, 2], [0], [1, 2]]) == [(1, 0), (0, 0), (2, 2)]


def test_segments_of_like_shape_share_a_bucket():
    rng = np.random.default_rng(0)
    short = [[1, *rng.integers(2, 1000, 20).tolist()] for _ in range(50)]
    long = [[0, *rng.integers(2, 1000, 400).tolist()] for _ in range(3)]
    packing = lay_out(grow([*short, *long]))
    assert sorted(tuple(bucket.queries.shape) for bucket in packing.buckets) == [(3, 401), (50, 21)]


def test_a_long_whole_row_has_no_table():
    tree = grow([list(range(600)), list(range(1, 40)), [*range(600), 7]])
    packing = lay_out(tree)
    tables = {tuple(one.queries.shape): one.bias is None for one in packing.buckets}
    assert tables == {(1, 600): True, (1, 39): False, (1, 1): False}


def test_a_long_row_that_shares_little_stays_whole():
    header = list(range(100))
    rows = [[*header, *[number] * 700] for number in (1, 2)]
    tree = grow(rows)
    assert len(tree.ids) == 1600
    assert all(bucket.bias is None for bucket in lay_out(tree).buckets)
    most = [[*range(600), *[number] * 100] for number in (1, 2)]
    assert len(grow(most).ids) == 800


def test_moving_keeps_everything():
    import torch

    packing = lay_out(grow([[1, 2, 3], [1, 2], [4]])).to(torch.device("cpu"))
    stacked = packing.stacked(2, torch.bfloat16)
    for before, after in zip(packing.buckets, stacked.buckets, strict=True):
        segments, _, width, keys = before.bias.shape
        assert after.bias.shape == (segments, 1, 2 * width, keys)
        assert after.bias.dtype == torch.bfloat16
        assert torch.equal(after.bias.float(), before.bias.repeat(1, 1, 2, 1))


@pytest.mark.parametrize("aligned", [False, True])
def test_packed_attention_and_its_gradient_are_those_of_single_rows(aligned):
    rows = [[1, 2, 3, 4, 5], [1, 2, 3, 6], [1, 7], [8, 9, 9], [3] * 30, [3] * 12 + [4] * 9]
    tree = grow(rows)
    torch.manual_seed(0)
    heads, groups, count = 4, 2, len(tree.ids)
    inputs = [
        torch.randn(1, size, count, width, requires_grad=True)
        for size, width in ((heads, 8), (groups, 8), (groups, 6))  # narrower values
    ]
    packing = lay_out(tree).stacked(heads // groups, torch.float32)
    if aligned:  # as on a GPU
        packing = replace(packing, buckets=tuple(map(packing_module.aligned, packing.buckets)))
    out, _ = packing_module.packed_attention(torch.nn.Module(), *inputs, None, packing=packing)
    assert out.shape == (1, count, heads, 6)
    expected = torch.empty_like(out)
    for path in tree.paths:
        query, key, value = (tensor[:, :, path] for tensor in inputs)
        key, value = (tensor.repeat_interleave(heads // groups, 1) for tensor in (key, value))
        alone = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        expected = expected.index_copy(1, torch.from_numpy(path), alone.transpose(1, 2))
    torch.testing.assert_close(out, expected)
    grad = torch.randn_like(out)
    matches = torch.autograd.grad(out, inputs, grad)
    for got, wanted in zip(matches, torch.autograd.grad(expected, inputs, grad), strict=True):
        torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("at_once", [1, 300, 2**18])
def test_attention_in_blocks_and_its_gradient_are_those_of_torch(at_once, monkeypatch):
    monkeypatch.setattr(packing_module, "_SCORES_AT_ONCE", at_once)
    torch.manual_seed(0)
    segments, groups, queries, keys = 5, 2, 6, 9
    shapes = (queries, 4), (keys, 4), (keys, 4)
    inputs = [torch.randn(segments, groups, *shape, requires_grad=True) for shape in shapes]
    bias = torch.zeros(segments, 1, queries, keys)
    for segment in range(segments):
        bias[segment, :, :, keys - segment :] = float("-inf")
    grad = torch.randn(segments, groups, queries, 4)
    blocks = packing_module._BlockAttention.apply(*inputs, bias, 0.3)
    plain = torch.nn.functional.scaled_dot_product_attention(*inputs, bias, scale=0.3)
    torch.testing.assert_close(blocks, plain)
    for got, expected in zip(
        torch.autograd.grad(blocks, inputs, grad), torch.autograd.grad(plain, inputs, grad),
        strict=True,
    ):  # fmt: skip
        torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("value", [0.0, 20.0])
def test_attention_in_blocks_keeps_small_differences_of_large_numbers_under_autocast(value):
    torch.manual_seed(0)
    inputs = [
        (torch.randn(2, 2, 30, 16) + mean).bfloat16().requires_grad_() for mean in (3.0, 3.0, value)
    ]
    exact = [tensor.detach().double().requires_grad_() for tensor in inputs]
    bias, grad = torch.zeros(2, 1, 30, 30), torch.randn(2, 2, 30, 16).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        blocks = packing_module._BlockAttention.apply(*inputs, bias, 0.25)
    plain = torch.nn.functional.scaled_dot_product_attention(*exact, scale=0.25)
    grads = torch.autograd.grad(blocks, inputs, grad)
    expected_grads = torch.autograd.grad(plain, exact, grad.double())
    for got, expected in zip((blocks, *grads), (plain, *expected_grads), strict=True):
        assert (got - expected).norm() < 0.01 * expected.norm()


def test_rounded_weights_do_not_look_like_a_misfit(tiny_model, monkeypatch):
    monkeypatch.setattr(hidden_states, "_misfits", {})
    model = tiny_model().bfloat16()
    model.model.norm.weight.data.fill_(300.0)  # hidden states as large as a pretrained model's
    before = copy.deepcopy(model.state_dict())
    assert fitting_layout(model, "auto") == ("packed", [])
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
        assert value.dtype == before[name].dtype
