"""What the settings of a run come to: found out and checked before anything is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from flowzoo.agents import Policy, PolicyMap
from flowzoo.agents.evaluation.protocol import check_selection
from flowzoo.agents.lengths import Lengths, read_lengths, with_default
from flowzoo.baselines.advantages.spec import by_agent, with_words
from flowzoo.baselines.learner.config import LearnerConfig
from flowzoo.baselines.learner.literals import LossConfig
from flowzoo.baselines.settings.algorithms import ALGORITHMS, Algorithm, algorithm_named
from flowzoo.baselines.settings.checks import (
    check_credit,
    check_groups,
    check_optimiser,
    check_probes,
    check_reward,
    check_splits,
    check_staleness,
    check_used,
)
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.settings.hooks import (
    AdvantageFunction,
    Callback,
    Hook,
    LossFunction,
    RewardFunction,
    load_hook,
)
from flowzoo.baselines.settings.learner_groups import (
    LearnerGroupPlan,
    plan_learner_groups,
    shared_learner_groups,
)
from flowzoo.baselines.settings.learning_rates import idle_weights, policy_rates
from flowzoo.baselines.settings.model_defaults import settle
from flowzoo.baselines.settings.policy_map import (
    agent_policies,
    numbers_by_role,
    per_policy,
    read_policy_map,
)
from flowzoo.baselines.settings.preflight import kept_prompts, with_prompts
from flowzoo.baselines.settings.scale_checks import check_scale
from flowzoo.baselines.training.advantage_computer import Judge, LengthShaping
from flowzoo.baselines.training.curriculum import Curriculum, read_stages
from flowzoo.envs import Workflow
from flowzoo.envs.settings import read_settings
from flowzoo.envs.workflow import Roles
from flowzoo.errors import UsageError


@dataclass(frozen=True, slots=True)
class Budgets:
    """Token budgets of a run."""

    roles: Mapping[str, Lengths]
    reply: int
    """The longest reply of any role: what the policies must allow."""


@dataclass(frozen=True, slots=True)
class Hooks:
    """The functions of the user's own; see `flowzoo.baselines.settings.hooks`."""

    advantages: AdvantageFunction | None
    loss: LossFunction | None
    reward: RewardFunction | None
    """Of training episodes; evaluations know none."""
    callbacks: tuple[Callback, ...]

    def record(self) -> dict[str, str]:
        """What was named and the digest of its file, for the record of a run."""
        named: list[Hook | None] = [self.advantages, self.loss, self.reward, *self.callbacks]
        return {f"--{one.option} {one.name}": one.digest for one in named if one is not None}


@dataclass(frozen=True, slots=True)
class RunPlan:
    """The parts of a run that need no model's weights."""

    config: TrainConfig
    """The settings, with what they leave to the models filled in."""
    by_model: Mapping[str, float | str]
    """What was filled in just now; nothing in a run that is continued."""
    sources: Mapping[str, str]
    """What each of these follows from."""
    workflow: Workflow
    algorithm: Algorithm
    samples: int
    """Episodes (or trees) per problem."""
    policies: Mapping[str, str]
    """Role or agent -> policy."""
    budgets: Budgets
    curriculum: Curriculum
    learners: Mapping[str, LearnerConfig]
    """Policy that is trained -> settings of its learner."""
    judge: Judge
    """What the rows of a step are judged by."""
    hooks: Hooks

    @property
    def names(self) -> list[str]:
        """The policies, frozen ones included."""
        return sorted(set(self.policies.values()))

    @property
    def learner_groups(self) -> tuple[LearnerGroupPlan, ...]:
        """Who learns together on learner workers; none where there are none."""
        own = per_policy(self.config.models, self.names, "models")
        return plan_learner_groups(
            self.config, {name: own.get(name, self.config.model) for name in self.names}
        )

    @property
    def notes(self) -> list[str]:
        """What is to be said about settings that do less than they seem to."""
        idle = idle_weights(self.config, self.policies, self.workflow.role_counts())
        return [*idle, *shared_learner_groups(self.config, self.learner_groups)]

    def make_policy_map(self, policies: Mapping[str, Policy]) -> PolicyMap:
        """Who answers for which role, given who stands behind the policies' names."""
        return PolicyMap.from_map(self.policies, policies, self.budgets.roles)


