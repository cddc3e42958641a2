"""Gradients of roles, the coherence regularizer, and the effect of an update."""

import copy
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from flowzoo.baselines.learner import update_effect
from flowzoo.baselines.learner.batch import make_rows
from flowzoo.baselines.learner.config import LearnerConfig
from flowzoo.baselines.learner.gradient_stats import (
    Coherence,
    RoleGradients,
    RoleGramMatrix,
    dot,
    gram_metrics,
)
from flowzoo.baselines.learner.update import Learner
from flowzoo.baselines.learner.update_effect import UpdateEffect, sample
from flowzoo.envs import Call
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


CONFIG = LearnerConfig(lr=3e-3, temperature=0.7)


@pytest.fixture
def rows(
    tiny_model: Callable[..., Any], role_rows: Callable[..., list[Call]],
    own_logps: Callable[..., list[Call]],
) -> list[Call]:  # fmt: skip
    return own_logps(tiny_model(), role_rows(8), CONFIG.temperature)


EFFECT_ADVANTAGES = [1.0, -1.0, 0.5, 0.0, 0.0, -0.5, 1.0, -1.0]


@pytest.mark.parametrize("layout", ["packed", "padded"])
def test_the_divergence_is_that_of_all_sampled_contexts(
    tiny_model, row_logps, rows, layout, monkeypatch
):
    monkeypatch.setattr(update_effect, "FEWEST_ROWS", len(rows))
    model, before = tiny_model(), tiny_model()
    metrics = Learner(model, replace(CONFIG, layout=layout)).update(rows, EFFECT_ADVANTAGES)
    divergences, ratios = [], []
    with torch.no_grad():
        for call in rows:
            old = row_logps(before, call, CONFIG.temperature).double()
            new = row_logps(model, call, CONFIG.temperature).double()
            divergences += (old.exp() * (old - new)).sum(-1).tolist()
            places = range(len(call.output_ids)), call.output_ids
            ratios += (new - old)[places].abs().exp().tolist()
    assert metrics["learn/update_kl"] == pytest.approx(
        sum(divergences) / len(divergences), rel=1e-3
    )
    assert metrics["learn/update_ratio_max"] == pytest.approx(max(ratios), rel=1e-4)
    # What was measured while the loss was taken says nothing of the step.
    assert abs(metrics["learn/kl"]) < 1e-6 < 1e-4 < metrics["learn/update_kl"]


def test_a_tiny_step_has_a_tiny_divergence_and_not_the_noise_of_rounding(tiny_model, rows):
    def divergence(lr):
        config = replace(CONFIG, lr=lr, weight_decay=0.0)
        return Learner(tiny_model(), config).update(rows, EFFECT_ADVANTAGES)["learn/update_kl"]

    assert divergence(1e-6) == pytest.approx(1e-4 * divergence(1e-4), rel=0.5)
    assert 0 < divergence(1e-6) < 1e-8


def test_without_the_measurement_no_row_goes_through_the_model_again(tiny_model, rows):
    found: dict[bool, tuple[int, set[str], list[Any]]] = {}
    for effect in (True, False):
        model, passes = tiny_model(), Counter[str]()
        learner = Learner(model, replace(CONFIG, update_effect=effect))  # tries the layout once
        count = partial(passes.update, ["pass"])
        model.get_input_embeddings().register_forward_hook(lambda *_, count=count: count())
        metrics = learner.update(rows, EFFECT_ADVANTAGES)
        found[effect] = passes["pass"], set(metrics), list(model.parameters())
    with_it, without = found[True], found[False]
    assert (with_it[0], without[0]) == (2, 1)
    assert with_it[1] - without[1] == {"learn/update_kl", "learn/update_ratio_max"}
    assert not without[1] - with_it[1]
    assert all(map(torch.equal, with_it[2], without[2]))


@pytest.mark.parametrize("changes", [{}, {"updates_per_iteration": 3, "role_gradients": True}])
def test_measuring_changes_neither_weights_nor_random_streams(
    tiny_model, rows, changes, monkeypatch
):
    def trained():
        torch.manual_seed(7)
        learner = Learner(tiny_model(), replace(CONFIG, **changes))
        metrics = [learner.update(rows, EFFECT_ADVANTAGES) for _ in range(2)][-1]
        left = {name: value for name, value in metrics.items() if "/update_" not in name}
        state = copy.deepcopy(learner.model.state_dict())
        return left, state, torch.get_rng_state(), len(metrics) - len(left)

    metrics, weights, stream, measured = trained()
    assert measured == 2
    monkeypatch.setattr(Learner, "_effect", lambda self, rows, parts: None)
    other, others, stream_after, none = trained()
    assert none == 0
    assert metrics == other
    assert torch.equal(stream, stream_after)
    assert all(torch.equal(weights[name], others[name]) for name in weights)


@pytest.mark.parametrize(
    ("changes", "passes"), [({}, [3, 8]), ({"skip_idle_rows": False}, [8]),
                            ({"updates_per_iteration": 2}, [5, 8]),
                            ({"compute": "bfloat16"}, [4, 4])],
)  # fmt: skip
def test_rows_of_the_first_step_are_not_computed_twice_before_it(
    tiny_model, rows, changes, passes, monkeypatch
):
    monkeypatch.setattr(update_effect, "FEWEST_ROWS", len(rows))
    monkeypatch.setattr(update_effect, "_MOST_SHARE", 1)
    measured: list[int] = []
    batch = UpdateEffect._batch

    def counted(self, some):
        measured.append(len(some))
        return batch(self, some)

    monkeypatch.setattr(UpdateEffect, "_batch", counted)
    advantages = [1.0, -1.0, 0.5, 0.0, 0.0, -0.5, 1.0, 0.0]
    Learner(tiny_model(), replace(CONFIG, **changes)).update(rows, advantages)
    assert measured == passes


