"""What equal runs have in common: metrics, transcripts and weights."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple


def metrics(run: Path) -> list[dict[str, Any]]:
    """The rows of a run, less what depends on the machine's speed."""
    from flowzoo.baselines.run.directory import VOLATILE

    rows = map(json.loads, (run / "metrics.jsonl").read_bytes().splitlines())
    return [{k: v for k, v in row.items() if not k.startswith(VOLATILE)} for row in rows]


def digests(run: Path) -> dict[str, str]:
    """SHA-256 of transcripts, last weights and the optimizer, by path in the run."""
    paths = (*sorted(run.glob("transcripts/*")), *_tensors(run))
    return {str(path.relative_to(run)): digest(path) for path in paths}


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _tensors(run: Path, below: str = "") -> list[Path]:
    last = max((run / "checkpoints").glob("step-*"))
    return sorted((last / below).rglob("*.safetensors"))


class Gap(NamedTuple):
    """How far a run is from another."""

    metric: float
    """Largest difference of a metric, of a scale of 1 or its own."""
    which: str
    """The metric with it."""
    weight: float
    same: bool
    """True if all transcripts are equal."""


def gap(one: Path, other: Path) -> Gap:
    """What is apart in two runs, but for proofs of engines, which ask other tokens."""
    from safetensors.torch import load_file

    apart, which = 0.0, ""
    for left, right in zip(metrics(one), metrics(other), strict=True):
        for name in sorted(left | right):
            a, b = left.get(name), right.get(name)
            if name.startswith("sync/") or repr(a) == repr(b):
                continue
            numbers = isinstance(a, float) and isinstance(b, float)
            found = abs(a - b) / max(1.0, abs(b)) if numbers else float("inf")
            if not found <= apart:
                apart, which = found, name
    pairs = zip(_tensors(one, "policies"), _tensors(other, "policies"), strict=True)
    files = [(load_file(mine), load_file(theirs)) for mine, theirs in pairs]
    weights = [
        float((mine[name] - value).abs().max())
        for mine, theirs in files
        for name, value in theirs.items()
    ]
    spoken = [
        {path.name: path.read_bytes() for path in run.glob("transcripts/*.jsonl")}
        for run in (one, other)
    ]
    return Gap(apart, which, max(weights, default=float("inf")), spoken[0] == spoken[1] != {})
