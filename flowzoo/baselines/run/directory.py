"""The run directory: settings, metrics, transcripts; a crash loses none of them.

run.json            settings and provenance of the run, with the digest of both
metrics.jsonl       one object per step (step 0 is the evaluation before training)
digests.jsonl       size and SHA-256 of every file of transcripts
tensorboard/        the same numbers as event files
transcripts/        episodes with every message and reply, one file per saved step
nonfinite-STEP.jsonl  the rows that stopped the run, if any did
checkpoints/        see `flowzoo.baselines.run.checkpoint`; and copies of the two files above
aside/N/            repeated steps and damaged files; see `flowzoo.baselines.run.history`
summary.json        written at the end
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Any

from flowzoo.agents.evaluation.summary import refuse_evaluation
from flowzoo.aliases import MetricRow
from flowzoo.baselines.run.history import (
    RECORD,
    SUMMARY,
    Earlier,
    clear_summary,
    earlier_run,
    find_measurements,
    remedy,
    rewind,
)
from flowzoo.baselines.run.ledger import DIGESTS, Aside, Ledger, Mark, TranscriptDigests
from flowzoo.baselines.run.manifest import METRICS, CheckpointInfo
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.settings.sft import SftConfig
from flowzoo.envs import Call, EpisodeRecord
from flowzoo.envs.records import json_line
from flowzoo.errors import DataError, UsageError
from flowzoo.files import check_lock, free_path, lock_folder, sealed, write_json, writing
from flowzoo.permission import PERMISSION
from flowzoo.provenance import describe_run

logger = logging.getLogger("flowzoo")

VOLATILE = ("perf/", "time/")
"""Prefixes of metrics that depend on the speed of the machine; all others repeat exactly."""

_MAY_CHANGE = (
    "out", "steps", "stop_at", "stop_patience", "on_collapse", "alert", "schedule_steps",
    "threads", "wandb", "trackio", "backend", "ranks", "shard", "ray_address", "rollout_workers",
    "rollout_gpus", "learner_workers", "learner_gpus", "graders", "max_calls", "sync_check_every",
    "max_logp_gap",
)  # fmt: skip
"""Settings that may differ between a run and its resumption."""


_ACTIVITY = "training"  # what another process does in a locked directory

RowKey = tuple[str, str, int, int]


def row_key(call: Call) -> RowKey:
    """Identity of a training row within its step."""
    return call.node or call.episode, call.agent, call.turn, call.candidate


def plain(
    record: EpisodeRecord, advantages: Mapping[RowKey, float] | None = None
) -> dict[str, Any]:
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
    with lock_folder(root, _ACTIVITY), writing(root):
        target = free_path(root)
        os.rename(root, target)
    return target


def failures_path(root: Path) -> Path:
    """Path of the file for episodes whose script failed."""
    return root / "failures.jsonl"


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
        self._lock = lock_folder(self.root, _ACTIVITY)
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
        self._lock.close()

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
