"""What a learner minimises in a warm start, and how."""

from __future__ import annotations

from flowzoo.baselines.learner.config import LearnerConfig, LossConfig
from flowzoo.baselines.learner.weights import Weights
from flowzoo.baselines.settings.sft import SftConfig

_SMALL = 10_000_000
"""Parameters below which a model is trained at the rate of the pocket models."""
_SMALL_ADAPTED = 400_000_000
"""Likewise of a model that an adapter is trained on: 2e-4 is what billions of weights take."""


def sft_learner_config(config: SftConfig, weights: Weights, steps: int) -> LearnerConfig:
    """The settings of the learner of `weights`, which takes so many steps in all."""
    size = sum(parameter.numel() for parameter in weights.model.parameters())
    small = _SMALL_ADAPTED if weights.is_adapter else _SMALL
    usual = 1e-3 if size < small else 2e-4 if weights.is_adapter else 1e-5
    warmup = int(config.warmup_share * steps)
    return LearnerConfig(
        loss=LossConfig(ratio="none", clip_low=None, clip_high=None, dual_clip=None),
        lr=config.lr or usual, min_lr=config.min_lr, schedule=config.schedule, warmup=warmup,
        iterations=steps if config.schedule != "constant" else 0,
        weight_decay=config.weight_decay, clip_norm=config.clip_norm, truncated="train",
        layout=config.layout, microbatch_tokens=config.microbatch_tokens,
        compute=config.compute, weights=config.weights, optimizer=config.optimizer,
        gradient_checkpointing=config.gradient_checkpointing,
    )  # fmt: skip
