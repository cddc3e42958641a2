"""Choices of the learner against gradients written out row by row."""

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from flowzoo.agents.hf.decode import draw
from flowzoo.agents.policy import Sampling
from flowzoo.baselines.learner.config import LearnerConfig, LossConfig
from flowzoo.baselines.learner.lora import LoraBase, LoraSettings
from flowzoo.baselines.learner.update import Learner
from flowzoo.envs.records import Call
from tests.baselines.learner.descent import ADVANTAGES, descend, flat, moved
from tests.baselines.rows import new_call

Make = Callable[..., Any]

PLAIN = LossConfig(clip_low=None, clip_high=None, dual_clip=None)


def gradient(parameters: list[Any], loss: Tensor) -> Tensor:
    return flat(list(torch.autograd.grad(loss, parameters)))


def chosen(logps: Tensor, call: Call) -> Tensor:
    return logps.gather(1, torch.tensor(call.output_ids)[:, None])[:, 0]


def config(**changes: Any) -> LearnerConfig:
    return LearnerConfig(**{"lr": 1.0, "clip_norm": 1e9, "loss": PLAIN, **changes})


def terms(
    row_logps: Make, model: Any, anchor: Any, calls: list[Call]
) -> Iterator[tuple[Call, float, Tensor, Tensor]]:
    """Each call with its advantage, the ratios of its tokens, and their k3 to the anchor."""
    for call, advantage in zip(calls, ADVANTAGES, strict=True):
        now = chosen(row_logps(model, call), call)
        with torch.no_grad():
            then = chosen(row_logps(anchor, call), call)
        ratio = (now - torch.tensor(call.logps)).exp()
        yield call, advantage, ratio, (then - now).exp() - (then - now) - 1


def test_role_weights_and_kl_per_role(tiny_model, role_rows, row_logps, own_logps):
    model, anchor = tiny_model(0), tiny_model(1)
    calls = own_logps(model, role_rows())
    weights, kl = {"a": 2.0, "b": 0.0}, {"c": 0.25}
    loss: Any = 0.0
    tokens = sum(len(call.output_ids) for call in calls)
    for call, advantage, ratio, k3 in terms(row_logps, model, anchor, calls):
        per_token = -ratio * advantage + kl.get(call.role, 0.1) * ratio * k3
        loss = loss + weights.get(call.role, 1.0) * per_token.sum() / tokens
    expected = gradient(list(model.parameters()), loss)
    settings = config(loss=replace(PLAIN, kl_coef=0.1), role_weights=weights, role_kl=kl)
    before = flat(anchor.parameters())
    found = moved(descend(Learner(model, settings, anchor)), calls, ADVANTAGES)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
    assert torch.equal(flat(anchor.parameters()), before)


def test_a_role_may_be_anchored_alone(tiny_model, role_rows, own_logps):
    model = tiny_model()
    calls = own_logps(model, role_rows())
    learner = Learner(model, LearnerConfig(lr=1e-2, role_kl={"b": 5.0}))
    idle = learner.update(calls, [0.0] * 9)
    assert idle["learn/rows_trained"] == 3, "rows of b have their KL term, others nothing to do"
    assert idle["learn/reference_kl"] == pytest.approx(0, abs=1e-6)
    assert learner.update(calls, [1.0] * 9)["learn/rows_trained"] == 9


def test_a_users_loss_trains_rows_whose_advantage_is_zero(
    tiny_model, role_rows, row_logps, own_logps
):
    model = tiny_model()
    calls = own_logps(model, role_rows())
    tokens = sum(len(call.output_ids) for call in calls)
    loss = -sum(chosen(row_logps(model, call), call).sum() for call in calls) / tokens
    expected = gradient(list(model.parameters()), loss)
    learner = descend(Learner(model, config(loss=replace(PLAIN, function=lambda now, *_: -now))))
    torch.testing.assert_close(moved(learner, calls, [0.0] * 9), expected, atol=1e-5, rtol=1e-4)