def resolve(
    config: TrainConfig,
    before: Mapping[str, Any] | None = None,
    *,
    reply_tokens: int | None = None,
) -> RunPlan:
    """Find out what the settings of a run come to, without loading a model's weights.

    Args:
        config: the settings.
        before: those of the run that is continued, if one is.
        reply_tokens: takes the place of what the task says that replies take.

    Raises:
        UsageError: names, choices or numbers that the run would refuse.
    """
    check_selection(config.eval_split)
    check_splits(config)
    check_optimiser(config)
    check_probes(config)
    check_scale(config)
    workflow, config = with_prompts(kept_prompts(config, before))
    algorithm = make_algorithm(config, workflow)
    roles = workflow.role_counts()
    policies = read_policy_map(config.policy_words, roles)
    tokens = reply_tokens or workflow.task.reply_tokens
    config, by_model, sources = settle(config, sorted(set(policies.values())), tokens, before)
    budgets = token_budgets(config, roles)
    hooks = load_hooks(config)
    played = workflow if hooks.reward is None else replace(workflow, episode_reward=hooks.reward)
    curriculum = Curriculum(played, read_stages(config.curriculum))
    learners = {
        name: learner_config(
            config, algorithm, name, policies, roles, budgets.reply, loss=hooks.loss
        )
        for name in sorted(set(policies.values()))
        if name not in config.frozen
    }
    samples = algorithm.samples(config.samples)
    judge = make_judge(config, algorithm, budgets, hooks)
    return RunPlan(
        config,
        by_model,
        sources,
        workflow,
        algorithm,
        samples,
        policies,
        budgets,
        curriculum,
        learners,
        judge,
        hooks,
    )


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
    if config.dual_clip is not None:
        chosen["dual_clip"] = config.dual_clip or None
    algorithm = replace(algorithm, advantage=spec, **chosen)
    check_used(config, algorithm)
    check_groups(config, algorithm)
    check_staleness(config, algorithm)
    if workflow.pays_agents:
        algorithm = replace(algorithm, advantage=by_agent(spec))
    check_credit(workflow, algorithm)
    check_reward(config, algorithm)
    return algorithm


def load_hooks(config: TrainConfig) -> Hooks:
    """The functions that the settings name.

    Raises:
        UsageError: one cannot be loaded.
    """
    advantages, loss, reward = config.advantage_function, config.loss, config.reward
    return Hooks(
        load_hook(AdvantageFunction, "advantage-function", advantages) if advantages else None,
        load_hook(LossFunction, "loss", loss) if loss else None,
        load_hook(RewardFunction, "reward", reward) if reward else None,
        tuple(load_hook(Callback, "callback", name) for name in config.callback),
    )


def make_judge(config: TrainConfig, algorithm: Algorithm, budgets: Budgets, hooks: Hooks) -> Judge:
    """What the rows of a step are judged by.

    Raises:
        UsageError: a cache longer than a reply may be.
    """
    shaping = None
    if config.truncated == "shape":
        limits = {name: one.reply or budgets.reply for name, one in budgets.roles.items()}
        shaping = LengthShaping(limits, config.length_cache, config.truncation_penalty)
    # A grader pays nothing for nothing; the 0 of a function may stand anywhere on its scale.
    origin = 0.0 if hooks.reward is None else None
    return Judge(algorithm.advantage, shaping, hooks.advantages, origin)


def token_budgets(config: TrainConfig, roles: Roles) -> Budgets:
    """How long every role's prompts and replies may be; the settings have no gaps any more."""
    assert config.max_tokens is not None
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
    roles: Roles, reply: int, *, loss: LossFunction | None = None,
) -> LearnerConfig:  # fmt: skip
    """The settings of one policy's learner: those of the run by name, but for what follows from it.

    Raises:
        UsageError: a number out of range, or choices that exclude one another.
    """
    constant = 1.0
    if algorithm.aggregation == "token-sum":  # rows * reply of an optimiser step, if all call once
        agents = list(agent_policies(mapping, roles).values()).count(policy)
        count = config.problems * algorithm.samples(config.samples) * agents
        if not config.updates:
            raise UsageError(
                "token-sum divides by the rows of an optimiser step, which updates=0 (steps by the "
                "number of rows) leaves open: choose `updates` above 0 or another `aggregation`"
            )
        constant = count * reply / config.updates
    rate = policy_rates(config, mapping, roles)[policy]
    derived = {
        "lr": rate.lr,
        "role_lr": rate.roles,
        "loss": LossConfig(
            ratio=algorithm.ratio,
            clip_low=algorithm.clip_low,
            clip_high=algorithm.clip_high,
            dual_clip=algorithm.dual_clip,
            clipping=algorithm.clipping,
            aggregation=algorithm.aggregation,
            constant=constant,
            kl_coef=config.kl if config.kl is not None else algorithm.kl,
            entropy_coef=config.entropy,
            kl_estimate=config.kl_estimate,
            function=loss,
        ),
        "iterations": 0 if config.schedule == "constant" else config.schedule_steps or config.steps,
        "updates_per_iteration": config.updates or "by_rows",
        "role_weights": numbers_by_role(config.role_weights, roles, "role_weights"),
        "role_kl": numbers_by_role(config.role_kl, roles, "role_kl"),
    }
    named = {field.name for field in fields(LearnerConfig)} & {one.name for one in fields(config)}
    named -= derived.keys()  # `loss` and others are another thing in each
    values: dict[str, Any] = {name: getattr(config, name) for name in named} | derived
    return LearnerConfig(**values)
