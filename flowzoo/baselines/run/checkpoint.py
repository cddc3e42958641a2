"""Checkpoints: all that a run needs to continue with the same numbers, written atomically.

Layout of one checkpoint below the run's checkpoint folder:

    step-00000010/
      policies/<name>/   weights and tokenizer in Hugging Face layout (float32 safetensors; loads
                         with `AutoModelForCausalLM.from_pretrained`), and `learner.pt`:
                         optimizer, counts, running means; of a LoRA policy the adapter alone, in
                         PEFT layout; nothing of a frozen policy; and `optimizer/`, where several
                         ranks have the tensors of `learner.pt` in parts (see `learner.saved`)
      random.pt          states of the generators of python, numpy and torch
      ahead.json         the next steps' batches, where some were sampled ahead (`max_staleness`)
      checkpoint.json    step, score, the trainer's state (configuration, data cursor), what
                         frozen policies play with, size and SHA-256 of every other file and of the
                         run's metrics up to the step (`flowzoo.baselines.run.ledger`), and the
                         SHA-256 of all this; see `flowzoo.baselines.run.manifest`

A checkpoint is written under another name, synced to disk and then renamed, so a folder called
`step-*` is complete even if a process dies or a disk is full, and older ones are removed only
afterwards. A disk may lose data in other ways, so `load` refuses files whose digest differs, and
`recover` falls back to the checkpoint before. Nothing is ever unpickled.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from functools import partial as partial_of
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import PreTrainedTokenizerBase

from flowzoo.baselines.backends.backend import (
    LearnerProtocol,
    LearnersLostError,
    LocalRunBackend,
    RunBackend,
)
from flowzoo.baselines.learner.saved import load_learner, save_learner, save_tensors
from flowzoo.baselines.run.ledger import Mark
from flowzoo.baselines.run.manifest import (
    CheckpointInfo,
    read,
    seal,
    set_aside,
    step_folders,
)
from flowzoo.baselines.run.random_state import random_state, set_random_state
from flowzoo.baselines.run.retention import PARTIAL, CheckpointRetention, prune
from flowzoo.errors import DataError, SaveError, UsageError

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")

logger = logging.getLogger("flowzoo")


def save(
    root: Path | str,
    step: int,
    learners: Mapping[str, LearnerProtocol],
    tokenizers: Mapping[str, PreTrainedTokenizerBase] | None = None,
    *,
    state: Mapping[str, Any] | None = None,
    score: float | None = None,
    keep: CheckpointRetention | None = None,
    frozen: Mapping[str, str] | None = None,
    texts: Mapping[str, str] | None = None,
    marks: Mapping[str, Mark] | None = None,
    backend: RunBackend | None = None,
) -> Path:
    """Write the checkpoint of `step`, then remove the ones that `keep` (default:
    `CheckpointRetention()`) drops.

    `learners` and `tokenizers` are by policy name; `state` must be JSON-able; `frozen` names the
    models of policies that are not trained; `texts` are further files by name, `marks` the
    present marks of the run's growing files. Every rank must call it.

    Raises:
        UsageError: the step exists already (a checkpoint is never overwritten), a policy name
            cannot be a folder's, or `state` is not JSON-able.
        SaveError: it could not be written, e.g. on a full disk; earlier checkpoints are intact,
            and partial files are removed.
    """
    root, backend = Path(root), backend or LocalRunBackend()
    target = root / f"step-{step:08d}"
    backend.once(lambda: _check_names(target, learners))
    manifest = {
        "step": step,
        "score": score,
        "policies": sorted(learners),
        "frozen": dict(frozen or {}),
        "state": _plain(dict(state or {})),
        "marks": {name: mark._asdict() for name, mark in (marks or {}).items()},
    }
    partial = root / f"{PARTIAL}{target.name}"

    def begin() -> None:
        root.mkdir(parents=True, exist_ok=True)
        _sweep(root)
        for name in learners:
            (partial / "policies" / name).mkdir(parents=True)

    def finish() -> None:
        _check_shared(partial, seen)
        _write(partial, tokenizers or {}, texts or {}, manifest)
        os.rename(partial, target)
        _sync(root)

    try:
        backend.once(begin)
        for name, learner in learners.items():
            folder = partial / "policies" / name
            backend.each(partial_of(learner.apply, save_learner, folder))
        seen = backend.each(lambda: _sizes(partial))
        backend.once(finish)
    except LearnersLostError:  # the next checkpoint removes partial files
        raise
    except Exception as error:  # torch and safetensors raise errors of different types
        if backend.writes:
            shutil.rmtree(partial, ignore_errors=True)
        raise SaveError(
            f"the checkpoint of step {step} could not be written to {root}: "
            f"{' '.join(str(error).split())}. Earlier checkpoints are intact: free "
            "disk space or correct the cause, and repeat the command to continue."
        ) from error
    backend.once(lambda: prune(root, keep or CheckpointRetention()))
    return target


def load(
    path: Path | str, learners: Mapping[str, LearnerProtocol], backend: RunBackend | None = None
) -> CheckpointInfo:
    """Load a checkpoint: weights, optimizers, and global random generators (last).

    `learners` must have the saved policies and architectures. Digests of all files are compared
    before anything is changed.

    Raises:
        DataError: the checkpoint is not intact.
        UsageError: the policies or the weights' names or shapes differ, or a file may not be read.
    """
    info = read(path)
    (backend or LocalRunBackend()).once(info.check)
    if sorted(learners) != sorted(info.policies):
        raise UsageError(
            f"{info.path} holds the policies {sorted(info.policies)}, this run has "
            f"{sorted(learners)}: resume with the policy map it was made with."
        )
    for name, learner in learners.items():
        learner.apply(load_learner, info.policy_path(name))
    set_random_state(torch.load(info.path / "random.pt", weights_only=True))
    return info


class Recovery(NamedTuple):
    """Result of `recover`."""

    info: CheckpointInfo | None
    """Checkpoint that was loaded, if one is intact."""
    damaged: tuple[str, ...]
    """Damage of the checkpoints after it; of all, if none is intact."""


def recover(
    root: Path, learners: Mapping[str, LearnerProtocol], backend: RunBackend | None = None
) -> Recovery:
    """Load the newest intact checkpoint, and set aside later ones, with a warning for each.

    If none is intact, nothing is changed.

    Raises:
        UsageError: see `load`.
    """
    damaged: list[tuple[Path, str]] = []
    info = None
    backend = backend or LocalRunBackend()
    for path in reversed(backend.once(lambda: step_folders(root))):
        try:
            info = load(path, learners, backend)
            break
        except DataError as error:
            damaged.append((path, str(error)))
    if info is not None and backend.writes:
        for path, damage in damaged:
            logger.warning(
                "%s; it is set aside as %s, and the run continues from the checkpoint of step %d",
                damage, set_aside(path).name, info.step,
            )  # fmt: skip
    return Recovery(info, tuple(damage for _, damage in damaged))


def _check_names(target: Path, learners: Mapping[str, LearnerProtocol]) -> None:
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
    tokenizers: Mapping[str, PreTrainedTokenizerBase],
    texts: Mapping[str, str],
    manifest: dict[str, Any],
) -> None:
    """Write all but the learners into `folder` and force it to disk; the manifest comes last."""
    for name in manifest["policies"]:
        if name in tokenizers:
            tokenizers[name].save_pretrained(folder / "policies" / name)
    save_tensors(random_state(), folder / "random.pt")
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    seal(folder, manifest)
    _sync_tree(folder)


def _sizes(folder: Path) -> dict[str, int]:
    """Sizes of the files in `folder` on this rank, by path."""
    return {
        str(path.relative_to(folder)): path.stat().st_size
        for path in folder.rglob("*")
        if path.is_file()
    }


def _check_shared(folder: Path, seen: Sequence[Mapping[str, int]]) -> None:
    """Refuse a folder that is not the same one on every rank; `seen` has the sizes of each rank."""
    for rank, files in enumerate(seen):
        for name, size in files.items():
            if seen[0].get(name) != size:
                raise UsageError(
                    f"rank {rank} has written {name}, which the first does not see in {folder}: "
                    "put --out on a file system that all machines share"
                )


def _plain(state: dict[str, Any]) -> dict[str, Any]:
    """Convert `state` to JSON types.

    Raises:
        UsageError: it has other types.
    """
    try:
        return json.loads(json.dumps(state))
    except (TypeError, ValueError) as error:
        raise UsageError(f"`state` must be JSON-able: {error}.") from error


def _sweep(root: Path) -> None:
    """Remove partial folders of a killed process."""
    for path in root.glob(f"{PARTIAL}*"):
        shutil.rmtree(path)


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
