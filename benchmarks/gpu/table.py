"""Steps of real shapes as one table for docs/data.

    python -m benchmarks.gpu.table RESULT.json ... --json docs/data/real-shapes.json

RESULT is what `step.py --json` wrote. Memory is measured on the left of a slash, and on the right
what `benchmarks.plan` counts for it, which knows of no libraries, buffers or mapped files.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks.harness.record import write_table

GIB = 2**30
COLUMNS = [
    "", "longest row, tokens", "start, s", "rollout, s", "learn, s", "sync and proof, s",
    "held, GiB", "most while learning, GiB", "largest difference after a sync",
]  # fmt: skip


def row(found: dict[str, Any]) -> list[str]:
    """A line of the table."""
    options, seconds = found["options"], found["seconds_per_step"]
    memory, counted = found["memory"], found["estimate"]
    rank = options["lora_rank"]
    what = [options["size"], options["workflow"], options["sharing"]]
    what.append(f"LoRA {rank}" if rank else "all weights")
    if options["gradient_checkpointing"]:
        what.append("checkpointing")
    held = sum(counted[name] for name in ("learners, held", "engines, weights", "engines, cache"))
    pairs = (
        (memory["weights and engine"], held),
        (memory["most in learn"], counted["most in learn"]),
    )
    return [
        ", ".join(what), f"{found['longest_row']:,}", f"{found['start_seconds']:.0f}",
        *(f"{seconds[name]:.0f}" for name in ("rollout", "learn", "sync and proof")),
        *(f"{one / GIB:.1f} / {other / GIB:.1f}" for one, other in pairs),
        f"{found['largest_sync_gap']:.2g}",
    ]  # fmt: skip


def main() -> None:
    """Read, and write."""
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("results", nargs="+", type=Path, metavar="RESULT")
    options.add_argument("--json", type=Path, required=True)
    given = options.parse_args()
    rows = [row(json.loads(path.read_text("utf-8"))) for path in given.results]
    write_table(given.json, "python -m benchmarks.gpu.step", COLUMNS, rows)


if __name__ == "__main__":
    main()
