"""Rules for settings: values and combinations that are refused before anything is loaded.

The first broken rule is raised, so a later rule may rely on those before it. A setting without
effect is refused too, since its user expects one: `flowzoo.declared.check_effects`.
"""

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence

from flowzoo.baselines.settings.algorithms import ALGORITHMS, Algorithm
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.settings.options import SHARD_JOBS
from flowzoo.envs import Workflow
from flowzoo.errors import UsageError

Rule = tuple[bool, str]
"""True if the settings are refused, and the message."""


def check(rules: Iterable[Rule]) -> None:
    """Raise the first rule that is broken."""
    for refused, message in rules:
        if refused:
            raise UsageError(message)


# -- any run -----------------------------------------------------------------------------------


def run_rules(config: TrainConfig, algorithm: Algorithm | None) -> Iterator[Rule]:
    """Rules for splits, number formats, probes and scale; a warm start has no algorithm."""
    held_out = "test" if config.split == "test" else "held-out"
    yield (
        config.split in ("all", "test") or "all" in (config.split, config.eval_split),
        f"split {config.split!r} with eval_split {config.eval_split!r} trains on {held_out} "
        "problems: train on `train` and evaluate on `validation`",
    )
    yield (
        config.split == config.eval_split,
        f"`split` and `eval_split` are both {config.split!r}: progress would be measured on "
        "problems that were trained on",
    )
    yield (
        config.engine_dtype == "int8" and not config.recomputes,
        "`engine_dtype` int8 samples from another distribution than the learner's, and with "
        "`old_logp` sampler ratios would measure the rounding: leave `old_logp` out (recomputed), "
        "or set engine_dtype=bfloat16",
    )
    yield (
        bool(config.difficulty and config.curriculum),
        "`difficulty` chooses problems by pass rates of the task as it is, and a stage of "
        "`curriculum` generates others: leave one of them out",
    )
    yield (
        config.on_collapse == "rollback" and bool(config.max_staleness),
        f"`on_collapse` rollback with `max_staleness` {config.max_staleness}: batches sampled "
        "ahead come from the weights that are left; set max_staleness=0, or on_collapse=stop",
    )
    # Rows prove a sync only if they come from the newest weights, in this process's run.
    yield (
        config.sync_check_every > 1 and bool(config.max_staleness or config.backend != "local"),
        f"sync_check_every={config.sync_check_every} leaves out probes of the engine, which "
        "only rows of the newest weights, sampled in this process's run, stand in for: leave "
        "it out with `max_staleness` or a `backend` other than local",
    )
    if algorithm is not None:
        yield from scale_rules(config, algorithm)


def learner_rules(config: TrainConfig) -> Iterator[Rule]:
    """Rules for the learner of one policy, with that policy's values in `config`."""
    yield (
        config.optimizer == "sgd" and config.lr is None,
        "`optimizer` sgd needs an `lr`: its steps are as long as the gradient times `lr`, and the "
        "rates that follow from models are for AdamW",
    )
    yield (
        config.optimizer != "adamw" and config.weights != "float32" and not config.lora_rank,
        f"`optimizer` {config.optimizer} keeps weights in float32, got `weights` "
        f"{config.weights}: use adamw, or leave `weights` at float32",
    )
    yield (
        config.weight_transfer != "file" and config.lora_rank > 0,
        f"`weight_transfer` {config.weight_transfer} carries all weights of a model, and with "
        f"`lora_rank` {config.lora_rank} only adapters are sent, which vLLM loads from files of "
        "their own: leave it out",
    )
    yield (
        config.shard == "full" and config.optimizer not in ("adamw", "sgd"),
        f"`optimizer` {config.optimizer} looks at whole matrices or blocks of them, which "
        "`shard` full spreads over ranks: use adamw or sgd, or shard=none",
    )
    yield (
        bool(config.max_staleness) and config.updates != 1,
        f"`max_staleness` {config.max_staleness} with `updates` {config.updates}: rows that "
        "are steps old already would be trained on again and again; set updates=1",
    )


# -- with an algorithm -------------------------------------------------------------------------


def training_rules(
    config: TrainConfig,
    algorithm: Algorithm,
    workflow: Workflow,
    policy_settings: Mapping[str, TrainConfig],
    models: Mapping[str, str],
) -> Iterator[Rule]:
    """Rules for what depends on the algorithm, the workflow or the policies and their models."""
    yield from group_rules(config, algorithm)
    yield from staleness_rules(config, algorithm)
    yield (
        bool(config.reward) and algorithm.sampling == "tree" and config.candidate_value == "now",
        f"`reward` scores finished episodes, and {algorithm.name} values candidates before the "
        "end: set candidate_value=rollout",
    )
    per_call = workflow.credit != "team" or workflow.format_penalty != 0
    others = [row.name for row in ALGORITHMS.values() if row.advantage.target != "episode"]
    yield (
        per_call and algorithm.advantage.target == "episode" and not workflow.pays_agents,
        f"{algorithm.name} judges every call by its episode's outcome and would ignore "
        f"credit={workflow.credit!r} and format_penalty={workflow.format_penalty}: use one of "
        f'{", ".join(others)}, or credit="team" without a penalty',
    )
    yield from worker_gpu_rules(config, policy_settings, models)


