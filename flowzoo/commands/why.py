"""`flowzoo why`: what broke a run, found by running it again with settings put back."""

import json
from dataclasses import dataclass, field
from pathlib import Path

from flowzoo.baselines.why.words import explanation_lines
from flowzoo.commands.progress.shown import to_stderr
from flowzoo.commands.progress.stopping import interruptible
from flowzoo.commands.shared import (
    CodeOptions,
    check_count,
    check_folder,
    check_run,
    quiet_transformers,
)
from flowzoo.errors import UsageError
from flowzoo.provenance import usable_cores


@dataclass(frozen=True, slots=True)
class Options:
    """Arguments of `flowzoo why`."""

    run: Path | None = field(default=None, metadata={"positional": "[RUN]"})
    """Directory of the finished training run, of which nothing is changed."""
    log: str = ""
    """In place of a run, the metrics of another trainer as JSON lines (TRL, W&B): only what a log
    alone can say; nothing is run."""
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
    if options.log:
        if options.run is not None:
            raise UsageError(f"--log reads a file in place of a run: leave {options.run} out")
        from flowzoo.baselines.why.log import log_lines

        lines = log_lines(Path(options.log))
        print(json.dumps({"lines": lines}) if options.json else "\n".join(lines))
        return 0
    if options.run is None:
        raise UsageError("name the directory of a run, or a log of another trainer with --log FILE")
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
    print(json.dumps(facts) if options.json else "\n".join(explanation_lines(facts)))
    return 0
