"""Settings of backends, ranks and workers. Importing this needs no torch, so that help is fast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

BackendName = Literal["local", "torchrun", "ray"]
Sharding = Literal["none", "full"]

SHARD_JOBS: dict[BackendName, int] = {"local": 0, "torchrun": 16, "ray": 16}
"""Default number of episodes of a shard, by backend."""


@dataclass(frozen=True)
class ScaleOptions:
    """Processes that play, learn and grade."""

    backend: BackendName = "local"
    """`local`: in this process. `torchrun`: by several processes (ranks) that share rollouts and
    updates, on one machine or, started with torchrun, on several. `ray`: by this process, which
    learns unless `learner_workers` do, and by workers of a Ray cluster, which play. See
    docs/scale.md."""
    ranks: int = 0
    """Processes that are started on this machine with `backend` torchrun; 0: none are started,
    since torchrun has started this one."""
    shard: Sharding = "none"
    """With `backend` torchrun, or `learner_workers`: `none`, every rank has the whole model, and
    gradients are added up; `full`, weights, gradients and optimizer are spread over the ranks
    (FSDP2), for which the engine must have separate weights (rollout workers do; with torchrun,
    vllm with `placement` split)."""
    shard_jobs: int | None = None
    """Episodes that are played as one batch; 0: all of a step. The log-probs of a reply depend on
    its batch in their last bits, so this is part of the run's numbers. None: 0 with `backend`
    local, else 16; a run that is continued keeps its own."""
    ray_address: str = ""
    """The cluster of `backend` ray: HOST:PORT of its head, or `local`, which starts one on this
    machine for as long as the run lasts."""
    rollout_workers: int = 0
    """Workers that play with `backend` ray; each takes `threads` cores, or one, and has engines of
    its own: with `engine` vllm (`placement` split) one per base of adapters, or one per policy."""
    rollout_gpus: float = 0.0
    """GPUs of a rollout worker, which may share one (0.5); 0: it plays on the CPU. A worker's vLLM
    engines share one GPU, or have equal numbers of GPUs, over which each is spread (tensor
    parallel)."""
    learner_workers: int | tuple[str, ...] = 0
    """Workers of `backend` ray that learn; each takes `threads` cores, or one. A number: all
    policies take turns as ranks of one learner group. POLICY=NUMBER for every policy that is
    trained (generator=4 evaluator=2): a learner group for each, and they learn at the same time;
    adapters of one base share one learner group, for which they give the same number. 0: the
    process that runs the loop learns."""
    learner_gpus: float = 0.0
    """GPUs of every learner worker: 1, or 0 for the CPU; one alone in its learner group may share
    one (0.5)."""
    graders: int = 0
    """Actors of `backend` ray that grade for the rollout workers, on CPUs of whichever nodes have
    them; each takes `threads` cores, or one. 0: every rollout worker grades what it plays. For
    slow grading (programs, hard mathematics) where nodes with GPUs have few cores."""
