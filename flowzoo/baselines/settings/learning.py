"""Settings of a run's loss and optimizer; see `settings.options`."""

from __future__ import annotations

from dataclasses import dataclass

from flowzoo.baselines.learner.config import (
    Aggregation,
    Compute,
    Correction,
    Decay,
    KlEstimate,
    LayoutChoice,
    LrSchedule,
    OldLogp,
    OptimizerName,
    RoleLoss,
    ScheduleClock,
)


@dataclass(frozen=True)
class LossOptions:
    """Loss that is minimized."""

    algorithm: str = "grpo"
    """One of `flowzoo algorithms`: grpo, dr_mas, at_grpo …"""
    advantage: tuple[str, ...] = ()
    """Choices of the advantage that differ from the algorithm's, as NAME=VALUE."""
    gamma: float = 1.0
    """Discount per turn, for algorithms that judge a call by its return to go."""
    clip_low: float | None = None
    """The probability ratio is clipped at 1 - clip_low; None: the algorithm's."""
    clip_high: float | None = None
    """… and at 1 + clip_high."""
    aggregation: Aggregation | None = None
    """Aggregation of tokens to a loss; None: the algorithm's."""
    kl: float | None = None
    """Weight of the KL divergence from the starting weights; None: the algorithm's."""
    role_kl: tuple[str, ...] = ()
    """Weights of single roles that differ from `kl`, as ROLE=WEIGHT."""
    entropy: float = 0.0
    """Weight of the entropy bonus."""
    role_weights: tuple[str, ...] = ()
    """Weights of single roles' rows in the loss, as ROLE=WEIGHT; the others' are 1. The weight of a
    policy's only role does nothing under AdamW, whose steps do not depend on the scale of the loss:
    give it a lower learning rate (`role_lr`)."""
    role_loss: RoleLoss = "pooled"
    """Divisor of a policy's loss: `pooled`, the counts of all its rows together; `mean`, of
    every role's rows apart, and roles add up; `sum`, as `mean`, times the role's calls per episode,
    so that N parallel agents count N times. `pooled` and `mean` are the same for one role."""
    old_logp: OldLogp = "sampler"
    """Log-probs that ratios are taken to: those recorded while sampling, or the learner's own
    before its first step, with truncated importance sampling between the two."""
    importance_cap: float = 2.0
    """Largest importance weight of a token with `old_logp` recomputed."""
    correction: Correction = "none"
    """With top_p or top_k: `renormalize` takes the learner's log-probs over the kept tokens too."""
    kl_estimate: KlEstimate = "corrected"
    """Estimator of `kl` from sampled tokens: `corrected` weighs k3 by the probability ratio to
    the sampler, `plain` does not."""
    dual_clip: float | None = None
    """Most that a token with a negative advantage loses, in units of that advantage (dual clip); 0:
    any; None: the algorithm's."""
    advantage_function: str = ""
    """Function that has the last word on advantages, as module:function or file.py:function."""
    loss: str = ""
    """Function in place of the clipped objective, as module:function or file.py:function."""


@dataclass(frozen=True)
class ComputeOptions:
    """Optimizer, number formats and memory of the learner, of training runs and warm starts."""

    optimizer: OptimizerName = "adamw"
    """`adafactor` keeps sums of rows and columns in place of moments: half the memory. Its steps
    are relative to the size of each weight tensor, so `lr` has another meaning (1e-3 is usual).
    `sgd`, without momentum, takes the gradient as long as it is, and needs an `lr`. `muon` keeps
    one moment of the layers' matrices, and AdamW's two of all else. `adamw8bit` keeps AdamW's
    moments in 8 bits (flowzoo[bits])."""
    clip_norm: float = 1.0
    """Each policy's gradient is scaled down to at most this norm; 0: never."""
    device: str = "auto"
    """Device of the learner; auto: the GPU where there is one (of learner workers: one that they
    were given)."""
    compute: Compute = "float32"
    """Number format of the learner's matrix products; bfloat16 is for GPUs."""
    weights: Compute = "float32"
    """Number format of the weights that are kept. `bfloat16`, with `compute` bfloat16: half the
    memory of a trained model, its gradients and moments, rounded at random so that small steps
    count; of LoRA, that of the frozen base, while the adapters stay in float32."""
    layout: LayoutChoice = "auto"
    """Layout of the learner's batches: `packed` computes common prefixes once and has no fillers;
    `padded` is right for every family. `auto`: packed if that is right too, which is tested at the
    start; otherwise a line is printed."""
    microbatch_tokens: int = 4096
    """Most tokens of one forward pass of the learner; the result does not depend on it."""
    gradient_checkpointing: bool = False
    """Compute activations twice instead of keeping them: less memory, more time."""


@dataclass(frozen=True)
class OptimizerOptions(ComputeOptions):
    """Learning rates, schedule and measurements of the learner."""

    lr: float | None = None
    """Peak learning rate (AdamW). None: by the model: 2e-4 for the pocket models and others of less
    than 10 million weights, 5e-5 below 100 million, 2e-5 below 400 million, else 1e-6; with
    `lora_rank` 2e-4, 2e-4, 1e-4, below a billion 5e-5, else 1e-5. Printed at the start."""
    min_lr: float = 0.0
    """Learning rate at the end of the schedules linear and cosine."""
    warmup: int = 2
    """Ticks of the schedule's clock in which the learning rate rises to its peak."""
    schedule: LrSchedule = "constant"
    """Course of the learning rate after the warm-up."""
    schedule_steps: int = 0
    """Ticks of the schedule's clock after which linear and cosine stay at `min_lr`; 0: the `steps`
    that the run begins with. A run that is continued beyond them must set it."""
    schedule_clock: ScheduleClock = "iteration"
    """Unit of the clock: iterations, or updates of all policies together, so that k isolated
    policies tick k times an iteration."""
    weight_decay: float = 0.01
    """Decoupled weight decay of AdamW."""
    updates: int = 1
    """Optimizer steps per policy and iteration, for any number of rows; 0: one for every
    `rows_per_update` rows."""
    rows_per_update: int = 512
    """Rows of an optimizer step with `updates` 0."""
    coherence: float = 0.0
    """Scale a policy's gradient g by 1 - coherence * max(0, cos(g, running mean of g))."""
    role_gradients: bool = True
    """Measure the gradient of every role: norm, share of the mass, cosines; its entropy and clips.
    Takes the memory of one gradient for every role of a policy beyond the first."""
    update_effect: bool = True
    """Measure how far every update moved a policy, on a sample of its rows (`learn/update_kl`). It
    takes up to one more forward pass of a microbatch an update, which is much of a small step."""
    probe_every: int = 10
    """Steps between probes of how parallel agents of one role add up, the first step included; 0:
    none. A probe takes one to three times as long as the update itself."""
    compile: bool = False
    """Compile the learner's model with torch.compile."""
    beta1: float = 0.9
    """Decay of AdamW's mean of gradients."""
    beta2: float = 0.999
    """Decay of AdamW's mean of squared gradients."""
    adam_eps: float = 1e-8
    """Added to the root of AdamW's mean of squared gradients."""
    decay: Decay = "matrices"
    """Weights with `weight_decay`: `matrices` (and embeddings), or `all` (norms and biases too)."""
    policy_lr: tuple[str, ...] = ()
    """Learning rates of single policies that differ from `lr`, as POLICY=RATE."""
    role_lr: tuple[str, ...] = ()
    """Learning rates of single roles that differ from `lr`, as ROLE=RATE, for policies
    of one role. Within a policy of several roles it takes sgd."""
