"""What measuring how far an update moved the policy adds to a training step.

    python -m benchmarks.update_effect [docs/data/update-effect.json]

One trainer plays and learns without `update_effect`, a second one learns from the same batches with
it, in turns of who comes first: the pocket model of voting, float32, CPU-seconds of one thread, the
median of the steps. What a step spends beside its learner (sampling, grading) is that of the first.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.harness.record import write_table
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.training.build import start_run
from flowzoo.baselines.training.trainer import Trainer
from flowzoo.envs import Call

STEPS = 9
CASES = ((2, 4), (4, 8), (16, 8))
"""Problems of a step, and episodes of each."""


class TimedTrainer(Trainer):
    """Learns without the measurement, and has another trainer learn with it."""

    other: Trainer
    spent: list[tuple[float, float]]
    """CPU-seconds of the learner without and with it, step by step."""

    def update(
        self, step: int, policy: str, calls: Sequence[Call], advantages: Sequence[float]
    ) -> dict[str, Any]:
        """As ever, of both, with the clock running."""
        found: dict[str, Any] = {}
        seconds = [0.0, 0.0]
        for side in (0, 1) if step % 2 else (1, 0):
            began = time.process_time()
            if side:
                self.other.update(step, policy, calls, advantages)
            else:
                found = super().update(step, policy, calls, advantages)
            seconds[side] = time.process_time() - began
        self.spent.append((seconds[0], seconds[1]))
        return found


def settings(problems: int, samples: int, out: str, *, effect: bool) -> TrainConfig:
    """Of one of the two trainers."""
    return TrainConfig(
        workflow="voting", problems=problems, samples=samples, steps=10_000, eval_problems=1,
        threads=1, transcripts_every=10_000, probe_every=0, update_effect=effect, out=out,
    )  # fmt: skip


def measure(problems: int, samples: int) -> list[str]:
    """The row of one size of a step."""
    with tempfile.TemporaryDirectory() as out:
        lead = TimedTrainer(start_run(settings(problems, samples, f"{out}/off", effect=False)))
        lead.other = Trainer(start_run(settings(problems, samples, f"{out}/on", effect=True)))
        lead.spent, whole = [], []
        try:
            for step in range(1, STEPS + 2):
                lead.run.state.step = step
                began = time.process_time()
                lead.iterate(step)
                whole.append(time.process_time() - began - lead.spent[-1][1])
        finally:
            lead.close()
            lead.other.close()
    pairs = lead.spent[1:]  # the first step warms up
    added = median(on - off for off, on in pairs)
    learner, step_s = median(off for off, _ in pairs), median(whole[1:])
    shares = (f"{100 * added / one:+.1f} %" for one in (learner, step_s))
    return [f"{problems} × {samples}", f"{learner:.2f}", f"{step_s:.2f}", f"{added:.3f}", *shares]


def main(path: str | None) -> None:
    """Print the rows, and write them where `path` says."""
    torch.set_num_threads(1)
    columns = [
        "episodes of a step", "its learner, s", "whole step, s", "added, s", "of the learner",
        "of the step",
    ]  # fmt: skip
    rows = [measure(*case) for case in CASES]
    for row in rows:
        print(" | ".join(row))
    if path:
        write_table(Path(path), "python -m benchmarks.update_effect", columns, rows)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
