"""Making the pocket model: `python -m flowzoo.baselines.pocket --out DIR`.

A small Qwen3 is trained from nothing on scripted transcripts (`pocket_data`) with its own tokenizer
(`pocket_tokenizer`), saved in Hugging Face layout, read back and measured on held-out problems;
the figures go into its model card. The model is mediocre on purpose: its formats are firm, but
the last steps teach it the bad habit of its task (`pocket_habits`). Embeddings are not tied to the
output head, since some engines keep a stale copy of a tied head when weights are reloaded.

The same settings give the same files on one machine with the same number of threads; elsewhere
floats may round differently and the figures move a little.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from flowzoo.agents.pocket import OPTIONS_FILE
from flowzoo.baselines.batch import cut
from flowzoo.baselines.pocket_data import Example, tokenizer_corpus, transcripts
from flowzoo.baselines.pocket_recipes import recipe_of
from flowzoo.baselines.pocket_report import Figures, measure, model_card, print_figures
from flowzoo.errors import UsageError, missing_extra
from flowzoo.files import write_json
from flowzoo.seeding import key_int, key_rng

try:
    import torch
    import tyro
    from rich.progress import Progress
    from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM
    from transformers.utils.logging import disable_progress_bar

    from flowzoo.baselines.pocket_optimizer import Muon
    from flowzoo.baselines.pocket_tokenizer import train_tokenizer
except ImportError as error:
    raise missing_extra(error.name or "torch", "train", "making a pocket model") from error


@dataclass(frozen=True, slots=True)
class PocketConfig:
    """A pocket model and how it is made.

    Raises:
        UsageError: a number out of range.
    """

    out: Path
    """Folder the model goes to; files there are overwritten."""
    task: str = "math"
    """Task whose workflows it learns to play; the tasks with a recipe."""
    seed: int = 0
    """Seed of the transcripts, their order and the first weights."""
    steps: int = 2000
    """Optimiser steps: the one dial for how good the model becomes."""
    hasty_steps: int = 500
    """How many of the steps, the last ones, teach the bad habit."""
    batch: int = 32
    """Examples in a step."""
    lr: float = 4e-3
    """Peak learning rate of embeddings, output head and norms (AdamW)."""
    matrix_lr: float = 0.02
    """Peak learning rate of the other matrices (Muon)."""
    warmup: int = 30
    """Steps in which the learning rates rise to their peak; then they fall linearly to 0."""
    layers: int = 3
    """Transformer blocks."""
    hidden: int = 128
    """Width of the residual stream."""
    intermediate: int = 256
    """Width inside a feed-forward block."""
    heads: int = 4
    """Attention heads of 32 dimensions."""
    key_value_heads: int = 2
    """Key and value heads, shared by the attention heads."""
    vocab: int = 768
    """Tokens of the tokenizer."""
    context: int = 2048
    """Longest sequence, in tokens."""
    evaluate: int = 500
    """Held-out problems per workflow that the finished model is measured on; 0: none."""
    threads: int = 1
    """CPU threads of torch, for they decide how sums are rounded; 0 leaves torch's own choice."""

    def __post_init__(self) -> None:
        """Check the task and the numbers."""
        recipe_of(self.task)
        for name in ("steps", "batch", "lr", "matrix_lr", "layers", "hidden", "heads", "context"):
            if getattr(self, name) <= 0:
                raise UsageError(f"`{name}` must be greater than 0, got {getattr(self, name)}")
        if min(self.warmup, self.evaluate, self.threads) < 0:
            raise UsageError("`warmup`, `evaluate` and `threads` must be at least 0")
        if not 0 <= self.hasty_steps <= self.steps:
            raise UsageError(
                f"`hasty_steps` must be from 0 to `steps` ({self.steps}), got {self.hasty_steps}"
            )
        if self.heads % self.key_value_heads:
            raise UsageError(
                f"`heads` ({self.heads}) must be a multiple of `key_value_heads` "
                f"({self.key_value_heads})"
            )


class Row(NamedTuple):
    """A training row: prompt ids, and the ids to learn, end of turn included."""

    prompt: list[int]
    reply: list[int]

    @property
    def length(self) -> int:
        """Tokens in all."""
        return len(self.prompt) + len(self.reply)


def curriculum(config: PocketConfig) -> list[Example]:
    """The examples of all steps in order: worked solutions first, then the bad habit as well.

    An early mixture would slow the arithmetic down: what cannot be learned is noise.
    """
    recipe, examples = recipe_of(config.task), list[Example]()
    stages = ((config.steps - config.hasty_steps, False), (config.hasty_steps, True))
    for number, (steps, hasty) in enumerate(stages):
        seed = key_int("pocket stage", config.seed, number)
        stage = list(islice(transcripts(recipe, seed, hasty), steps * config.batch))
        key_rng("pocket order", seed).shuffle(stage)
        examples += stage
    return examples


def encode(examples: Sequence[Example], tokenizer: Any) -> list[Row]:
    """The examples as token ids; prompts are rendered by the tokenizer's chat template."""
    prompts = [
        tokenizer.apply_chat_template(
            list(example.messages), add_generation_prompt=True, tokenize=False
        )
        for example in examples
    ]
    prompt_ids = tokenizer(prompts)["input_ids"]
    reply_ids = tokenizer([example.reply for example in examples])["input_ids"]
    end = [tokenizer.eos_token_id]
    return [Row(p, r + end) for p, r in zip(prompt_ids, reply_ids, strict=True)]


