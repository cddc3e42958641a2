"""Checkpoints: everything a run needs to go on with the same numbers, and nothing torn.

Layout of one checkpoint below the run's checkpoint folder:

    step-00000010/
      policies/<name>/   weights and tokenizer in Hugging Face layout (float32 safetensors; loads
                         with `AutoModelForCausalLM.from_pretrained`), and `learner.pt`:
                         optimiser, clocks, running means; of a LoRA policy the adapter alone, in
                         PEFT layout; nothing of a frozen policy
      random.pt          states of the generators of python, numpy and torch
      ahead.json         the next step's batch, where it was sampled ahead (`max_staleness`)
      checkpoint.json    step, score, the trainer's own state (configuration, data cursor), what
                         frozen policies play with, and the size of every other file

A checkpoint is written under another name, synced to disk and then renamed, so a folder called
`step-*` is complete whenever a process dies or a disk is full, and older ones are removed only
after that. `latest` still checks every file's size (a disk may lose data in other ways) and passes
over what does not match. Nothing is ever unpickled.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
from transformers import PreTrainedTokenizerBase

from flowzoo.baselines.learner.update import Learner
from flowzoo.baselines.run.random_state import random_state, set_random_state
from flowzoo.errors import DataError, FlowzooError, UsageError, unknown

_MANIFEST = "checkpoint.json"
_FORMAT = 2
_STEP = re.compile(r"step-(\d{8,})")
_PARTIAL = ".partial-"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")

logger = logging.getLogger("flowzoo")


class SaveError(FlowzooError, OSError):
    """A checkpoint could not be written; those before it are whole."""


@dataclass(frozen=True, slots=True)
class CheckpointRetention:
    """Which checkpoints stay: the last few, the one of the best score, and milestones.

    Raises:
        UsageError: a number out of range.
    """

    last: int = 2
    best: bool = True
    """Also the one whose score is highest (the earliest of equals)."""
    every: int = 0
    """Also those whose step is a multiple of this; 0: none for that reason."""

    def __post_init__(self) -> None:
        """Check both numbers."""
        if self.last < 1:
            raise UsageError(f"`last` must be at least 1, got {self.last}.")
        if self.every < 0:
            raise UsageError(f"`every` must be at least 0, got {self.every}.")


@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """What a checkpoint says about itself."""

    path: Path
    step: int
    score: float | None
    """The validation score it was saved with, if any."""
    state: dict[str, Any]
    """What the trainer passed to `save`: configuration, data cursor, counters."""
    policies: tuple[str, ...]
    """Those that were trained."""
    frozen: Mapping[str, str] = field(default_factory=dict)
    """The others, and the model each plays with: a folder or an id of the hub."""

    def policy_path(self, name: str) -> Path:
        """Folder with the weights and tokenizer of a trained policy."""
        if name in self.frozen:
            raise UsageError(
                f"policy {name!r} is frozen: its weights are those of {self.frozen[name]!r}, and "
                "checkpoints hold none of them."
            )
        if name not in self.policies:
            raise unknown("policy", name, self.policies)
        return self.path / "policies" / name


def save(
    root: Path | str,
    step: int,
    learners: Mapping[str, Learner],
    tokenizers: Mapping[str, PreTrainedTokenizerBase] | None = None,
    *,
    state: Mapping[str, Any] | None = None,
    score: float | None = None,
    keep: CheckpointRetention | None = None,
    frozen: Mapping[str, str] | None = None,
    texts: Mapping[str, str] | None = None,
) -> Path:
    """Write the checkpoint of `step`, then remove those that `keep` (default:
    `CheckpointRetention()`) drops.

    `learners` and `tokenizers` are by policy name; `state` must be JSON-able; `frozen` names the
    models of policies that are not trained; `texts` are further files by name.

    Raises:
        UsageError: the step exists already (a checkpoint is never overwritten), a policy name
            cannot be a folder's, or `state` is not JSON-able.
        SaveError: it could not be written, e.g. on a full disk; what was there before is whole,
            and the space of what had been written is free again.
    """
    root = Path(root)
    target = root / f"step-{step:08d}"
    _check_names(target, learners)
    manifest = {
        "format": _FORMAT,
        "step": step,
        "score": score,
        "policies": sorted(learners),
        "frozen": dict(frozen or {}),
        "state": _plain(dict(state or {})),
    }
    partial = root / f"{_PARTIAL}{target.name}"
    try:
        root.mkdir(parents=True, exist_ok=True)
        _sweep(root)
        _write(partial, learners, tokenizers or {}, texts or {}, manifest)
        os.rename(partial, target)
        _sync(root)
    except Exception as error:  # torch and safetensors have their own for a failed write
        shutil.rmtree(partial, ignore_errors=True)
        raise SaveError(
            f"the checkpoint of step {step} could not be written to {root}: {error}. Those before "
            "it are whole: mend this (is the disk full?), and the run goes on from the last one."
        ) from error
    _prune(root, keep or CheckpointRetention())
    return target


def load(path: Path | str, learners: Mapping[str, Learner]) -> CheckpointInfo:
    """Put a checkpoint back: weights, optimisers, and the global random generators (last).

    `learners` must be of the same policies and architectures as those saved.

    Raises:
        DataError: the checkpoint is not complete.
        UsageError: the policies or the weights' names or shapes differ.
    """
    info = read(path)
    if sorted(learners) != sorted(info.policies):
        raise UsageError(
            f"{info.path} holds the policies {sorted(info.policies)}, this run has "
            f"{sorted(learners)}: resume with the policy map it was made with."
        )
    for name, learner in learners.items():
        folder = info.policy_path(name)
        learner.weights.load(folder)
        learner.load_state_dict(torch.load(folder / "learner.pt", weights_only=True))
    set_random_state(torch.load(info.path / "random.pt", weights_only=True))
    return info


def read(path: Path | str) -> CheckpointInfo:
    """What the checkpoint at `path` says about itself.

    Raises:
        DataError: it is not a complete checkpoint; the message says what is wrong.
    """
    path = Path(path)
    try:
        manifest = json.loads((path / _MANIFEST).read_text(encoding="utf-8"))
        made = manifest["format"]
        if made != _FORMAT:
            raise DataError(f"{path} has checkpoint format {made}, this version reads {_FORMAT}.")
        info = CheckpointInfo(
            path, manifest["step"], manifest["score"], manifest["state"],
            tuple(manifest["policies"]), manifest["frozen"],
        )  # fmt: skip
        sizes = cast("dict[str, int]", manifest["files"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path} is not a complete checkpoint: {error!r}.") from error
    for name, size in sizes.items():
        file = path / name
        if not file.is_file() or file.stat().st_size != size:
            raise DataError(f"{path} is torn: {name} should have {size} bytes.")
    return info


def checkpoints(root: Path | str) -> list[CheckpointInfo]:
    """The complete checkpoints below `root`, by step; a torn one is passed over with a warning."""
    root = Path(root)
    found: list[CheckpointInfo] = []
    for path in sorted(root.iterdir()) if root.is_dir() else ():
        if _STEP.fullmatch(path.name):
            try:
                found.append(read(path))
            except DataError as error:
                logger.warning("ignored: %s", error)
    return sorted(found, key=lambda info: info.step)


def latest(root: Path | str) -> CheckpointInfo | None:
    """The complete checkpoint of the highest step, or None."""
    found = checkpoints(root)
    return found[-1] if found else None


def best(root: Path | str) -> CheckpointInfo | None:
    """The complete checkpoint of the highest score (the earliest of equals), or None."""
    return _best(checkpoints(root))


def _best(found: list[CheckpointInfo]) -> CheckpointInfo | None:
    scored = [info for info in found if info.score is not None]
    return max(scored, key=lambda info: (cast("float", info.score), -info.step), default=None)


def _check_names(target: Path, learners: Mapping[str, Learner]) -> None:
    """Raise `UsageError` if there is such a checkpoint, or for a name that no folder can have."""
    if target.exists():
        raise UsageError(
            f"{target} exists already: resume from it, or choose another folder for a new run."
        )
    for name in learners:
        if not _NAME.fullmatch(name):
            raise UsageError(
                f"policy name {name!r} must be letters, digits, `_`, `.` and `-`, not starting "
                "with `.` or `-`."
            )


def _write(
    folder: Path,
    learners: Mapping[str, Learner],
    tokenizers: Mapping[str, PreTrainedTokenizerBase],
    texts: Mapping[str, str],
    manifest: dict[str, Any],
) -> None:
    """Write everything into the new `folder` and force it to disk; the manifest comes last."""
    folder.mkdir()
    for name, learner in learners.items():
        place = folder / "policies" / name
        place.mkdir(parents=True)
        learner.weights.save(place)
        if name in tokenizers:
            tokenizers[name].save_pretrained(place)
        torch.save(learner.state_dict(), place / "learner.pt")
    torch.save(random_state(), folder / "random.pt")
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    sizes = {str(path.relative_to(folder)): path.stat().st_size for path in _files(folder)}
    text = json.dumps({**manifest, "files": sizes}, indent=1)
    (folder / _MANIFEST).write_text(text, encoding="utf-8")
    _sync_tree(folder)


def _plain(state: dict[str, Any]) -> dict[str, Any]:
    """`state` if JSON gives it back unchanged up to tuples; else an error."""
    try:
        return json.loads(json.dumps(state))
    except (TypeError, ValueError) as error:
        raise UsageError(f"`state` must be JSON-able: {error}.") from error


def _sweep(root: Path) -> None:
    """Remove what a killed process left half written or half removed."""
    for path in root.glob(f"{_PARTIAL}*"):
        shutil.rmtree(path)


def _prune(root: Path, keep: CheckpointRetention) -> None:
    """Remove the checkpoints that `keep` drops."""
    found = checkpoints(root)
    kept = {info.path for info in found[-keep.last :]}
    champion = _best(found) if keep.best else None
    if champion is not None:
        kept.add(champion.path)
    if keep.every:
        kept |= {info.path for info in found if info.step % keep.every == 0}
    for info in found:
        if info.path not in kept:
            # Renamed first: a kill in the middle must not leave a torn `step-*`.
            doomed = root / f"{_PARTIAL}removed-{info.path.name}"
            os.rename(info.path, doomed)
            shutil.rmtree(doomed)


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.is_file())


def _sync_tree(folder: Path) -> None:
    """Force every file and folder below `folder`, and itself, to disk."""
    for path in sorted(folder.rglob("*"), reverse=True):
        _sync(path)
    _sync(folder)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
