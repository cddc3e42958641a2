"""Folded gradients keep inner products."""

import pytest

pytest.importorskip("torch", reason="training needs flowzoo[train]")

import torch

from flowzoo.baselines.diagnostics.probe import LARGEST, sketch


def parts(seed: int, scale: float = 1.0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = [(300, 40), (7,), (90, 90), (13, 3)]
    return [scale * torch.randn(shape, generator=generator) for shape in shapes]


def test_what_fits_is_kept():
    gradient = parts(0)
    vector = sketch(gradient)
    assert torch.equal(vector, torch.cat([part.flatten() for part in gradient]))


def test_folding_is_unbiased_and_as_close_as_said():
    one, noise = parts(1), parts(2)
    other = [0.6 * a + 0.8 * b for a, b in zip(one, noise, strict=True)]
    exact = float(sum((a * b).sum() for a, b in zip(one, other, strict=True)))
    size = float(sum((a * a).sum() for a in one)) ** 0.5
    size *= float(sum((b * b).sum() for b in other)) ** 0.5
    largest = 1000
    errors = []
    for seed in range(200):
        a, b = sketch(one, largest, seed), sketch(other, largest, seed)
        assert a.shape == (largest,)
        errors.append((float(a @ b) - exact) / size)
    found = torch.tensor(errors)
    spread = (1 / largest) ** 0.5  # times up to sqrt(1 + cos^2)
    assert 0.5 * spread < float(found.std()) < 1.5 * spread
    assert abs(float(found.mean())) < 4 * float(found.std()) / len(errors) ** 0.5


def test_signs_do_not_repeat_from_tensor_to_tensor():
    ones = [torch.ones(500), torch.ones(500), torch.ones(500)]
    folded = sketch(ones, 500)
    assert set(folded.tolist()) == {-3.0, -1.0, 1.0, 3.0}
    assert torch.equal(folded, sketch(ones, 500))


def test_a_gradient_in_one_column_of_a_matrix_spreads_over_the_places():
    rows, width = 2**11, 2**11  # twice as many numbers as there are places
    column = torch.zeros(rows, width)
    column[:, 3] = 1.0
    folded = sketch([column])
    assert len(folded) == LARGEST
    assert int((folded != 0).sum()) == rows  # no two of them meet
