"""Identities of models: one record, made where a model is opened, compared at every reuse.

Checkpoints, adapters, exports and evaluations hold the record of their models.
"""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from flowzoo.agents.chat.rendering import warm
from flowzoo.agents.chat.template import find_family, stop_tokens
from flowzoo.agents.chat.thoughts import find_thoughts
from flowzoo.agents.model_files import (
    ADAPTER_CONFIG,
    EXPORT_MANIFEST,
    GENERATION,
    cannot_load,
    check_integrity,
    check_model,
    model_source,
    pocket_roots,
)
from flowzoo.errors import UsageError
from flowzoo.files import cache_folder, present_digest, read_json, write_json
from flowzoo.seeding import key_digest

BASE_FILE = "base.json"
"""The base of a saved adapter, beside it: fields of a `ModelIdentity`."""

_READ = {".safetensors", ".json", ".jinja", ".model", ".txt"}
"""Kinds of files that are read of a model: weights, configurations, tokenizer, chat templates."""
_COMPUTES = ("config.json", "model.safetensors.index.json", ADAPTER_CONFIG, BASE_FILE)
_MORE_TEMPLATES = "additional_chat_templates"
_POCKET = "pocket:"
_FACTS = ("template", "ends")
"""Facts that are compared; others are read out of the files by rules that may get better."""
_ACCEPTING = ", or go on with this one by --accept-base"
_SHOWN = 8
"""Characters of a digest in messages."""


@dataclass(frozen=True, slots=True)
class ModelIdentity:
    """A model by its place, by what decides what it computes, and by how it speaks."""

    location: str
    """Absolute path of its folder or GGUF file, `pocket:NAME`, or its id on the hub."""
    digests: Mapping[str, str] = field(default_factory=dict)
    """SHA-256 of its files by name; empty for an id on the hub, or if nothing was recorded."""
    revision: str = ""
    """Commit of an id on the hub, which is the one that is opened again."""
    name: str = ""
    """The model as it was named."""
    template: str = ""
    """Digest of its chat template."""
    ends: tuple[int, ...] = ()
    """Ids of tokens that end a reply."""
    thoughts: str = ""
    """Text that opens a thought in its chats; empty for a model without any."""
    tools: str = ""
    """Notation of its tool calls (`chat.template.Family`); empty if none is read."""
    dtype: str = ""
    """Number format of the weights in its files."""
    quantization: str = ""
    """Method by which its weights were quantized; empty: none."""
    speech: str = ""
    """Folder with the tokenizer of a run that went on with another model (`--accept-base`)."""
    accepted: tuple[str, ...] = ()
    """Differences of that model from the one before."""

    @classmethod
    def read(cls, record: Mapping[str, object]) -> "ModelIdentity":
        """The identity whose fields a file of JSON holds."""
        values: dict[str, Any] = {
            key: tuple(v) if isinstance(v, list) else v for key, v in record.items()
        }
        return cls(**values)

    @property
    def path(self) -> str:
        """Folder of the model on this machine, loaded from the hub or converted if need be."""
        if self.location.startswith(_POCKET):
            folders = [root / self.location.removeprefix(_POCKET) for root in pocket_roots()]
            return str(next((folder for folder in folders if folder.is_dir()), folders[0]))
        return model_source(self.location, self.revision)

    @property
    def named(self) -> str:
        """The name by which other libraries find the model: its folder, or its id on the hub."""
        return self.location if self.revision else self.path

    @property
    def digest(self) -> str:
        """One digest of what the model computes and how it speaks."""
        files = [part for item in sorted(self.digests.items()) for part in item]
        facts = [str(getattr(self, name)) for name in _FACTS]
        return key_digest(
            self.location if self.revision else "", self.revision, *files, *facts
        ).hex()

    def changes(self, now: "ModelIdentity") -> list[str]:
        """Differences of the model as it is `now` from this record: name, old and new value."""
        names = sorted({*self.digests, *now.digests})
        files = [(name, self.digests.get(name), now.digests.get(name)) for name in names]
        facts = [(name, getattr(self, name), getattr(now, name)) for name in _FACTS]
        pairs = [("revision", self.revision, now.revision), *files, *facts]
        return [f"{name} {_short(old)} -> {_short(new)}" for name, old, new in pairs if old != new]

    def check(self, owner: str, accept: bool | None = None) -> str:
        """Return the path, if the model there is the recorded one.

        Args:
            owner: what was made with the model, as the error names it.
            accept: take another one, too; None: there is no option to.

        Raises:
            UsageError: the model has changed, or is gone.
        """
        if not self.digests:
            return self.path
        path = self.find(owner)
        self.compare(identify(self.location, self.name, self.revision), owner, accept)
        return path

    def find(self, owner: str) -> str:
        """Return the path, if there is a model; see `check`."""
        if not os.path.exists(self.path):
            raise UsageError(
                f"{owner} was made with the model in {self.location}, and there is no such folder: "
                "put it back, or begin anew"
            )
        return self.path

    def compare(
        self, now: "ModelIdentity", owner: str, accept: bool | None = None
    ) -> "ModelIdentity":
        """Return `now`, if it is the recorded model; see `check`.

        One that was accepted, now or before, speaks as the recorded one does.
        """
        spoken = now.speaking_as(self) if self.speech or accept else now
        changes = self.changes(spoken if self.speech else now)
        if changes and not accept:
            raise UsageError(
                f"{now.location} is not the model that {owner} was made with "
                f"({', '.join(changes[:3])}{' ...' if len(changes) > 3 else ''}): put back what "
                f"was there, or begin anew{_ACCEPTING if accept is False else ''}"
            )
        return replace(spoken, accepted=(*self.accepted, *changes))

    def speaking_as(self, other: "ModelIdentity") -> "ModelIdentity":
        """This model with the tokenizer, chat template and ends of `other`."""
        digests = {name: digest for name, digest in self.digests.items() if _computes(name)}
        texts = {name: digest for name, digest in other.digests.items() if not _computes(name)}
        return replace(
            self, digests=digests | texts, template=other.template, ends=other.ends,
            thoughts=other.thoughts, tools=other.tools, speech=other.speech,
        )  # fmt: skip