def test_the_reference_of_full_weights_is_the_model_at_the_start(tiny_model, role_rows, own_logps):
    model = tiny_model()
    start = copy.deepcopy(model)
    calls = own_logps(model, role_rows())
    settings = LearnerConfig(lr=1e-2, loss=LossConfig(kl_coef=0.3))
    own, given = Learner(model, settings), Learner(copy.deepcopy(model), settings, start)
    for _ in range(3):
        assert own.update(calls, ADVANTAGES) == given.update(calls, ADVANTAGES)
    assert torch.equal(flat(own.parameters), flat(given.parameters))


def test_the_reference_of_an_adapter_is_its_base(tiny_model, role_rows, row_logps, own_logps):
    base = LoraBase(tiny_model(), "tiny", LoraSettings(rank=2, alpha=4))
    one, two = base.add("one", 0), base.add("two", 0)
    for weights in (one, two):
        with torch.no_grad():
            for weight in weights.parameters():
                weight.add_(0.3)
    plain = tiny_model()
    calls = own_logps(plain, role_rows())
    learner = descend(Learner(one, config(loss=replace(PLAIN, kl_coef=0.5))))
    with one.active():
        loss: Any = 0.0
        tokens = sum(len(call.output_ids) for call in calls)
        for _, advantage, ratio, k3 in terms(row_logps, base.model, plain, calls):
            loss = loss + (-ratio * advantage + 0.5 * ratio * k3).sum() / tokens
        expected = gradient(one.parameters(), loss)
    other = flat(two.parameters())
    torch.testing.assert_close(moved(learner, calls, ADVANTAGES), expected, atol=1e-5, rtol=1e-4)
    assert torch.equal(flat(two.parameters()), other)


@pytest.mark.parametrize(
    ("choices", "bound"),
    [
        ({"importance_cap": 1.1}, lambda ratios: ratios.clamp_max(1.1)),
        ({}, lambda ratios: ratios.clamp_max(2.0)),
        (
            {"importance_level": "sequence", "microbatch_rows": 2},
            lambda ratios: ratios.prod().clamp_max(2.0).expand_as(ratios),
        ),
        (
            {"importance_mode": "mask", "importance_floor": 0.5, "layout": "padded"},
            lambda ratios: torch.where((ratios < 0.5) | (ratios > 2.0), 0.0, ratios),
        ),
    ],
    ids=["1.1", "2", "sequence", "mask"],
)
def test_recomputed_old_logps_are_corrected_by_bounded_weights(
    choices, bound, tiny_model, role_rows, row_logps, own_logps
):
    """The sampler was another model: the ratio starts at 1 and importance weights stand before.

    The loss is divided by all tokens, masked ones too.
    """
    model = tiny_model()
    calls = own_logps(tiny_model(2), role_rows())
    tokens, loss, pairs = sum(len(call.output_ids) for call in calls), 0.0, []
    for call, advantage in zip(calls, ADVANTAGES, strict=True):
        now = chosen(row_logps(model, call), call)
        ratios = (now.detach() - torch.tensor(call.logps)).exp()
        pairs.append((ratios, bound(ratios)))
        loss = loss - (bound(ratios) * (now - now.detach()).exp() * advantage).sum() / tokens
    expected = gradient(list(model.parameters()), loss)
    learner = descend(Learner(model, config(old_logp="recomputed", **choices)))
    before = flat(learner.parameters)
    metrics = learner.update(calls, ADVANTAGES)
    torch.testing.assert_close(before - flat(learner.parameters), expected, atol=1e-5, rtol=1e-4)
    trained = [pair for pair, a in zip(pairs, ADVANTAGES, strict=True) if a]
    ratios, weights = (torch.cat(list(values)).double() for values in zip(*trained, strict=True))
    assert metrics["learn/importance"] == pytest.approx(float(weights.mean()), rel=1e-4)
    if "importance_level" not in choices:
        name = "masked" if "importance_mode" in choices else "capped"
        outside = float((weights != ratios).double().mean())
        assert metrics[f"learn/importance_{name}"] == pytest.approx(outside)
    replies = torch.stack([row.double().prod() for row, _ in trained])
    gaps = torch.stack([-row.double().log().mean() for row, _ in trained])
    for name, value in {
        "chi2_token": (ratios**2 - 1).mean(), "chi2_seq": (replies**2 - 1).mean(),
        "log_ppl_diff": gaps.mean(), "log_ppl_abs_diff": gaps.abs().mean(),
    }.items():  # fmt: skip
        assert metrics[f"learn/{name}"] == pytest.approx(float(value), rel=1e-3)
    assert metrics["learn/ess"] == pytest.approx(1.0)
    assert metrics["learn/logp_gap_max"] > 0.1, "the gap is that to the sampler"


