"""The run directory: settings, metrics, transcripts; written so that a crash loses nothing.

run.json            settings and provenance of the run
metrics.jsonl       one object per step (step 0 is the evaluation before training)
tensorboard/        the same numbers as event files
transcripts/        episodes with every message and reply, one file per saved step
nonfinite-STEP.jsonl  the rows that stopped the run, if any did
checkpoints/        see `flowzoo.baselines.run.checkpoint`
summary.json        written at the end
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from flowzoo.baselines.settings.config import BEFORE, TrainConfig
from flowzoo.baselines.settings.sft import SftConfig
from flowzoo.envs import Call, EpisodeRecord
from flowzoo.errors import UsageError
from flowzoo.files import read_rows, replace_text, write_json
from flowzoo.provenance import describe_run

VOLATILE = ("perf/", "time/")
"""Prefixes of metrics that depend on the machine's speed; all others repeat exactly."""

_PLACE = ("out", "steps", "threads", "wandb")
"""Settings that may differ between a run and its resumption."""


def plain(record: EpisodeRecord) -> dict[str, Any]:
    """An episode for people: everything but token ids and log-probs."""
    row = record.to_json()
    for call in row["calls"]:
        call["output_tokens"] = len(call.pop("output_ids"))
        call["prompt_tokens"] = len(call.pop("prompt_ids"))
        del call["logps"]
    return row


def _locked(root: Path) -> TextIO:
    """The open lock file of a run directory; closing it, or dying, unlocks.

    Raises:
        UsageError: another process holds it.
    """
    file = (root / ".lock").open("w", encoding="utf-8")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        if error.errno not in (errno.EAGAIN, errno.EACCES):
            raise
        raise UsageError(
            f"another process is training in {root}: wait for it, end it, or choose another --out"
        ) from error
    return file


def failures_path(root: Path) -> Path:
    """Where episodes whose script failed are kept."""
    return root / "failures.jsonl"


def earlier_settings(root: Path) -> dict[str, Any] | None:
    """The settings of the run that `root` holds; None where none has begun.

    A run that never began binds nobody.
    """
    path, metrics = root / "run.json", root / "metrics.jsonl"
    if not path.exists() or not metrics.exists() or not metrics.stat().st_size:
        return None
    return json.loads(path.read_text(encoding="utf-8")).get("settings", {})


class RunDirectory:
    """The files of one run."""

    def __init__(self, config: TrainConfig | SftConfig, grading: Mapping[str, Any]) -> None:
        """Open or create the directory of `config`; `grading` is the task's, for the record.

        Raises:
            UsageError: it holds a run with other settings, or another process trains there.
        """
        self.root = config.directory
        self.checkpoints = self.root / "checkpoints"
        self.transcripts = self.root / "transcripts"
        self.metrics = self.root / "metrics.jsonl"
        self.failures = failures_path(self.root)
        self.transcripts.mkdir(parents=True, exist_ok=True)
        self._lock = _locked(self.root)
        before = earlier_settings(self.root)
        self.config: Any = config.settled(before)
        settings = json.loads(json.dumps(asdict(self.config)))
        if before is not None:
            self._check_same(before, settings)
        record = {"settings": settings, "grading": dict(grading), "provenance": describe_run()}
        write_json(self.root / "run.json", record)

    def _check_same(self, old: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
        # What a setting that came later does by default is what an older version did without it;
        # where it is not, `settled` has found what that was.
        usual = json.loads(json.dumps(asdict(type(self.config)())))
        known = {**usual, **BEFORE, "kl_estimate": settings.get("kl_estimate"), **old}
        changed = [
            f"{name} {known[name]!r} -> {value!r}"
            for name, value in settings.items()
            if name not in _PLACE and known[name] != value
        ]
        if changed:
            raise UsageError(
                f"{self.root} holds a run with other settings ({'; '.join(changed)}): "
                "choose another --out, or repeat the run's own settings to resume it"
            )

    def close(self) -> None:
        """Let other processes have the directory; ending the process does so as well."""
        self._lock.close()

    def rewind(self, step: int) -> list[dict[str, Any]]:
        """Drop what was written after `step`; returns the metrics that stay (-1 drops all).

        Raises:
            DataError: a line of metrics.jsonl before the last is not JSON.
        """
        rows = read_rows(self.metrics, lambda row: (row["step"], row), "a row of metrics")
        kept = [row for written, row in rows if written <= step]
        replace_text(self.metrics, "".join(json.dumps(row) + "\n" for row in kept))
        for path in self.transcripts.glob("*.jsonl"):
            if int(path.stem.rsplit("-", 1)[1]) > step:
                path.unlink()
        return kept

    def log(self, row: Mapping[str, Any]) -> None:
        """Append one line of metrics and force it to disk."""
        with self.metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def save_rows(self, step: int, calls: Iterable[Call]) -> Path:
        """Write `nonfinite-{step}.jsonl`, whole calls with ids and log-probs; NaN stands as NaN."""
        path = self.root / f"nonfinite-{step:06d}.jsonl"
        with path.open("w", encoding="utf-8", errors="backslashreplace") as file:
            for call in calls:
                file.write(json.dumps(asdict(call)) + "\n")
        return path

    def save_transcripts(self, kind: str, step: int, records: Iterable[EpisodeRecord]) -> Path:
        """Write `transcripts/{kind}-{step}.jsonl`; kind is `train` or `eval`."""
        path = self.transcripts / f"{kind}-{step:06d}.jsonl"
        with path.open("w", encoding="utf-8", errors="backslashreplace") as file:
            for record in records:
                file.write(json.dumps(plain(record)) + "\n")
        return path
