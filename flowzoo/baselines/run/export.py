"""Trained policies as folders in Hugging Face layout, or PEFT layout for an adapter alone."""

import os
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from flowzoo.agents.hf.policy import load_model
from flowzoo.agents.identity import BASE_FILE, ModelIdentity, adapter_base, identify
from flowzoo.agents.model_files import ADAPTER_CONFIG, save_model, write_manifest
from flowzoo.baselines.run.manifest import CheckpointInfo, find_checkpoint
from flowzoo.errors import UsageError, missing_extra
from flowzoo.files import is_vacant, write_json

_ADAPTER = ("adapter_model.safetensors", ADAPTER_CONFIG, BASE_FILE)
_PRIVATE = "learner.pt"
EXPORTED = "flowzoo.json"
"""File of an exported policy that says where it is from."""


class Exported(NamedTuple):
    """An exported policy."""

    path: Path
    policy: str
    step: int
    score: float | None
    """The validation score of the step, if it was evaluated."""
    base: str | None
    """Base model, if the folder holds an adapter only."""
    model: ModelIdentity | None
    """The model that the policy began with, where it was recorded."""


def export_policy(
    run: Path,
    out: Path,
    *,
    policy: str = "",
    step: str = "last",
    merge: bool = False,
    accept_base: bool = False,
    card: Callable[[Exported], str] | None = None,
) -> Exported:
    """Write one policy of a run into the new folder `out`, which appears whole or not at all.

    Args:
        run: directory of the run.
        out: folder to write; it must be new or empty.
        policy: name of the policy; needed where the run trains several.
        step: `best` (by validation score), `last`, or the number of a step that has a checkpoint.
        merge: add an adapter to its base instead of writing it alone.
        accept_base: merge with a base that has changed, too.
        card: what README.md says; None: there is none.

    Raises:
        UsageError: nothing to export under these names, `out` holds something, or the base to merge
            with has changed.
        MissingExtraError: peft is needed and not installed.
    """
    info = find_checkpoint(run, step)
    name = policy or _only(info)
    source = info.policy_path(name)
    base = adapter_base(source)
    if merge and base is None:
        raise UsageError(f"policy {name!r} has full weights and nothing to merge: leave it out.")
    if not is_vacant(out):
        raise UsageError(f"{out} exists already: choose a new folder.")
    # Renamed at the end, so that the folder appears whole or not at all.
    partial = out.with_name(f".{out.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    model, accepted = info.models.get(name), list[str]()
    try:
        if merge and base is not None:
            owner = f"the adapter in {source}"
            path = base.check(owner, accept_base)
            if accept_base and base.digests:
                accepted = base.changes(identify(base.location))
            save_model(merge_adapter(source, path), partial)
        _copy(source, partial, leave=(_PRIVATE, *(_ADAPTER if merge else ())))
        record: dict[str, Any] = {
            "policy": name, "step": info.step, "score": info.score, "merged": merge,
            "base": base and base.location, "settings": info.state.get("config"),
            "model": model and asdict(model), "accepted": accepted,
        }  # fmt: skip
        write_json(partial / EXPORTED, record)
        alone = None if merge or base is None else base.location
        done = Exported(out, name, info.step, info.score, alone, model)
        if card is not None:
            (partial / "README.md").write_text(card(done), encoding="utf-8")
        write_manifest(partial, out.resolve().name)
        os.replace(partial, out)  # over an empty folder too
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return done


def _only(info: CheckpointInfo) -> str:
    if len(info.policies) != 1:
        raise UsageError(
            f"{info.path.parents[1]} trains several policies, name one: {', '.join(info.policies)}."
        )
    return info.policies[0]


def merge_adapter(adapter: Path, base: str) -> Any:
    """The model at `base`, in float32, with the adapter of a folder added to its weights."""
    try:
        from peft import PeftModel
    except ImportError as error:
        raise missing_extra("peft", "train", "merging an adapter") from error
    model, _ = load_model(base, "float32")
    merged: Any = PeftModel.from_pretrained(model, str(adapter))
    return merged.merge_and_unload(safe_merge=True)


def _copy(source: Path, out: Path, leave: tuple[str, ...]) -> None:
    for path in sorted(source.iterdir()):
        if path.is_file() and path.name not in leave:
            shutil.copyfile(path, out / path.name)
