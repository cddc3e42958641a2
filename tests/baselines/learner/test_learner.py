"""The learner on a tiny random Qwen3, with choices and role factors written out row by row."""

import copy
import math
import random
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers import Qwen3ForCausalLM

from flowzoo.agents.hf.decode import draw
from flowzoo.agents.policy import Sampling
from flowzoo.baselines.learner.batch import role_factors
from flowzoo.baselines.learner.config import LearnerConfig, LossConfig
from flowzoo.baselines.learner.lora import LoraBase, LoraSettings
from flowzoo.baselines.learner.loss import LossNormalizer, NonFiniteError, token_weights
from flowzoo.baselines.learner.update import Learner, fixed_order
from flowzoo.envs.records import Call
from flowzoo.errors import UsageError
from tests.baselines.learner.descent import ADVANTAGES, descend, flat, moved
from tests.baselines.rows import VOCAB, new_call, tiny_model

EOS = 0


def make_calls(count: int = 11, seed: int = 0) -> list[Call]:
    """Rows of unequal lengths; some end with EOS, some are empty, one holds the pad id inside."""
    rng = random.Random(seed)
    calls: list[Call] = []
    for number in range(count):
        output = tuple(rng.randrange(VOCAB) for _ in range(rng.choice((1, 2, 5, 9))))
        output = () if number == 4 else (*output, EOS) if number % 2 else output
        prompt = tuple(rng.randrange(1, VOCAB) for _ in range(rng.randint(1, 7)))
        logps = tuple(rng.uniform(-4, -2) for _ in output)
        names = {"problem": f"p{number % 3}", "episode": f"e{number}"}
        calls.append(new_call(prompt_ids=prompt, output_ids=output, logps=logps, **names))
    return calls


def advantages_for(calls: list[Call]) -> list[float]:
    rng = random.Random(1)
    return [0.0 if idx % 3 == 2 else rng.uniform(-2, 2) for idx in range(len(calls))]


def weights_after(calls: list[Call], advantages: list[float], **changes: Any) -> torch.Tensor:
    """All weights after an update, as one vector. Plain SGD: Adam would amplify rounding."""
    learner = descend(Learner(tiny_model(), LearnerConfig(lr=1.0, clip_norm=1e9, **changes)))
    learner.update(calls, advantages)
    return flat(learner.parameters)


@pytest.mark.parametrize(
    "aggregation", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "token-sum"]
)
def test_microbatches_do_not_change_the_update(aggregation):
    calls = make_calls()
    advantages = advantages_for(calls)
    loss = LossConfig(aggregation=aggregation, constant=40.0)
    start = flat(tiny_model().parameters())
    whole = weights_after(calls, advantages, loss=loss)
    assert float((whole - start).abs().max()) > 1e-3
    for changes in ({"microbatch_rows": 1}, {"microbatch_rows": 3}, {"microbatch_tokens": 25}):
        other = weights_after(calls, advantages, loss=loss, **changes)
        torch.testing.assert_close(other, whole, atol=1e-5, rtol=0)


@pytest.mark.parametrize("aggregation", ["token-mean", "seq-mean-token-mean"])
def test_skipping_idle_rows_does_not_change_the_update(aggregation):
    calls = make_calls()
    calls[0] = replace(calls[0], finish="length")
    advantages = advantages_for(calls)
    advantages[0] = 3.0
    assert 0.0 in advantages
    loss = LossConfig(aggregation=aggregation)
    skipped = weights_after(calls, advantages, loss=loss, skip_idle_rows=True)
    full = weights_after(calls, advantages, loss=loss, skip_idle_rows=False)
    torch.testing.assert_close(skipped, full, atol=1e-6, rtol=0)
    alone = [idx for idx, advantage in enumerate(advantages) if advantage and idx]
    fewer = weights_after([calls[i] for i in alone], [advantages[i] for i in alone], loss=loss)
    assert float((fewer - full).abs().max()) > 1e-4, "idle rows must stay in the counts"


def test_arrival_order_does_not_change_a_bit():
    calls = make_calls()
    advantages = advantages_for(calls)
    order = list(range(len(calls)))
    random.Random(5).shuffle(order)
    straight = weights_after(calls, advantages, updates_per_iteration=3)
    shuffled = weights_after(
        [calls[i] for i in order], [advantages[i] for i in order], updates_per_iteration=3
    )
    assert torch.equal(straight, shuffled)


