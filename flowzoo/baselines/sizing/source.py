"""Source of a model's shape on this machine, and settings of a run that can be resolved with it."""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flowzoo.agents.model_files import check_model, model_source
from flowzoo.agents.pocket import pocket_path, read_pocket
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.settings.preflight import make_training_workflow
from flowzoo.baselines.settings.rules import BACKEND_OPTIONS
from flowzoo.errors import UsageError, unknown

QWEN3: Mapping[str, Mapping[str, int]] = {
    "0.6B": {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28,
             "num_attention_heads": 16},
    "1.7B": {"hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28,
             "num_attention_heads": 16},
    "4B": {"hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36,
           "num_attention_heads": 32},
}  # fmt: skip
"""Shapes of Qwen3 (arXiv 2505.09388, table 1), which all have `COMMON` besides."""
COMMON: Mapping[str, Any] = {
    "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
    "max_position_embeddings": 40960, "tie_word_embeddings": True,
}  # fmt: skip
_TOKENIZERS = ("*token*", "vocab*", "*.model")
"""Names of files of which a tokenizer has at least one."""
_MOST_HEADER = 100 * 2**20
"""Bytes of a safetensors header; more is no such file."""


_OF_DATA = ("data", "layout", "columns", "digest", "corpus", "column")
"""Options of tasks that name or describe files of problems."""
_ON_DATA = 1024
"""Most tokens that replies to the problems of a file take; see `Task.reply_tokens`."""


def model_folder(source: str, task: str, room: Path) -> Path:
    """Folder whose config.json describes the model `source`; shapes are written below `room`.

    `source` is a folder, a GGUF file, a pocket model (`pocket` is the one of `task`), `qwen3:SIZE`
    for a shape of `QWEN3`, or a model of the hub that was downloaded before.
    """
    kind, _, rest = source.partition(":")
    if kind == "pocket":
        return pocket_path(*read_pocket(rest, task))
    if kind == "qwen3" and rest:
        return shape_folder(rest, room / f"qwen3-{rest}")
    check_model(source)
    source = model_source(source)
    if os.path.isdir(source):
        if not (Path(source) / "config.json").is_file():
            raise UsageError(f"{source} holds no config.json: name a model's own folder")
        return Path(source)
    from huggingface_hub import try_to_load_from_cache

    path = try_to_load_from_cache(source, "config.json")
    if not isinstance(path, str):
        raise UsageError(
            f"the model {source} of the hub was not downloaded to this machine, and a plan "
            f"downloads nothing: `hf download {source} config.json` fetches its shape; or name a "
            f"folder, or one of the shapes {', '.join(f'qwen3:{name}' for name in QWEN3)}"
        )
    return Path(path).parent


def shape_folder(size: str, folder: Path) -> Path:
    """Write the config of a shape of `QWEN3` and the pocket model's tokenizer into `folder`."""
    if size not in QWEN3:
        raise unknown("shape of qwen3", size, QWEN3)
    if not folder.is_dir():
        folder.mkdir(parents=True)
        config = {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], **QWEN3[size]}
        (folder / "config.json").write_text(json.dumps({**config, **COMMON}), encoding="utf-8")
        lend_tokenizer(folder)
    return folder


def lend_tokenizer(folder: Path) -> None:
    """Copy the pocket model's tokenizer into `folder`: settings are resolved with one."""
    for pattern in ("*token*", "chat_template*"):
        for path in pocket_path().glob(pattern):
            shutil.copy(path, folder)


def has_tokenizer(folder: Path) -> bool:
    """True if a tokenizer is beside a model's configuration."""
    return any(True for pattern in _TOKENIZERS for _ in folder.glob(pattern))


def with_tokenizer(folder: Path, room: Path) -> Path:
    """Return `folder`, or `room` with its configuration and another model's tokenizer."""
    if has_tokenizer(folder):
        return folder
    room.mkdir(parents=True)
    for name in ("config.json", "generation_config.json"):
        if (folder / name).is_file():
            shutil.copy(folder / name, room)
    lend_tokenizer(room)
    return room


def files_bytes(folder: Path) -> int:
    """Bytes of the weights in the safetensors files of `folder`, by their headers; 0: no files."""
    total = 0
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with path.open("rb") as file:
                (size,) = struct.unpack("<Q", file.read(8))
                header = json.loads(file.read(min(size, _MOST_HEADER)))
            ends = (
                tensor["data_offsets"][1] for name, tensor in header.items() if name[:2] != "__"
            )
            total += max(ends, default=0)
        except (OSError, ValueError, KeyError, TypeError, struct.error) as error:
            raise UsageError(
                f"{path} is no safetensors file ({error}): download it again"
            ) from error
    return total


@dataclass(frozen=True, slots=True)
class PlacedRun:
    """Settings whose models are folders with a configuration and a tokenizer."""

    config: TrainConfig
    folders: Mapping[str, Path]
    """Folder by model as the settings name it."""
    lent: frozenset[str]
    """Models whose own tokenizer, which would show if they think, is not here."""
    reply_tokens: int | None
    """Longest reply to a task on data, which is not read; None: by the task."""


def place_run(config: TrainConfig, room: Path) -> PlacedRun:
    """Place a run on models that are on this machine, on generated problems, in one process."""
    # A plan asks for no data, no workers and no whole models.
    alone = without_data(in_one_process(config))
    task = make_training_workflow(alone).task.name
    named = {word.partition("=")[0]: word.partition("=")[2] for word in alone.models}
    models = sorted({alone.model, *named.values()})
    folders = {model: model_folder(model, task, room) for model in models}
    whole = {
        model: model if model.partition(":")[0] == "pocket"
        else str(with_tokenizer(folders[model], room / f"model-{number}"))
        for number, model in enumerate(models)
    }  # fmt: skip
    # A lent tokenizer does not tell if the model thinks.
    lent = {
        model
        for model, folder in folders.items()
        if model.partition(":")[0] == "qwen3" or not has_tokenizer(folder)
    }
    placed = replace(
        alone,
        model=whole[alone.model],
        models=tuple(f"{name}={whole[model]}" for name, model in named.items()),
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
    """Return the settings on generated problems, for which nothing is loaded."""
    names = [word.partition("=")[0] for word in config.options]
    if "data" not in names:
        return config
    pairs = zip(names, config.options, strict=True)
    options = tuple(option for name, option in pairs if name not in _OF_DATA)
    return replace(config, options=options)
