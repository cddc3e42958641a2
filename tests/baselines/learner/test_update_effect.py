"""Effect of an update: the divergence is exact, and measuring it changes nothing."""

import copy
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from flowzoo.baselines.learner import update_effect
from flowzoo.baselines.learner.batch import make_rows
from flowzoo.baselines.learner.config import LearnerConfig
from flowzoo.baselines.learner.update import Learner
from flowzoo.baselines.learner.update_effect import UpdateEffect, sample
from flowzoo.envs import Call

CONFIG = LearnerConfig(lr=3e-3, temperature=0.7)


@pytest.fixture
def rows(
    tiny_model: Callable[..., Any], role_rows: Callable[..., list[Call]],
    own_logps: Callable[..., list[Call]],
) -> list[Call]:  # fmt: skip
    return own_logps(tiny_model(), role_rows(8), CONFIG.temperature)


ADVANTAGES = [1.0, -1.0, 0.5, 0.0, 0.0, -0.5, 1.0, -1.0]


@pytest.mark.parametrize("layout", ["packed", "padded"])
def test_the_divergence_is_that_of_all_sampled_contexts(
    tiny_model, row_logps, rows, layout, monkeypatch
):
    monkeypatch.setattr(update_effect, "FEWEST_ROWS", len(rows))
    model, before = tiny_model(), tiny_model()
    metrics = Learner(model, replace(CONFIG, layout=layout)).update(rows, ADVANTAGES)
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
        return Learner(tiny_model(), config).update(rows, ADVANTAGES)["learn/update_kl"]

    assert divergence(1e-6) == pytest.approx(1e-4 * divergence(1e-4), rel=0.5)
    assert 0 < divergence(1e-6) < 1e-8


def test_without_the_measurement_no_row_goes_through_the_model_again(tiny_model, rows):
    found: dict[bool, tuple[int, set[str], list[Any]]] = {}
    for effect in (True, False):
        model, passes = tiny_model(), Counter[str]()
        learner = Learner(model, replace(CONFIG, update_effect=effect))  # tries the layout once
        count = partial(passes.update, ["pass"])
        model.get_input_embeddings().register_forward_hook(lambda *_, count=count: count())
        metrics = learner.update(rows, ADVANTAGES)
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
        metrics = [learner.update(rows, ADVANTAGES) for _ in range(2)][-1]
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
    made = make_rows(rows, ADVANTAGES, CONFIG)
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
