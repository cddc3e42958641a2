"""Tells the folder of an evaluation from that of a training run: both have a `run.json`."""

from __future__ import annotations

import json
from pathlib import Path

from flowzoo.errors import UsageError

KIND = "evaluation"
"""`kind` in the `run.json` of an evaluation."""


def is_evaluation(folder: Path) -> bool:
    """Tell whether `folder` is one that `flowzoo eval --out` wrote."""
    try:
        record = json.loads((folder / "run.json").read_bytes())
    except (OSError, ValueError):
        return False
    if isinstance(record, dict) and "kind" in record:
        return record["kind"] == KIND
    # Earlier versions wrote no kind.
    return (folder / "episodes.jsonl").is_file() and not (folder / "metrics.jsonl").exists()


def refuse_evaluation(folder: Path, remedy: str) -> None:
    """Raise `UsageError`, with the remedy, where a training run is meant and an evaluation is."""
    if is_evaluation(folder):
        raise UsageError(
            f"{folder} holds an evaluation of `flowzoo eval`, no training run: {remedy}"
        )
