"""What do the gradients of roles and the probes of slots add to a training step?

Three trainers of one configuration in one process, the pocket model, float32: `off` measures
nothing of the gradients, `on` has `--role-gradients`, `probed` has both and a probe at every step.
`off` plays; every batch it learns from is given to the learners of the other two as well, in turns
of who comes first, so that all do the same work. The cost of the norms is on - off, that of a probe
every ten steps (probed - on) / 10, as fractions of what `off` spends in its learner and in the
whole step (sampling, grading, learning, weights back to the engine), in CPU-seconds of one thread.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.harness.record import Row
from benchmarks.harness.timing import Workload, spread
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.training.build import start_run
from flowzoo.baselines.training.trainer import Trainer
from flowzoo.envs.records import Call

SIDES = {"off": (False, 0), "on": (True, 0), "probed": (True, 1)}
"""Role gradients, and steps between probes."""


PROBE_EVERY = 10
"""Steps that the cost of a probe is spread over."""
WORKFLOWS = ("voting", "orch_workers", "eval_opt")
SHARINGS = ("shared", "isolated")
RANKS = (0, 16)
"""Ranks of LoRA adapters; 0: all weights."""
PROBLEMS = 16
"""Problems of a step, eight episodes each."""


class SpentSeconds(NamedTuple):
    """CPU-seconds of one step."""

    learners: dict[str, float]
    """Of every side's learners, on the same batches."""
    whole: float
    """Of the side that plays, the other learners left out."""


class LeadTrainer(Trainer):
    """Plays, and has others learn from its batches."""

    others: Mapping[str, Trainer]
    learning: dict[str, float]
    first = 0
    """Place of the side that learns first in this step."""

    def update(
        self, step: int, policy: str, calls: Sequence[Call], advantages: Sequence[float]
    ) -> dict[str, Any]:
        """As ever, and of all sides, with the clock running."""
        names, found = list(SIDES), {}
        for side in names[self.first :] + names[: self.first]:
            began = time.process_time()
            if side == "off":
                found = super().update(step, policy, calls, advantages)
            else:
                self.others[side].update(step, policy, calls, advantages)
            self.learning[side] += time.process_time() - began
        return found

    def timed_step(self, first: int) -> SpentSeconds:
        """The next step, in which the side at place `first` learns first."""
        self.learning = dict.fromkeys(SIDES, 0.0)
        self.first = first
        self.run.state.step += 1
        began = time.process_time()
        self.iterate(self.run.state.step)
        whole = time.process_time() - began
        return SpentSeconds(self.learning, whole - self.learning["on"] - self.learning["probed"])


def settings(case: tuple[str, str, int], side: str, problems: int, out: str) -> TrainConfig:
    """The settings of one side."""
    workflow, sharing, rank = case
    gradients, every = SIDES[side]
    return TrainConfig(
        workflow=workflow, task="math", sharing=(sharing,), lora_rank=rank, model="pocket",
        problems=problems, samples=8, steps=10_000, eval_problems=1, threads=1,
        transcripts_every=10_000, role_gradients=gradients, probe_every=every,
        out=str(Path(out) / side),
    )  # fmt: skip


def measure_case(case: tuple[str, str, int], workload: Workload) -> list[SpentSeconds]:
    """The rounds of one configuration, after one that is not timed."""
    problems = workload.scaled(PROBLEMS)
    with tempfile.TemporaryDirectory() as out:
        lead = LeadTrainer(start_run(settings(case, "off", problems, out)))
        others = {
            side: Trainer(start_run(settings(case, side, problems, out)))
            for side in ("on", "probed")
        }
        lead.others = others
        try:
            lead.timed_step(0)
            return [lead.timed_step(number % len(SIDES)) for number in range(workload.rounds)]
        finally:
            for run in (lead, *others.values()):
                run.close()


def costs(rounds: Sequence[SpentSeconds], part: str) -> Row:
    """Seconds of `off`, and the costs of norms and probes as fractions of them."""
    offs, found = list[float](), dict[str, list[float]](norms=[], probes=[])
    for learners, whole in rounds:
        off = learners["off"] if part == "learner" else whole
        offs.append(off)
        found["norms"].append((learners["on"] - learners["off"]) / off)
        found["probes"].append((learners["probed"] - learners["on"]) / (PROBE_EVERY * off))
    return {"off_s": spread(offs)} | {name: spread(values) for name, values in found.items()}


def measure(workload: Workload) -> Iterator[Row]:
    """A row for every workflow, policy map and rank."""
    torch.set_num_threads(1)
    cases = [(w, s, r) for w in WORKFLOWS for s in SHARINGS for r in RANKS]
    for workflow, sharing, rank in cases if workload.scale == 1 else cases[:1]:
        rounds = measure_case((workflow, sharing, rank), workload)
        trained = f"LoRA {rank}" if rank else "all weights"
        yield {
            "case": f"{workflow}, {sharing}, {trained}",
            **{part: costs(rounds, part) for part in ("whole", "learner")},
        }