def group_rules(config: TrainConfig, algorithm: Algorithm) -> Iterator[Rule]:
    """Rules for targets that are never set, and groups of one, whose advantages are all 0."""
    spec = algorithm.advantage
    sampling = {"candidate": "tree", "node": "joint"}.get(spec.target, algorithm.sampling)
    source = "at_grpo" if sampling == "tree" else "magrpo_tree"
    yield (
        sampling != algorithm.sampling,
        f"the target {spec.target!r} is a value that only tree sampling finds, and "
        f"{algorithm.name} plays {algorithm.sampling}: start from {source}, or take another "
        "target",
    )
    name = "samples" if algorithm.sampling == "episodes" else "candidates"
    compared = name == "candidates" or spec.target == "episode"
    compared = compared and "problem" in spec.mean_group + spec.std_group
    lone = spec.singleton == "zero" and spec.mean not in ("none", "running")
    yield (
        getattr(config, name) == 1 and compared and lone,
        f"{name}=1 leaves {algorithm.name} nothing to compare, so that every advantage would "
        f"be 0: give `{name}` of at least 2",
    )


def staleness_rules(config: TrainConfig, algorithm: Algorithm) -> Iterator[Rule]:
    """Rules for sampling ahead: a separate engine, and a loss that is right off policy."""
    if not config.max_staleness:
        return
    apart = config.engine_traits.apart(config.placement)
    yield (
        not apart and config.backend != "ray",  # Ray's workers are separate processes
        f"max_staleness={config.max_staleness} samples while the learner works, for which the "
        f"engine needs processes of its own: set engine=vllm and placement=split "
        f"(got {config.engine_place})",
    )
    yield (
        config.engine_sleep,
        "with `max_staleness` the engine works while the learner does: leave out `engine_sleep`",
    )
    yield (
        algorithm.ratio == "none" and not config.recomputes,
        f"{algorithm.name} has no ratio to the policy that sampled, so rows of older weights "
        "would be trained on as if they were new: set old_logp=recomputed, whose importance "
        "weights correct for that, or an algorithm with a ratio",
    )


# -- backends ----------------------------------------------------------------------------------


def scale_rules(config: TrainConfig, algorithm: Algorithm) -> Iterator[Rule]:
    """Rules for where the work is done: backends, workers, ranks and ways of the weights."""
    yield from transfer_rules(config)
    yield (
        config.shard != "none" and config.backend != "torchrun" and config.learner_workers == 0,
        f"`shard` {config.shard} spreads a learner over ranks, and this process learns alone: "
        "add --backend torchrun, or --learner-workers N with --backend ray, or leave `shard` out",
    )
    if config.backend == "local":
        # Two batches ahead would need two versions of the weights, which only workers keep.
        yield (
            config.max_staleness > 1 and config.deterministic,
            f"max_staleness={config.max_staleness} needs rollout workers, for which older "
            "weights are kept: another engine has one version and gets the next between two "
            "batches, so no more than one of them could be sampled beside a step, and rows "
            "would be older for nothing. Set max_staleness=1, backend=ray, or deterministic=False, "
            "with which the engine gets new weights in the middle of a batch",
        )
        return
    if config.backend == "ray":
        yield from rollout_worker_rules(config, algorithm)
        yield from learner_worker_rules(config)
    else:
        yield from world_rules(config, algorithm)
        yield from rank_engine_rules(config)
    if config.shard == "full":
        yield from sharding_rules(config)


def shards_of_step(config: TrainConfig, algorithm: Algorithm) -> tuple[int, int, int]:
    """Number of shards of a step, of its episodes, and of the episodes of a shard."""
    samples = algorithm.values["samples"] if config.samples is None else config.samples
    jobs = config.problems * samples
    size = (SHARD_JOBS[config.backend] if config.shard_jobs is None else config.shard_jobs) or jobs
    return math.ceil(jobs / size), jobs, size


