"""Settings of a warm start from transcripts. Importing this needs no torch: help is fast."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro import conf

from flowzoo.agents.number_format import EngineDTypeChoice
from flowzoo.baselines.learner.literals import Compute, LayoutChoice, LrSchedule, OptimizerName
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.settings.options import ModelSettings
from flowzoo.envs.settings import check_finite
from flowzoo.errors import UsageError
from flowzoo.sandbox.tier import SandboxName

Taught = Literal["right", "readable", "all"]

_POSITIVE = ("n", "samples", "epochs", "batch", "max_batch", "keep_last",
             "microbatch_tokens", "clip_norm", "lora_alpha")  # fmt: skip
_LEAST_ZERO = ("best", "weight_decay", "min_lr", "max_length", "max_prompt", "eval_problems",
               "eval_temperature", "checkpoint_every", "threads", "seed", "lora_rank",
               "stop_patience")  # fmt: skip


@dataclass(frozen=True)
class SftConfig(ModelSettings):
    """A warm start from transcripts.

    Raises:
        UsageError: a number out of range, or no source.
    """

    workflow: Annotated[str, conf.Positional, conf.arg(metavar="[WORKFLOW]")] = "voting"
    """Name of the workflow whose roles are taught, e.g. `voting` or `voting_v0`, or
    `module:Class`."""
    source: tuple[str, ...] = ("scripted",)
    """Where replies come from; several are put together: `scripted` (the workflow's experts play
    `n` problems of the split train; `scripted:P`: each is right with probability P), a folder that
    `flowzoo eval --out` wrote, the directory of a training run (its training transcripts), a
    .jsonl file of either kind, or one of chats: {"messages": [{"role", "content"}, ...]}, with
    "agent" (role or agent that is taught), "problem" (id) and "score" where they are known."""
    validation: tuple[str, ...] = ()
    """Where the replies of the held-out loss come from, likewise, on problems of `eval_split`;
    none: scripted sources play those too, of others `held_back` is not trained on."""
    held_back: float = 0.1
    """Share of the problems of sources other than scripted whose replies are measured and not
    trained on, where no `validation` is given."""
    task: str | None = None
    """Task the workflow works on; default: the workflow's own, e.g. math."""
    sandbox: SandboxName | None = None
    """Isolation of programs, for tasks that run them; default: the best this machine has."""
    max_calls: int | None = None
    """Most calls of an episode; a workflow that asks more is an error. Default: 1,000."""
    prompts: str | None = None
    """`short` or `full` texts, or a TOML file of texts and system messages, as `flowzoo prompts`
    prints it; default: short for pocket models, full for others."""
    system: tuple[str, ...] = ()
    """System messages, as ROLE=TEXT."""
    examples: int | None = None
    """Worked examples of its own job that every role is shown, as earlier turns of its chat;
    default: 0, since the form of replies is what is taught."""
    options: tuple[str, ...] = ()
    """Further settings of the workflow or the task, as NAME=VALUE, e.g. n_votes=5 level=2."""
    n: int = 500
    """Distinct problems that scripted experts play; of a held-out loss `eval_problems`."""
    samples: int = 1
    """Episodes of each of these."""
    threshold: float = 1.0
    """Least score of an episode whose replies are taught; chats without a score are kept."""
    best: int = 0
    """Most episodes of a problem that are kept: those of the highest score, of equals the first;
    0: all that reach the threshold."""
    replies: Taught = "right"
    """Which replies of a kept episode are taught: `right`, those that the strict parser reads and
    that did their role's own job, where the workflow defines one; `readable`; or `all`."""
    max_length: int = 0
    """Most tokens of prompt and reply together; longer rows are left out and counted. 0: the
    model's context."""
    epochs: int = 2
    """How often every reply is trained on."""
    stop_patience: int = 0
    """End after so many epochs in a row without a held-out loss below the lowest before, and write
    the models of the lowest; 0: all epochs, and the last models."""
    batch: int = 32
    """Replies in an optimiser step of a policy."""
    lr: float | None = None
    """Peak learning rate (AdamW); None: 1e-3 for models of less than ten million parameters and
    adapters on less than 400 million, 2e-4 for other adapters, else 1e-5."""
    min_lr: float = 0.0
    """Where the schedules linear and cosine end."""
    schedule: LrSchedule = "cosine"
    """What the learning rate does after the warm-up."""
    warmup_share: float = 0.05
    """Share of a policy's steps in which the learning rate rises to its peak."""
    weight_decay: float = 0.0
    """Decoupled weight decay of the matrices, embeddings among them."""
    optimizer: OptimizerName = "adamw"
    """`adafactor` keeps sums of rows and columns in place of moments: half the memory."""
    clip_norm: float = 1.0
    """Each policy's gradient is scaled down to at most this norm."""
    seed: int = 0
    """Seed of the scripted experts and of the order of the replies."""
    device: str = "auto"
    """Device of the learner; auto: the GPU where there is one."""
    compute: Compute = "float32"
    """Number format of the learner's matrix products; bfloat16 is for GPUs."""
    weights: Compute = "float32"
    """Number format of the weights that are kept; `bfloat16` needs `compute` bfloat16."""
    layout: LayoutChoice = "auto"
    """Of the learner's batches: `packed` computes common prefixes once and has no fillers; `padded`
    is right for every family. `auto`: packed where that is right too."""
    microbatch_tokens: int = 4096
    """Most tokens of one forward pass; the result does not depend on it."""
    gradient_checkpointing: bool = False
    """Compute activations twice instead of keeping them: less memory, more time."""
    threads: int = 0
    """CPU threads of torch; 0 leaves torch's own choice (OMP_NUM_THREADS)."""
    eval_split: str = "validation"
    """Split whose problems are played before training and after every epoch."""
    eval_problems: int | None = None
    """Distinct problems of each of these evaluations; 0: nothing is played. None: by the model, as
    in training."""
    eval_temperature: float = 1.0
    """Sampling temperature of evaluations; 0 is greedy."""
    max_tokens: int | None = None
    """Most tokens in one reply of an evaluation; None: by the model, as in training."""
    max_prompt: int = 0
    """Most tokens in one prompt of an evaluation; 0: what the model's context holds."""
    lengths: tuple[str, ...] = ()
    """Budgets of single roles in evaluations, as ROLE=PROMPT/REPLY in tokens."""
    engine_dtype: EngineDTypeChoice = "auto"
    """Number format that evaluations sample in; `auto` as in training."""
    max_batch: int = 1024
    """Most sequences that are decoded together; lower it if memory runs out."""
    checkpoint_every: int = 0
    """Steps between checkpoints, besides those after every epoch and every two minutes; 0: no
    others."""
    keep_last: int = 2
    """Newest checkpoints that stay."""
    out: str = ""
    """Directory to write; empty: `runs/` and a name made of the settings. The models are in its
    folder `models`, one for each policy."""

    def __post_init__(self) -> None:
        """Check what needs no other module."""
        check_finite(self)
        for name in _POSITIVE:
            if not getattr(self, name) > 0:
                raise UsageError(f"`{name}` must be greater than 0, got {getattr(self, name)}")
        for name in _LEAST_ZERO:
            value = getattr(self, name)
            if value is not None and not value >= 0:
                raise UsageError(f"`{name}` must be at least 0, got {value}")
        for name in ("lr", "max_tokens"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise UsageError(f"`{name}` must be greater than 0, got {value}")
        for name in ("held_back", "warmup_share"):
            if not 0 <= getattr(self, name) < 1:
                raise UsageError(f"`{name}` must be from 0 to below 1, got {getattr(self, name)}")
        if not self.source:
            raise UsageError(
                "a warm start needs a `source`: scripted, a folder of `flowzoo eval --out`, a run "
                "directory, or a .jsonl file"
            )
        if self.eval_split in ("train", "pretrain", "all", "test"):
            raise UsageError(
                f"`eval_split` is {self.eval_split!r}, whose problems are trained on or are for "
                "the final result: leave it at validation"
            )

    def settled(self, before: Mapping[str, Any] | None = None) -> SftConfig:
        """These settings; nothing of them is left open."""
        return self

    @property
    def directory(self) -> Path:
        """The run directory."""
        return self.run_settings().directory

    def run_settings(self) -> TrainConfig:
        """What of these settings a training run has too, as its settings."""
        names = {field.name for field in fields(TrainConfig)} & {one.name for one in fields(self)}
        names -= {"sharing", "lr", "min_lr", "schedule", "checkpoint_every", "eval_problems",
                  "stop_patience"}  # fmt: skip
        shared = {name: getattr(self, name) for name in names}
        return TrainConfig(**shared, algorithm="sft", sharing=self.sharing or ("shared",))
