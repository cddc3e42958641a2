"""The parts of a run as its settings describe them: algorithm, learners, engines, samplers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_type_hints

from flowzoo.agents import Roster, Sampling
from flowzoo.agents.evaluation.protocol import check_selection
from flowzoo.agents.lengths import Lengths, read_lengths, with_default
from flowzoo.agents.rollout.episodes import Rollout, Sampler
from flowzoo.agents.rollout.joint import JointRollout, JointSettings
from flowzoo.agents.rollout.tree import TreeRollout, TreeSettings
from flowzoo.baselines.advantages.spec import AdvantageSpec
from flowzoo.baselines.engines.hf import Engines, LoadedPolicy, TransformersEngines
from flowzoo.baselines.learner.config import LearnerConfig, numbers_by_role
from flowzoo.baselines.learner.loss import LossConfig
from flowzoo.baselines.learner.schedules import Clock
from flowzoo.baselines.learner.update import Learner
from flowzoo.baselines.settings.algorithms import ALGORITHMS, Algorithm, algorithm_named
from flowzoo.baselines.settings.checks import check_credit, check_groups, check_splits, check_used
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.settings.policy_map import agent_policies, policy_map
from flowzoo.envs import Problem, Workflow, make_workflow
from flowzoo.envs.settings import Setting, add_setting, read_settings
from flowzoo.errors import UsageError, unknown

SAMPLES = {"episodes": 8, "tree": 1, "joint": 1}
"""Episodes (or trees) per problem, where the settings leave it to the algorithm."""
CANDIDATES = 4
"""Candidates per decision likewise."""


@dataclass(frozen=True, slots=True)
class Budgets:
    """Token budgets of a run."""

    roles: Mapping[str, Lengths]
    reply: int
    """The longest reply of any role: what the policies must allow."""


def check_settings(config: TrainConfig) -> None:
    """Find what is wrong with a run's settings without loading a model.

    Raises:
        UsageError: names, choices or numbers that the run would refuse.
    """
    check_selection(config.eval_split)
    check_splits(config)
    workflow = make_training_workflow(config)
    algorithm = make_algorithm(config, workflow)
    roles = workflow.role_counts()
    mapping = policy_map(config.policy_words, roles)
    reply = token_budgets(config, roles).reply
    for policy in set(mapping.values()):
        learner_config(config, algorithm, policy, mapping, roles, reply)


def make_training_workflow(config: TrainConfig) -> Workflow:
    """The environment of a run."""
    settings = read_settings(config.options)
    add_setting(settings, "sandbox", config.sandbox)
    return make_workflow(config.workflow, config.task, **settings)


def make_algorithm(config: TrainConfig, workflow: Workflow) -> Algorithm:
    """The named algorithm with the settings' own choices in it.

    Raises:
        UsageError: an unknown name or choice; reward settings that the algorithm would not look
            at; or settings of one way of sampling with an algorithm of another.
    """
    algorithm = algorithm_named(config.algorithm)
    if config.candidates is not None and algorithm.sampling == "episodes":
        branching = [one.name for one in ALGORITHMS.values() if one.sampling != "episodes"]
        raise UsageError(
            f"{algorithm.name} plays whole episodes and samples no candidates: leave out "
            f"`candidates`, or use one of {', '.join(branching)}"
        )
    words = read_settings(config.advantage)
    spec = with_words(algorithm.advantage, words)
    if spec.target == "return_to_go" and "gamma" not in words:
        spec = replace(spec, gamma=config.gamma)
    chosen = {
        name: getattr(config, name)
        for name in ("clip_low", "clip_high", "aggregation")
        if getattr(config, name) is not None
    }
    algorithm = replace(algorithm, advantage=spec, **chosen)
    check_used(config, algorithm)
    check_groups(config, algorithm)
    check_credit(workflow, algorithm)
    return algorithm


def with_words(spec: AdvantageSpec, words: Mapping[str, Setting]) -> AdvantageSpec:
    """`spec` with the choices that NAME=VALUE words make; a group is written `problem+role`.

    Raises:
        UsageError: an unknown name or choice.
    """
    kinds = get_type_hints(AdvantageSpec)
    changes: dict[str, Any] = {}
    for name, value in words.items():
        if name not in kinds:
            raise unknown("choice of the advantage", name, kinds)
        if name in ("mean_group", "std_group"):
            changes[name] = tuple(str(value).split("+"))
        elif name in ("gamma", "decay", "eps"):
            if not isinstance(value, (int, float)):
                raise UsageError(f"`advantage` {name} must be a number, got {value!r}")
            changes[name] = value
        else:
            changes[name] = "none" if value is None else value  # NAME=none is a choice of its own
    return replace(spec, **changes)


def token_budgets(config: TrainConfig, roles: Mapping[str, int]) -> Budgets:
    """How long every role's prompts and replies may be."""
    named = read_lengths(config.lengths, roles)
    full, longest = with_default(named, roles, config.max_tokens)
    if config.max_prompt:
        full = {
            name: Lengths(entry.prompt or config.max_prompt, entry.reply)
            for name, entry in full.items()
        }
    return Budgets(full, longest)


