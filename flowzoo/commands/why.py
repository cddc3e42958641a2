"""`flowzoo why`: what broke a run, found by running it again with settings put back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flowzoo.commands.progress.shown import to_stderr
from flowzoo.commands.progress.stopping import interruptible
from flowzoo.commands.shared import (
    CodeOptions,
    check_count,
    check_folder,
    check_run,
    points,
    quiet_transformers,
)
from flowzoo.errors import UsageError
from flowzoo.provenance import usable_cores


@dataclass(frozen=True, slots=True)
class Options:
    """Arguments of `flowzoo why`."""

    run: Path = field(metadata={"positional": "RUN"})
    """Directory of the finished training run, of which nothing is changed."""
    out: str = ""
    """Directory of the reruns and of `why.json`; empty: RUN-why beside the run."""
    runs: int = 24
    """Most reruns of this call; finished ones are kept."""
    minutes: float = 30.0
    """Most minutes of this call."""
    jobs: int = 0
    """Number of parallel reruns; 0: one per core."""
    code: CodeOptions = field(default_factory=CodeOptions)
    json: bool = False
    """Print the result as one JSON object."""


def run(options: Options) -> int:
    """Run what decides, write why.json, print the result."""
    check_run(options.run)
    check_count("runs", options.runs)
    check_count("jobs", options.jobs, 0, 1_024)
    if not options.minutes > 0:
        raise UsageError(f"--minutes must be above 0, got {options.minutes:g}")
    folder = options.run.resolve()
    out = Path(options.out) if options.out else folder.with_name(f"{folder.name}-why")
    check_folder("out", out)
    if out.resolve().is_relative_to(folder):
        raise UsageError(f"--out {out} is in the run, of which nothing is changed: choose another")
    note = f"finished reruns are kept in {out}; the same command resumes"
    quiet_transformers()
    from flowzoo.baselines.why.explain import explain_run

    with interruptible(lambda: note):
        facts = explain_run(
            options.run, out, workers=options.jobs or usable_cores(), runs=options.runs,
            minutes=options.minutes, say=to_stderr,
        )  # fmt: skip
    print(json.dumps(facts) if options.json else as_text(facts))
    return 0


def as_text(facts: Mapping[str, Any]) -> str:
    """The result as lines: the verdict, the culprit, the change, and every rerun."""
    lines = [_headline(facts)]
    for units in facts["culprits"]:
        lines.append(f"breaks it by itself: {', '.join(units)}")
    if facts["change"]:
        effect = "mended it" if facts["confirmed"] else "mended it under the first seed only"
        lines.append(f"leaving out {', '.join(facts['change'])} was run and {effect}")
    if facts["parted"] is not None:
        lines.append(f"the courses part at step {facts['parted']}")
    if not facts["seeds"]:
        lines.append("under a second seed the run as it was does not fail")
    lines += ["", f"{facts['made']} reruns in {facts['minutes']} minutes"]
    for row in facts["reruns"]:
        what = ", ".join(row["left_out"])
        result = {None: "cannot be run", True: "fails", False: "does not fail"}[row["fails"]]
        gain = f", {points(row['gain'])} against the run" if row["gain"] and what else ""
        start = f"without {what}" if what else "as it was"
        lines.append(f"{start}, seed {row['seed']}: {result}{gain}")
    return "\n".join(lines)


def _headline(facts: Mapping[str, Any]) -> str:
    undecided = ", ".join(facts["remaining"])
    return {
        "sound": "sound: it did not fall, and no settings that can be put back cost it accuracy",
        "explained": "a fall" if facts["fell"] else "no fall, but an end that settings hold down",
        "not in the settings": "not in your settings: the model, the task or the algorithm",
        "undecided": f"undecided: these remain: {undecided}",
    }[facts["verdict"]]
