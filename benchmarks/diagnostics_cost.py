"""What do the gradients of roles and the probes of slots add to a training step?

    OMP_NUM_THREADS=1 python benchmarks/diagnostics_cost.py       # about 15 minutes on a free core

Three trainers of one configuration in one process, the pocket model, float32: `off` measures
nothing of the gradients, `on` has `--role-gradients`, `probed` has both and a probe at every step.
`off` plays; every batch it learns from is given to the learners of the other two as well, in turns
of who comes first, so that all do the same work. The cost of the norms is on - off, that of a probe
every `--probe-every` steps (probed - on) / probe_every, as fractions of what `off` spends in its
learner and in the whole step (sampling, grading, learning, weights back to the engine). Printed are
the median round and the range, in CPU-seconds of one thread, which a busy machine disturbs less
than wall time. The bar is 10 % of the whole step for each.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
import tyro

from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.trainer import Trainer
from flowzoo.envs.records import Call

BAR = 0.10
SIDES = {"off": (False, 0), "on": (True, 0), "probed": (True, 1)}
"""Role gradients, and steps between probes."""


@dataclass(frozen=True)
class Options:
    """What is measured."""

    workflows: tuple[str, ...] = ("voting", "orch_workers", "eval_opt")
    """Played with math."""
    sharings: tuple[str, ...] = ("shared", "isolated")
    """Who has a policy of its own."""
    ranks: tuple[int, ...] = (0, 16)
    """Ranks of LoRA adapters; 0: all weights."""
    model: str = "pocket"
    """Model of every policy."""
    problems: int = 16
    """Problems of a step, eight episodes each."""
    probe_every: int = 10
    """Steps that the cost of a probe is spread over."""
    rounds: int = 7
    """Timed steps of each side, after one that is not timed."""


class Spent(NamedTuple):
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

    def timed_step(self, first: int) -> Spent:
        """The next step, in which the side at place `first` learns first."""
        self.learning = dict.fromkeys(SIDES, 0.0)
        self.first = first
        self.step += 1
        began = time.process_time()
        self.iterate(self.step)
        whole = time.process_time() - began
        return Spent(self.learning, whole - self.learning["on"] - self.learning["probed"])


def settings(case: tuple[str, str, int], side: str, options: Options, out: str) -> TrainConfig:
    """The settings of one side."""
    workflow, sharing, rank = case
    gradients, every = SIDES[side]
    return TrainConfig(
        workflow=workflow, task="math", sharing=(sharing,), lora_rank=rank, model=options.model,
        problems=options.problems, samples=8, steps=10_000, eval_problems=1, threads=1,
        transcripts_every=10_000, role_gradients=gradients, probe_every=every,
        out=str(Path(out) / side),
    )  # fmt: skip


def measure(case: tuple[str, str, int], options: Options) -> list[Spent]:
    """The rounds of one configuration."""
    with tempfile.TemporaryDirectory() as out:
        lead = LeadTrainer(settings(case, "off", options, out))
        others = {side: Trainer(settings(case, side, options, out)) for side in ("on", "probed")}
        lead.others = others
        try:
            lead.timed_step(0)
            return [lead.timed_step(number % len(SIDES)) for number in range(options.rounds)]
        finally:
            for run in (lead, *others.values()):
                run.close()


def costs(rounds: Sequence[Spent], part: str, every: int) -> dict[str, list[float]]:
    """Costs of the norms and of the probes in every round, sorted, as fractions of `off`."""
    found: dict[str, list[float]] = {"norms": [], "probes": []}
    for learners, whole in rounds:
        of = learners["off"] if part == "learner" else whole
        found["norms"].append((learners["on"] - learners["off"]) / of)
        found["probes"].append((learners["probed"] - learners["on"]) / (every * of))
    return {name: sorted(values) for name, values in found.items()}


def words(values: Sequence[float]) -> str:
    """Median and range."""
    return f"{statistics.median(values):+7.1%} ({values[0]:+.1%} to {values[-1]:+.1%})"


def main(options: Options) -> None:
    """Measure and print; exit status 1 where a median is above the bar."""
    torch.set_num_threads(1)
    high: list[str] = []
    print(f"{'workflow':14}{'sharing':10}{'rank':>4} {'of':8} {'off, s':>7}  norms, probes")
    for workflow in options.workflows:
        for sharing in options.sharings:
            for rank in options.ranks:
                rounds = measure((workflow, sharing, rank), options)
                for part in ("learner", "whole"):
                    off = statistics.median(
                        one.learners["off"] if part == "learner" else one.whole for one in rounds
                    )
                    found = costs(rounds, part, options.probe_every)
                    print(
                        f"{workflow:14}{sharing:10}{rank:4} {part:8} {off:7.2f}  "
                        f"{words(found['norms']):32} {words(found['probes'])}",
                        flush=True,
                    )
                    if part == "whole":
                        high += [
                            f"{workflow} {sharing} rank {rank}: {name}"
                            for name, values in found.items()
                            if statistics.median(values) > BAR
                        ]
    if high:
        sys.exit(f"above {BAR:.0%}: " + "; ".join(high))


if __name__ == "__main__":
    main(tyro.cli(Options))
