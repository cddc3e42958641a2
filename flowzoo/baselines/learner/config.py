"""Settings of the optimization of one policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

from annotated_types import Ge, Gt

from flowzoo.declared import (
    ByPolicy,
    Fraction,
    NonNegative,
    Only,
    Positive,
    ProperFraction,
    Share,
    check_declared,
)
from flowzoo.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor

    Surrogate: TypeAlias = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
else:
    Surrogate = Callable  # declarations are read without torch


Aggregation = Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "token-sum"]
Clipping = Literal["objective", "weight"]
CoherenceForm = Literal["flowzoo", "published"]
Compute = Literal["float32", "bfloat16"]
Correction = Literal["none", "renormalize"]
ImportanceLevel = Literal["token", "sequence", "geometric"]
ImportanceMode = Literal["truncate", "mask"]
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
ScheduleClock = Literal["iteration", "update", "published"]
Truncated = Literal["train", "mask", "penalize", "shape"]

SCHEDULED = Only(lambda s, _: s.schedule != "constant", "of the schedules linear and cosine")
ADAM = Only(
    lambda s, _: s.optimizer in ("adamw", "adamw8bit", "muon"), "of AdamW, which muon has too"
)
RECOMPUTED = Only(lambda s, _: s.recomputes, "of old_logp=recomputed")


@dataclass(frozen=True, slots=True)
class LossConfig:
    """Choices of the loss."""

    # `TrainConfig` says what the fields of the same name mean.
    ratio: Ratio = "token"
    """Weight of a token: its own ratio to the old policy, or the geometric mean of its row's
    (`sequence`). `none`: the plain policy gradient -A logp, with all three clips at None."""
    clip_low: Fraction | None = 0.2
    clip_high: NonNegative[float] | None = 0.2
    dual_clip: Annotated[float, Gt(1)] | None = 3.0
    aggregation: Aggregation = "token-mean"
    """`token-mean`: mean over all tokens. `seq-mean-token-mean`: mean over rows of each row's mean.
    `seq-mean-token-sum`: mean over rows of each row's sum. `token-sum`: sum over `constant`."""
    # Divisor of `token-sum` (Dr. GRPO: rows times the longest reply allowed).
    constant: Positive[float] = 1.0
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
        check_declared(self)
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


@dataclass(frozen=True)
class ComputeOptions:
    """Optimizer, number formats and memory of the learner."""

    optimizer: ByPolicy[OptimizerName] = "adamw"
    """`adafactor` keeps sums of rows and columns in place of moments: half the memory. Its steps
    are relative to the size of each weight tensor, so `lr` has another meaning (1e-3 is usual).
    `sgd` has no momentum, does not rescale the gradient, and needs an `lr`. `muon` keeps
    one moment of the layers' matrices, and AdamW's two of all else. `adamw8bit` keeps AdamW's
    moments in 8 bits (flowzoo[bits])."""
    min_lr: Annotated[NonNegative[float], SCHEDULED] = 0.0
    """Learning rate at the end of the schedules linear and cosine."""
    clip_norm: ByPolicy[NonNegative[float]] = 1.0
    """Each policy's gradient is scaled down to at most this norm; 0: never."""
    compute: Compute | None = None
    """Number format of the learner's matrix products. None: bfloat16 where the device multiplies it
    and the models have 100 million weights or more, as in `engine_dtype`; else float32."""
    weights: Compute = "float32"
    """Number format of the weights that are kept. `bfloat16`, with `compute` bfloat16: half the
    memory of a trained model, its gradients and moments, rounded at random so that small steps
    count; of LoRA, that of the frozen base, while the adapters stay in float32."""
    layout: LayoutChoice = "auto"
    """Layout of the learner's batches: `packed` computes common prefixes once and has no fillers;
    `padded` is right for every family. `auto`: packed if that is right too, which is tested at the
    start; otherwise a line is printed."""
    microbatch_tokens: Positive[int] = 4096
    """Most tokens of one forward pass of the learner; the result does not depend on it."""
    gradient_checkpointing: bool = False
    """Compute activations twice instead of keeping them: less memory, more time."""


