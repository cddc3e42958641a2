"""From rows to tensors, in both layouts."""

import random
from dataclasses import dataclass

import pytest
import torch

from flowzoo.baselines.learner.batch import cut, cut_microbatches, tensors
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
