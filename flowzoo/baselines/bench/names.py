"""The benches by name."""

from __future__ import annotations

import importlib
from collections.abc import Iterable

from flowzoo.baselines.bench.record import Measure
from flowzoo.errors import unknown

BENCHES = {
    "environments": "steps of an environment, guarded and not, beside PettingZoo's bookkeeping",
    "rollout": "calls of a rollout and candidates of a tree, beside the same bookkeeping",
    "forks": "copies of an episode in progress",
    "scaling": "how rollouts grow with problems, samples, agents, turns, lengths, candidates",
    "advantages": "advantages of a batch, beside plain Python, NumPy's reference and pandas",
    "math": "the math reward beside Math-Verify: agreement, throughput, latency, hostile replies",
    "search": "queries of the search task's index, beside rank_bm25",
    "worlds": "boards graded and made, beside plain Python",
    "sandbox": "programs through the sandbox, beside fork+exec and Docker's own ways",
    "checks": "tests that call a program many times, beside one subprocess",
    "learner": "a learning step beside TRL's GRPOTrainer, on the same tokens",
    "vllm": "rollouts through vLLM beside its own `generate`",
    "overlap": "steps with and without rollouts that overlap learning (vLLM)",
    "diagnostics": "what gradient norms and probes add to a step",
    "learning": "accuracy before and after, per algorithm, workflow and task, of a finished matrix",
}
"""Bench -> what is compared."""


ON_REQUEST = ("learner", "vllm", "overlap", "diagnostics", "learning")
"""Those that need another environment, an extra of gigabytes, a finished run or many minutes."""


def usual_benches() -> list[str]:
    """Those that are run where none is named."""
    return [name for name in BENCHES if name not in ON_REQUEST]


def bench_named(name: str) -> Measure:
    """The function that measures it.

    Raises:
        UsageError: there is none of this name.
    """
    check_names([name])
    return importlib.import_module(module_of(name)).measure


def module_of(name: str) -> str:
    """Its module; two would have the name of one that they import."""
    file = {"math": "math_reward", "vllm": "vllm_rollout"}.get(name, name)
    return f"flowzoo.baselines.bench.{file}"


def check_names(names: Iterable[str]) -> None:
    """Refuse names that are not there before anything is measured.

    Raises:
        UsageError: one of them.
    """
    for name in names:
        if name not in BENCHES:
            raise unknown("bench", name, BENCHES)
