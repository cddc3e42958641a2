"""What does it save to sample the next batch while the learner works? Steps with and without.

Three runs of one setting, `max_staleness` 0 and 1, and 2 with weights that change in flight, each
with a vLLM engine in a process of its own, take turns step by step; the first step of each is left
out, since it has nothing to overlap with. It needs two cores, one of which samples while the other
learns: read the wall time.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING

from benchmarks.harness.machine_load import tree_seconds
from benchmarks.harness.record import Row
from benchmarks.harness.timing import Lap, Workload, measure_lap, summary
from flowzoo.extras import is_installed

if TYPE_CHECKING:
    from flowzoo.baselines.training.trainer import Trainer

PROBLEMS = 16
"""Problems of a step, eight voting episodes each."""


def timed_step(trainer: Trainer, step: int) -> Lap:
    """The time of a step."""

    def work() -> int:
        trainer.iterate(step)
        return 1

    return measure_lap(work, tree_seconds)


def measure(workload: Workload) -> Iterator[Row]:
    """One row."""
    if not is_installed("vllm"):
        yield {"case": "voting", "absent": {"vLLM": "not installed: make env-vllm"}}
        return
    from flowzoo.baselines.settings.config import TrainConfig
    from flowzoo.baselines.training.build import start_run
    from flowzoo.baselines.training.trainer import Trainer

    names = ("in turn", "overlapping", "in flight")
    laps: dict[str, list[Lap]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as folder:
        trainers: dict[str, Trainer] = {}
        try:
            for staleness, name in enumerate(names):
                config = TrainConfig(
                    workflow="voting", model="pocket", problems=workload.scaled(PROBLEMS),
                    samples=8, steps=10_000, eval_problems=1, truncated="train",
                    transcripts_every=10_000, engine="vllm", placement="split", probe_every=0,
                    max_staleness=staleness, deterministic=staleness < 2,
                    threads=1, out=f"{folder}/{staleness}",
                )  # fmt: skip
                trainers[name] = Trainer(start_run(config))
            for step in range(1, workload.rounds + 2):
                for name, trainer in trainers.items():
                    lap = timed_step(trainer, step)
                    laps[name] += [lap] if step > 1 else []
        finally:
            for trainer in trainers.values():
                trainer.close()
    yield {"case": "voting", "unit": "step", "contenders": summary(laps)}
