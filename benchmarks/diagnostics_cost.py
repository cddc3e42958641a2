"""What do the gradients of roles and the probes of slots add to a training step?

    OMP_NUM_THREADS=1 python benchmarks/diagnostics_cost.py       # about 15 minutes on a free core

Three trainers of one configuration in one process, the pocket model, float32: `off` measures
nothing of the gradients, `on` has `--role-gradients`, `probed` has both and a probe at every step.
They take one step each in alternation, from the same seed, so they play nearly the same episodes.
Two ratios to `off` are formed in every round, of the learner's time and of the whole step's
(sampling, grading, learning, weights back to the engine): the cost of the norms, `on / off - 1`,
and that of a probe every `--probe-every` steps, `(probed - on) / (probe_every * off)`. Printed are
the median round and the range, in CPU-seconds of one thread, which a busy machine disturbs less
than wall time. The bar is 10 % of the whole step for each.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
import tyro

from flowzoo.baselines.config import TrainConfig
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

    learner: float
    whole: float


class TimedTrainer(Trainer):
    """A trainer that knows what its learners took."""

    learning = 0.0
    """CPU-seconds in `update` since this was last cleared."""

    def update(
        self, step: int, policy: str, calls: Sequence[Call], advantages: Sequence[float]
    ) -> dict[str, Any]:
        """As ever, with the clock running."""
        began = time.process_time()
        try:
            return super().update(step, policy, calls, advantages)
        finally:
            self.learning += time.process_time() - began

    def timed_step(self) -> Spent:
        """The next step."""
        self.learning = 0.0
        self.step += 1
        began = time.process_time()
        self.iterate(self.step)
        return Spent(self.learning, time.process_time() - began)


def trainer(case: tuple[str, str, int], side: str, options: Options, out: str) -> TimedTrainer:
    """The trainer of one side."""
    workflow, sharing, rank = case
    gradients, every = SIDES[side]
    config = TrainConfig(
        workflow=workflow, task="math", sharing=(sharing,), lora_rank=rank, model=options.model,
        problems=options.problems, samples=8, steps=10_000, eval_problems=1, threads=1,
        transcripts_every=10_000, role_gradients=gradients, probe_every=every,
        out=str(Path(out) / side),
    )  # fmt: skip
    return TimedTrainer(config)


def measure(case: tuple[str, str, int], options: Options) -> list[dict[str, Spent]]:
    """The rounds of one configuration."""
    with tempfile.TemporaryDirectory() as out:
        sides = {side: trainer(case, side, options, out) for side in SIDES}
        try:
            for run in sides.values():
                run.timed_step()
            names = list(sides)
            rounds: list[dict[str, Spent]] = []
            for number in range(options.rounds):
                turn = number % len(names)
                order = names[turn:] + names[:turn]
                rounds.append({side: sides[side].timed_step() for side in order})
            return rounds
        finally:
            for run in sides.values():
                run.close()


def costs(rounds: Sequence[dict[str, Spent]], part: str, every: int) -> dict[str, list[float]]:
    """Costs of the norms and of the probes in every round, sorted, as fractions of `off`."""
    spent = [{side: getattr(one[side], part) for side in SIDES} for one in rounds]
    return {
        "norms": sorted(one["on"] / one["off"] - 1 for one in spent),
        "probes": sorted((one["probed"] - one["on"]) / (every * one["off"]) for one in spent),
    }


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
                for part in Spent._fields:
                    off = statistics.median(getattr(one["off"], part) for one in rounds)
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
