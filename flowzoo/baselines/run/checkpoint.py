"""Checkpoints: all that a run needs to continue with the same numbers, written atomically.

Layout of one checkpoint below the run's checkpoint folder:

    step-00000010/
      policies/<name>/   weights and tokenizer in Hugging Face layout (an adapter in PEFT layout,
                         with its base in `base.json`), and `learner.pt`: optimizer, counts, running
                         means; or parts of its tensors in `optimizer/`, one for each rank (see
                         `learner.saved`)
      random.pt          states of the generators of python, numpy and torch
      ahead.json         batches of the next steps that were sampled ahead (`max_staleness`)
      checkpoint.json    see `flowzoo.baselines.run.manifest`
"""

import functools
import logging
import os
import random
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from flowzoo.agents.identity import BASE_FILE, ModelIdentity
from flowzoo.agents.model_files import ADAPTER_CONFIG
from flowzoo.aliases import StateDict
from flowzoo.baselines.backends.backend import LearnerProtocol, LearnersLostError, RunBackend
from flowzoo.baselines.learner.saved import load_learner, save_learner, save_tensors
from flowzoo.baselines.run.ledger import Mark
from flowzoo.baselines.run.manifest import (
    CheckpointInfo,
    by_score,
    checkpoints,
    read,
    seal,
    set_aside,
    step_folders,
)
from flowzoo.declared import NonNegative, Positive, check_declared
from flowzoo.errors import DataError, SaveError, UsageError
from flowzoo.files import write_json
from flowzoo.grace import StepDroppedError

PARTIAL = ".partial-"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")

logger = logging.getLogger("flowzoo")


@dataclass(frozen=True, slots=True)
class CheckpointRetention:
    """Checkpoints to keep: the last few, the earliest of the best by score, and milestones."""

    last: Positive[int] = 2
    every: NonNegative[int] = 0
    """Keep checkpoints whose step is a multiple of this; 0: none."""

    def __post_init__(self) -> None:
        check_declared(self)


def save(
    root: Path | str,
    step: int,
    learners: Mapping[str, LearnerProtocol],
    tokenizers: Mapping[str, PreTrainedTokenizerBase] | None = None,
    *,
    state: Mapping[str, object] | None = None,
    score: float | None = None,
    keep: CheckpointRetention = CheckpointRetention(),
    models: Mapping[str, ModelIdentity] | None = None,
    texts: Mapping[str, str] | None = None,
    marks: Mapping[str, Mark] | None = None,
    backend: RunBackend | None = None,
    again: bool = False,
) -> Path:
    """Write the checkpoint of `step`, then remove the ones that `keep` drops.

    `learners` and `tokenizers` are by policy; `models` has what every policy began with, frozen
    ones too; `texts` are further files by name, `marks` the present marks of the run's growing
    files. With `again` it takes the place of one of the same step. Every rank must call it.
    """
    root, backend = Path(root), backend or RunBackend()
    target = root / f"step-{step:08d}"
    backend.once(lambda: _check_names(target, learners, again))
    manifest = {
        "step": step,
        "score": score,
        "policies": sorted(learners),
        "frozen": {
            name: model.location for name, model in (models or {}).items() if name not in learners
        },
        "models": {name: asdict(model) for name, model in (models or {}).items()},
        "state": dict(state or {}),
        "marks": {name: mark._asdict() for name, mark in (marks or {}).items()},
    }
    partial = root / f"{PARTIAL}{target.name}"

    def begin() -> None:
        root.mkdir(parents=True, exist_ok=True)
        for path in root.glob(f"{PARTIAL}*"):  # of a killed process
            shutil.rmtree(path)
        for name in learners:
            (partial / "policies" / name).mkdir(parents=True)

    def finish() -> None:
        _check_shared(partial, seen)
        _write(partial, tokenizers or {}, texts or {}, manifest)
        # Renamed once all of it is on disk, so that a folder `step-*` is always complete.
        old = _set_apart(target) if target.exists() else None
        os.rename(partial, target)
        _sync(root)
        if old is not None:
            shutil.rmtree(old)

    try:
        backend.once(begin)
        for name, learner in learners.items():
            folder = partial / "policies" / name
            backend.each(functools.partial(learner.apply, save_learner, folder))
        seen = backend.each(lambda: _sizes(partial))
        backend.once(finish)
    except (LearnersLostError, StepDroppedError):  # the next checkpoint removes partial files
        raise
    except Exception as error:  # torch and safetensors raise errors of different types
        if backend.writes:
            shutil.rmtree(partial, ignore_errors=True)
        raise SaveError(
            f"the checkpoint of step {step} could not be written to {root}: "
            f"{' '.join(str(error).split())}. Earlier checkpoints are intact: free "
            "disk space or correct the cause, and repeat the command to continue."
        ) from error
    backend.once(lambda: prune(root, keep))
    return target


