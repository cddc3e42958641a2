"""Folders of the models of a plan: shapes without weights, and tokenizers that are not here."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flowzoo.agents.model_files import check_model, is_local, model_source
from flowzoo.agents.pocket import pocket_path, read_pocket
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


class ModelFolders:
    """Finds a folder for every model of a plan; what is missing is written below `room`."""

    def __init__(self, room: Path) -> None:
        self._room = room
        self.paths: dict[str, Path] = {}
        """Folder by model, without what was added to it."""
        self.lent: set[str] = set()
        """Models whose own tokenizer, which would show if they think, is not here."""

    def find(self, source: str, task: str) -> Path:
        """Folder with the configuration and a tokenizer of a model.

        `source` is `qwen3:SIZE` for a shape of `QWEN3`, or what `model_folder` takes.
        """
        kind, _, size = source.partition(":")
        if kind == "qwen3" and size:
            self.lent.add(source)
            self.paths[source] = shape_folder(size, self._room / f"qwen3-{size}")
            return self.paths[source]
        try:
            self.paths[source] = folder = model_folder(source, task)
        except UsageError as error:
            shapes = ", ".join(f"qwen3:{name}" for name in QWEN3)
            raise UsageError(f"{error}, or one of the shapes {shapes}") from error
        if has_tokenizer(folder):
            return folder
        self.lent.add(source)
        return with_tokenizer(folder, self._room / f"model-{len(self.paths)}")


def model_folder(source: str, task: str) -> Path:
    """Folder whose config.json describes the model `source`.

    `source` is a folder, a GGUF file, a pocket model (`pocket` is the one of `task`), or a model of
    the hub that was downloaded before.
    """
    kind, _, rest = source.partition(":")
    if kind == "pocket":
        return pocket_path(*read_pocket(rest, task))
    check_model(source)
    if is_local(source):
        source = model_source(source)
        if not (Path(source) / "config.json").is_file():
            raise UsageError(f"{source} holds no config.json: name a model's own folder")
        return Path(source)
    from huggingface_hub import try_to_load_from_cache

    path = try_to_load_from_cache(source, "config.json")
    if not isinstance(path, str):
        raise UsageError(
            f"the model {source} of the hub was not downloaded to this machine, and memory is "
            f"counted without downloads: `hf download {source} config.json` fetches its shape; or "
            "name a folder"
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
