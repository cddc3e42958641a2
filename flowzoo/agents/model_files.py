"""Models by name: folders, GGUF files and ids of the Hugging Face hub.

A GGUF file is dequantized once into a cache folder in Hugging Face layout. Nothing in it is
executed. Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import hashlib
import json
import logging
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from flowzoo.errors import FlowzooError, UsageError, need_module
from flowzoo.files import (
    cache_folder,
    check_digests,
    file_digest,
    present_digest,
    read_json,
    read_sealed,
    replace_text,
    write_json,
)

SUFFIX = ".gguf"
MAGIC = b"GGUF"
SOURCE_FILE = "gguf.json"
"""File of a converted folder: name and SHA-256 of the GGUF file. It is written last."""

_PURPOSE = "a model in a .gguf file"
_log = logging.getLogger(__name__)

_SPECIAL_TOKENS = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
"""Special tokens of transformers, and their names in the metadata."""

_SHAPE = {
    "num_hidden_layers": "block_count",
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "max_position_embeddings": "context_length",
}
"""Fields of a configuration, and the keys of the metadata that state the same."""


def pocket_roots() -> tuple[Path, Path]:
    """The folders with a folder of each pocket model: shipped ones, and made ones."""
    return Path(__file__).parent / "pocket", cache_folder() / "pocket"


def is_gguf(source: str | os.PathLike[str]) -> bool:
    """Return whether `source` names a GGUF file."""
    return os.fspath(source).endswith(SUFFIX)


def check_gguf(source: str) -> None:
    """Check that `source` can be converted, without loading it."""
    try:
        with open(source, "rb") as file:
            start = file.read(len(MAGIC))
    except OSError as error:
        raise UsageError(f"cannot read the GGUF file {source!r}: {error.strerror}") from error
    if start != MAGIC:
        raise UsageError(f"{source!r} is not a GGUF file: it does not begin with the bytes 'GGUF'")
    need_module("gguf", _PURPOSE)


def model_source(
    source: str | os.PathLike[str], revision: str = "", *, weights: bool = True
) -> str:
    """The folder of a model: `source`, its conversion if it is a GGUF file, its copy of the hub.

    Args:
        source: a folder, a GGUF file, which is converted on first use, or an id on the hub.
        revision: commit of an id on the hub; by default its newest.
        weights: load the weights of an id on the hub, too.
    """
    path = os.fspath(source)
    if not is_gguf(path):
        return path if is_local(path) else _hub_folder(path, revision, weights)
    check_gguf(path)
    digest = present_digest(Path(path))
    folder = cache_folder() / "gguf" / f"{Path(path).stem}-{digest[:16]}"
    if (folder / SOURCE_FILE).is_file():
        return str(folder)
    need_module("transformers", _PURPOSE)
    key = hashlib.sha256(f"{path} {digest} {version('transformers')}".encode()).hexdigest()
    refusal = cache_folder() / "refused" / key[:32]
    if refusal.is_file():
        raise MisreadError(refusal.read_text(encoding="utf-8"))
    try:
        _convert(Path(path), digest, folder)
    except MisreadError as error:
        refusal.parent.mkdir(parents=True, exist_ok=True)
        replace_text(refusal, str(error))
        raise
    return str(folder)


class MisreadError(UsageError):
    """A GGUF file without what is needed, or that transformers reads otherwise than it states."""


def _convert(path: Path, digest: str, folder: Path) -> None:
    # Beside `folder`, then moved there: two processes may convert at once.
    _log.warning("converting %s into %s (once)", path, folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        metadata = _read_metadata(path)
        if not metadata.get("tokenizer.chat_template"):
            raise MisreadError(
                f"{path} holds no chat template: use the instruct version of the model, or the "
                "model in Hugging Face layout with a chat_template.jinja"
            )
        with _reading(path, metadata):
            # Before the weights, which take most of the time.
            tokenizer = _load_tokenizer(path, metadata)
            _check_tokenizer(path, metadata, tokenizer)
            model = _load_weights(path, metadata)
            _check_model(path, metadata, model)
        model.save_pretrained(partial)
        tokenizer.model_max_length = model.config.get_text_config().max_position_embeddings
        tokenizer.save_pretrained(partial)
        (partial / "README.md").write_text(_card(path, digest, metadata), encoding="utf-8")
        write_json(partial / SOURCE_FILE, {"file": path.name, "sha256": digest})
        if folder.is_dir():
            # Another process was faster; a folder without SOURCE_FILE is a torn conversion.
            if (folder / SOURCE_FILE).is_file():
                return
            shutil.rmtree(folder)
        os.replace(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _read_metadata(path: Path) -> dict[str, Any]:
    # Names of the tensors are under `tensors`.
    from gguf import GGUFReader

    try:
        reader = GGUFReader(path)
        metadata = {name: field.contents() for name, field in reader.fields.items()}
    except Exception as error:  # of any kind, by what the file holds
        raise UsageError(f"{path} is damaged: it cannot be read as GGUF ({error})") from error
    metadata["tensors"] = {tensor.name for tensor in reader.tensors}
    return metadata


@contextmanager
def _reading(path: Path, metadata: Mapping[str, object]) -> Iterator[None]:
    need_module("torch", _PURPOSE)
    need_module("transformers", _PURPOSE)
    try:
        yield
    except FlowzooError:
        raise
    except Exception as error:  # of any kind, by what the file holds
        architecture = metadata.get("general.architecture")
        raise UsageError(
            f"transformers cannot read {path} (architecture {architecture}): {error}. Use a model "
            "in Hugging Face layout instead."
        ) from error


def _load_tokenizer(path: Path, metadata: Mapping[str, Any]) -> Any:
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    tokens = metadata["tokenizer.ggml.tokens"]
    # transformers puts its defaults in place of the file's special tokens.
    for name, number in _special_tokens(metadata):
        setattr(tokenizer, f"{name}_token", tokens[number])
    tokenizer.chat_template = metadata["tokenizer.chat_template"]
    tokenizer.init_kwargs["clean_up_tokenization_spaces"] = False
    return tokenizer


def _special_tokens(metadata: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    for name, key in _SPECIAL_TOKENS.items():
        number = metadata.get(f"tokenizer.ggml.{key}_token_id")
        if number is not None:
            yield name, number


def _load_weights(path: Path, metadata: Mapping[str, Any]) -> Any:
    # In float32, which holds each dequantized value exactly.
    import torch
    from transformers import AutoModelForCausalLM, GgufConfig, modeling_gguf_pytorch_utils
    from transformers.utils import logging

    hide_bars()
    # Its own bar, which transformers' switch does not reach.
    vars(modeling_gguf_pytorch_utils)["tqdm"] = logging.tqdm
    model, info = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32, output_loading_info=True,
        quantization_config=GgufConfig(dequantize=True, gguf_file=path.name),
    )  # fmt: skip
    _check_weights(path, info)
    for name, number in _special_tokens(metadata):
        setattr(model.config, f"{name}_token_id", number)
        if name != "unk":
            setattr(model.generation_config, f"{name}_token_id", number)
    return model


def save_model(model: Any, folder: Path, **options: Any) -> None:
    """Write `model` in Hugging Face layout, its generation config as it was read."""
    # transformers reads one with a temperature and without `do_sample`, and refuses to write it.
    generation = model.generation_config
    model.generation_config = type(generation)()
    try:
        model.save_pretrained(folder, **options)
    finally:
        model.generation_config = generation
    generation.to_json_file(folder / GENERATION)


def hide_bars() -> None:
    """Switch off progress bars of transformers where stderr is no terminal: they litter logs."""
    if not sys.stderr.isatty():
        from transformers.utils.logging import disable_progress_bar

        disable_progress_bar()


def _check_weights(path: Path, info: Mapping[str, Any]) -> None:
    for kind in ("missing_keys", "mismatched_keys", "unexpected_keys"):
        # transformers fills such weights with random numbers, or drops them, and goes on.
        if names := sorted(map(str, info[kind])):
            raise MisreadError(
                f"transformers cannot read {path}: {kind.replace('_', ' ')} {', '.join(names[:3])}"
                f"{' ...' if len(names) > 3 else ''}. Use a model in Hugging Face layout instead."
            )


def _check_model(path: Path, metadata: Mapping[str, Any], model: Any) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        skeleton = AutoModelForCausalLM.from_config(model.config, trust_remote_code=False)
    sizes = {name: tensor.shape for name, tensor in skeleton.state_dict().items()}
    for name, tensor in model.state_dict().items():
        if sizes.get(name) != tensor.shape:
            raise MisreadError(
                f"{path} is damaged: by its metadata {name} has the shape "
                f"{tuple(sizes.get(name, ()))}, its weights have {tuple(tensor.shape)}"
            )
    config = model.config.get_text_config()
    architecture = metadata["general.architecture"]
    stated = {name: metadata.get(f"{architecture}.{key}") for name, key in _SHAPE.items()}
    stated["vocab_size"] = len(metadata["tokenizer.ggml.tokens"])
    stated["tie_word_embeddings"] = "output.weight" not in metadata["tensors"]
    for name, value in stated.items():
        if value is not None and getattr(config, name) != value:
            raise MisreadError(
                f"{path} states {name} {value}, transformers read {getattr(config, name)}: this "
                "version of transformers does not read it rightly; use another one, or the model "
                "in Hugging Face layout"
            )


def _check_tokenizer(path: Path, metadata: Mapping[str, Any], tokenizer: Any) -> None:
    tokens = metadata["tokenizer.ggml.tokens"]
    problems = []
    readings = tokenizer.convert_ids_to_tokens(list(range(len(tokens))))
    wrong = [token for token, read in zip(tokens, readings, strict=True) if token != read]
    if wrong:
        problems.append(f"{len(wrong)} tokens differ, the first is {wrong[0]!r}")
    for name, number in _special_tokens(metadata):
        if getattr(tokenizer, f"{name}_token_id") != number:
            problems.append(f"{name}_token_id is not {number}")
    bos = metadata.get("tokenizer.ggml.add_bos_token")
    if bos is not None:
        first = tokenizer("a").input_ids[:1]
        if (first == [tokenizer.bos_token_id]) != bool(bos):
            problems.append(f"add_bos_token is not {bool(bos)}")
    if problems:
        raise MisreadError(
            f"transformers does not read the tokenizer of {path} as it is stated there "
            f"({'; '.join(problems)}): use the model in Hugging Face layout"
        )


def _card(path: Path, digest: str, metadata: Mapping[str, object]) -> str:
    terms, name = metadata.get("general.license"), metadata.get("general.name") or path.stem
    head = f"---\nlicense: {json.dumps(terms)}\n---\n" if terms else ""
    origin = f"Dequantized from `{path.name}` (SHA-256 {digest}) to float32 by flowzoo."
    return f"{head}# {name}\n\n{origin}\n"


MANIFEST = "checkpoint.json"
"""Manifest of a checkpoint, beside its files `policies/NAME/...`."""
_OF_LEARNER = "learner.pt"
"""State of the optimizer, which only a resumed run reads."""

ADAPTER_CONFIG = "adapter_config.json"
GENERATION = "generation_config.json"
_TEXTS = ["*.json", "*.jinja", "*.model", "*.txt"]
_WEIGHTS = ("model.safetensors", "adapter_model.safetensors")
"""Files of a model on the hub: all but weights, and weights without an index of files."""

_logged: set[str] = set()
_DESCRIBED_BY = ("config.json", ADAPTER_CONFIG, "params.json")
"""Every model's folder has one of these: transformers', an adapter's, Mistral's."""
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?", re.ASCII)


def check_model(source: str) -> None:
    """Check that a source is a model's folder, a GGUF file or a valid hub id; loads nothing."""
    if is_gguf(source):
        check_gguf(source)
    elif os.path.isdir(source):
        if not any(os.path.isfile(os.path.join(source, name)) for name in _DESCRIBED_BY):
            raise UsageError(
                f"the folder {source!r} holds no config.json, so there is no model in it: expected "
                "one with config.json, tokenizer files and *.safetensors."
            )
    elif _NAME.fullmatch(source) is None:
        raise UsageError(
            f"there is no folder {source!r}: expected one with a model (config.json, tokenizer "
            "files, *.safetensors), a .gguf file, or the name of a model on the hub, e.g. "
            "owner/name."
        )


