"""The run directory: settings, metrics, transcripts; a crash loses none of them.

run.json            settings and provenance of the run, with the digest of both
metrics.jsonl       one object per step (step 0 is the evaluation before training)
digests.jsonl       size and SHA-256 of every file of transcripts
tensorboard/        the same numbers as event files
transcripts/        episodes with every message and reply, one file per saved step
nonfinite-STEP.jsonl  the rows that stopped the run, if any did
checkpoints/        see `flowzoo.baselines.run.checkpoint`; and copies of the two files above
aside/N/            repeated steps and damaged files
summary.json        written at the end
"""

import json
import logging
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from flowzoo.agents.evaluation.summary import refuse_evaluation
from flowzoo.agents.identity import ModelIdentity, is_speech
from flowzoo.aliases import MetricRow
from flowzoo.baselines.run.ledger import DIGESTS, Aside, Ledger, Mark, TranscriptDigests
from flowzoo.baselines.run.manifest import METRICS, CheckpointInfo, read, step_folders
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.settings.sft import SftConfig
from flowzoo.envs import Call, EpisodeRecord
from flowzoo.envs.records import json_line
from flowzoo.errors import DataError, UsageError
from flowzoo.files import (
    check_lock,
    free_path,
    lock_folder,
    read_json,
    read_sealed,
    reading,
    sealed,
    unlock_folder,
    write_json,
    writing,
)
from flowzoo.permission import PERMISSION
from flowzoo.provenance import describe_run

logger = logging.getLogger("flowzoo")

SUMMARY = "summary.json"
RECORD = "run.json"
VOLATILE = ("perf/", "time/")
"""Prefixes of metrics that depend on the speed of the machine; all others repeat exactly."""

_MAY_CHANGE = (
    "out", "steps", "stop_at", "stop_patience", "on_collapse", "alert", "schedule_steps",
    "threads", "wandb", "trackio", "backend", "ranks", "shard", "ray_address", "rollout_workers",
    "rollout_gpus", "learner_workers", "learner_gpus", "graders", "max_calls", "sync_check_every",
    "max_logp_gap", "stop_within", "wait_limit", "function_limit",
)  # fmt: skip
"""Settings that may differ between a run and its resumption."""


_ACTIVITY = "training"  # what another process does in a locked directory
_TRANSCRIPT = re.compile(r"(?:eval|train)-(\d+)\.jsonl")

RowKey = tuple[str, str, int, int]


def row_key(call: Call) -> RowKey:
    """Identity of a training row within its step."""
    return call.node or call.episode, call.agent, call.turn, call.candidate


def plain(
    record: EpisodeRecord, advantages: Mapping[RowKey, float] | None = None
) -> dict[str, object]:
    """An episode as JSON with writers of tokens in place of ids; of training, with `advantages`."""
    row = record.to_json()
    for call, saved in zip(record.calls, row["calls"], strict=True):
        saved["output_tokens"], saved["prompt_tokens"] = call.output_tokens, call.prompt_tokens
        if advantages is not None:
            saved["advantage"] = advantages.get(row_key(call))
        for name in ("output_ids", "prompt_ids", "logps", "usage"):
            del saved[name]
    return row


def restart(root: Path) -> Path | None:
    """Move a run directory, if there is one, to the first free of ROOT.1, ROOT.2, …"""
    if not root.is_dir() or not any(root.iterdir()):
        return None
    # Other files of this process are named relative to it.
    if root.resolve() == Path.cwd():
        raise UsageError(f"{root.resolve()} cannot be moved from within: start from another folder")
    lock = lock_folder(root, _ACTIVITY)
    try:
        with writing(root):
            target = free_path(root)
            os.rename(root, target)
    finally:
        unlock_folder(lock, os.getpid())
    return target


def failures_path(root: Path) -> Path:
    """Path of the file for episodes whose script failed."""
    return root / "failures.jsonl"


class Earlier(NamedTuple):
    """Settings of an earlier run in a directory, and the models of its newest checkpoint."""

    settings: dict[str, Any]
    damage: str
    """Damage of its `run.json`; empty if it is intact."""
    models: Mapping[str, ModelIdentity]
    """The models that its policies began with, where they were recorded."""
    hooks: Mapping[str, str]
    """Digests of the functions that its settings name; none of a damaged record."""


def earlier_run(root: Path) -> Earlier | None:
    """Read the settings of the run in `root`; None if there is none."""
    with reading(root):
        begun = _has_begun(root)
    # A damaged `run.json` is replaced by the settings in the newest checkpoint.
    path, newest = root / RECORD, _newest(root / "checkpoints")
    models = newest.models if newest else {}
    try:
        record = read_sealed(path)
        if not isinstance(record.get("settings"), dict):
            raise DataError(f"{path} has no `settings`")
    except DataError as error:
        if newest is not None and "config" in newest.state:
            return Earlier(newest.state["config"], str(error), models, {})
        if not begun:
            return None
        raise DataError(f"{error}, and there is no complete checkpoint; {remedy(root)}") from error
    hooks = record.get("provenance", {}).get("hooks", {})
    return Earlier(record["settings"], "", models, hooks) if begun else None