def test_update_makes_good_replies_likelier(own_logps):
    model = tiny_model()
    calls = own_logps(model, make_calls(), 0.8)
    advantages = [1.0 if idx % 2 else -1.0 for idx in range(len(calls))]
    learner = Learner(model, LearnerConfig(lr=1e-2, temperature=0.8))
    metrics = learner.update(calls, advantages)
    assert metrics["learn/logp_gap_max"] < 1e-5
    assert metrics["learn/ess"] == pytest.approx(1.0, abs=1e-5)
    later = own_logps(model, calls, 0.8)
    gains = [sum(now.logps) - sum(call.logps) for now, call in zip(later, calls, strict=True)]
    assert sum(gains[1::2]) > 0.1
    assert sum(gains[0::2]) < -0.1


def test_metrics_of_several_steps(own_logps):
    model = tiny_model()
    calls = own_logps(model, make_calls())
    learner = Learner(model, LearnerConfig(lr=1e-2, updates_per_iteration=4, truncated="train"))
    metrics = learner.update(calls, [1.0] * len(calls))
    assert (metrics["learn/steps"], metrics["learn/skipped"], learner.steps) == (4, 0, 4)
    assert metrics["learn/rows"] == 11
    assert metrics["learn/rows_trained"] == 10, "the empty reply has nothing to train"
    assert metrics["learn/tokens"] == sum(len(call.output_ids) for call in calls)
    assert metrics["learn/logp_gap_max"] < 1e-5, "the gap is measured before the first step"
    assert metrics["learn/kl"] > 1e-6
    assert 0 < metrics["learn/ess"] < 1
    assert 0 < metrics["learn/trained_entropy"] < math.log(VOCAB)


def test_grad_norm_is_that_before_clipping():
    calls = make_calls()
    advantages = advantages_for(calls)
    norms, moves = [], []
    for clip in (0.01, 1e9):
        learner = descend(Learner(tiny_model(), LearnerConfig(lr=1.0, clip_norm=clip)))
        before = flat(learner.parameters)
        norms.append(learner.update(calls, advantages)["learn/grad_norm"])
        moves.append(float((flat(learner.parameters) - before).norm()))
    assert norms[0] == norms[1] > 0.1
    assert moves == pytest.approx([0.01, norms[1]], rel=1e-3)


@pytest.mark.parametrize(("rule", "moved"), [("train", True), ("mask", False), ("penalize", True)])
def test_truncated_replies(rule, moved, own_logps):
    model = tiny_model()
    calls = [replace(own_logps(model, make_calls(1))[0], finish="length")]
    before = copy.deepcopy(model.state_dict())
    learner = Learner(model, LearnerConfig(truncated=rule, weight_decay=0.0))
    metrics = learner.update(calls, [0.0 if rule == "penalize" else 1.0])
    assert metrics["learn/truncated"] == 1
    assert metrics["learn/skipped"] == (0 if moved else 1)
    same = all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert same is not moved


def test_nothing_to_train_on_changes_nothing():
    calls = make_calls()
    model = tiny_model()
    learner = Learner(model, LearnerConfig(weight_decay=0.1))
    learner.update(calls, advantages_for(calls))
    before = copy.deepcopy(model.state_dict())
    for rows in (calls, []):
        metrics = learner.update(rows, [0.0] * len(rows))
        assert metrics["learn/steps"] == 0
        assert "learn/loss" not in metrics
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert learner.iteration == 3


def test_entropy_bonus_raises_entropy():
    calls = make_calls()
    learner = Learner(tiny_model(), LearnerConfig(lr=1e-2, loss=LossConfig(entropy_coef=1.0)))
    seen = [learner.update(calls, [0.0] * len(calls))["learn/trained_entropy"] for _ in range(4)]
    assert seen == sorted(seen)
    assert seen[-1] > seen[0] + 0.05


def test_non_finite_loss_carries_the_rows_and_changes_nothing():
    calls = make_calls()
    calls[7] = replace(calls[7], logps=(float("-inf"),) * len(calls[7].output_ids))
    model = tiny_model()
    before = copy.deepcopy(model.state_dict())
    learner = Learner(model, LearnerConfig(microbatch_rows=2, loss=LossConfig(dual_clip=None)))
    with pytest.raises(NonFiniteError, match="e7") as caught:
        learner.update(calls, [-1.0] * len(calls))
    assert caught.value.calls == (calls[7],)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in learner.parameters)


