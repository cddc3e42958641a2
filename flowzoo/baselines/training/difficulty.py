"""Pass rates of a policy by problem, measured once, and training on problems within bounds.

The file is JSON Lines: the protocol of the measurement, then a line per problem.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from flowzoo.agents.evaluation.protocol import protocol_of
from flowzoo.agents.evaluation.summary import attempts_of, mean
from flowzoo.agents.policy_map import PolicyMap
from flowzoo.agents.rollout.episodes import EpisodeJob, Rollout
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.envs import EpisodeRecord, Problem, Workflow
from flowzoo.envs.tasks.task import Task
from flowzoo.errors import DataError, UsageError
from flowzoo.files import read_rows, replace_text
from flowzoo.seeding import key_digest

CHUNK = 64
"""Problems that are played together, and lost together if the process dies."""


@dataclass(frozen=True, slots=True)
class PassRate:
    """Pass rate of a policy on one problem."""

    problem: str
    """Id of the problem."""
    index: int
    text: str
    """Digest of its text: the same id may name another text in another file."""
    samples: int
    rate: float
    """Mean score of the episodes, in [0, 1]."""


def text_digest(problem: Problem) -> str:
    """8 hex digits that identify the text of a problem."""
    return key_digest(problem.text).hex()[:8]


def read_rates(path: Path) -> tuple[dict[str, Any], list[PassRate]]:
    """The protocol and the pass rates in a file; an empty protocol if there is no file."""

    def read(row: Any) -> dict[str, Any] | PassRate:
        return row["protocol"] if "protocol" in row else PassRate(**row)

    rows = read_rows(path, read, "a pass rate")
    if not rows:
        # Never written over: the first line of pass rates is never torn.
        if path.is_file() and path.stat().st_size:
            raise DataError(f"{path} has no pass rates: name another file")
        return {}, []
    protocol, *rates = rows
    if not isinstance(protocol, dict) or any(isinstance(rate, dict) for rate in rates):
        raise DataError(f"{path}: expected one line with a protocol, then one per problem")
    return protocol, rates  # type: ignore[return-value] - just checked


def measure(
    workflow: Workflow,
    policy_map: PolicyMap,
    problems: Sequence[Problem],
    path: Path,
    *,
    samples: int,
    seed: int = 0,
    models: Mapping[str, object] = MappingProxyType({}),
    on_episode: Callable[[EpisodeRecord], None] = lambda record: None,
) -> list[PassRate]:
    """Play `samples` episodes of every problem that `path` has no pass rate of, and add them.

    A problem with an unknown verdict gets no pass rate. `models` has the fields of the models'
    identities by spec, which are recorded.
    """
    if samples < 1:
        raise UsageError(f"`samples` must be >= 1, got {samples}")
    protocol = json.loads(
        json.dumps(protocol_of(workflow, policy_map, problems, samples=samples, seed=seed))
    )
    before, rates = read_rates(path)
    before.pop("models", None)
    if names := sorted(name for name in before if before[name] != protocol.get(name)):
        raise UsageError(
            f"{path} has pass rates that were measured otherwise ({', '.join(names)}): choose "
            "another file, or repeat its settings to go on"
        )
    head = {"protocol": protocol | ({"models": dict(models)} if models else {})}
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(row) + "\n" for row in (head, *map(asdict, rates))]
    replace_text(path, "".join(lines))  # complete lines only
    done = {rate.problem for rate in rates}
    rest = [problem for problem in problems if problem.id not in done]
    rollout = Rollout(
        workflow,
        policy_map,
        seed=seed,
        deterministic=all(policy.batching == "static" for policy in policy_map.policies.values()),
        on_episode=on_episode,
        on_error="ungraded",
    )
    with path.open("a", encoding="utf-8") as file:
        for start in range(0, len(rest), CHUNK):
            chunk = rest[start : start + CHUNK]
            records = rollout.run(
                [EpisodeJob(problem, i) for problem in chunk for i in range(samples)]
            )
            groups = attempts_of(records)
            for problem in chunk:
                scores = [record.score for record in groups.get(problem.id, ())]
                if len(scores) < samples:
                    continue
                rate = PassRate(
                    problem.id, problem.index, text_digest(problem), samples, mean(scores)
                )
                rates.append(rate)
                file.write(json.dumps(asdict(rate)) + "\n")
            # A killed measurement continues after the last problem that is on disk.
            file.flush()
            os.fsync(file.fileno())
    return rates


def within(rates: Sequence[PassRate], low: float, high: float) -> list[PassRate]:
    """Select the rates in [low, high]."""
    if not 0 <= low <= high <= 1:
        raise UsageError(
            f"bounds of pass rates must be 0 <= low <= high <= 1, got {low} and {high}"
        )
    return [rate for rate in rates if low <= rate.rate <= high]


def training_indices(path: Path, task: Task, split: str, low: float, high: float) -> list[int]:
    """Indices of the problems of `split` whose measured pass rate is in [low, high], in order."""
    protocol, rates = read_rates(path)
    if not protocol:
        raise UsageError(
            f"`difficulty`: there are no pass rates in {path}; make them with `flowzoo filter`"
        )
    for name, expected in (("task", task.name), ("split", split)):
        if protocol.get(name) != expected:
            raise UsageError(
                f"{path} was measured with {name} {protocol.get(name)!r}, and the training has "
                f"{name} {expected!r}"
            )
    chosen = within(rates, low, high)
    if not chosen:
        raise UsageError(
            f"none of the {len(rates)} problems in {path} has a pass rate in [{low}, {high}]: "
            "widen the bounds"
        )
    for rate in chosen:
        problem = task.problem(rate.index, split)
        # The same id may name another text in another file.
        if (problem.id, text_digest(problem)) != (rate.problem, rate.text):
            raise UsageError(
                f"problem {rate.problem} in {path} is not problem {rate.index} of the training "
                f"({problem.id}): both need the same data, seed and level"
            )
    return sorted(rate.index for rate in chosen)


def trainable(config: TrainConfig, task: Task) -> list[int] | None:
    """Indices of the problems whose pass rate is within the settings' bounds; None for all."""
    if not config.difficulty:
        return None
    return training_indices(Path(config.difficulty), task, config.split, *config.pass_rates)


def histogram(rates: Sequence[PassRate]) -> list[int]:
    """Problems per tenth of pass rate; the last holds 1.0, too."""
    counts = [0] * 10
    for rate in rates:
        counts[min(9, int(rate.rate * 10))] += 1
    return counts
