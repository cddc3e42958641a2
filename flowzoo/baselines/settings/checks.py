"""Settings that cannot be meant: refused before anything is loaded or written.

Somebody who gives a setting counts on it. One that the others leave without effect, or choices
under which nothing could be learnt or measured, are errors that say what to do instead.
"""

from __future__ import annotations

from flowzoo.baselines.settings.algorithms import ALGORITHMS, Algorithm
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.envs import Workflow
from flowzoo.errors import UsageError


def check_splits(config: TrainConfig) -> None:
    """Refuse to train on problems that progress, or the final result, is measured on.

    Raises:
        UsageError: `split` holds problems of the evaluations or of the test split.
    """
    if config.split in ("all", "test") or "all" in (config.split, config.eval_split):
        held_out = "test" if config.split == "test" else "held-out"
        raise UsageError(
            f"split {config.split!r} with eval_split {config.eval_split!r} trains on {held_out} "
            "problems: train on `train` and evaluate on `validation`"
        )
    if config.split == config.eval_split:
        raise UsageError(
            f"`split` and `eval_split` are both {config.split!r}: progress would be measured on "
            "problems that were trained on"
        )


def check_used(config: TrainConfig, algorithm: Algorithm) -> None:
    """Refuse settings that nothing would look at, since somebody who gives one counts on it.

    Raises:
        UsageError: a setting differs from its default and the others leave it without effect.
    """
    usual = TrainConfig()
    for name, (used, where) in _needs(config, algorithm).items():
        default = getattr(usual, name)
        if not used and getattr(config, name) != default:
            raise UsageError(
                f"`{name}` is a setting {where}, and has no effect here ({algorithm.name}): leave "
                f"it at {default!r}"
            )


def check_groups(config: TrainConfig, algorithm: Algorithm) -> None:
    """Refuse targets that are never found, and groups of one, in which every advantage is 0.

    Raises:
        UsageError: a target of another way of sampling, or one sample where samples are compared.
    """
    spec = algorithm.advantage
    sampling = {"candidate": "tree", "node": "joint"}.get(spec.target, algorithm.sampling)
    if sampling != algorithm.sampling:
        source = "at_grpo" if sampling == "tree" else "magrpo_tree"
        raise UsageError(
            f"the target {spec.target!r} is a value that only tree sampling finds, and "
            f"{algorithm.name} plays {algorithm.sampling}: start from {source}, or take another "
            "target"
        )
    name = "samples" if algorithm.sampling == "episodes" else "candidates"
    compared = name == "candidates" or spec.target == "episode"
    compared = compared and "problem" in spec.mean_group + spec.std_group
    lone = spec.singleton == "zero" and spec.mean not in ("none", "running")
    if getattr(config, name) == 1 and compared and lone:
        raise UsageError(
            f"{name}=1 leaves {algorithm.name} nothing to compare, so that every advantage would "
            f"be 0: give `{name}` of at least 2"
        )


def check_staleness(config: TrainConfig, algorithm: Algorithm) -> None:
    """Refuse to sample ahead where nothing could work beside the learner, or be right off policy.

    Raises:
        UsageError: no engine of its own, one that sleeps meanwhile, or a loss that neither has a
            ratio to the policy that sampled nor importance weights.
    """
    if not config.max_staleness:
        return
    apart = config.engine == "openai" or (config.engine == "vllm" and config.placement == "split")
    apart = apart or config.backend == "ray"  # its workers are processes of their own
    if not apart:
        told = f"{config.engine}, {config.placement}" if config.engine == "vllm" else config.engine
        raise UsageError(
            f"max_staleness={config.max_staleness} samples while the learner works, for which the "
            f"engine needs processes of its own: set engine=vllm and placement=split (got {told})"
        )
    if config.engine_sleep:
        raise UsageError(
            "with `max_staleness` the engine works while the learner does: leave out `engine_sleep`"
        )
    if algorithm.ratio == "none" and config.old_logp == "sampler":
        raise UsageError(
            f"{algorithm.name} has no ratio to the policy that sampled, so rows of older weights "
            "would be trained on as if they were new: set old_logp=recomputed, whose importance "
            "weights correct for that, or an algorithm with a ratio"
        )


def check_probes(config: TrainConfig) -> None:
    """Refuse to leave out probes where rows do not prove a sync: of older weights, or of ranks.

    Raises:
        UsageError: so it is.
    """
    if config.sync_check_every > 1 and (config.max_staleness or config.backend != "local"):
        raise UsageError(
            f"sync_check_every={config.sync_check_every} leaves out probes of the engine, which "
            "only rows of the newest weights, sampled in this process's run, stand in for: leave "
            "it out with `max_staleness` or a `backend` other than local"
        )