def test_non_finite_gradient_carries_the_rows():
    calls = make_calls()
    marked = calls[7]
    model = tiny_model()
    learner = Learner(model, LearnerConfig(microbatch_rows=3, layout="padded"))
    size = len(marked.prompt_ids) + len(marked.output_ids)
    rows_of_size = [
        c for c in calls if c.output_ids and len(c.prompt_ids) + len(c.output_ids) == size
    ]

    def spoil(_module, _args, kwargs, output):
        ids = kwargs["input_ids"].tolist()
        wanted = [*marked.prompt_ids, *marked.output_ids[:-1]]
        trained = output.last_hidden_state.requires_grad
        if trained and any(row[: len(wanted)] == wanted for row in ids):
            output.last_hidden_state.register_hook(lambda grad: grad * float("inf"))

    assert rows_of_size
    model.model.register_forward_hook(spoil, with_kwargs=True)
    with pytest.raises(NonFiniteError, match="gradient") as caught:
        learner.update(calls, [1.0] * len(calls))
    assert caught.value.calls == (marked,)


def test_rows_that_cannot_be_trained_on():
    learner = Learner(tiny_model(), LearnerConfig())
    call = make_calls(1)[0]
    with pytest.raises(UsageError, match="no prompt tokens"):
        learner.update([replace(call, prompt_ids=(), output_ids=(), logps=())], [1.0])
    with pytest.raises(UsageError, match="log-probs"):
        learner.update([replace(call, logps=call.logps[1:])], [1.0])
    with pytest.raises(UsageError, match="got 2 for 1"):
        learner.update([call], [1.0, 1.0])


def test_a_family_that_caps_its_logits_is_refused():
    class Capped(Qwen3ForCausalLM):
        def forward(self, *args, **kwargs):
            output: Any = super().forward(*args, **kwargs)
            output.logits = output.logits.tanh()
            return output

    with pytest.raises(UsageError, match="Capped"):
        Learner(Capped(tiny_model().config), LearnerConfig())


def test_updates_on_a_cpu_take_the_usual_order():
    learner = descend(Learner(tiny_model(), LearnerConfig(lr=1.0)))
    modes: list[bool] = []
    learner.parameters[0].register_hook(
        lambda _: modes.append(torch.are_deterministic_algorithms_enabled())
    )
    calls = make_calls()
    learner.update(calls, advantages_for(calls))
    assert modes
    assert not any(modes)


def test_a_whole_update_can_be_in_a_fixed_order():
    calls = make_calls()
    changes: dict[str, Any] = {"temperature": 0.8, "top_p": 0.9, "correction": "renormalize"}
    updated = []
    for order in (nullcontext(), fixed_order()):
        learner = descend(Learner(tiny_model(), LearnerConfig(lr=1.0, **changes)))
        with order:
            learner.update(calls, advantages_for(calls))
        updated.append(flat(learner.parameters))
    torch.testing.assert_close(*updated, atol=1e-6, rtol=0)


def test_an_operation_without_a_fixed_order_is_an_error():
    filled = torch.utils.deterministic.fill_uninitialized_memory
    with pytest.raises(UsageError, match="turn `deterministic` off"), fixed_order():
        torch.zeros(2).put_(torch.tensor([0, 0]), torch.ones(2))
    with pytest.raises(RuntimeError, match="shape"), fixed_order():
        torch.zeros(2).view(3)
    assert torch.get_deterministic_debug_mode() == 0
    assert torch.utils.deterministic.fill_uninitialized_memory is filled


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


NORMALizED: list[Any] = ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum"]
CALLS = st.lists(
    st.builds(
        lambda role, episode, length: SimpleNamespace(
            role=role, problem="p", episode=episode, output_ids=(0,) * length
        ),
        st.sampled_from("abc"), st.sampled_from(("e1", "e2", "e3")), st.integers(1, 5),
    ),
    min_size=1, max_size=12,
)  # fmt: skip


def role_config(**changes: Any) -> LearnerConfig:
    plain = {"lr": 0.5, "clip_norm": 0, "optimizer": "sgd", "weight_decay": 0}
    return LearnerConfig(**{**plain, "truncated": "train", **changes})


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, atol=2e-6, rtol=1e-4)


def row_weights(calls: list[Any], aggregation: Any, kind: Any) -> list[float]:
    """Weight of every row in the loss, by the weights of its tokens."""
    loss = LossConfig(aggregation=aggregation)
    longest = max(len(call.output_ids) for call in calls)
    mask = torch.tensor([[t < len(call.output_ids) for t in range(longest)] for call in calls])
    totals = LossNormalizer(len(calls), int(mask.sum()))
    factors = role_factors(calls, role_config(loss=loss, role_loss=kind))
    sums = token_weights(mask, loss, totals, torch.float64).sum(-1).tolist()
    if aggregation == "seq-mean-token-sum":  # a row weighs as one, whatever its length
        sums = [s / len(call.output_ids) for s, call in zip(sums, calls, strict=True)]
    return [s * factors[call.role] for s, call in zip(sums, calls, strict=True)]