def lr_share(step: int, config: PocketConfig) -> float:
    """Learning rate of `step` (from 0) as a share of its peak."""
    rise = min(1.0, (step + 1) / max(1, config.warmup))
    return rise * (1 - step / config.steps)


def new_model(config: PocketConfig, tokenizer: Any) -> Any:
    """A model with random weights drawn from the seed."""
    torch.manual_seed(config.seed)
    model: Any = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(tokenizer),
            hidden_size=config.hidden,
            intermediate_size=config.intermediate,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            num_key_value_heads=config.key_value_heads,
            head_dim=32,
            tie_word_embeddings=False,
            max_position_embeddings=config.context,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
            initializer_range=0.06,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )
    model.generation_config = GenerationConfig(
        do_sample=True,
        temperature=1.0,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return model


def optimizers(model: Any, config: PocketConfig) -> list[torch.optim.Optimizer]:
    """Muon for the matrices inside the blocks, AdamW for everything else."""
    inside = [weight for weight in model.model.layers.parameters() if weight.ndim == 2]
    known = {id(weight) for weight in inside}
    outside = [weight for weight in model.parameters() if id(weight) not in known]
    return [
        Muon(inside, lr=config.matrix_lr),
        torch.optim.AdamW(outside, lr=config.lr, betas=(0.9, 0.98), weight_decay=0.01),
    ]


def reply_loss(model: Any, rows: Sequence[Row]) -> torch.Tensor:
    """Summed cross-entropy of the reply tokens; prompts and pads have no part in it."""
    width = max(row.length for row in rows)
    ids = np.zeros((len(rows), width), np.int64)  # fillers stand right, where nothing sees them
    labels = np.full((len(rows), width), -1, np.int64)  # (rows, width): the next token, or -1
    for place, (prompt, reply) in enumerate(rows):
        ids[place, : len(prompt) + len(reply)] = prompt + reply
        labels[place, len(prompt) - 1 : len(prompt) + len(reply) - 1] = reply
    targets = torch.from_numpy(labels)
    learned = targets >= 0
    hidden = model.model(input_ids=torch.from_numpy(ids), use_cache=False).last_hidden_state
    logits = model.lm_head(hidden[learned])
    return torch.nn.functional.cross_entropy(logits, targets[learned], reduction="sum")


def train(model: Any, rows: Sequence[Row], config: PocketConfig) -> Iterator[float]:
    """Train `model` in place on `steps * batch` rows, each seen once; yields each step's loss.

    The loss is the mean over the step's reply tokens, in nats.
    """
    algorithms = optimizers(model, config)
    peaks = [algorithm.param_groups[0]["lr"] for algorithm in algorithms]
    model.train()
    for step in range(config.steps):
        batch = rows[step * config.batch : (step + 1) * config.batch]
        tokens = sum(len(row.reply) for row in batch)
        total = 0.0
        for places in cut([row.length for row in batch], max_tokens=2048):
            loss = reply_loss(model, [batch[place] for place in places]) / tokens
            loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for algorithm, peak in zip(algorithms, peaks, strict=True):
            algorithm.param_groups[0]["lr"] = peak * lr_share(step, config)
            algorithm.step()
            algorithm.zero_grad()
        yield total


def command(config: PocketConfig) -> str:
    """The command that repeats `config`: settings that differ from the defaults are spelled out."""
    words = ["python -m flowzoo.baselines.pocket --out DIR"]
    for field in fields(config):
        value = getattr(config, field.name)
        if field.name != "out" and value != field.default:
            values = value if isinstance(value, tuple) else (value,)
            words.append(f"--{field.name.replace('_', '-')} {' '.join(map(str, values))}")
    return " ".join(words)


def make(config: PocketConfig) -> Figures | None:
    """Make the model and write it to `config.out`; returns what it scores (None: not measured)."""
    if config.threads:
        torch.set_num_threads(config.threads)
    start = time.perf_counter()
    recipe = recipe_of(config.task)
    corpus = tokenizer_corpus(recipe, 6000, config.seed)
    tokenizer = train_tokenizer(corpus, config.vocab, config.context, recipe.atoms)
    rows = encode(curriculum(config), tokenizer)
    model = new_model(config, tokenizer)
    with Progress(*Progress.get_default_columns(), "loss {task.fields[loss]:.3f}") as progress:
        bar = progress.add_task("training", total=config.steps, loss=float("nan"))
        for loss in train(model, rows, config):
            progress.update(bar, advance=1, loss=loss)
    model.to(torch.bfloat16).save_pretrained(config.out)
    tokenizer.save_pretrained(config.out)
    write_json(config.out / OPTIONS_FILE, recipe.made_for)
    seconds = time.perf_counter() - start
    figures = measure(config.out, recipe, config.evaluate) if config.evaluate else None
    card = model_card(
        recipe, figures, command(config), model.num_parameters(), len(tokenizer), seconds
    )
    (config.out / "README.md").write_text(card, encoding="utf-8")
    return figures


def main() -> None:
    """Read the command line, make the model, print what it scores."""
    disable_progress_bar()  # transformers draws one for every file of a few kilobytes
    figures = make(tyro.cli(PocketConfig))
    if figures is not None:
        print_figures(figures)


if __name__ == "__main__":
    main()