class ModelTexts(NamedTuple):
    """A model without its weights."""

    tokenizer: Any
    config: Any
    generation: Any
    """The generation config; None for a model that has none."""

    @property
    def ends(self) -> tuple[int, ...]:
        """Ids of tokens that end a reply."""
        model = SimpleNamespace(config=self.config, generation_config=self.generation)
        return tuple(sorted(stop_tokens(model, self.tokenizer)))


def identify(source: str, name: str = "", revision: str = "") -> ModelIdentity:
    """Return the identity of the model at `source`.

    Args:
        source: a folder, a GGUF file, `pocket:NAME`, or an id on the hub.
        name: the model as it was named; by default `source`.
        revision: commit of an id on the hub; by default its newest.

    Raises:
        UsageError: there is no model under this name, or it cannot be read.
    """
    if source.startswith(_POCKET):
        source = ModelIdentity(source).path
    check_model(source)
    folder = Path(model_source(source, revision, weights=False))
    texts, base = load_texts(folder), adapter_base(folder)
    tokenizer, config = texts.tokenizer, texts.config
    template = str(tokenizer.chat_template or "")
    quantized = getattr(config, "quantization_config", None)
    thoughts = tools = ""
    with contextlib.suppress(UsageError):  # there is none, or it is refused when it is used
        thoughts = find_thoughts(tokenizer, {}).opening if template else ""
    with contextlib.suppress(UsageError):
        tools = find_family(template)
    path = Path(os.path.abspath(source)) if os.path.exists(source) else None
    location = str(path or source)
    if path and path.parent in pocket_roots():
        location = f"{_POCKET}{path.name}"
    identity = ModelIdentity(
        location,
        name=name or source,
        template=key_digest(template).hex() if template else "",
        ends=texts.ends,
        thoughts=thoughts,
        tools=tools,
        dtype=str(getattr(config, "dtype", None) or "").removeprefix("torch."),
        quantization=str(quantized.get("quant_method", "")) if quantized else "",
        accepted=base.accepted if base else (),
    )
    if path is None:
        return replace(identity, revision=folder.name)
    files = (*folder.iterdir(), *(folder / _MORE_TEMPLATES).glob("*"))
    digests = {
        str(file.relative_to(folder)): present_digest(file)
        for file in sorted(files)
        if _READ.intersection(file.suffixes) and file.is_file()
    }
    return replace(identity, digests=digests)


