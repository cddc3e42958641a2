"""Settings of the optimization of one policy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from flowzoo.baselines.learner.literals import (
    Compute,
    Correction,
    Decay,
    LayoutChoice,
    LossConfig,
    LrSchedule,
    OldLogp,
    OptimizerName,
    RoleLoss,
    ScheduleClock,
    Truncated,
)
from flowzoo.errors import UsageError, check_choice, unknown


@dataclass(frozen=True, slots=True)
class LearnerConfig:
    """Choices of the optimization of one policy.

    Raises:
        UsageError: an unknown choice, a number out of range, or choices that exclude one another.
    """

    loss: LossConfig = field(default_factory=LossConfig)
    lr: float = 1e-4
    """Peak learning rate."""
    min_lr: float = 0.0
    """Final learning rate of `linear` and `cosine`."""
    schedule: LrSchedule = "constant"
    """After the warm-up. `linear` and `cosine` fall to `min_lr` at `iterations`."""
    warmup: int = 0
    """Ticks of the clock in which the learning rate rises linearly; the first is at lr / warmup."""
    iterations: int = 0
    """Length of the schedule in ticks of the clock; needed by `linear` and `cosine` only."""
    schedule_clock: ScheduleClock = "iteration"
    """Unit of the clock. `iteration`: an `update` of this policy. `update`: an `update` of any
    policy of the run (see `UpdateTurn`), as in the released code of arXiv 2605.24202, where the
    learning rates of k isolated policies therefore fall k times as fast."""
    weight_decay: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.999
    adam_eps: float = 1e-8
    clip_norm: float = 1.0
    """The gradient of a step is scaled down to at most this norm; 0: never."""
    updates_per_iteration: int | Literal["by_rows"] = 1
    """Optimizer steps per call of `update`: this many for any number of rows, or `by_rows`,
    one for every `rows_per_update` begun. The rows, in canonical order, are cut into that many
    parts of like size."""
    rows_per_update: int = 512
    """Most rows of a step under `by_rows`. A role with three agents then takes three steps where
    a role with one takes one."""
    temperature: float = 1.0
    """Temperature the rows were sampled at."""
    top_p: float = 1.0
    """Top-p the rows were sampled with; below 1 it needs a `correction`."""
    top_k: int = 0
    """Top-k the rows were sampled with; above 0 it needs a `correction`."""
    correction: Correction = "none"
    """`renormalize`: log-probs are those over the tokens that top-k and top-p kept. The sampler
    records its own so; the learner finds the kept tokens with its weights before the first step of
    the iteration (they are the sampler's), and keeps them for the iteration's later steps."""
    old_logp: OldLogp = "sampler"
    """Denominator of the ratio. `sampler`: what was recorded while sampling. `recomputed`: the
    learner's own log-probs before the first step of the iteration; the difference to the sampler
    is then corrected by importance weights min(exp(learner - sampler), importance_cap)."""
    importance_cap: float = 2.0
    """Largest importance weight of a token under `recomputed`; infinity: no cap."""
    truncated: Truncated = "mask"
    """Replies that ran into the length limit. `mask`: they have no part in any term of the loss
    but stay in its counts. `penalize`: `truncation_penalty` is taken off their advantage. `shape`:
    as `train`, since what it takes off is in the advantages already."""
    truncation_penalty: float = 1.0
    role_weights: Mapping[str, float] = field(default_factory=dict)
    """Factor of a role's rows in the loss; roles not named: 1. Counts are not weighted."""
    role_lr: Mapping[str, float] = field(default_factory=dict)
    """Learning rate of single roles where the optimizer is `sgd`; others: `lr`. The rows of a role
    weigh its rate over `lr`, so that the step is the sum of -rate * gradient over roles, but for
    what `clip_norm` takes off the whole."""
    role_loss: RoleLoss = "pooled"
    """Rows and tokens that the loss of an optimizer step divides by; see `role_factors`."""
    role_kl: Mapping[str, float] = field(default_factory=dict)
    """Weight of the KL term to the reference of single roles; others: `loss.kl_coef`."""
    coherence: float = 0.0
    """Strength, from 0 (off) to 1, of the coherence regularizer: a gradient is scaled by
    1 - coherence * max(0, cosine to the running mean of gradients)."""
    coherence_window: int = 128
    """Steps that the running mean spans; see `flowzoo.baselines.learner.gradient_stats`."""
    role_gradients: bool = False
    """Measure the gradient of each role: `grad/` metrics. Microbatches are then cut within roles,
    which changes results by rounding only."""
    update_effect: bool = True
    """Measure how far every update moved the policy; see `UpdateEffect`."""
    layout: LayoutChoice = "packed"
    """Layout of microbatches: `packed` computes common prefixes once and has no fillers; `padded`
    is for models with layers other than full attention; `auto` is packed where the family allows
    it."""
    microbatch_tokens: int = 4096
    """Most positions of a forward pass, fillers included."""
    microbatch_rows: int = 0
    """Most rows of a forward pass; 0: any number."""
    vocabulary_chunk: int = 0
    """Output tokens whose logits over the vocabulary are in memory at once; 0: 128 MiB of them."""
    compute: Compute = "float32"
    """Number format of the model's matrix products; `bfloat16` is for GPUs. Log-probs and loss are
    in float32, and so are weights, gradients and optimizer unless `weights` says otherwise."""
    gradient_checkpointing: bool = False
    """Compute each layer again in the backward pass instead of keeping what it computed: a third
    more time, much less memory."""
    compile: bool = False
    """Compile the layers (torch.compile); pays for many steps on long rows."""
    skip_idle_rows: bool = True
    """Leave out the forward pass of rows that cannot change the gradient (advantage 0 or masked,
    and no KL or entropy term). They stay in the counts; `learn/` means are over trained rows."""
    optimizer: OptimizerName = "adamw"
    """`adafactor` (arXiv 1804.04235): no first moment, and sums of rows and columns in place of the
    second; its steps are relative to the size of each weight tensor. `sgd`: no state at all, the
    step is -lr * gradient. `muon`: see `MuonAdamW`. `adamw8bit`: AdamW whose moments are kept in 8
    bits (arXiv 2110.02861), of tensors of 4096 numbers or more; bitsandbytes."""
    decay: Decay = "matrices"
    """Decayed parameters: `matrices`, which leaves out norms and biases, or `all`."""
    weights: Compute = "float32"
    """Number format of what is kept. `bfloat16`: of a trained model all of it, weights, gradients
    and moments, rounded at random (see `StochasticAdamW`); of an adapter its frozen base alone. The
    products are then in bfloat16 as well."""

    def __post_init__(self) -> None:
        """Check every choice."""
        _check_choices(self)
        _check_numbers(self)
        if self.schedule != "constant" and self.iterations <= self.warmup:
            raise UsageError(
                f"`schedule` {self.schedule} needs `iterations` > `warmup`, got {self.iterations} "
                f"and {self.warmup}."
            )
        if self.weights == "bfloat16" and self.compute != "bfloat16":
            raise UsageError(
                "`weights` in bfloat16 are multiplied in bfloat16: set `compute` to bfloat16 too."
            )
        if self.role_loss != "pooled" and self.loss.aggregation == "token-sum":
            raise UsageError(
                f"`role_loss` {self.role_loss} is about the counts that a loss divides by, and "
                "`aggregation` token-sum divides by a constant: choose another of the two."
            )
        if self.role_lr and self.optimizer != "sgd":
            raise UsageError(
                f"`role_lr` within a policy is for sgd, whose step is a sum over roles; "
                f"{self.optimizer} takes one step for all: give roles policies of their own, or "
                "weigh them by `role_weights`."
            )
        if self.min_lr > self.lr:
            raise UsageError(f"`min_lr` is at most `lr`, got {self.min_lr} and {self.lr}.")
        cut_off = self.top_p < 1 or self.top_k > 0
        if cut_off and self.correction == "none":
            raise UsageError(
                f"rows sampled with top_p={self.top_p} and top_k={self.top_k} have log-probs over "
                "the tokens that these kept, which the learner's are not comparable with: set "
                'correction="renormalize", or sample with top_p=1 and top_k=0.'
            )

    def kl_of(self, role: str) -> float:
        """Weight of the KL term of a role's rows."""
        return self.role_kl.get(role, self.loss.kl_coef)

    @property
    def needs_reference(self) -> bool:
        """Some role has a KL term."""
        return self.loss.kl_coef != 0 or any(self.role_kl.values())


def _check_choices(config: LearnerConfig) -> None:
    choices: dict[str, Any] = {
        "schedule": LrSchedule,
        "schedule_clock": ScheduleClock,
        "truncated": Truncated,
        "old_logp": OldLogp,
        "correction": Correction,
        "compute": Compute,
        "layout": LayoutChoice,
        "optimizer": OptimizerName,
        "role_loss": RoleLoss,
        "decay": Decay,
        "weights": Compute,
    }
    for name, kind in choices.items():
        check_choice(f"choice of `{name}`", getattr(config, name), kind)
    steps = config.updates_per_iteration
    if isinstance(steps, str) and steps != "by_rows":
        raise unknown("choice of `updates_per_iteration`", steps, ("by_rows", "a number"))


def _check_numbers(config: LearnerConfig) -> None:
    positive = [
        "lr", "temperature", "adam_eps", "rows_per_update", "coherence_window",
    ]  # fmt: skip
    if config.updates_per_iteration != "by_rows":
        positive.append("updates_per_iteration")
    for name in positive:
        if not getattr(config, name) > 0:
            raise UsageError(f"`{name}` must be greater than 0, got {getattr(config, name)}.")
    for name in ("warmup", "min_lr", "weight_decay", "top_k", "vocabulary_chunk", "clip_norm"):
        if not getattr(config, name) >= 0:
            raise UsageError(f"`{name}` must be at least 0, got {getattr(config, name)}.")
    if not 0 < config.top_p <= 1:
        raise UsageError(f"`top_p` must be in (0, 1], got {config.top_p}.")
    for name in ("beta1", "beta2"):
        if not 0 <= getattr(config, name) < 1:
            raise UsageError(f"`{name}` must be in [0, 1), got {getattr(config, name)}.")
    if not config.importance_cap >= 1:
        raise UsageError(f"`importance_cap` must be at least 1, got {config.importance_cap}.")
    if not 0 <= config.coherence <= 1:
        raise UsageError(f"`coherence` must be between 0 and 1, got {config.coherence}.")
    for name in ("role_weights", "role_kl"):
        for role, value in getattr(config, name).items():
            if not 0 <= value < math.inf:
                raise UsageError(f"`{name}` of {role!r} must be at least 0, got {value}.")
    for role, value in config.role_lr.items():
        if not 0 < value < math.inf:
            raise UsageError(f"`role_lr` of {role!r} must be greater than 0, got {value}.")
