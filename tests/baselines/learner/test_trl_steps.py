"""Three optimizer steps on the same rows at temperature 0.7, beside TRL's and beside float64.

The rows and TRL's numbers are in `trl_steps.json`, which `benchmarks/trl_golden.py` of commit
51e36686 wrote.
"""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM

from flowzoo.baselines.learner.config import LearnerConfig, LossConfig
from flowzoo.baselines.learner.update import Learner
from flowzoo.envs.records import Call
from tests.baselines.rows import new_call

TRL: dict[str, Any] = json.loads((Path(__file__).parent / "trl_steps.json").read_text())
LOSSES = {
    "kl corrected": LossConfig(clip_high=0.28, dual_clip=None, kl_coef=0.04),
    "kl plain": LossConfig(clip_high=0.28, dual_clip=None, kl_coef=0.04, kl_estimate="plain"),
    "no kl": LossConfig(clip_high=0.28, dual_clip=None),
    "gspo": LossConfig(
        ratio="sequence", clip_low=0.05, clip_high=0.1, dual_clip=None,
        aggregation="seq-mean-token-mean",
    ),
    "cispo": LossConfig(clipping="weight", clip_low=None, clip_high=1.0, dual_clip=None),
    "off-policy mask": LossConfig(clip_high=0.28, dual_clip=None, kl_coef=0.04),
}  # fmt: skip
RECOMPUTED: dict[str, Any] = {"old_logp": "recomputed", "importance_cap": 1.5}
CORRECTIONS: dict[str, dict[str, Any]] = {
    "off-policy mask": {"off_policy_mask": 0.05},
    "token truncate": {**RECOMPUTED, "importance_floor": 0.8},
    "token mask": {**RECOMPUTED, "importance_mode": "mask"},
    "sequence truncate": {**RECOMPUTED, "importance_level": "sequence", "off_policy_mask": 0.05},
    "sequence mask": {**RECOMPUTED, "importance_level": "sequence", "importance_mode": "mask",
                      "importance_floor": 1e-3},
}  # fmt: skip


def make_model() -> Qwen3ForCausalLM:
    """As in `benchmarks/trl_golden.py` of commit 51e36686."""
    torch.set_num_threads(1)
    config = Qwen3Config(
        vocab_size=23, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=8, intermediate_size=24, tie_word_embeddings=False,
        max_position_embeddings=64,
    )  # fmt: skip
    model = Qwen3ForCausalLM(config).float().eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, weight in sorted(model.named_parameters()):
            noise = torch.randn(weight.shape, generator=generator) * 0.3
            weight.copy_(1.0 + noise if "norm" in name else noise)
    return model


def calls(case: str) -> list[Call]:
    """The rows, with TRL's log-probs before the first step as the sampler's, or with gaps to it."""
    apart = "old_logp" in CORRECTIONS.get(case, {})
    return [
        new_call(
            episode=f"e{number}",
            prompt_ids=tuple(row["prompt"]),
            output_ids=tuple(row["output"]),
            logps=tuple(logp - apart * gap for logp, gap in zip(logps, row["gap"], strict=True)),
        )
        for number, (row, logps) in enumerate(
            zip(TRL["rows"], TRL["cases"][case]["logps_before"], strict=True)
        )
    ]


ADVANTAGES = [row["advantage"] for row in TRL["rows"]]


def settings(case: str) -> LearnerConfig:
    return LearnerConfig(
        loss=LOSSES.get(case, LOSSES["no kl"]), lr=TRL["lr"], adam_eps=TRL["eps"],
        temperature=TRL["temperature"], **CORRECTIONS.get(case, {}),
    )  # fmt: skip


def logps_of(model: Any, call: Call) -> Tensor:
    """Of the output tokens at the sampling temperature, one row at a time."""
    ids = torch.tensor([[*call.prompt_ids, *call.output_ids]])
    scores = model(input_ids=ids, use_cache=False).logits[0] / TRL["temperature"]
    start = len(call.prompt_ids) - 1
    found = scores.log_softmax(-1)[start : start + len(call.output_ids)]
    return found.gather(1, torch.tensor(call.output_ids)[:, None])[:, 0]


@pytest.mark.parametrize("case", TRL["cases"])
def test_three_steps_are_those_of_trl(case):
    model, rows, theirs = make_model(), calls(case), TRL["cases"][case]
    learner = Learner(model, settings(case))
    found = [learner.update(rows, ADVANTAGES) for _ in theirs["losses"]]
    if "old_logp" in CORRECTIONS.get(case, {}):
        assert found[0]["learn/logp_gap_max"] == pytest.approx(1.0112, rel=1e-3)
    else:
        assert found[0]["learn/logp_gap_max"] < 1e-5
        assert found[1]["learn/kl"] > 0.1, "the second step is off policy"
    for name in ("importance_masked", "off_policy_masked"):
        assert 0 < found[1].get(f"learn/{name}", 0.5) < 1
    losses = [one["learn/loss"] for one in found]
    assert losses == pytest.approx(theirs["losses"], rel=1e-3, abs=1e-5)
    norms = [one["learn/grad_norm"] for one in found]
    assert norms == pytest.approx(theirs["grad_norms"], rel=1e-3)
    with torch.no_grad():
        after = torch.cat([logps_of(model, call) for call in rows])
    wanted = torch.tensor([logp for row in theirs["logps_after"] for logp in row])
    torch.testing.assert_close(after, wanted, rtol=0, atol=1e-3)


@pytest.mark.parametrize("case", ["kl corrected", "kl plain"])
def test_the_second_step_is_that_of_float64(case):
    """Written out from the formulas, with gradients of a copy of the model in float64."""
    model, rows = make_model(), calls(case)
    start = copy.deepcopy(model).double()
    learner = Learner(model, settings(case))
    learner.update(rows, ADVANTAGES)
    moved = copy.deepcopy(model).double()
    tokens, loss = sum(len(call.output_ids) for call in rows), torch.zeros((), dtype=torch.float64)
    for call, advantage in zip(rows, ADVANTAGES, strict=True):
        now = logps_of(moved, call)
        with torch.no_grad():
            reference = logps_of(start, call)
        ratio = (now - torch.tensor(call.logps, dtype=torch.float64)).exp()
        objective = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.28) * advantage)
        distance = reference - now
        kl = distance.exp() - distance - 1
        if case == "kl corrected":
            kl = kl * ratio
        loss = loss + (0.04 * kl - objective).sum() / tokens
    gradients = torch.autograd.grad(loss, list(moved.parameters()))
    norm = float(torch.cat([one.flatten() for one in gradients]).norm())
    found = learner.update(rows, ADVANTAGES)
    assert found["learn/loss"] == pytest.approx(float(loss.detach()), rel=1e-5)
    assert found["learn/grad_norm"] == pytest.approx(norm, rel=1e-4)
