"""Settings of a training run. Importing this needs no torch, so that help is fast."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro import conf

from flowzoo.errors import UsageError, unknown


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """A training run.

    Raises:
        UsageError: a number out of range.
    """

    workflow: Annotated[str, conf.Positional] = "voting"
    """Name of the workflow, e.g. `voting` or `voting_v0`, or `module:Class`."""
    task: str = "math"
    """Task the workflow works on."""
    options: tuple[str, ...] = ()
    """Further settings of the workflow or the task, as NAME=VALUE, e.g. n_votes=5 level=2."""
    model: str = "pocket"
    """Starting weights of every policy: `pocket` or a model in Hugging Face layout."""
    algorithm: str = "grpo"
    """Advantage preset: grpo, dr_mas …"""
    sharing: tuple[str, ...] = ("shared",)
    """`shared` (one policy), `isolated` (one per role), or ROLE=POLICY for every role."""
    steps: int = 40
    """Iterations: one batch of rollouts and one update of every policy each."""
    problems: int = 16
    """Problems in a batch of rollouts."""
    samples: int = 8
    """Episodes per problem: the group that advantages compare."""
    lr: float = 2e-4
    """Peak learning rate (AdamW)."""
    warmup: int = 2
    """Iterations in which the learning rate rises to its peak."""
    schedule: Literal["constant", "cosine"] = "constant"
    """What the learning rate does after the warm-up."""
    clip_low: float = 0.2
    """The probability ratio is clipped at 1 - clip_low."""
    clip_high: float = 0.28
    """… and at 1 + clip_high."""
    updates: int = 1
    """Optimiser steps per policy and iteration, whatever its number of rows."""
    truncated: Literal["train", "mask", "penalise"] = "mask"
    """What becomes of replies that ran into the length limit."""
    temperature: float = 1.0
    """Sampling temperature of training rollouts."""
    max_tokens: int = 64
    """Most tokens in one reply."""
    max_batch: int = 1024
    """Most sequences that are decoded together; lower it if memory runs out."""
    split: str = "train"
    """Split that training problems come from."""
    eval_split: str = "validation"
    """Split that evaluations use."""
    eval_problems: int = 500
    """Distinct held-out problems of each evaluation."""
    eval_temperature: float = 1.0
    """Sampling temperature of evaluations; 0 is greedy."""
    eval_every: int = 20
    """Steps between evaluations; step 0 and the last step are always evaluated."""
    checkpoint_every: int = 10
    """Steps between checkpoints."""
    transcripts_every: int = 10
    """Steps between saved training transcripts; evaluations are always saved."""
    seed: int = 0
    """Seed of the problem stream and of sampling. Evaluation problems do not depend on it."""
    threads: int = 0
    """CPU threads of torch; 0 leaves torch's own choice (OMP_NUM_THREADS)."""
    out: str = ""
    """Run directory; empty: `runs/` and a name made of the settings."""

    def __post_init__(self) -> None:
        """Check what needs no other module."""
        positive = (
            "steps", "problems", "samples", "updates", "max_tokens", "max_batch", "eval_problems",
            "eval_every", "checkpoint_every", "transcripts_every", "lr", "temperature",
        )  # fmt: skip
        for name in positive:
            if not getattr(self, name) > 0:
                raise UsageError(f"`{name}` must be greater than 0, got {getattr(self, name)}")
        for name in ("warmup", "threads", "eval_temperature", "seed"):
            if getattr(self, name) < 0:
                raise UsageError(f"`{name}` must be at least 0, got {getattr(self, name)}")

    @property
    def directory(self) -> Path:
        """The run directory."""
        if self.out:
            return Path(self.out)
        sharing = "-".join(part.replace("=", "_") for part in self.sharing)
        workflow = self.workflow.replace(":", "-").replace("/", "-")
        return Path("runs") / f"{workflow}-{self.task}-{self.algorithm}-{sharing}-s{self.seed}"


def policy_map(sharing: tuple[str, ...], roles: Mapping[str, int]) -> dict[str, str]:
    """Role or agent -> policy name.

    Raises:
        UsageError: an unknown word or role, or a role without a policy.
    """
    if sharing == ("shared",):
        return dict.fromkeys(roles, "shared")
    if sharing == ("isolated",):
        return {role: role for role in roles}
    agents = [f"{role}_{number}" for role, count in roles.items() for number in range(count)]
    found: dict[str, str] = {}
    for word in sharing:
        role, equals, policy = word.partition("=")
        if not equals or not policy:
            raise UsageError(
                f"`sharing` takes shared, isolated, or ROLE=POLICY for every role; got {word!r}"
            )
        if role not in roles and role not in agents:
            raise unknown("role", role, [*roles, *agents])
        found[role] = policy
    missing = [
        role
        for role, count in roles.items()
        if role not in found and not all(f"{role}_{n}" in found for n in range(count))
    ]
    if missing:
        raise UsageError(
            f"the policy map misses role {', '.join(missing)}; the roles are {', '.join(roles)}"
        )
    return found