def load(
    path: Path | str, learners: Mapping[str, LearnerProtocol], backend: RunBackend | None = None
) -> CheckpointInfo:
    """Load weights, optimizers and global random generators, for the policies that were saved."""
    info = read(path)
    # Before anything is changed: a disk may lose data in a way that leaves the sizes.
    (backend or RunBackend()).once(info.check)
    if sorted(learners) != sorted(info.policies):
        raise UsageError(
            f"{info.path} holds the policies {sorted(info.policies)}, this run has "
            f"{sorted(learners)}: resume with the policy map it was made with."
        )
    for name, learner in learners.items():
        learner.apply(load_learner, info.policy_path(name))
    # Last, since loading may draw; never unpickled.
    set_random_state(torch.load(info.path / "random.pt", weights_only=True))
    return info


def recover(
    root: Path, learners: Mapping[str, LearnerProtocol], backend: RunBackend | None = None
) -> tuple[CheckpointInfo | None, list[str]]:
    """Load the newest intact checkpoint, and set aside later ones, with a warning for each.

    Returns the checkpoint, and the damage of later ones. If none is intact, nothing is changed.
    """
    damaged: list[tuple[Path, str]] = []
    info = None
    backend = backend or RunBackend()
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
    return info, [damage for _, damage in damaged]


def _check_names(target: Path, learners: Mapping[str, LearnerProtocol], again: bool) -> None:
    if target.exists() and not again:
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
    manifest: StateDict,
) -> None:
    """Write all but the learners into `folder` and force it to disk; the manifest comes last."""
    for name in manifest["policies"]:
        if name in tokenizers:
            tokenizers[name].save_pretrained(folder / "policies" / name)
        if name in manifest["models"] and (folder / "policies" / name / ADAPTER_CONFIG).is_file():
            write_json(folder / "policies" / name / BASE_FILE, manifest["models"][name])
    save_tensors(random_state(), folder / "random.pt")
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    seal(folder, manifest)
    for path in sorted(folder.rglob("*"), reverse=True):
        _sync(path)
    _sync(folder)


def _sizes(folder: Path) -> dict[str, int]:
    return {
        str(path.relative_to(folder)): path.stat().st_size
        for path in folder.rglob("*")
        if path.is_file()
    }


def _check_shared(folder: Path, seen: Sequence[Mapping[str, int]]) -> None:
    """Refuse a folder that is not the same one on every rank; `seen` has the sizes of each rank."""
    # Without a shared file system each rank sees only the files that it wrote.
    for rank, files in enumerate(seen):
        for name, size in files.items():
            if seen[0].get(name) != size:
                raise UsageError(
                    f"rank {rank} has written {name}, which the first does not see in {folder}: "
                    "put --out on a file system that all machines share"
                )


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def prune(root: Path, keep: CheckpointRetention) -> None:
    """Remove the checkpoints that `keep` drops."""
    infos = checkpoints(root)
    paths = {info.path for info in (*infos[-keep.last :], *by_score(infos)[:1])}
    if keep.every:
        paths |= {info.path for info in infos if info.step % keep.every == 0}
    for info in infos:
        if info.path not in paths:
            _remove(info.path)


def _remove(path: Path) -> None:
    # Renamed first: a kill during the removal must not leave a torn `step-*`.
    shutil.rmtree(_set_apart(path))


def _set_apart(path: Path) -> Path:
    doomed = path.with_name(f"{PARTIAL}removed-{path.name}")
    os.rename(path, doomed)
    return doomed


def seed_random(seed: int) -> None:
    """Seed the global generators of python and numpy, which functions of users may draw from."""
    random.seed(seed)
    np.random.seed(seed % 2**32)


def random_state() -> StateDict:
    """States of the global generators, in types that load without unpickling."""
    name, keys, position, has_gauss, gauss = cast("tuple[Any, ...]", np.random.get_state())
    return {
        "python": random.getstate(),
        "numpy": (name, torch.from_numpy(keys.astype(np.int64)), position, has_gauss, gauss),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def set_random_state(state: StateDict) -> None:
    """Put `random_state()` back. Devices that are not here any more are left out."""
    random.setstate(state["python"])
    name, keys, position, has_gauss, gauss = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), position, has_gauss, gauss))
    torch.set_rng_state(state["torch"])
    if torch.cuda.is_available() and len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(state["cuda"])
