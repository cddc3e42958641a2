"""Gradients of roles, and the regularizer that scales repeated gradients down."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from flowzoo.baselines.learner.config import LearnerConfig
from flowzoo.baselines.learner.gradient_stats import (
    Coherence,
    RoleGradients,
    RoleGramMatrix,
    dot,
    gram_metrics,
)
from flowzoo.baselines.learner.update import Learner
from flowzoo.errors import UsageError
from tests.baselines.learner.descent import ADVANTAGES, descend, moved


class Conversions(TorchDispatchMode):
    """Counts the tensors that are converted to another number format."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.aten._to_copy.default
        return func(*args, **(kwargs or {}))


def settings(**changes: Any) -> LearnerConfig:
    return LearnerConfig(**{"lr": 1.0, "clip_norm": 1e9, "truncated": "train", **changes})


def test_gradient_stats_add_up_and_are_those_of_the_roles(tiny_model, role_rows, own_logps):
    rows = own_logps(tiny_model(), role_rows())
    plain = moved(descend(Learner(tiny_model(), settings())), rows, ADVANTAGES)
    learner = Learner(tiny_model(), settings(role_gradients=True, microbatch_rows=2))
    before = learner.update(rows, [0.0] * 9)
    assert not any(name.startswith("grad/") for name in before)
    metrics = Learner(tiny_model(), settings(role_gradients=True)).update(rows, ADVANTAGES)
    whole = moved(descend(learner), rows, ADVANTAGES)
    torch.testing.assert_close(whole, plain, atol=1e-6, rtol=1e-5)
    alone = {
        role: moved(
            descend(Learner(tiny_model(), settings())),
            rows,
            [a if r.role == role else 0.0 for r, a in zip(rows, ADVANTAGES, strict=True)],
        )
        for role in "abc"
    }
    torch.testing.assert_close(sum(alone.values()), plain, atol=1e-6, rtol=1e-5)
    norms = {role: float(g.norm()) for role, g in alone.items()}
    for role, norm in norms.items():
        assert metrics[f"grad/norm/{role}"] == pytest.approx(norm, rel=1e-4)
        assert metrics[f"grad/mass/{role}"] == pytest.approx(norm / sum(norms.values()), rel=1e-4)
        square = norm**2 / sum(value**2 for value in norms.values())
        assert metrics[f"grad/mass_square/{role}"] == pytest.approx(square, rel=1e-4)
    pulls = dict.fromkeys("abc", 0.0)
    for row, advantage in zip(rows, ADVANTAGES, strict=True):
        pulls[row.role] += len(row.output_ids) * abs(advantage)
    shares = {role: metrics[f"advantage_mass/{role}"] for role in "abc"}
    assert shares == pytest.approx(
        {role: pull / sum(pulls.values()) for role, pull in pulls.items()}
    )
    assert not any(name.startswith("advantage_mass") for name in before)
    for pair in ("ab", "ac", "bc"):
        one, two = (alone[role] for role in pair)
        cosine = float(torch.nn.functional.cosine_similarity(one, two, dim=0))
        assert metrics[f"grad/cos/{pair[0]}/{pair[1]}"] == pytest.approx(cosine, abs=1e-4)


def test_means_are_over_the_steps_in_which_a_value_is_defined():
    first = RoleGramMatrix(("a", "b"), np.array([[9.0, 6.0], [6.0, 16.0]]), (3, 1))
    second = RoleGramMatrix(("a", "b"), np.array([[1.0, 0.0], [0.0, 0.0]]), (3, 1))
    third = RoleGramMatrix(("b",), np.array([[4.0]]), (1,))
    roles = math.exp(-(3 / 7 * math.log(3 / 7) + 4 / 7 * math.log(4 / 7)))
    assert gram_metrics([first, second, third]) == pytest.approx(
        {
            "grad/norm/a": 2.0, "grad/norm/b": 2.0, "grad/mass/a": (3 / 7 + 1) / 2,
            "grad/mass/b": (4 / 7 + 0 + 1) / 3, "grad/cos/a/b": 0.5, "grad/conflict": 0.0,
            "grad/mass_square/a": (9 / 25 + 1) / 2, "grad/mass_square/b": (16 / 25 + 0 + 1) / 3,
            "grad/mass_call/a": (1 / 5 + 1) / 2, "grad/mass_call/b": (4 / 5 + 0 + 1) / 3,
            "grad/effective_roles": (roles + 1 + 1) / 3, "grad/dominance": (4 / 7 + 1 + 1) / 3,
        }
    )  # fmt: skip
    assert gram_metrics([]) == {}


