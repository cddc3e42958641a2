"""`flowzoo swap`: what a trained workflow is worth with the policies of two roles exchanged."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flowzoo.commands.shared import check_run, quiet_transformers


@dataclass(frozen=True, slots=True)
class Options:
    """Options of `flowzoo swap`; what it does stands in `flowzoo.commands.line`."""

    run: Path = field(metadata={"positional": "RUN"})
    """Directory of the training run; what is found is written to `swaps.json` in it, and not
    measured again until the run goes on."""
    json: bool = False
    """Print what is found as one JSON object."""


def run(options: Options) -> int:
    """Measure what is missing, and print."""
    check_run(options.run)
    quiet_transformers()
    from flowzoo.baselines.training.finished import run_swaps

    found = run_swaps(options.run)
    print(json.dumps(found) if options.json else as_text(found))
    return 0


def as_text(found: Mapping[str, Any]) -> str:
    """One line a pair; points and percentages."""
    lines = [f"step {found['step']}, held-out accuracy {100 * found['accuracy']:.1f} %"]
    for swap in found["swaps"]:
        lines.append(
            f"{' <-> '.join(swap['roles'])}: {100 * swap['accuracy']:.1f} %, "
            f"{100 * swap['mean']:+.1f} points (95 % interval {100 * swap['low']:+.1f} to "
            f"{100 * swap['high']:+.1f}, {swap['n']} problems)"
        )
    if not found["swaps"]:
        lines.append("all roles share one policy: there is nothing to exchange")
    return "\n".join(lines)