def keep_speech(root: Path, models: Mapping[str, ModelIdentity]) -> dict[str, ModelIdentity]:
    """Copy tokenizers and templates of policies with another base out of the newest checkpoint.

    Returns the models, with these folders below `speech/`.
    """
    newest, spoken = _newest(root / "checkpoints"), dict(models)
    for name, model in models.items():
        if newest is None or not model.accepted or model.speech:
            continue
        folder = (root / "speech" / name).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        for path in newest.policy_path(name).iterdir():
            if is_speech(path.name):
                shutil.copyfile(path, folder / path.name)
        spoken[name] = replace(model, speech=str(folder))
    return spoken


def remedy(root: Path) -> str:
    """Remedy for damage that cannot be repaired from a checkpoint."""
    return (
        "restore it from a copy, or repeat the command with --restart, which keeps this run as "
        f"{free_path(root)} and trains anew"
    )


def find_measurements(root: Path) -> Iterator[str]:
    """Yield evidence in `root` of a run that got beyond its first evaluation."""
    metrics = root / METRICS
    if metrics.is_file():
        with reading(metrics):
            lines = metrics.read_bytes().count(b"\n")
        # The first row is of the evaluation before training, which is repeated at no loss.
        if lines > 1:
            yield f"{METRICS} has {lines} rows"
    elif os.path.lexists(metrics):
        yield f"{METRICS} is not a file"
    steps = [step for step, _ in _transcripts(root) if step > 0]
    if steps:
        yield f"transcripts/ reach step {max(steps)}"
    if os.path.lexists(root / SUMMARY):
        yield f"there is a {SUMMARY}"
    if any(root.glob("nonfinite-*")):
        yield "rows that were not finite are saved"


def rewind(
    root: Path, info: CheckpointInfo | None, aside: Aside, ledger: Ledger
) -> list[MetricRow]:
    """Rewind metrics and transcripts to a checkpoint (None: the start), and return the rows."""
    step = -1 if info is None else info.step
    mark = None if info is None else info.marks.get(METRICS)
    rows = ledger.keep(mark, aside, remedy(root))
    # Measurements are never overwritten: later ones are moved.
    for written, transcript in _transcripts(root):
        if written > step:
            aside.take(transcript)
    return [json.loads(line) for line in rows.splitlines()]


def clear_summary(root: Path, aside: Aside, step: int) -> None:
    """Move a summary aside if it is damaged or of another last step than `step`."""
    path = root / SUMMARY
    if not os.path.lexists(path):
        return
    try:
        summary = read_json(path)
        if isinstance(summary, dict) and summary.get("steps") == step:
            return
    except DataError as error:
        logger.warning("%s; it is written again", error)
    aside.take(path)


def _has_begun(root: Path) -> bool:
    path = root / METRICS
    rows = os.path.lexists(path) and (not path.is_file() or path.stat().st_size > 0)
    return rows or bool(step_folders(root / "checkpoints")) or any(find_measurements(root))


def _newest(root: Path) -> CheckpointInfo | None:
    for path in reversed(step_folders(root)):
        try:
            return read(path)
        except DataError:
            continue
    return None


def _transcripts(root: Path) -> list[tuple[int, Path]]:
    folder = root / "transcripts"
    paths = sorted(folder.iterdir()) if folder.is_dir() else []
    return [(int(match[1]), path) for path in paths if (match := _TRANSCRIPT.fullmatch(path.name))]


