"""Tokens of a run, and its hours at measured rates."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.plan.sizes import RunSizes
from flowzoo.baselines.settings.model_defaults import EVAL_PROBLEMS
from flowzoo.errors import DataError, UsageError


class MeasuredRates(NamedTuple):
    """Tokens per second of one engine and one learner on one GPU; None: not measured."""

    generated: float | None = None
    trained: float | None = None
    sources: tuple[str, ...] = ()
    """Benchmark, size and device of each rate, for people to judge if it fits."""


class RunTokens(NamedTuple):
    """Tokens of a whole run at most: every agent calls once, and every reply is of full length."""

    sampled: int
    """Tokens of replies in training."""
    evaluated: int
    """Tokens of replies in evaluations."""
    read: int
    """Tokens of prompts that are trained on, as far as the settings bound them."""


def read_rates(files: Sequence[Path], workflow: str) -> MeasuredRates:
    """Read the rates in JSON files of `benchmarks/gpu/rollout.py` and `benchmarks/gpu/learner.py`.

    Of rollouts of several workflows the rate of `workflow` counts, or the lowest.
    """
    generated = trained = None
    sources: list[str] = []
    for path in files:
        try:
            data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UsageError(f"--measured {path} cannot be read: {error}") from error
        try:
            kind, device = data["benchmark"], data["machine"]["device"]
            size = data["options"]["size"]
            if kind == "rollout":
                rates = {row["workflow"]: row["tokens_per_second"] for row in data["results"]}
                short = re.sub(r"_v\d+$", "", workflow)
                rate = generated = float(rates.get(short, min(rates.values())))
            elif kind == "learner":
                rate = trained = float(data["tokens_per_second"])
            else:
                raise KeyError(kind)
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(
                f"{path}: expected what benchmarks/gpu/rollout.py or learner.py writes with --json "
                f"({type(error).__name__}: {error})"
            ) from error
        sources.append(f"{kind}, {size} on {device}: {rate:,.0f} tokens/s ({path})")
    return MeasuredRates(generated, trained, tuple(sources))


def run_tokens(sizes: RunSizes) -> RunTokens:
    """Count the tokens of a run."""
    config, budgets = sizes.config, sizes.plan.budgets
    replies = prompts = 0
    for role, agents in sizes.agents.items():
        entry = budgets.roles.get(role)
        replies += agents * ((entry.reply if entry else None) or budgets.reply)
        prompts += agents * ((entry.prompt if entry else None) or 0)
    evaluations = 1 + sum(
        step == config.steps or config.evaluates(step) for step in range(1, config.steps + 1)
    )
    held_out = config.eval_problems or EVAL_PROBLEMS
    return RunTokens(
        sampled=config.steps * sizes.episodes * replies,
        evaluated=evaluations * held_out * config.eval_samples * replies,
        read=config.steps * sizes.episodes * prompts,
    )


def hours(tokens: RunTokens, rates: MeasuredRates, ranks: int) -> tuple[float | None, float | None]:
    """Hours of sampling and of learning on `ranks` GPUs with an engine each; None: no rate."""
    sampling = learning = None
    if rates.generated:
        sampling = (tokens.sampled + tokens.evaluated) / rates.generated / ranks / 3600
    if rates.trained:
        learning = (tokens.sampled + tokens.read) / rates.trained / ranks / 3600
    return sampling, learning
