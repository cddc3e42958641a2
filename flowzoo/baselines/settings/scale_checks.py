"""Settings of scale that cannot be meant: refused before anything is loaded or started."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from flowzoo.baselines.settings.algorithms import algorithm_named
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.settings.transfer_checks import check_transfer
from flowzoo.errors import UsageError

_OWN = {
    "torchrun": {"ranks": 0},
    "ray": {
        "ray_address": "", "rollout_workers": 0, "rollout_gpus": 0.0, "learner_workers": 0,
        "learner_gpus": 0.0, "graders": 0,
    },
}  # fmt: skip


def in_one_process(config: TrainConfig) -> TrainConfig:
    """The settings of a run that does the same in this process alone."""
    usual = {name: default for names in _OWN.values() for name, default in names.items()}
    told: dict[str, Any] = {**usual, "backend": "local", "shard": "none", "max_staleness": 0}
    return replace(config, **told, engine_devices="", weight_transfer="file")


def check_scale(config: TrainConfig) -> None:
    """Refuse settings of a backend that nothing would look at, or that cannot work.

    Raises:
        UsageError: those of another backend; a number of ranks that does not divide the shards of
            a step, or more workers than shards; an engine, an optimiser or a number format that
            the backend cannot have; a way of the weights that it has not (see `check_transfer`);
            more than one batch ahead without rollout workers.
    """
    for backend, names in _OWN.items():
        for name, default in names.items():
            if config.backend != backend and getattr(config, name) != default:
                raise UsageError(
                    f"`{name}` is a setting of `backend` {backend}, and `backend` is "
                    f"{config.backend}: add --backend {backend}, or leave `{name}` out"
                )
    check_transfer(config)
    if config.shard != "none" and config.backend != "torchrun" and config.learner_workers == 0:
        raise UsageError(
            f"`shard` {config.shard} spreads a learner over ranks, and this process learns alone: "
            "add --backend torchrun, or --learner-workers N with --backend ray, or leave `shard` "
            "out"
        )
    if config.backend == "local":
        if config.max_staleness > 1:
            raise UsageError(
                f"max_staleness={config.max_staleness} needs rollout workers, for which older "
                "weights are kept: another engine has one version and gets the next between two "
                "batches, so no more than one of them could be sampled beside a step, and rows "
                "would be older for nothing. Set max_staleness=1, or backend=ray"
            )
        return
    if config.backend == "ray":
        check_workers(config)
        check_learners(config)
    else:
        check_world(config)
        check_engine(config)
    if config.shard == "full":
        check_sharded(config)


def shards_of_step(config: TrainConfig) -> tuple[int, int, int]:
    """Shards of a step, its episodes, and those of a shard."""
    jobs = config.problems * algorithm_named(config.algorithm).samples(config.samples)
    size = config.settled().shard_jobs or jobs
    return math.ceil(jobs / size), jobs, size


def check_workers(config: TrainConfig) -> None:
    """Refuse what rollout workers cannot do, too many of them, or graders without work.

    Raises:
        UsageError: as said, or no rollout workers are asked for.
    """
    if not config.ray_address:
        raise UsageError(
            "`backend` ray needs a cluster: give --ray-address HOST:PORT, or --ray-address local "
            "for one on this machine"
        )
    if not config.rollout_workers:
        raise UsageError("`backend` ray needs a number of workers: give --rollout-workers N")
    if config.engine == "openai":
        raise UsageError(
            "`engine` openai is one server, and rollout workers have engines of their own: use "
            "transformers, or engine=vllm with placement=split"
        )
    if config.engine == "vllm":
        check_worker_engine(config)
    shards, jobs, size = shards_of_step(config)
    if config.rollout_workers > shards:
        raise UsageError(
            f"{config.rollout_workers} rollout workers are more than the {shards} shards of a step "
            f"({jobs} episodes, shard_jobs {size}), so some would have nothing to play: lower "
            "`rollout_workers`, or give a smaller `shard_jobs`"
        )
    if config.graders and config.env is not None:
        raise UsageError(
            f"`graders` {config.graders} would have nothing to do, since `env` {config.env} is "
            "graded by its own rewards: leave `graders` out"
        )
    if config.max_staleness and config.updates != 1:
        raise UsageError(
            f"`max_staleness` {config.max_staleness} with `updates` {config.updates}: rows that "
            "are steps old already would be trained on again and again; set updates=1"
        )


def check_learners(config: TrainConfig) -> None:
    """Refuse what learner workers cannot have.

    Raises:
        UsageError: GPUs for none of them, or more than one each; a device that is not theirs.
            What follows from the number of each learner group is `plan_learner_groups`'s.
    """
    gpus = config.learner_gpus
    if config.learner_workers == 0:
        if gpus:
            raise UsageError(
                f"`learner_gpus` {gpus:g} are those of learner workers, and there are none: add "
                "--learner-workers N, or leave it out"
            )
        return
    if gpus > 1:
        raise UsageError(
            "each learner worker computes on one GPU of its own, or on the CPU, got "
            f"`learner_gpus` {gpus:g}: set it to 1 or 0, and give more `learner_workers`"
        )
    theirs = "cuda" if gpus else "cpu"
    if config.device not in ("auto", theirs):
        raise UsageError(
            f"`device` {config.device} is not that of the learner workers, whom Ray gives "
            f"{gpus:g} GPU each (`learner_gpus`): leave it out"
        )


def check_worker_engine(config: TrainConfig) -> None:
    """Refuse settings of vLLM that mean nothing in rollout workers.

    Raises:
        UsageError: as said.
    """
    if config.placement == "colocated":
        raise UsageError(
            "`placement` colocated puts the engine into the learner's process, and rollout workers "
            "have none: set placement=split, where every worker has engines in processes of their "
            "own"
        )
    if config.engine_devices:
        raise UsageError(
            f"`engine_devices` {config.engine_devices} names GPUs of this machine, and those of a "
            "worker are what Ray gives it: leave it out, and say how many with --rollout-gpus"
        )
    if config.engine_sleep:
        raise UsageError(
            "`engine_sleep` makes room for a learner on the same GPU, and rollout workers have "
            "none: leave it out"
        )


def check_worker_gpus(config: TrainConfig, models: Mapping[str, str]) -> None:
    """Refuse GPUs of a rollout worker that its engines cannot share evenly.

    Args:
        config: the settings of a run.
        models: policy -> what it starts from.

    Raises:
        UsageError: as said.
    """
    gpus = config.rollout_gpus
    if config.backend != "ray" or gpus <= 1:
        return
    if config.engine == "transformers":
        raise UsageError(
            f"a worker that samples with transformers uses one GPU, got `rollout_gpus` {gpus:g}: "
            "give 1 or less and more `rollout_workers`, or engine=vllm"
        )
    engines = len(
        {
            model if config.lora_rank or name in config.frozen else (name,)
            for name, model in models.items()
        }
    )
    if gpus % engines:
        raise UsageError(
            f"a worker's {engines} vLLM engines cannot share {gpus:g} GPUs evenly: give "
            f"`rollout_gpus` 1 or less, or a multiple of {engines}"
        )


def check_world(config: TrainConfig) -> None:
    """Refuse a number of ranks of which some would have nothing to play.

    Raises:
        UsageError: as said, none is given, or another than torchrun has started.
    """
    started = int(os.environ.get("WORLD_SIZE", 0)) if "RANK" in os.environ else 0
    world = started or config.ranks
    if not world:
        raise UsageError("`backend` torchrun needs a number of processes: give --ranks N")
    if config.ranks and config.ranks != world:
        raise UsageError(
            f"torchrun has started {world} ranks, and `ranks` is {config.ranks}: leave it out"
        )
    shards, jobs, size = shards_of_step(config)
    if shards % world:
        fits = [str(number) for number in range(1, shards + 1) if shards % number == 0]
        raise UsageError(
            f"{world} ranks do not divide the {shards} shards of a step ({jobs} episodes, "
            f"shard_jobs {size}), so some would wait for others: start {', '.join(fits)} ranks, "
            "or choose another `shard_jobs`"
        )


def check_engine(config: TrainConfig) -> None:
    """Refuse engines that ranks cannot have.

    Raises:
        UsageError: as said.
    """
    if config.max_staleness:
        raise UsageError(
            "`max_staleness` is for `backend` local and ray: ranks play a step together before "
            "they learn from it; leave it at 0"
        )
    if config.engine == "openai":
        raise UsageError(
            "`engine` openai is one server, into which every rank would load the weights by "
            "itself: use transformers, or engine=vllm with placement=split"
        )
    listed = [one for one in config.engine_devices.split(",") if one]
    here = int(os.environ.get("LOCAL_WORLD_SIZE", config.ranks))
    if listed and len(listed) != here:
        raise UsageError(
            "every rank has an engine of its own: `engine_devices` must name as many GPUs as there "
            f"are ranks here ({here}), got {config.engine_devices}"
        )
    if config.engine == "vllm" and config.placement == "colocated":
        raise UsageError(
            "`placement` colocated puts vLLM's process group into that of the ranks, which it "
            "refuses: set placement=split, where every rank has an engine in its own process"
        )


def check_sharded(config: TrainConfig) -> None:
    """Refuse what works on whole weights alone.

    Raises:
        UsageError: as said.
    """
    if config.engine == "transformers" and config.backend == "torchrun":
        raise UsageError(
            "`engine` transformers samples with the learner's own module, of which `shard` full "
            "leaves every rank a part: set shard=none, or engine=vllm with placement=split"
        )
    if config.optimizer not in ("adamw", "sgd"):
        raise UsageError(
            f"`optimizer` {config.optimizer} looks at whole matrices or blocks of them, which "
            "`shard` full spreads over ranks: use adamw or sgd, or shard=none"
        )
    if config.weights != "float32":
        raise UsageError(
            f"`shard` full keeps weights in float32, got `weights` {config.weights}: leave it out "
            "(compute=bfloat16 multiplies in bfloat16), or set shard=none"
        )
    if config.compile:
        raise UsageError("`compile` is for whole models: leave it out, or set shard=none")
