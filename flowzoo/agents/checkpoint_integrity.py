"""Integrity of a checkpoint's weights: comparison with their digests."""

from __future__ import annotations

from pathlib import Path

from flowzoo.files import check_digests, read_sealed

MANIFEST = "checkpoint.json"
"""Manifest of a checkpoint, beside its files `policies/NAME/...`."""

_OF_LEARNER = "learner.pt"
"""State of the optimizer, which only a resumed run reads."""


def check_integrity(model: Path) -> None:
    """Compare the files of a model with their digests, if it is a policy in a checkpoint."""
    root = model.parent.parent
    if model.parent.name != "policies" or not (root / MANIFEST).is_file():
        return
    prefix = f"policies/{model.name}/"
    files = read_sealed(root / MANIFEST).get("files", {})
    digests = {name: entry["sha256"] for name, entry in files.items() if name.startswith(prefix)}
    digests.pop(prefix + _OF_LEARNER, None)
    check_digests(root, digests)