def check_optimiser(config: TrainConfig) -> None:
    """Refuse number formats and optimisers that exclude one another, and steps of no known length.

    Raises:
        UsageError: weights in bfloat16 with an optimiser that does not round at random; or sgd
            without a learning rate.
    """
    if config.optimizer == "sgd" and config.lr is None:
        raise UsageError(
            "`optimizer` sgd needs an `lr`: its steps are as long as the gradient times `lr`, so "
            "those that models are given for AdamW say nothing here"
        )
    if config.optimizer != "adamw" and config.weights != "float32" and not config.lora_rank:
        raise UsageError(
            f"`optimizer` {config.optimizer} keeps weights in float32, got `weights` "
            f"{config.weights}: use adamw, or leave `weights` at float32"
        )


def check_credit(workflow: Workflow, algorithm: Algorithm) -> None:
    """Refuse reward settings that the algorithm would not look at.

    Raises:
        UsageError: rows are judged by the episode's outcome, together with per-call credit.
    """
    per_call = workflow.credit != "team" or workflow.format_penalty != 0
    if per_call and algorithm.advantage.target == "episode":
        rows = [name for name, one in ALGORITHMS.items() if one.advantage.target != "episode"]
        raise UsageError(
            f"{algorithm.name} judges every call by its episode's outcome and would ignore "
            f"credit={workflow.credit!r} and format_penalty={workflow.format_penalty}: use one of "
            f'{", ".join(rows)}, or credit="team" without a penalty'
        )


def check_reward(config: TrainConfig, algorithm: Algorithm) -> None:
    """Refuse a reward for finished episodes where candidates are valued before the end.

    Raises:
        UsageError: `reward` with a tree whose candidates are valued by what is known at once.
    """
    if config.reward and algorithm.sampling == "tree" and config.candidate_value == "now":
        raise UsageError(
            f"`reward` scores finished episodes, and {algorithm.name} values candidates before the "
            "end: set candidate_value=rollout"
        )


def _needs(config: TrainConfig, algorithm: Algorithm) -> dict[str, tuple[bool, str]]:
    """Setting -> whether it has an effect, and what it is a setting of."""
    tree, joint = algorithm.sampling == "tree", algorithm.sampling == "joint"
    of_tree = "of algorithms that branch at every turn (at_grpo)"
    of_joint = "of algorithms on joint nodes (magrpo_tree)"
    of_rollout = "of candidate_value=rollout, with which candidates are played on from"
    return {
        "candidate_value": (tree, of_tree),
        "select": (tree, of_tree),
        "value_rollouts": (tree and config.candidate_value == "rollout", of_rollout),
        "joint": (joint, of_joint),
        "leaves": (joint, of_joint),
        "gamma": (
            algorithm.advantage.target == "return_to_go",
            "of algorithms that judge a call by its return to go (magrpo)",
        ),
        **dict.fromkeys(
            ("placement", "engine_devices", "engine_memory", "engine_sleep"),
            (config.engine != "transformers", "of vLLM engines"),
        ),
        "pass_rates": (bool(config.difficulty), "of `difficulty`, whose problems it chooses from"),
        "truncation_penalty": (
            config.truncated in ("penalise", "shape"),
            "of truncated=penalise and truncated=shape",
        ),
        **dict.fromkeys(
            ("clip_low", "clip_high", "dual_clip"),
            (not config.loss, "of the clipped objective, which `loss` stands in place of"),
        ),
        "length_cache": (config.truncated == "shape", "of truncated=shape"),
        "kl_estimate": (
            bool(algorithm.kl if config.kl is None else config.kl) or bool(config.role_kl),
            "of a KL term (`kl` or `role_kl`)",
        ),
        "importance_cap": (config.old_logp == "recomputed", "of old_logp=recomputed"),
        "min_lr": (config.schedule != "constant", "of the schedules linear and cosine"),
        "schedule_steps": (config.schedule != "constant", "of the schedules linear and cosine"),
        "schedule_clock": (config.schedule != "constant" or config.warmup > 0, "of a schedule"),
        "rows_per_update": (config.updates == 0, "of updates=0, steps by the number of rows"),
        **dict.fromkeys(
            ("lora_alpha", "lora_targets"),
            (config.lora_rank > 0, "of LoRA adapters (`lora_rank` above 0)"),
        ),
        **dict.fromkeys(
            ("beta1", "beta2", "adam_eps"), (config.optimizer == "adamw", "of optimizer=adamw")
        ),
    }
