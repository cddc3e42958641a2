"""The choices of the learner and its loss by name. Importing this needs no torch, as help must."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from flowzoo.errors import UsageError, check_choice

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
    """Choices of the loss.

    Raises:
        UsageError: an unknown aggregation, a number out of range, or a clip without a ratio.
    """

    ratio: Ratio = "token"
    """Weight of a token: its own ratio to the old policy, or that of its row (`sequence`:
    the geometric mean of its tokens'). `none`: the plain policy gradient, whose loss is -A logp
    (MAGRPO); there is nothing to clip then, so set the three clips to None."""
    clip_low: float | None = 0.2
    """The ratio is clipped below at 1 - clip_low; None: never."""
    clip_high: float | None = 0.2
    """The ratio is clipped above at 1 + clip_high; None: never."""
    dual_clip: float | None = 3.0
    """Bound of the loss of a token with a negative advantage, in units of -A; None: no bound."""
    aggregation: Aggregation = "token-mean"
    """`token-mean`: mean over all tokens. `seq-mean-token-mean`: mean over rows of each row's mean.
    `seq-mean-token-sum`: mean over rows of each row's sum. `token-sum`: sum of all tokens divided
    by `constant`."""
    constant: float = 1.0
    """Divisor of `token-sum` (Dr. GRPO: rows times the longest reply allowed)."""
    kl_coef: float = 0.0
    """Weight of the KL divergence to the reference policy, for rows without a separate one;
    0: no reference is needed."""
    entropy_coef: float = 0.0
    """Weight of the entropy bonus."""
    kl_estimate: KlEstimate = "corrected"
    """Estimator of the KL divergence to the reference from sampled tokens. `corrected`: r k3
    (times the importance weight, where there is one), with the gradient of the divergence also
    where the policy has moved away from the sampler.
    `plain`: k3 alone, whose gradient is another one even on the sampler's own weights."""

    clipping: Clipping = "objective"
    """Clipped quantity: the `objective` (PPO), which takes the gradient from tokens that have moved
    far enough, or the `weight` of every token's gradient (CISPO), which takes it from none."""
    function: Surrogate | None = None
    """In place of the surrogate: from `logps`, `behavior_logps` (rows, tokens), both 0 off the
    mask, `advantages` (rows,) and `mask` to the loss of every token. Nothing is clipped then."""

    def __post_init__(self) -> None:
        """Check every choice."""
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
