"""`flowzoo swap`: accuracy of a trained workflow with the policies of two roles exchanged."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flowzoo.commands.shared import CodeOptions, check_run, quiet_transformers


@dataclass(frozen=True, slots=True)
class Options:
    """Arguments of `flowzoo swap`."""

    run: Path = field(metadata={"positional": "RUN"})
    """Directory of the training run; results are cached in its `swaps.json` until the run is
    continued."""
    code: CodeOptions = field(default_factory=CodeOptions)
    accept_base: bool = False
    """Play although a base has changed, with the checkpoint's tokenizer, chat template and end
    tokens; `swaps.json` records the difference."""
    json: bool = False
    """Print the results as one JSON object."""


def run(options: Options) -> int:
    """Run the missing evaluations and print the results."""
    check_run(options.run)
    quiet_transformers()
    from flowzoo.baselines.training.finished import run_swaps

    swaps = run_swaps(options.run, options.accept_base)
    print(json.dumps(swaps) if options.json else as_text(swaps))
    return 0


def as_text(swaps: Mapping[str, Any]) -> str:
    """One line per pair, with points and percentages."""
    lines = [f"step {swaps['step']}, held-out accuracy {100 * swaps['accuracy']:.1f} %"]
    for swap in swaps["swaps"]:
        lines.append(
            f"{' <-> '.join(swap['roles'])}: {100 * swap['accuracy']:.1f} %, "
            f"{100 * swap['mean']:+.1f} points (95 % interval {100 * swap['low']:+.1f} to "
            f"{100 * swap['high']:+.1f}, {swap['n']} problems)"
        )
    if not swaps["swaps"]:
        lines.append("all roles share one policy: there is nothing to exchange")
    return "\n".join(lines)