@given(calls=CALLS, aggregation=st.sampled_from(NORMALizED))
def test_what_a_role_weighs_depends_on_its_own_rows_alone(calls, aggregation):
    for kind in ("pooled", "mean", "sum"):
        weights = row_weights(calls, aggregation, kind)
        for role in sorted({call.role for call in calls}):
            mine = [place for place, call in enumerate(calls) if call.role == role]
            own = [weights[place] for place in mine]
            alone = row_weights([calls[place] for place in mine], aggregation, kind)
            if kind != "pooled":
                assert own == pytest.approx(alone), "whoever shares the policy"
            if kind == "mean":
                assert sum(own) == pytest.approx(1.0)
            if kind == "sum":
                episodes = len({calls[place].episode for place in mine})
                assert sum(own) == pytest.approx(len(mine) / episodes)
        if kind == "pooled":
            assert sum(weights) == pytest.approx(1.0)
        if len({call.role for call in calls}) == 1 and kind == "mean":
            assert weights == row_weights(calls, aggregation, "pooled"), "bit by bit"


@pytest.mark.parametrize("aggregation", NORMALizED)
def test_a_shared_step_is_the_sum_of_the_steps_that_roles_would_take_alone(
    aggregation, tiny_model, role_rows, own_logps
):
    loss = LossConfig(aggregation=aggregation)
    calls = [replace(call, episode=f"e{n // 4}") for n, call in enumerate(role_rows())]
    calls = own_logps(tiny_model(), calls)
    for kind in ("mean", "sum"):
        choices = role_config(loss=loss, role_loss=kind, role_lr={"a": 1.5})
        whole = moved(Learner(tiny_model(), choices), calls, ADVANTAGES)
        parts: list[Tensor] = []
        for role, rate in (("a", 1.5), ("b", 0.5), ("c", 0.5)):
            mine = [place for place, call in enumerate(calls) if call.role == role]
            alone = Learner(tiny_model(), role_config(loss=loss, lr=rate, role_loss=kind))
            rows = [calls[place] for place in mine]
            parts.append(moved(alone, rows, [ADVANTAGES[place] for place in mine]))
        close(whole, torch.stack(parts).sum(0))


def test_n_equal_agents_push_n_times_as_hard_under_sum_alone(tiny_model, role_rows, own_logps):
    one = own_logps(tiny_model(), role_rows(3))
    one = [replace(call, role="a") for call in one]
    three = [replace(call, agent=f"a_{n}", slot=n) for call in one for n in range(3)]
    advantages = [1.0, -1.0, 0.5]
    for kind, factor in (("pooled", 1), ("mean", 1), ("sum", 3)):
        choices = role_config(role_loss=kind)
        single = moved(Learner(tiny_model(), choices), one, advantages)
        triple = [a for a in advantages for _ in range(3)]
        close(moved(Learner(tiny_model(), choices), three, triple), factor * single)


def test_sgd_sees_the_weight_of_a_policys_only_role_and_adamw_does_not(
    tiny_model, role_rows, own_logps
):
    calls = own_logps(tiny_model(), [replace(call, role="a") for call in role_rows()])

    def after(**changes):
        return moved(Learner(tiny_model(), role_config(**changes)), calls, ADVANTAGES)

    third = {"role_weights": {"a": 1 / 3}}
    close(after(**third), after() / 3)
    adam = {"optimizer": "adamw", "lr": 1e-3, "adam_eps": 1e-16}
    torch.testing.assert_close(after(**adam, **third), after(**adam), atol=2e-7, rtol=1e-3)


def test_clip_norm_0_never_clips(tiny_model, role_rows, own_logps):
    calls = own_logps(tiny_model(), role_rows())
    big = [1e4 * a for a in ADVANTAGES]
    free, wide, tight = (
        moved(Learner(tiny_model(), role_config(clip_norm=clip, lr=1e-6)), calls, big)
        for clip in (0, 1e30, 1.0)
    )
    assert torch.equal(free, wide)
    assert float(tight.norm()) == pytest.approx(1e-6, rel=0.05), "float32 weights"
    assert float(free.norm()) > 100 * float(tight.norm())


def test_a_sum_over_roles_needs_counts():
    with pytest.raises(UsageError, match="`role_loss` sum is about the counts"):
        role_config(role_loss="sum", loss=LossConfig(aggregation="token-sum"))
