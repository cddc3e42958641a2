"""Settings of a warm start from transcripts. Importing this needs no torch: help is fast."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

from flowzoo.baselines.learner.config import ComputeOptions, LrSchedule
from flowzoo.baselines.settings.algorithms import SUPERVISED
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.settings.options import (
    DecodingOptions,
    HeldOutOptions,
    LengthOptions,
    ModelSettings,
    ProcessOptions,
    WorkflowOptions,
)
from flowzoo.declared import (
    Count,
    CountOrZero,
    NonNegative,
    Positive,
    ProperFraction,
    check_declared,
    check_effects,
)
from flowzoo.envs.settings import PROGRAM
from flowzoo.errors import UsageError

Taught = Literal["right", "readable", "all"]


@dataclass(frozen=True)
class SftConfig(  # a dataclass lists the fields of its last base first
    HeldOutOptions,
    ComputeOptions,
    LengthOptions,
    DecodingOptions,
    ModelSettings,
    ProcessOptions,
    WorkflowOptions,
):
    """A warm start from transcripts.

    Raises:
        UsageError: a number out of range, or no source.
    """

    source: tuple[str, ...] = ("scripted",)
    """Sources of replies, which are combined: `scripted` (the workflow's experts play `n` problems
    of the split train; `scripted:P`: each is right with probability P), a folder of `flowzoo eval
    --out`, the directory of a training run (its training transcripts), a .jsonl file of either
    kind, or one of chats: {"messages": [{"role", "content"}, ...]}, optionally with "agent" (role
    or agent to train), "problem" (id) and "score"."""
    validation: tuple[str, ...] = ()
    """Sources of replies for the held-out loss, on problems of `eval_split`; none: scripted sources
    also play those, and `held_back` of the other sources is not trained on."""
    held_back: ProperFraction = 0.1
    """Fraction of the problems of non-scripted sources that is used for the held-out loss instead
    of training, if `validation` is not given."""
    n: Positive[int] = 500
    """Number of distinct problems that scripted experts play; for the held-out loss it is
    `eval_problems`."""
    samples: Count = 1
    """Scripted episodes per problem."""
    threshold: float | None = None
    """Lowest score of episodes to train on; chats without a score are kept. Default: 1, and any
    score of a game, whose scores are pay."""
    best: NonNegative[int] = 0
    """Most episodes kept per problem, the best by score and the first of equals; 0: all that reach
    the threshold."""
    replies: Taught = "right"
    """Replies of kept episodes to train on: `right`, readable for the strict parser and right by
    the role score, if the workflow defines one; `readable`; or `all`."""
    max_length: NonNegative[int] = 0
    """Most tokens of prompt and reply together; longer rows are skipped and counted. 0: the model's
    context."""
    epochs: Positive[int] = 2
    """Passes over the replies."""
    stop_patience: NonNegative[int] = 0
    """End after this many consecutive epochs without a lower held-out loss and write the models
    with the lowest; 0: all epochs and the last models."""
    batch: Positive[int] = 32
    """Replies per optimizer step of a policy."""
    lr: Positive[float] | None = None
    """Peak learning rate (AdamW); None: 1e-3 for models below ten million parameters and adapters
    on models below 400 million, 2e-4 for other adapters, else 1e-5."""
    schedule: LrSchedule = "cosine"
    """Learning rate schedule after the warmup."""
    warmup_share: ProperFraction = 0.05
    """Fraction of a policy's steps for the learning rate warmup."""
    weight_decay: NonNegative[float] = 0.0
    """Decoupled weight decay of the matrices, including embeddings."""
    eval_problems: CountOrZero | None = None
    """Number of distinct problems per evaluation; 0: no evaluation. None: by the model, as in
    training."""
    checkpoint_every: NonNegative[int] = 0
    """Steps between checkpoints, in addition to those after every epoch and every two minutes; 0:
    no others."""

    def __post_init__(self) -> None:
        self.replace_workflow("program", PROGRAM)
        check_declared(self)
        check_effects([self])
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

    @property
    def directory(self) -> Path:
        """The run directory."""
        return self.run_settings().directory

    def run_settings(self) -> TrainConfig:
        """Settings of a training run with the values of the shared fields."""
        names = {field.name for field in fields(TrainConfig)} & {
            field.name for field in fields(self)
        }
        names -= {"sharing", "min_lr", "schedule", "checkpoint_every", "eval_problems",
                  "stop_patience"}  # fmt: skip
        shared = {name: getattr(self, name) for name in names}
        return TrainConfig(**shared, algorithm=SUPERVISED, sharing=self.sharing or ("shared",))