def rollout_worker_rules(config: TrainConfig, algorithm: Algorithm) -> Iterator[Rule]:
    """Rules for rollout workers and graders of a Ray cluster."""
    yield (
        not config.ray_address,
        "`backend` ray needs a cluster: give --ray-address HOST:PORT, or --ray-address local "
        "for one on this machine",
    )
    yield (
        not config.rollout_workers,
        "`backend` ray needs a number of workers: give --rollout-workers N",
    )
    traits = config.engine_traits
    yield (
        traits.server,
        "`engine` openai is one server, and rollout workers have engines of their own: use "
        "transformers, or engine=vllm with placement=split",
    )
    if traits.own_weights:
        yield from worker_engine_rules(config)
    shards, jobs, size = shards_of_step(config, algorithm)
    yield (
        config.rollout_workers > shards,
        f"{config.rollout_workers} rollout workers are more than the {shards} shards of a step "
        f"({jobs} episodes, shard_jobs {size}), so some would have nothing to play: lower "
        "`rollout_workers`, or give a smaller `shard_jobs`",
    )
    yield (
        bool(config.graders) and config.env is not None,
        f"`graders` {config.graders} would have nothing to do, since `env` {config.env} is "
        "graded by its own rewards: leave `graders` out",
    )


def worker_engine_rules(config: TrainConfig) -> Iterator[Rule]:
    """Rules for settings of vLLM that mean nothing in rollout workers."""
    traits = config.engine_traits
    yield (
        not traits.replicas,
        f"`engine` {config.engine} cannot sample in rollout workers: use transformers, or "
        "engine=vllm with placement=split",
    )
    yield (
        not traits.apart(config.placement),
        "`placement` colocated puts the engine into the learner's process, and rollout workers "
        "have none: set placement=split, where every worker has engines in processes of their own",
    )
    yield (
        bool(config.engine_devices),
        f"`engine_devices` {config.engine_devices} names GPUs of this machine, and those of a "
        "worker are what Ray gives it: leave it out, and say how many with --rollout-gpus",
    )
    yield (
        config.engine_sleep,
        "`engine_sleep` makes room for a learner on the same GPU, and rollout workers have "
        "none: leave it out",
    )


def worker_gpu_rules(
    config: TrainConfig, policy_settings: Mapping[str, TrainConfig], models: Mapping[str, str]
) -> Iterator[Rule]:
    """Rules for GPUs of a rollout worker that its engines cannot share evenly."""
    gpus = config.rollout_gpus
    if config.backend != "ray" or gpus <= 1:
        return
    yield (
        not config.engine_traits.own_weights,
        f"a worker that samples with transformers uses one GPU, got `rollout_gpus` {gpus:g}: "
        "give 1 or less and more `rollout_workers`, or engine=vllm",
    )
    # Adapters and frozen policies of one model share an engine.
    engines = len(
        {
            model if name in config.frozen or policy_settings[name].lora_rank else (name,)
            for name, model in models.items()
        }
    )
    yield (
        gpus % engines != 0,
        f"a worker's {engines} vLLM engines cannot share {gpus:g} GPUs evenly: give "
        f"`rollout_gpus` 1 or less, or a multiple of {engines}",
    )


def learner_worker_rules(config: TrainConfig) -> Iterator[Rule]:
    """Rules for learner workers; `plan_learner_groups` checks single groups."""
    gpus = config.learner_gpus
    if config.learner_workers == 0:
        yield (
            bool(gpus),
            f"`learner_gpus` {gpus:g} are those of learner workers, and there are none: add "
            "--learner-workers N, or leave it out",
        )
        return
    yield (
        gpus > 1,
        "each learner worker computes on one GPU of its own, or on the CPU, got "
        f"`learner_gpus` {gpus:g}: set it to 1 or 0, and give more `learner_workers`",
    )
    yield (
        config.device not in ("auto", "cuda" if gpus else "cpu"),
        f"`device` {config.device} is not that of the learner workers, which Ray gives "
        f"{gpus:g} GPU each (`learner_gpus`): leave it out",
    )


def world_rules(config: TrainConfig, algorithm: Algorithm) -> Iterator[Rule]:
    """Rules for the number of ranks: as torchrun has started, and a divisor of the shards."""
    # With RANK torchrun has started this process, else flowzoo starts the ranks.
    started = int(os.environ.get("WORLD_SIZE", 0)) if "RANK" in os.environ else 0
    world = started or config.ranks
    yield not world, "`backend` torchrun needs a number of processes: give --ranks N"
    yield (
        config.ranks not in (0, world),
        f"torchrun has started {world} ranks, and `ranks` is {config.ranks}: leave it out",
    )
    shards, jobs, size = shards_of_step(config, algorithm)
    fits = [str(number) for number in range(1, shards + 1) if shards % number == 0]
    yield (
        shards % world != 0,
        f"{world} ranks do not divide the {shards} shards of a step ({jobs} episodes, "
        f"shard_jobs {size}), so some would wait for others: start {', '.join(fits)} ranks, "
        "or choose another `shard_jobs`",
    )