class RunDirectory:
    """The files of one run."""

    def __init__(
        self,
        config: TrainConfig | SftConfig,
        grading: Mapping[str, object],
        hooks: Mapping[str, str] = MappingProxyType({}),
        *,
        anew: bool = False,
    ) -> None:
        self.root = config.directory
        self.checkpoints = self.root / "checkpoints"
        self.transcripts = self.root / "transcripts"
        self.metrics = self.root / METRICS
        self._rows = Ledger(self.metrics, self.checkpoints / METRICS)
        self._digests = TranscriptDigests(self.root, self.checkpoints)
        self.failures = failures_path(self.root)
        self.aside = Aside(self.root)
        self._saving = threading.Lock()
        refuse_evaluation(self.root, "choose another `out`")
        moved = restart(self.root) if anew else None
        if moved is not None:
            logger.warning("the earlier run in %s is kept as %s", self.root, moved)
        with writing(self.transcripts):
            self.transcripts.mkdir(parents=True, exist_ok=True)
        # Before anything is read: another process may be writing.
        self._lock, self._owner = lock_folder(self.root, _ACTIVITY), os.getpid()
        try:
            self._earlier = earlier_run(self.root)
            settings = json.loads(json.dumps(asdict(config)))
            if self._earlier is not None:
                self._check_same(self._earlier, settings, hooks)
        except BaseException:
            self.close()
            raise
        self._record = {
            "settings": settings, "grading": dict(grading), "provenance": describe_run()
        }  # fmt: skip
        if hooks:
            self._record["provenance"]["hooks"] = dict(hooks)

    def _check_same(
        self, earlier: Earlier, settings: Mapping[str, object], hooks: Mapping[str, str]
    ) -> None:
        old = earlier.settings
        changed = [
            f"{name} {old.get(name)!r} -> {value!r}"
            for name, value in settings.items()
            if name not in _MAY_CHANGE and old.get(name) != value
        ]
        if changed:
            raise UsageError(
                f"{self.root} holds a run with other settings ({'; '.join(changed)}): "
                "choose another --out, or repeat the run's own settings to resume it"
            )
        # A damaged record has its own warning, and no functions.
        for name, digest in hooks.items() if not earlier.damage else ():
            if earlier.hooks.get(name) != digest:
                raise UsageError(
                    f"{self.root} holds a run with another version of the function {name} (its "
                    "file has changed): restore the file, or choose another --out"
                )

    def begin(
        self,
        info: CheckpointInfo | None,
        damaged: Sequence[str] = (),
        *,
        finished: Callable[[Sequence[MetricRow]], bool] = lambda rows: False,
    ) -> list[MetricRow]:
        """Rewind the files to the checkpoint `info`, and return the metrics so far."""
        evidence = [*damaged, *find_measurements(self.root)]
        if info is None and evidence:
            raise DataError(
                f"{self.root} holds a run without an intact checkpoint ({'; '.join(evidence)}): "
                f"{remedy(self.root)}"
            )
        rows = rewind(self.root, info, self.aside, self._rows)
        self._digests.begin(info.marks.get(DIGESTS) if info else None, self.aside)
        clear_summary(self.root, self.aside, info.step if info and finished(rows) else -1)
        path = self.root / RECORD
        if self._earlier is not None and self._earlier.damage:
            logger.warning("%s; it is written anew with the settings of the checkpoint",
                           self._earlier.damage)  # fmt: skip
            if os.path.lexists(path):
                self.aside.take(path)
        with writing(path):
            write_json(path, sealed(self._record))
        PERMISSION.note_own(path)
        return rows

    def close(self) -> None:
        """Unlock the directory; the end of the process does so as well."""
        unlock_folder(self._lock, self._owner)

    def log(self, row: Mapping[str, object]) -> None:
        """Append one line of metrics and force it to disk."""
        check_lock(self.root, self._lock)
        self._rows.append(row)

    def marks(self) -> dict[str, Mark]:
        """Copy the growing files, and return their marks for a checkpoint."""
        check_lock(self.root, self._lock)
        return {METRICS: self._rows.mark(), DIGESTS: self._digests.mark()}

    def save_rows(self, step: int, calls: Iterable[Call]) -> Path:
        """Write `nonfinite-{step}.jsonl`, whole calls with ids and log-probs, NaN included."""
        # Policies that learn at the same time may fail at the same time.
        with self._saving:
            path = free_path(self.root / f"nonfinite-{step:06d}.jsonl")
            self._write_lines(path, (call.to_json() for call in calls))
        return path

    def save_transcripts(
        self,
        kind: str,
        step: int,
        records: Iterable[EpisodeRecord],
        advantages: Mapping[RowKey, float] | None = None,
    ) -> Path:
        """Write `transcripts/{kind}-{step}.jsonl`; kind is `train` or `eval`.

        `advantages` of training rows are saved with their calls; null: not trained on.
        """
        check_lock(self.root, self._lock)
        path = self.transcripts / f"{kind}-{step:06d}.jsonl"
        self._write_lines(path, (plain(record, advantages) for record in records))
        self._digests.add(path)
        return path

    def save_summary(self, summary: Mapping[str, object]) -> None:
        """Write `summary.json`."""
        with writing(self.root / SUMMARY):
            write_json(self.root / SUMMARY, summary)

    @staticmethod
    def _write_lines(path: Path, rows: Iterable[dict[str, Any]]) -> None:
        with writing(path), path.open("w", encoding="utf-8", errors="backslashreplace") as file:
            for row in rows:
                file.write(json_line(row))
            file.flush()
            os.fsync(file.fileno())


class RunFollower:
    """Replaces `RunDirectory` and `MetricLogger` on ranks that do not write."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.checkpoints = root / "checkpoints"
        self.metrics = root / METRICS
        self.failures = failures_path(root)
        self.aside = Aside(root)

    def ignore(self, *given: object, **named: object) -> None:
        """Do nothing."""

    log = add = save_transcripts = save_summary = close = ignore

    def marks(self) -> dict[str, Mark]:
        """Return no marks."""
        return {}

    def save_rows(self, step: int, calls: Iterable[Call]) -> Path:
        """Return the folder of the run."""
        return self.root
