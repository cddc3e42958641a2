"""The learner on a tiny random Qwen3: masks, normalization, schedules, determinism."""

import copy
import math
import random
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import Qwen3ForCausalLM

from flowzoo.baselines.learner.config import LearnerConfig, LossConfig
from flowzoo.baselines.learner.fixed_order import fixed_order
from flowzoo.baselines.learner.loss import NonFiniteError
from flowzoo.baselines.learner.update import Learner
from flowzoo.envs.records import Call
from flowzoo.errors import UsageError
from tests.baselines.learner.descent import descend, flat
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