def test_conflict_is_the_share_of_pairs_that_pull_apart():
    products = np.array([[1.0, -0.5, 0.5], [-0.5, 1.0, 0.1], [0.5, 0.1, 1.0]])
    metrics = gram_metrics([RoleGramMatrix(("a", "b", "c"), products, (1, 1, 1))])
    assert metrics["grad/conflict"] == pytest.approx(1 / 3)
    assert metrics["grad/effective_roles"] == pytest.approx(3)


def test_a_weight_without_a_gradient_counts_as_zero():
    parameters = [torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(1))]
    roles = RoleGradients(parameters)
    parameters[0].grad = torch.tensor([3.0, 0.0])
    roles.take("a", 2)
    assert parameters[0].grad is None
    parameters[0].grad, parameters[1].grad = torch.tensor([1.0, 1.0]), torch.tensor([5.0])
    roles.take("b", 1)
    gram = roles.merge()
    assert gram.products.tolist() == [[9.0, 3.0], [3.0, 27.0]]
    assert gram.calls == (2, 1)
    assert [p.grad.tolist() for p in parameters if p.grad is not None] == [[4.0, 1.0], [5.0]]


def test_entropy_and_clipping_are_told_by_role(tiny_model, role_rows, own_logps):
    rows = own_logps(tiny_model(), role_rows())
    metrics = Learner(tiny_model(), settings(role_gradients=True)).update(rows, ADVANTAGES)
    alone = Learner(tiny_model(), settings(skip_idle_rows=True)).update(
        rows, [a if row.role == "b" else 0.0 for row, a in zip(rows, ADVANTAGES, strict=True)]
    )
    assert metrics["trained_entropy/b"] == pytest.approx(alone["learn/trained_entropy"], rel=1e-5)
    assert metrics["kl/b"] == pytest.approx(0, abs=1e-6)
    assert metrics["clip/b"] == 0
    tokens = {
        role: sum(
            len(r.output_ids) for r, a in zip(rows, ADVANTAGES, strict=True) if a and r.role == role
        )
        for role in "abc"
    }
    mean = sum(metrics[f"trained_entropy/{role}"] * n for role, n in tokens.items()) / sum(
        tokens.values()
    )
    assert metrics["learn/trained_entropy"] == pytest.approx(mean, rel=1e-5)


def test_coherence_scales_what_repeats_and_leaves_what_turns():
    weight = torch.nn.Parameter(torch.zeros(2))
    regularizer = Coherence(strength=0.5, window=2)
    seen, mean = [], torch.zeros(2)
    for count, grad in enumerate([(1.0, 0.0), (2.0, 0.0), (0.0, 1.0), (-1.0, 0.0)], start=1):
        given = torch.tensor(grad)
        weight.grad = given.clone()
        cosine, scale = regularizer.apply([weight])
        expected = float(given @ mean / (given.norm() * mean.norm())) if count > 1 else 0.0
        assert cosine == pytest.approx(expected, abs=1e-6)
        assert scale == pytest.approx(1 - 0.5 * max(0.0, expected), abs=1e-6)
        torch.testing.assert_close(weight.grad, given * scale)
        mean += (given - mean) / min(count, 2)
        seen.append(scale)
    assert seen == pytest.approx([1.0, 0.5, 1.0, 1.0])