def learner_config(
    config: TrainConfig, algorithm: Algorithm, policy: str, mapping: Mapping[str, str],
    roles: Mapping[str, int], reply: int,
) -> LearnerConfig:  # fmt: skip
    """The settings of one policy's learner."""
    constant = 1.0
    if algorithm.aggregation == "token-sum":  # rows * reply of an optimiser step, if all call once
        agents = list(agent_policies(mapping, roles).values()).count(policy)
        samples = config.samples or SAMPLES[algorithm.sampling]
        count = config.problems * samples * agents
        if not config.updates:
            raise UsageError(
                "token-sum divides by the rows of an optimiser step, which updates=0 (steps by the "
                "number of rows) leaves open: choose `updates` above 0 or another `aggregation`"
            )
        constant = count * reply / config.updates
    return LearnerConfig(
        loss=LossConfig(
            ratio=algorithm.ratio,
            clip_low=algorithm.clip_low,
            clip_high=algorithm.clip_high,
            dual_clip=3.0 if algorithm.ratio else None,
            aggregation=algorithm.aggregation,
            constant=constant,
            kl_coef=config.kl if config.kl is not None else algorithm.kl,
            entropy_coef=config.entropy,
        ),
        lr=config.lr,
        min_lr=config.min_lr,
        schedule=config.schedule,
        schedule_clock=config.schedule_clock,
        warmup=config.warmup,
        iterations=config.steps if config.schedule != "constant" else 0,
        weight_decay=config.weight_decay,
        clip_norm=config.clip_norm,
        updates_per_iteration=config.updates or "by_rows",
        rows_per_update=config.rows_per_update,
        temperature=config.temperature,
        top_p=config.top_p,
        top_k=config.top_k,
        correction=config.correction,
        old_logp=config.old_logp,
        importance_cap=config.importance_cap,
        truncated=config.truncated,
        truncation_penalty=config.truncation_penalty,
        role_weights=numbers_by_role(config.role_weights, roles, "role_weights"),
        role_kl=numbers_by_role(config.role_kl, roles, "role_kl"),
        coherence=config.coherence,
        role_gradients=config.role_gradients,
        microbatch_tokens=config.microbatch_tokens,
        compute=config.compute,
        layout=config.layout,
        gradient_checkpointing=config.gradient_checkpointing,
        compile=config.compile,
    )


def make_learners(
    config: TrainConfig, algorithm: Algorithm, trained: Mapping[str, LoadedPolicy],
    mapping: Mapping[str, str], roles: Mapping[str, int], reply: int,
) -> dict[str, Learner]:  # fmt: skip
    """A learner for every policy that is not frozen, on the weights as they are; one clock."""
    clock = Clock()
    return {
        name: Learner(
            one.weights,
            learner_config(config, algorithm, name, mapping, roles, reply),
            clock=clock,
        )
        for name, one in trained.items()
        if not one.frozen
    }


def open_engines(
    config: TrainConfig,
    trained: Mapping[str, LoadedPolicy],
    learners: Mapping[str, Learner],
    problems: Sequence[Problem],
    reply: int,
) -> Engines:
    """The engine that the settings name, started; it never becomes another one by itself."""
    training = Sampling(
        temperature=config.temperature, top_p=config.top_p, top_k=config.top_k, max_tokens=reply
    )
    evaluating = Sampling(temperature=config.eval_temperature, max_tokens=reply)
    if config.engine == "transformers":
        return TransformersEngines(config, trained, training, evaluating)
    from flowzoo.baselines.engines.vllm import VLLMEngines

    return VLLMEngines(config, trained, learners, training, evaluating, problems)


def make_sampler(
    config: TrainConfig, algorithm: Algorithm, workflow: Workflow, roster: Roster, *, seed: int,
    failures: Path,
) -> Sampler:  # fmt: skip
    """What plays the episodes that are trained on."""
    shared: dict[str, Any] = {
        "seed": seed, "deterministic": config.deterministic, "failures": failures
    }  # fmt: skip
    candidates = config.candidates or CANDIDATES
    if algorithm.sampling == "tree":
        tree = TreeSettings(
            candidates=candidates,
            value=config.candidate_value,
            value_rollouts=config.value_rollouts,
            select=config.select,
        )
        return TreeRollout(workflow, roster, tree, **shared)
    if algorithm.sampling == "joint":
        joint = JointSettings(candidates=candidates, joint=config.joint, leaves=config.leaves)
        return JointRollout(workflow, roster, joint, **shared)
    return Rollout(workflow, roster, **shared)
