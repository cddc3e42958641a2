"""Learning curves of all algorithms for their pages, from the runs of `curves.toml`.

    flowzoo matrix studies/curves.toml --out runs/curves --jobs 1
    python -m studies.curves_table runs/curves > docs/data/curves.json

One run each on one seed, so the curves show that an algorithm learns, and compare nothing. Counts
are right answers of the held-out problems of every evaluation.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

COMMAND = (
    "flowzoo matrix studies/curves.toml --out runs/curves --jobs 1; "
    "python -m studies.curves_table runs/curves"
)


def curve(run: Path) -> dict[str, Any]:
    """Steps, right answers and problems of a run's evaluations."""
    with (run / "metrics.jsonl").open(encoding="utf-8") as lines:
        rows = [row for line in lines if "eval/scores" in (row := json.loads(line))]
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    return {
        "steps": [row["step"] for row in rows],
        "right": [round(sum(row["eval/scores"])) for row in rows],
        "problems": len(rows[0]["eval/scores"]),
        "tokens": summary["training_tokens"],
        "sharing": "shared" if len(set(summary["policies"].values())) == 1 else "isolated",
    }


def curves(folder: Path) -> dict[str, Any]:
    """The content of `docs/data/curves.json`."""
    runs = sorted(path.parent for path in folder.glob("*/seed-0/summary.json"))
    names = [
        json.loads((run / "summary.json").read_text(encoding="utf-8"))["algorithm"] for run in runs
    ]
    return {
        "command": COMMAND,
        "settings": {"workflow": "voting", "task": "math", "steps": 16, "problems": 8, "seed": 0},
        "curves": {name: curve(run) for name, run in zip(names, runs, strict=True)},
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(curves(Path(sys.argv[1])), indent=1) + "\n")