@pytest.mark.parametrize("kl", [0.0, 0.2])
def test_a_reply_off_policy_has_its_kl_term_alone(kl, tiny_model, role_rows, row_logps, own_logps):
    model, anchor = tiny_model(), tiny_model(1)
    calls = own_logps(tiny_model(2), role_rows())
    tokens, loss, masked = sum(len(call.output_ids) for call in calls), 0.0, []
    for _, advantage, ratio, k3 in terms(row_logps, model, anchor, calls):
        masked.append(advantage < 0 and float(-ratio.detach().log().mean()) > 0.5)
        loss = loss + ((0.0 if masked[-1] else -advantage) * ratio + kl * ratio * k3).sum() / tokens
    settings = config(loss=replace(PLAIN, kl_coef=kl), off_policy_mask=0.5, microbatch_rows=2)
    learner = descend(Learner(model, settings, anchor))
    expected = gradient(learner.parameters, loss)
    before = flat(learner.parameters)
    metrics = learner.update(calls, ADVANTAGES)
    torch.testing.assert_close(before - flat(learner.parameters), expected, atol=1e-5, rtol=1e-4)
    assert 0 < sum(masked) < sum(advantage < 0 for advantage in ADVANTAGES)
    trained = metrics["learn/rows_trained"]
    assert metrics["learn/off_policy_masked"] == pytest.approx(sum(masked) / trained)
    only = [advantage if left else 0.0 for advantage, left in zip(ADVANTAGES, masked, strict=True)]
    if not kl:
        assert not moved(learner, calls, only).any(), "nothing is left of a masked reply"


def test_old_logps_of_later_steps_are_those_before_the_first(tiny_model, role_rows, own_logps):
    calls = own_logps(tiny_model(), role_rows())
    ends = []
    for source in ("sampler", "recomputed"):
        settings = config(old_logp=source, updates_per_iteration=3, lr=0.1, microbatch_rows=2)
        learner = Learner(tiny_model(), settings)
        learner.optimizer = torch.optim.SGD(learner.parameters, lr=0.1)
        metrics = [learner.update(calls, ADVANTAGES)]
        ends.append((flat(learner.parameters), metrics[0]["learn/kl"]))
    torch.testing.assert_close(ends[0][0], ends[1][0], atol=1e-5, rtol=1e-4)
    assert ends[0][1] == pytest.approx(ends[1][1], rel=1e-2)
    assert ends[0][1] > 1e-6


def sampled(model: Any, row_logps: Make, sampling: Sampling, count: int = 8) -> list[Call]:
    """Replies that the engine's sampler drew, with the log-probs that it records."""
    generator = torch.Generator().manual_seed(0)
    calls = []
    for number in range(count):
        ids, logps = [1 + number, 2, 3], []
        for _ in range(6):
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1:]
            noise = torch.rand(1, generator=generator, dtype=torch.float64).numpy()
            token, logp = draw(logits, noise, sampling)
            ids.append(int(token))
            logps.append(float(logp))
        prompt, output = tuple(ids[:3]), tuple(ids[3:])
        fields = {"prompt_ids": prompt, "output_ids": output, "logps": tuple(logps)}
        calls.append(new_call(episode=f"e{number}", **fields))
    return calls