@dataclass(frozen=True)
class UpdateOptions:
    """Schedule, optimizer steps and measurements of the learner."""

    warmup: NonNegative[int] = 2
    """Ticks of the schedule's clock in which the learning rate rises to its peak."""
    schedule: LrSchedule = "constant"
    """Learning rate schedule after the warmup."""
    schedule_clock: Annotated[
        ScheduleClock, Only(lambda s, _: s.schedule != "constant" or s.warmup > 0, "of a schedule")
    ] = "iteration"
    """Unit of the clock. `update`: updates of all policies, so that k isolated policies tick k
    times an iteration. `published`: so in the code of arXiv 2605.24202, whose schedule is as many
    ticks long as the run has steps, and whose cosine rises again after it; its first rate is 0."""
    weight_decay: NonNegative[float] = 0.01
    """Decoupled weight decay of AdamW."""
    rows_per_update: Annotated[
        Positive[int],
        Only(lambda s, _: s.updates == 0, "of updates=0, steps by the number of rows"),
    ] = 512
    """Most rows of an optimizer step where their number follows from the rows (`updates` 0)."""
    coherence: ByPolicy[Fraction] = 0.0
    """Scale a policy's gradient g by 1 - coherence * max(0, cos(g, running mean of g))."""
    coherence_form: Annotated[
        CoherenceForm, Only(lambda s, _: s.coherence > 0, "of `coherence`")
    ] = "flowzoo"
    """Mean of `coherence`. `flowzoo`: of clipped gradients before they are scaled, empty at first.
    `published`, intervention I6 in the code of arXiv 2605.24202: of scaled gradients before they
    are clipped, which starts as the first of them."""
    role_gradients: bool = True
    """On by default: log the gradient of every role: norm, share of the mass, cosines; its entropy
    and clips. Takes the memory of one gradient for every role of a policy beyond the first."""
    update_effect: bool = True
    """On by default: log how far every update moved a policy, on a sample of its rows
    (`learn/update_kl`). It takes up to one more forward pass of a microbatch an update, which is
    much of a small step."""
    compile: bool = False
    """Compile the learner's model with torch.compile."""
    beta1: Annotated[ByPolicy[ProperFraction], ADAM] = 0.9
    """Decay of AdamW's mean of gradients."""
    beta2: Annotated[ByPolicy[ProperFraction], ADAM] = 0.999
    """Decay of AdamW's mean of squared gradients."""
    adam_eps: Annotated[Positive[float], ADAM] = 1e-8
    """Added to the root of AdamW's mean of squared gradients."""
    decay: Decay = "matrices"
    """Weights with `weight_decay`: `matrices` (and embeddings), or `all` (norms and biases too)."""


@dataclass(frozen=True)
class RowOptions:
    """Log-probs, truncated replies and roles in the loss."""

    role_loss: RoleLoss = "pooled"
    """Divisor of a policy's loss: `pooled`, the counts of all its rows together; `mean`, of
    every role's rows apart, and roles add up; `sum`, as `mean`, times the role's calls per episode,
    so that N parallel agents count N times. `pooled` and `mean` are the same for one role."""
    old_logp: OldLogp | None = None
    """Log-probs that ratios are taken to: `sampler`, those recorded while sampling, or
    `recomputed`, the learner's own before its first step, with importance weights for the
    sampler's. None: sampler, and recomputed with `engine_dtype` int8."""
    importance_level: Annotated[ImportanceLevel, RECOMPUTED] = "token"
    """Importance weight of a token with `old_logp` recomputed: the ratio of learner to sampler of
    its probability (`token`), of the whole reply's (`sequence`, the product), or the geometric mean
    over the reply (`geometric`)."""
    importance_mode: Annotated[ImportanceMode, RECOMPUTED] = "truncate"
    """Weights beyond `importance_cap` and `importance_floor`: `truncate` sets them to the bound,
    `mask` to 0, which leaves the token (with other levels the reply) out of the policy gradient."""
    importance_cap: Annotated[float, Ge(1), RECOMPUTED] = 2.0
    """Largest importance weight with `old_logp` recomputed."""
    importance_floor: Annotated[Fraction, RECOMPUTED] = 0.0
    """Smallest importance weight with `old_logp` recomputed; 0: any."""
    off_policy_mask: NonNegative[float] = 0.0
    """Replies with a negative advantage are left out of the policy gradient if the learner's
    log-probs are this much below the sampler's, in nats per token; 0: none."""
    correction: Correction = "none"
    """With top_p or top_k: `renormalize` takes the learner's log-probs over the kept tokens too."""
    truncated: Truncated = "mask"
    """Treatment of replies cut off by the length limit: `mask` keeps them out of the loss,
    `penalize` takes `truncation_penalty` off their advantage, `shape` takes off the reward of every
    reply within `length_cache` tokens of the limit (DAPO's overlong punishment)."""
    truncation_penalty: Annotated[
        NonNegative[float],
        Only(
            lambda s, _: s.truncated in ("penalize", "shape"),
            "of truncated=penalize and truncated=shape",
        ),
    ] = 1.0
    """Amount that `truncated` penalize takes off, and `shape` at the limit."""