def rank_engine_rules(config: TrainConfig) -> Iterator[Rule]:
    """Rules for engines of ranks."""
    yield (
        bool(config.max_staleness),
        "`max_staleness` is for `backend` local and ray: ranks play a step together before "
        "they learn from it; leave it at 0",
    )
    traits = config.engine_traits
    yield (
        traits.server,
        "`engine` openai is one server, into which every rank would load the weights by "
        "itself: use transformers, or engine=vllm with placement=split",
    )
    devices = [device for device in config.engine_devices.split(",") if device]
    here = int(os.environ.get("LOCAL_WORLD_SIZE", config.ranks))
    yield (
        bool(devices) and len(devices) != here,
        "every rank has an engine of its own: `engine_devices` must name as many GPUs as there "
        f"are ranks here ({here}), got {config.engine_devices}",
    )
    yield (
        traits.takes_placement and not traits.apart(config.placement),
        "`placement` colocated puts vLLM's process group into that of the ranks, which it "
        "refuses: set placement=split, where every rank has an engine in its own process",
    )


def sharding_rules(config: TrainConfig) -> Iterator[Rule]:
    """Rules for `shard` full, without what works on whole weights only."""
    yield (
        not config.engine_traits.own_weights and config.backend == "torchrun",
        "`engine` transformers samples with the learner's own module, of which `shard` full "
        "leaves every rank a part: set shard=none, or engine=vllm with placement=split",
    )
    yield (
        config.weights != "float32",
        f"`shard` full keeps weights in float32, got `weights` {config.weights}: leave it out "
        "(compute=bfloat16 multiplies in bfloat16), or set shard=none",
    )
    yield config.compile, "`compile` is for whole models: leave it out, or set shard=none"


# -- weights on their way to the engine --------------------------------------------------------


def transfer_rules(config: TrainConfig) -> Iterator[Rule]:
    """Rules for `weight_transfer` from GPU to GPU: which engine, weights and devices it takes."""
    way = config.weight_transfer
    if way == "file":
        return
    setting = f"`weight_transfer` {way}"
    yield (
        config.backend == "ray",
        f"{setting} goes from GPU to GPU on one machine, and `backend` ray moves weights through "
        "its object store to all nodes, and on each through a file: leave it out",
    )
    traits = config.engine_traits
    yield (
        not (traits.gpu_transfer and traits.apart(config.placement)),
        f"{setting} is for a vLLM engine in processes of its own: set engine=vllm and "
        f"placement=split (got {config.engine_place}), or leave it out",
    )
    yield from transfer_device_rules(config, config.device)
    learners, engines = _learner_gpus(config), _engine_gpus(config)
    yield (
        way == "ipc" and engines != learners,
        f"{setting} shares memory of one GPU, and the engine is to be on {_gpu_names(engines)} "
        f"while the learner is on {_gpu_names(learners)}: leave out `engine_devices` and "
        "`device`, or set weight_transfer=nccl",
    )
    yield (
        way == "nccl" and bool(set(engines) & set(learners)),
        f"{setting} goes between two GPUs, and both the learner and the engine are to be on "
        f"{_gpu_names(engines)}: name others in `engine_devices`, or set weight_transfer=ipc",
    )


def transfer_device_rules(config: TrainConfig, device: str) -> Iterator[Rule]:
    """Rules for `weight_transfer` with a learner on `device`."""
    yield (
        config.weight_transfer != "file" and device.partition(":")[0] not in ("auto", "cuda"),
        f"`weight_transfer` {config.weight_transfer} goes from GPU to GPU, and the learner is "
        f"on {device}: leave it at file",
    )


def _visible_gpus() -> list[str]:
    names = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    return [name.strip() for name in names if name]


def _learner_gpus(config: TrainConfig) -> list[str]:
    """GPUs of the learners on this machine, as CUDA_VISIBLE_DEVICES writes them."""
    number = config.device.partition(":")[2]
    indices = [int(number) if number.isdecimal() else 0]
    if config.backend == "torchrun":
        indices = list(range(int(os.environ.get("LOCAL_WORLD_SIZE", config.ranks))))
    visible = _visible_gpus()
    return [visible[index] if index < len(visible) else str(index) for index in indices]


def _engine_gpus(config: TrainConfig) -> list[str]:
    """GPUs of their engines, in the same order."""
    if config.engine_devices:
        named = [name.strip() for name in config.engine_devices.split(",") if name]
        return named if config.backend == "torchrun" else named[:1]
    return _learner_gpus(config) if config.backend == "torchrun" else (_visible_gpus() or ["0"])[:1]


def _gpu_names(gpus: Sequence[str]) -> str:
    return f"GPU {', '.join(gpus)}"
