"""Settings of a run that can be resolved on this machine, with folders of its models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.settings.options import RANKS, RAY
from flowzoo.baselines.settings.preflight import with_prompts
from flowzoo.declared import conditions

_OF_DATA = ("data", "layout", "columns", "digest", "corpus", "column")
"""Options of tasks that name or describe files of problems."""
_ON_DATA = 1024
"""Most tokens that replies to the problems of a file take; see `Task.reply_tokens`."""


@dataclass(frozen=True, slots=True)
class PlacedRun:
    """Settings whose models are folders with a configuration and a tokenizer."""

    config: TrainConfig
    folders: Mapping[str, Path]
    """Folder by model as the settings name it."""
    reply_tokens: int | None
    """Longest reply to a task on data, which is not read; None: by the task."""


def place_run(
    config: TrainConfig, find_folder: Callable[[str, str], Path], *, data: bool = False
) -> PlacedRun:
    """Place a run on models that are on this machine, in one process.

    `find_folder` finds the folder of a model, by its name and that of the task. Problems are
    generated, or with `data` read from the run's files.
    """
    # Memory is counted without workers and whole models.
    alone = in_one_process(config)
    alone = alone if data else without_data(alone)
    task = with_prompts(alone)[0].task.name
    named = {word.partition("=")[0]: word.partition("=")[2] for word in alone.models}
    models = sorted({alone.model, *named.values()})
    folders = {model: find_folder(model, task) for model in models}
    sources = {
        model: model if model.partition(":")[0] == "pocket" else str(folder)
        for model, folder in folders.items()
    }
    placed = replace(
        alone,
        model=sources[alone.model],
        models=tuple(f"{name}={sources[model]}" for name, model in named.items()),
    )
    tokens = None if alone.options == config.options else _ON_DATA
    return PlacedRun(placed, folders, tokens)


def in_one_process(config: TrainConfig) -> TrainConfig:
    """Settings of a run that does the same in this process alone."""
    defaults: dict[str, Any] = {
        name: getattr(TrainConfig, name)
        for name, condition in conditions(TrainConfig).items()
        if condition in (RANKS, RAY)
    }
    return replace(
        config, **defaults, backend="local", shard="none", max_staleness=0, engine_devices="",
        weight_transfer="file",
    )  # fmt: skip


def without_data(config: TrainConfig) -> TrainConfig:
    """Return the settings on generated problems, for which nothing is loaded."""
    names = [word.partition("=")[0] for word in config.options]
    if "data" not in names:
        return config
    pairs = zip(names, config.options, strict=True)
    options = tuple(option for name, option in pairs if name not in _OF_DATA)
    return replace(config, options=options)