def is_local(source: str) -> bool:
    """Return whether `source` is no id on the hub."""
    return os.path.exists(source) or _NAME.fullmatch(source) is None


def _hub_folder(name: str, revision: str, weights: bool) -> str:
    from huggingface_hub import constants, snapshot_download

    if name not in _logged:
        _logged.add(name)
        _log.warning("there is no folder %s: looking for a model of that name on the hub", name)

    load = partial(
        snapshot_download,
        name,
        revision=revision or None,
        local_files_only=constants.HF_HUB_OFFLINE,
    )
    try:
        folder = load(allow_patterns=_TEXTS)
        if weights:
            index = Path(folder) / "model.safetensors.index.json"
            shards = read_json(index)["weight_map"].values() if index.is_file() else _WEIGHTS
            load(allow_patterns=sorted({*shards}))
    except Exception as error:  # of any kind, by what the index of files holds, too
        raise cannot_load(name, error) from error
    return folder


def cannot_load(source: str, error: Exception) -> UsageError:
    """The error of a model that transformers cannot read."""
    return UsageError(
        f"cannot load a model from {source!r}; expected a folder with config.json, tokenizer "
        f"files and *.safetensors, or a model id of the hub: {' '.join(str(error).split())}"
    )


EXPORT_MANIFEST = "manifest.json"
"""File of an exported policy with the digests of the others, in the form of OpenSSF's model signing
(an in-toto statement), which its tools verify and sign."""
_PREDICATE = "https://model_signing/signature/v1.0"