@pytest.mark.parametrize("cut", [{"top_p": 0.7}, {"top_k": 4}, {"top_p": 0.8, "top_k": 6}])
def test_renormalized_logps_are_the_samplers(cut, tiny_model, row_logps):
    model = tiny_model()
    calls = sampled(model, row_logps, Sampling(temperature=0.8, **cut))
    settings = LearnerConfig(
        lr=1e-2, temperature=0.8, correction="renormalize", updates_per_iteration=2,
        microbatch_rows=3, vocabulary_chunk=5, **cut,
    )  # fmt: skip
    learner = Learner(model, settings)
    assert float(learner.gaps(calls).max()) < 1e-5
    full = torch.cat([chosen(row_logps(model, call, 0.8), call) for call in calls])
    assert float((full.detach() - torch.tensor([x for c in calls for x in c.logps])).min()) < -0.05
    metrics = learner.update(calls, [1.0, -1.0] * 4)
    assert metrics["learn/logp_gap_max"] < 1e-5
    assert metrics["learn/outside_kept"] == 0
    assert 0 < metrics["learn/kl"] < 1, "the second step still has finite log-probs"


def test_renormalized_gradient(tiny_model, row_logps):
    model = tiny_model()
    calls = sampled(model, row_logps, Sampling(top_k=4))
    advantages = [1.0, -1.0] * 4
    loss: Any = 0.0
    for call, advantage in zip(calls, advantages, strict=True):
        logps = row_logps(model, call)
        best = logps.topk(4).indices
        now = chosen(logps, call) - logps.gather(1, best).logsumexp(-1)
        loss = loss - ((now - torch.tensor(call.logps)).exp() * advantage).sum() / 48
    expected = gradient(list(model.parameters()), loss)
    learner = descend(Learner(model, config(correction="renormalize", top_k=4)))
    torch.testing.assert_close(moved(learner, calls, advantages), expected, atol=1e-5, rtol=1e-4)


def test_a_token_that_the_learner_would_not_keep_is_counted_and_finite(tiny_model, row_logps):
    calls = sampled(tiny_model(1), row_logps, Sampling(top_k=2))
    learner = Learner(tiny_model(), LearnerConfig(correction="renormalize", top_k=2))
    metrics = learner.update(calls, [1.0, -1.0] * 4)
    assert metrics["learn/outside_kept"] > 0.2
    assert metrics["learn/logp_gap_max"] < float("inf")


@pytest.mark.parametrize("adapter", [False, True])
@pytest.mark.parametrize(
    "changes",
    [{"layout": "padded"}, {"gradient_checkpointing": True}, {"microbatch_rows": 1}],
    ids=["padded", "checkpointing", "single"],
)
def test_what_only_saves_time_or_memory_does_not_change_the_update(
    changes, adapter, tiny_model, role_rows, own_logps
):
    calls = own_logps(tiny_model(1), role_rows())
    common = {"old_logp": "recomputed", "importance_level": "sequence", "off_policy_mask": 0.5,
              "role_kl": {"a": 0.2}, "role_gradients": True}  # fmt: skip

    def update(**settings):
        weights: Any = tiny_model()
        if adapter:
            weights = LoraBase(weights, "tiny", LoraSettings(rank=2, alpha=4)).add("one", 0)
        learner = descend(Learner(weights, config(**common, **settings)))
        moved(learner, calls, ADVANTAGES)
        return moved(learner, calls, ADVANTAGES)

    plain = update()
    assert float(plain.abs().max()) > 1e-3
    torch.testing.assert_close(update(**changes), plain, atol=1e-5, rtol=1e-3)


def test_steps_by_rows(tiny_model, role_rows):
    for count, steps in ((1, 1), (4, 1), (5, 2), (12, 3), (13, 4)):
        settings = LearnerConfig(updates_per_iteration="by_rows", rows_per_update=4)
        learner = Learner(tiny_model(), settings)
        assert learner.update(role_rows(count), [1.0] * count)["learn/steps"] == steps
        assert learner.steps == steps