def test_an_update_without_a_row_to_train_on_has_no_effect_to_measure(tiny_model, rows):
    metrics = Learner(tiny_model(), CONFIG).update(rows, [0.0] * len(rows))
    assert not any(name.startswith("learn/update_") for name in metrics)
    assert metrics["signal/a"] == 0.0


def test_the_sample_is_bounded_keyed_and_of_rows_with_tokens(role_rows):
    calls = [replace(call, output_ids=(), logps=()) if n % 5 == 0 else call
             for n, call in enumerate(role_rows(400))]  # fmt: skip
    able = make_rows(calls, [0.0] * len(calls), CONFIG)
    chosen = sample(able, 3, 10**6)
    assert len(chosen) == len({row.index for row in chosen}) == 10
    assert all(row.call.output_ids for row in chosen)
    assert [row.index for row in sample(able, 3, 10**6)] == [row.index for row in chosen]
    assert [row.index for row in sample(able, 4, 10**6)] != [row.index for row in chosen]
    assert len(sample(able[:20], 3, 10**6)) == len(sample(able[:100], 3, 10**6)) == 4
    assert len(sample(able * 4, 3, 10**6)) == 32
    assert [len(sample(able[:n], 3, 10**6, passes=2)) for n in (16, 32, 320)] == [1, 2, 4]
    assert len(sample(able * 4, 3, 10**6, passes=2)) == 16
    few = sample(able, 3, 64)
    sizes = [len(row.call.prompt_ids) + len(row.call.output_ids) for row in few]
    assert len(few) * max(sizes) <= 64
    assert len(sample(able, 3, 1)) == 1


def test_where_the_vocabulary_is_large_some_tokens_stand_for_all(tiny_model, rows, monkeypatch):
    monkeypatch.setattr(update_effect, "CHUNK_ELEMENTS", 23 * 5)
    monkeypatch.setattr(update_effect, "_AT_ONCE", 23 * 2)
    model = tiny_model()
    learner = Learner(model, CONFIG)
    made = make_rows(rows, EFFECT_ADVANTAGES, CONFIG)
    effect = UpdateEffect(learner.gradient.forward, model, made, key=1)
    assert len(effect._places) == sum(map(len, effect._own.values())) == 5
    assert effect.metrics(model) == {"learn/update_kl": 0.0, "learn/update_ratio_max": 1.0}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1)
    moved = effect.metrics(model)
    assert moved["learn/update_kl"] > 0
    assert math.isfinite(moved["learn/update_ratio_max"])
    assert moved["learn/update_ratio_max"] > 1


def test_entropy_is_estimated_from_all_sampled_tokens(tiny_model, row_logps, role_rows):
    # Tokens drawn from the model itself: the mean of -log p is close to the mean entropy, in rows
    # that are trained and in rows that are not.
    model = tiny_model()
    generator = torch.Generator().manual_seed(0)
    calls, exact, tokens = [], {"a": 0.0, "b": 0.0}, {"a": 0, "b": 0}
    for number, call in enumerate(role_rows(240)):
        role, prompt, drawn, logps = "ab"[number % 2], call.prompt_ids[:3], [], []
        for _ in range(2):
            with torch.no_grad():
                ids = torch.tensor([[*prompt, *drawn]])
                scores = model(input_ids=ids, use_cache=False).logits[0, -1].log_softmax(-1)
            exact[role] -= float((scores.exp() * scores).sum())
            token = int(torch.multinomial(scores.exp(), 1, generator=generator))
            drawn, logps = [*drawn, token], [*logps, float(scores[token])]
        tokens[role] += 2
        calls.append(replace(call, role=role, prompt_ids=prompt, output_ids=tuple(drawn),
                             logps=tuple(logps)))  # fmt: skip
    advantages = [float(number % 4 == 0) for number in range(len(calls))]  # role b has none
    metrics = Learner(model, replace(CONFIG, temperature=1.0)).update(calls, advantages)
    for role in "ab":
        mean = exact[role] / tokens[role]
        assert metrics[f"sampled_entropy/{role}"] == pytest.approx(mean, rel=0.1)
    whole = sum(metrics[f"sampled_entropy/{role}"] for role in "ab") / 2
    assert metrics["learn/sampled_entropy"] == pytest.approx(whole)
    assert (metrics["signal/a"], metrics["signal/b"]) == (0.5, 0.0)


def test_masked_replies_and_roles_without_weight_carry_no_signal(tiny_model, rows):
    cut = [replace(call, finish="length") if call.role == "a" else call for call in rows]
    config = replace(CONFIG, role_weights={"b": 0.0})
    metrics = Learner(tiny_model(), config).update(cut, [1.0] * len(cut))
    assert (metrics["signal/a"], metrics["signal/b"], metrics["signal/c"]) == (0.0, 0.0, 1.0)
    kept = Learner(tiny_model(), replace(config, truncated="train")).update(cut, [1.0] * len(cut))
    assert kept["signal/a"] == 1.0