def write_manifest(folder: Path, name: str) -> None:
    """Write the manifest of the files in `folder`, whose model has this name."""
    files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))
    digests = {file: file_digest(folder / file) for file in files if (folder / file).is_file()}
    whole = hashlib.sha256(b"".join(map(bytes.fromhex, digests.values()))).hexdigest()
    statement = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": name, "digest": {"sha256": whole}}],
        "predicateType": _PREDICATE,
        "predicate": {
            "serialization": {
                "method": "files", "hash_type": "sha256", "allow_symlinks": False,
                "ignore_paths": [EXPORT_MANIFEST],
            },
            "resources": [
                {"name": file, "algorithm": "sha256", "digest": digest}
                for file, digest in digests.items()
            ],
        },
    }  # fmt: skip
    write_json(folder / EXPORT_MANIFEST, statement)


def _exported_digests(folder: Path) -> dict[str, str]:
    record = read_json(folder / EXPORT_MANIFEST)
    if not isinstance(record, dict) or record.get("predicateType") != _PREDICATE:
        return {}
    rows = record["predicate"]["resources"]
    # People write into the model card.
    return {row["name"]: row["digest"] for row in rows if Path(row["name"]).suffix != ".md"}


def check_integrity(model: Path) -> None:
    """Compare the files of a model with their digests, if it is of a checkpoint or exported."""
    if (model / EXPORT_MANIFEST).is_file():
        check_digests(model, _exported_digests(model))
    root = model.parent.parent
    if model.parent.name != "policies" or not (root / MANIFEST).is_file():
        return
    prefix = f"policies/{model.name}/"
    files = read_sealed(root / MANIFEST).get("files", {})
    digests = {name: entry["sha256"] for name, entry in files.items() if name.startswith(prefix)}
    digests.pop(prefix + _OF_LEARNER, None)
    check_digests(root, digests)
