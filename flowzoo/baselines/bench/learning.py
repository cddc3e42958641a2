"""Held-out accuracy before and after training, of the finished runs of a matrix.

Nothing is trained here: `flowzoo matrix learning` does that, in an hour or two, and `--runs` names
its folder. The figures are those of the matrix's own table.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from flowzoo.baselines.bench.record import Row
from flowzoo.baselines.bench.rounds import Plan
from flowzoo.errors import UsageError


def measure(plan: Plan) -> Iterator[Row]:
    """A row a cell."""
    if plan.runs is None:
        said = "no --runs: train with `flowzoo matrix learning`"
        yield {"case": "cells", "absent": {"a finished matrix": said}}
        return
    path = Path(plan.runs) / "table.json"
    if not path.is_file():
        raise UsageError(f"{path} does not exist: a matrix writes it, `flowzoo matrix learning`")
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        yield {"case": cell["cell"], **cell}