def load_texts(folder: Path) -> ModelTexts:
    """Load what a model is without its weights; of an adapter, with its base."""
    from transformers import AutoConfig, AutoTokenizer, GenerationConfig

    warm()
    base = whole_model(str(folder))
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        config = AutoConfig.from_pretrained(base, trust_remote_code=False)
    except Exception as error:  # tokenizers raise bare exceptions
        raise cannot_load(str(folder), error) from error
    try:
        source = folder if (folder / GENERATION).is_file() else base
        generation = GenerationConfig.from_pretrained(source)
    except OSError:
        generation = None  # many models have none
    return ModelTexts(tokenizer, config, generation)


def adapter_base(folder: Path) -> ModelIdentity | None:
    """The base of the adapter in `folder` as it was recorded; None if there is a whole model."""
    if (folder / "config.json").is_file() or not (folder / ADAPTER_CONFIG).is_file():
        return None
    record = folder / BASE_FILE
    if record.is_file():
        return ModelIdentity.read(read_json(record))
    config = read_json(folder / ADAPTER_CONFIG)
    path = config.get("base_model_name_or_path")
    if not path:
        raise UsageError(f"{folder / ADAPTER_CONFIG} must name a base_model_name_or_path: add it")
    check_model(path)
    return ModelIdentity(path, revision=config.get("revision") or "")


def whole_model(source: str) -> str:
    """Return `source`, or the base on which it is an adapter, if that has not changed."""
    base = adapter_base(Path(source))
    return source if base is None else base.check(f"the adapter in {source}", accept=False)


def accept_base(folder: str) -> str:
    """Return a model's folder or, of an adapter whose base has changed, a copy for the new base.

    The copy, in the cache folder, speaks as the adapter does, and records the differences.
    """
    source = Path(folder)
    base = adapter_base(source)
    now = identify(base.location, base.name, base.revision) if base and base.digests else None
    if base is None or now is None or not (changes := base.changes(now)):
        return folder
    check_integrity(source)
    files = [path for path in sorted(source.iterdir()) if path.suffix in _READ]
    digests = [present_digest(path) for path in files]
    copy = cache_folder() / "accepted" / key_digest(now.digest, *digests).hex()
    if not copy.is_dir():
        copy.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=copy.parent) as partial:
            whole = Path(partial, "adapter")
            whole.mkdir()
            for path in files:
                if path.name != EXPORT_MANIFEST:
                    shutil.copyfile(path, whole / path.name)
            record = replace(now, accepted=(*base.accepted, *changes))
            write_json(whole / BASE_FILE, asdict(record))
            with contextlib.suppress(OSError):  # another process was faster
                os.replace(whole, copy)
    return str(copy)


def compare_records(before: Mapping[str, Any], now: Mapping[str, Any], owner: str) -> None:
    """Refuse models that are other ones `now` than `before`; both are fields by spec."""
    for spec in sorted(before.keys() & now.keys()):
        ModelIdentity.read(before[spec]).compare(ModelIdentity.read(now[spec]), owner)


def end_at(model: Any, ends: Sequence[int]) -> None:
    """Have the generation config of a model, also where it is saved, name all its `ends`."""
    if ends:
        model.generation_config.eos_token_id = ends[0] if len(ends) == 1 else list(ends)


def is_speech(file: str) -> bool:
    """Return whether a model's file says how it speaks, and not what it computes."""
    return bool(_READ.intersection(Path(file).suffixes)) and not _computes(file)


def _computes(file: str) -> bool:
    return Path(file).suffix == ".safetensors" or file in _COMPUTES


def _short(value: object) -> str:
    if isinstance(value, str) and len(value) >= 2 * _SHOWN:
        value = value[:_SHOWN]
    return "none" if value in (None, "") else str(value).replace(" ", "")
