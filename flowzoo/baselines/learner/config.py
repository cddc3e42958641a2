"""Settings of the optimization of one policy."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from flowzoo.errors import UsageError, check_choice, unknown

if TYPE_CHECKING:
    from torch import Tensor


Aggregation = Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "token-sum"]
Clipping = Literal["objective", "weight"]
Compute = Literal["float32", "bfloat16"]
Correction = Literal["none", "renormalize"]
KlEstimate = Literal["corrected", "plain"]
Decay = Literal["matrices", "all"]
LayoutChoice = Literal["auto", "packed", "padded"]
LoraTargets = Literal["linear", "all"]
LrSchedule = Literal["constant", "linear", "cosine"]
OldLogp = Literal["sampler", "recomputed"]
OptimizerName = Literal["adamw", "adafactor", "sgd", "muon", "adamw8bit"]
Ratio = Literal["token", "sequence", "none"]
RoleLoss = Literal["pooled", "mean", "sum"]
RowLayout = Literal["packed", "padded"]
ScheduleClock = Literal["iteration", "update"]
Truncated = Literal["train", "mask", "penalize", "shape"]


Surrogate: TypeAlias = "Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]"


@dataclass(frozen=True, slots=True)
class LossConfig:
    """Choices of the loss."""

    # `TrainConfig` says what the fields of the same name mean.
    ratio: Ratio = "token"
    """Weight of a token: its own ratio to the old policy, or the geometric mean of its row's
    (`sequence`). `none`: the plain policy gradient -A logp, with all three clips at None."""
    clip_low: float | None = 0.2
    clip_high: float | None = 0.2
    dual_clip: float | None = 3.0
    aggregation: Aggregation = "token-mean"
    """`token-mean`: mean over all tokens. `seq-mean-token-mean`: mean over rows of each row's mean.
    `seq-mean-token-sum`: mean over rows of each row's sum. `token-sum`: sum over `constant`."""
    constant: float = 1.0  # divisor of `token-sum` (Dr. GRPO: rows times the longest reply allowed)
    kl_coef: float = 0.0
    entropy_coef: float = 0.0
    kl_estimate: KlEstimate = "corrected"
    clipping: Clipping = "objective"
    """Clipped quantity: the `objective` (PPO), which takes the gradient from tokens that have moved
    far enough, or the `weight` of every token's gradient (CISPO), which takes it from none."""
    function: Surrogate | None = None
    """In place of the surrogate: from `logps`, `behavior_logps` (rows, tokens), both 0 off the
    mask, `advantages` (rows,) and `mask` to the loss of every token. Nothing is clipped then."""

    def __post_init__(self) -> None:
        check_choice("aggregation", self.aggregation, Aggregation)
        check_choice("choice of `ratio`", self.ratio, Ratio)
        check_choice("choice of `clipping`", self.clipping, Clipping)
        check_choice("choice of `kl_estimate`", self.kl_estimate, KlEstimate)
        if self.clip_low is not None and not 0 <= self.clip_low <= 1:
            raise UsageError(f"`clip_low` must be between 0 and 1, got {self.clip_low}.")
        if self.clip_high is not None and not self.clip_high >= 0:
            raise UsageError(f"`clip_high` must be at least 0, got {self.clip_high}.")
        if self.dual_clip is not None and not self.dual_clip > 1:
            raise UsageError(f"`dual_clip` must be greater than 1, got {self.dual_clip}.")
        if not self.constant > 0:
            raise UsageError(f"`constant` must be greater than 0, got {self.constant}.")
        clips = [self.clip_low, self.clip_high, self.dual_clip]
        if self.ratio == "none" and clips != [None] * 3:
            raise UsageError(
                "without a ratio there is nothing to clip: set `clip_low`, `clip_high` and "
                f"`dual_clip` to None, got {clips}."
            )
        if self.clipping == "weight" and (self.ratio != "token" or self.dual_clip is not None):
            raise UsageError(
                "`clipping` weight is of the ratio of a token and has no dual clip: got "
                f"ratio={self.ratio!r} and dual_clip={self.dual_clip}."
            )


@dataclass(frozen=True, slots=True)
class LearnerConfig:
    """Choices of the optimization of one policy."""

    # `TrainConfig` says what the fields of the same name mean.
    loss: LossConfig = field(default_factory=LossConfig)
    lr: float = 1e-4
    min_lr: float = 0.0
    schedule: LrSchedule = "constant"
    warmup: int = 0
    iterations: int = 0  # length of `linear` and `cosine` in ticks of the clock
    # `update` is the clock of the released code of arXiv 2605.24202, where the learning rates of k
    # isolated policies therefore fall k times as fast.
    schedule_clock: ScheduleClock = "iteration"
    weight_decay: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.999
    adam_eps: float = 1e-8
    clip_norm: float = 1.0
    updates_per_iteration: int | Literal["by_rows"] = 1
    """Optimizer steps per call of `update`, or `by_rows`: one for every `rows_per_update` begun.
    The rows, in canonical order, are cut into that many parts of like size."""
    rows_per_update: int = 512
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    correction: Correction = "none"
    old_logp: OldLogp = "sampler"
    importance_cap: float = 2.0
    truncated: Truncated = "mask"
    """Replies that ran into the length limit. `mask`: they have no part in any term of the loss
    but stay in its counts. `penalize`: `truncation_penalty` is taken off their advantage. `shape`:
    as `train`, since what it takes off is in the advantages already."""
    truncation_penalty: float = 1.0
    role_weights: Mapping[str, float] = field(default_factory=dict)  # counts are not weighted
    # Under sgd the rows of a role weigh its rate over `lr`: the step is the sum of -rate * gradient
    # over roles, but for what `clip_norm` takes off the whole.
    role_lr: Mapping[str, float] = field(default_factory=dict)
    role_loss: RoleLoss = "pooled"
    role_kl: Mapping[str, float] = field(default_factory=dict)
    coherence: float = 0.0
    coherence_window: int = 128  # steps that the running mean spans
    # Microbatches are then cut within roles, which changes results by rounding only.
    role_gradients: bool = False
    update_effect: bool = True
    layout: LayoutChoice = "packed"
    microbatch_tokens: int = 4096  # positions of a forward pass, fillers included
    microbatch_rows: int = 0  # 0: any number
    vocabulary_chunk: int = 0
    """Output tokens whose logits over the vocabulary are in memory at once; 0: 128 MiB of them."""
    compute: Compute = "float32"
    gradient_checkpointing: bool = False
    compile: bool = False
    skip_idle_rows: bool = True
    """Leave out the forward pass of rows that cannot change the gradient (advantage 0 or masked,
    and no KL or entropy term). They stay in the counts; `learn/` means are over trained rows."""
    optimizer: OptimizerName = "adamw"
    decay: Decay = "matrices"
    weights: Compute = "float32"

    def __post_init__(self) -> None:
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