@dataclass(frozen=True)
class LearnerConfig(ComputeOptions, UpdateOptions, RowOptions):
    """Choices of the optimization of one policy.

    Settings of a run have their names and texts in the base classes, or in `TrainConfig`.
    """

    loss: LossConfig = field(default_factory=LossConfig)
    lr: Positive[float] = 1e-4
    iterations: NonNegative[int] = 0
    """Length of the schedule in ticks of the clock; needed by `linear` and `cosine` only."""
    updates_per_iteration: Positive[int] | Literal["by_rows"] = 1
    """Optimizer steps per call of `update`: this many for any number of rows, or `by_rows`,
    one for every `rows_per_update` begun. The rows, in canonical order, are cut into that many
    parts of like size."""
    # The rows' sampling. The learner finds the tokens that top-k and top-p kept with its weights
    # before the first step of an iteration, when they are the sampler's.
    temperature: Positive[float] = 1.0
    top_p: Share = 1.0
    top_k: NonNegative[int] = 0
    role_weights: Mapping[str, NonNegative[float]] = field(default_factory=dict)
    """Factor of a role's rows in the loss; roles not named: 1. Counts are not weighted."""
    role_lr: Mapping[str, Positive[float]] = field(default_factory=dict)
    """Learning rate of single roles with sgd; others: `lr`. The rows of a role weigh its rate over
    `lr`, so that the step is the sum of -rate * gradient over roles, before `clip_norm`."""
    role_kl: Mapping[str, NonNegative[float]] = field(default_factory=dict)
    """Weight of the KL term to the reference of single roles; others: `loss.kl_coef`."""
    coherence_window: Positive[int] = 128
    """Steps that the running mean spans; see `flowzoo.baselines.learner.gradient_stats`."""
    microbatch_rows: NonNegative[int] = 0
    """Most rows of a forward pass; 0: any number."""
    vocabulary_chunk: NonNegative[int] = 0
    """Output tokens whose logits over the vocabulary are in memory at once; 0: 128 MiB of them."""
    skip_idle_rows: bool = True
    """Leave out the forward pass of rows that cannot change the gradient (advantage 0 or masked,
    and no KL term, entropy term or `loss.function`). They stay in the counts; `learn/` means are
    over trained rows."""
    fixed_order: bool = True
    """On a GPU, add up in a fixed order, so that equal updates have equal bits; an operation
    without one is an error. A CPU has no other order."""
    # A learner without a run: no warm-up, no test of the layout, no further gradients.
    warmup: NonNegative[int] = 0
    layout: LayoutChoice = "packed"
    compute: Compute = "float32"
    old_logp: OldLogp = "sampler"
    # Microbatches are then cut within roles, which changes results by rounding only.
    role_gradients: bool = False

    def __post_init__(self) -> None:
        check_declared(self, by_policy=False)
        if self.schedule == "linear" and self.schedule_clock == "published":
            raise UsageError("`schedule_clock` published is of the schedule cosine, got linear.")
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
