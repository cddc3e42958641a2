"""Whether the weights of a run's checkpoint are still what was written there."""

from __future__ import annotations

from pathlib import Path

from flowzoo.files import check_digests, read_sealed

MANIFEST = "checkpoint.json"
"""What a checkpoint says of its files; they are `policies/NAME/...` from where it lies."""

_OF_LEARNER = "learner.pt"
"""State of the optimiser, which only a run that goes on reads."""


def check_written(model: Path) -> None:
    """Compare the files of a model with their digests, if it is a policy in a checkpoint.

    Raises:
        DataError: one is not what was written.
        UsageError: one may not be read.
    """
    root = model.parent.parent
    if model.parent.name != "policies" or not (root / MANIFEST).is_file():
        return
    mine = f"policies/{model.name}/"
    files = read_sealed(root / MANIFEST).get("files", {})
    digests = {
        name: known["sha256"]
        for name, known in files.items()
        if name.startswith(mine) and isinstance(known, dict)  # format 2 has sizes alone
    }
    digests.pop(mine + _OF_LEARNER, None)
    check_digests(root, digests)