def published_steps(
    gradients: np.ndarray, strength: float, window: int
) -> list[tuple[float, np.ndarray]]:
    """Scale and scaled gradient of every step by the published rule, in plain NumPy."""
    mean, steps = gradients[0].copy(), []
    for gradient in gradients:
        sizes = np.linalg.norm(gradient) * np.linalg.norm(mean) + 1e-8
        scale = 1 - strength * min(max(gradient @ mean / sizes, 0.0), 1.0)
        mean = (1 - 1 / window) * mean + gradient * scale / window
        steps.append((scale, gradient * scale))
    return steps


@pytest.mark.parametrize("strength", [0.1, 0.9, 1.0])
def test_published_coherence_is_the_published_rule(strength):
    rng = np.random.default_rng(0)
    gradients = rng.normal(size=(1_000, 12)) + rng.normal(size=12) * rng.random((1_000, 1))
    weights = [torch.nn.Parameter(torch.zeros(5)), torch.nn.Parameter(torch.zeros(7))]
    regularizer = Coherence(strength, 128, "published")
    expected = published_steps(gradients, strength, 128)
    for gradient, (scale, scaled) in zip(gradients, expected, strict=True):
        given = torch.tensor(gradient, dtype=torch.float32)
        weights[0].grad, weights[1].grad = given[:5].clone(), given[5:].clone()
        assert regularizer.apply(weights)[1] == pytest.approx(scale, abs=1e-6)
        found = torch.cat([weight.grad for weight in weights if weight.grad is not None])
        np.testing.assert_allclose(found.numpy(), scaled, rtol=1e-5, atol=1e-6)
    assert expected[0][0] == pytest.approx(1 - strength, abs=1e-6)


@pytest.mark.parametrize(("form", "scale"), [("published", 0.2), ("flowzoo", 1.0)])
def test_coherence_goes_on_after_a_restart(form, scale, tiny_model, role_rows):
    config = LearnerConfig(lr=1e-4, coherence=0.8, coherence_form=form)

    def run(learner, steps):
        return [learner.update(role_rows(), ADVANTAGES) for _ in range(steps)]

    expected = run(Learner(tiny_model(), config), 4)
    assert expected[0]["learn/coherence_scale"] == pytest.approx(scale)
    assert expected[1]["learn/coherence"] > 0.9
    first = Learner(tiny_model(), config)
    run(first, 2)
    second = Learner(first.model, config)
    second.load_state_dict(first.state_dict())
    assert run(second, 2) == expected[2:]
    with pytest.raises(UsageError, match="coherence regularizer"):
        Learner(tiny_model(), settings()).load_state_dict(first.state_dict())


def test_published_coherence_acts_before_the_clip(tiny_model, role_rows):
    rows = role_rows()

    def length(strength: float, clip: float) -> float:
        settings_ = settings(coherence=strength, coherence_form="published", clip_norm=clip)
        return float(moved(descend(Learner(tiny_model(), settings_)), rows, ADVANTAGES).norm())

    whole = length(0.0, 0.0)
    assert length(0.5, 0.0) == pytest.approx(whole / 2, rel=1e-4)
    assert length(0.5, whole / 4) == pytest.approx(whole / 4, rel=1e-3), "not an eighth"
    assert length(0.5, whole * 0.75) == pytest.approx(whole / 2, rel=1e-3), "nothing to clip"


def test_coherence_acts_after_the_clip(tiny_model, role_rows):
    rows = role_rows()
    clipped = descend(Learner(tiny_model(), settings(coherence=0.8, clip_norm=0.1)))
    assert math.isclose(float(moved(clipped, rows, ADVANTAGES).norm()), 0.1, rel_tol=1e-3)
    assert float(moved(clipped, rows, ADVANTAGES).norm()) < 0.09


def test_a_gradient_in_lower_precision_is_converted_once_for_its_own_product():
    gradient = [torch.randn(70, 30).bfloat16(), torch.randn(30).bfloat16()]
    copies = [part.clone() for part in gradient]
    with Conversions() as conversions:
        product = dot(gradient, gradient)
    with Conversions() as others:
        assert dot(gradient, copies) == product
    assert others.count - conversions.count == len(gradient)
