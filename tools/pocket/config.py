"""How a pocket model is made: its size, its training, its folder, and the command that says so."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import NamedTuple

from flowzoo.agents.pocket import PocketScale, made_folder, shipped_folder
from flowzoo.errors import UsageError
from tools.pocket.recipes import recipe_of


class ModelSize(NamedTuple):
    """Size of a model; its attention heads have 32 dimensions."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    key_value_heads: int


class PocketSchedule(NamedTuple):
    """Optimizer steps, and how many of them, the last ones, teach the bad habit."""

    steps: int
    hasty_steps: int


MODEL_SIZES: dict[PocketScale, ModelSize] = {
    "default": ModelSize(3, 128, 256, 4, 2),
    "xs": ModelSize(3, 80, 160, 4, 2),
    "s": ModelSize(4, 144, 288, 4, 2),
    "m": ModelSize(6, 256, 512, 8, 4),
    "l": ModelSize(8, 384, 768, 12, 6),
    "xl": ModelSize(18, 768, 1536, 24, 12),
}
"""Shape of each scale: 0.64, 0.33, 0.94, 3.9, 11.2 and 97 million parameters with 768 tokens."""


@dataclass(frozen=True, slots=True)
class PocketConfig:
    """A pocket model and how it is made.

    Raises:
        UsageError: a number out of range, a size given twice, or no folder.
    """

    out: Path | None = None
    """Folder the model goes to; files there are overwritten. May be left out for a scale that is
    not shipped: it then goes to the cache folder where `pocket:TASK-SCALE` is looked for."""
    task: str = "math"
    """Task whose workflows it learns to play, or a workflow with a model of its own; those with a
    recipe."""
    scale: PocketScale = "default"
    """Size of the model: 0.64 (default), 0.33 (xs), 0.94 (s), 3.9 (m), 11.2 (l) or 97 (xl) million
    parameters. `l` is about two and a half hours of one core, `xl` is for a GPU (`device`)."""
    seed: int = 0
    """Seed of the transcripts, their order and the first weights."""
    steps: int | None = None
    """Optimizer steps: the one dial for how good the model becomes; default: the recipe's."""
    hasty_steps: int | None = None
    """How many of the steps, the last ones, teach the bad habit; default: the recipe's."""
    batch: int = 32
    """Examples in a step."""
    lr: float = 4e-3
    """Peak learning rate of embeddings, output head and norms (AdamW)."""
    matrix_lr: float = 0.02
    """Peak learning rate of the other matrices (Muon)."""
    warmup: int = 30
    """Steps in which the learning rates rise to their peak; then they fall linearly to 0."""
    layers: int = 0
    """Transformer blocks; 0: as the default scale has them, like the four numbers that follow."""
    hidden: int = 0
    """Width of the residual stream."""
    intermediate: int = 0
    """Width inside a feed-forward block."""
    heads: int = 0
    """Attention heads of 32 dimensions."""
    key_value_heads: int = 0
    """Key and value heads, shared by the attention heads."""
    vocab: int = 768
    """Tokens of the tokenizer."""
    context: int = 2048
    """Longest sequence, in tokens."""
    evaluate: int = 500
    """Held-out problems per workflow that the finished model is measured on; 0: none."""
    threads: int = 1
    """CPU threads of torch, for they decide how sums are rounded; 0 leaves torch's own choice."""
    device: str = "cpu"
    """Where it is trained, e.g. `cuda`; only on a CPU does the same command give the same files."""

    def __post_init__(self) -> None:
        """Check the task, the folder and the numbers."""
        steps, hasty_steps = self.schedule
        for name in ("steps", "batch", "lr", "matrix_lr", "context"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise UsageError(f"`{name}` must be greater than 0, got {value}")
        for name in ("warmup", "evaluate", "threads", *ModelSize._fields):
            if getattr(self, name) < 0:
                raise UsageError(f"`{name}` must be at least 0, got {getattr(self, name)}")
        if not 0 <= hasty_steps <= steps:
            raise UsageError(
                f"`hasty_steps` must be from 0 to `steps` ({steps}), got {hasty_steps}"
            )
        self._check_size()
        self._check_folder()

    def _check_size(self) -> None:
        given = [name for name in ModelSize._fields if getattr(self, name)]
        if self.scale != "default" and given:
            raise UsageError(
                f"scale {self.scale} and `{given[0]}` both say how large the model is: "
                "leave one of them out"
            )
        if self.shape.heads % self.shape.key_value_heads:
            raise UsageError(
                f"`heads` ({self.shape.heads}) must be a multiple of `key_value_heads` "
                f"({self.shape.key_value_heads})"
            )

    def _check_folder(self) -> None:
        if self.out is None and shipped_folder(self.task, self.scale).is_dir():
            raise UsageError(
                f"the pocket model of {self.task} in scale {self.scale} is shipped: say with "
                "`--out` where another one goes"
            )

    @property
    def shape(self) -> ModelSize:
        """The scale's shape, with the numbers that are given in their place."""
        usual = MODEL_SIZES[self.scale]
        return ModelSize(
            *(getattr(self, name) or getattr(usual, name) for name in ModelSize._fields)
        )

    @property
    def schedule(self) -> PocketSchedule:
        """The recipe's steps, with the numbers that are given in their place.

        Raises:
            UsageError: there is no recipe for the task.
        """
        recipe = recipe_of(self.task)
        steps = recipe.steps if self.steps is None else self.steps
        hasty = recipe.hasty_steps if self.hasty_steps is None else self.hasty_steps
        return PocketSchedule(steps, hasty)

    @property
    def title(self) -> str:
        """Name of the model, with a scale other than the default."""
        return self.task if self.scale == "default" else f"{self.task}, scale {self.scale}"

    @property
    def folder(self) -> Path:
        """Where the model goes."""
        return self.out or made_folder(self.task, self.scale)


def command(config: PocketConfig) -> str:
    """The command that repeats `config`: settings that differ from the defaults are spelled out."""
    words = ["python -m tools.pocket"]
    if config.out is not None:
        words.append("--out DIR")
    for field in fields(config):
        value = getattr(config, field.name)
        if field.name != "out" and value != field.default:
            words.append(f"--{field.name.replace('_', '-')} {value}")
    return " ".join(words)
