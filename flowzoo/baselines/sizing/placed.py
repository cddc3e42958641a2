"""Settings of a run as a plan resolves them: without its data, its workers or whole models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.settings.preflight import make_training_workflow
from flowzoo.baselines.settings.rules import BACKEND_OPTIONS
from flowzoo.baselines.sizing.source import has_tokenizer, model_folder, with_tokenizer

_OF_DATA = ("data", "layout", "columns", "digest", "corpus", "column")
"""Options of tasks that name or describe files of problems."""
_ON_DATA = 1024
"""Most tokens that replies to the problems of a file take; see `Task.reply_tokens`."""


@dataclass(frozen=True, slots=True)
class PlacedRun:
    """Settings whose models are folders with a configuration and a tokenizer."""

    config: TrainConfig
    folders: Mapping[str, Path]
    """Model as the settings name it -> its own folder."""
    lent: frozenset[str]
    """Models without a tokenizer of their own here, by which one would know if they think."""
    reply_tokens: int | None
    """Of a task on data, which is not read: the most that any needs. None: the task says it."""


def place_run(config: TrainConfig, room: Path) -> PlacedRun:
    """The settings with models that are on this machine, on generated problems, in one process.

    Args:
        config: the settings.
        room: an empty folder for what has to be written.

    Raises:
        UsageError: a model whose shape is not here, or a task that does not exist.
    """
    alone = without_data(in_one_process(config))
    task = make_training_workflow(alone).task.name
    words = {word.partition("=")[0]: word.partition("=")[2] for word in alone.models}
    models = sorted({alone.model, *words.values()})
    folders = {model: model_folder(model, task, room) for model in models}
    whole = {
        model: model if model.partition(":")[0] == "pocket"
        else str(with_tokenizer(folders[model], room / f"model-{number}"))
        for number, model in enumerate(models)
    }  # fmt: skip
    lent = {
        model
        for model, folder in folders.items()
        if model.partition(":")[0] == "qwen3" or not has_tokenizer(folder)
    }
    placed = replace(
        alone,
        model=whole[alone.model],
        models=tuple(f"{name}={whole[one]}" for name, one in words.items()),
    )
    tokens = None if alone.options == config.options else _ON_DATA
    return PlacedRun(placed, folders, frozenset(lent), tokens)


def in_one_process(config: TrainConfig) -> TrainConfig:
    """Settings of a run that does the same in this process alone."""
    defaults: dict[str, Any] = {
        name: value for options in BACKEND_OPTIONS.values() for name, value in options.items()
    }
    return replace(
        config, **defaults, backend="local", shard="none", max_staleness=0, engine_devices="",
        weight_transfer="file",
    )  # fmt: skip


def without_data(config: TrainConfig) -> TrainConfig:
    """The settings on generated problems: lengths are settings, and nothing is to be loaded."""
    names = [word.partition("=")[0] for word in config.options]
    if "data" not in names:
        return config
    kept = [word for name, word in zip(names, config.options, strict=True) if name not in _OF_DATA]
    return replace(config, options=tuple(kept))
