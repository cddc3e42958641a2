"""Resolved settings of a run: the second stage, after `settings.preflight.outline_run`."""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

from flowzoo.agents import Policy, PolicyMap
from flowzoo.agents.judge import JudgePolicy
from flowzoo.agents.policy_map import Lengths, read_lengths, with_default
from flowzoo.agents.problems import distinct_problems
from flowzoo.agents.specs import make_judge
from flowzoo.baselines.learner.config import LearnerConfig, LossConfig
from flowzoo.baselines.learner.schedule import UpdateTurn, lr_in, odd_rates
from flowzoo.baselines.settings.algorithms import Algorithm
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.settings.hooks import (
    AdvantageFunction,
    Callback,
    Hook,
    LossFunction,
    RewardFunction,
)
from flowzoo.baselines.settings.layers import (
    ALGORITHM,
    AUTOMATIC,
    DEFAULT,
    EARLIER,
    GIVEN,
    LayeredConfig,
    earlier_layer,
    fill_from_models,
)
from flowzoo.baselines.settings.policies import (
    agent_policies,
    idle_weights,
    numbers_by_role,
    of_policy,
    policy_rates,
    trained_roles,
)
from flowzoo.baselines.settings.preflight import RunOutline, outline_run
from flowzoo.baselines.training.advantage_computer import AdvantageComputer, LengthShaping
from flowzoo.baselines.training.curriculum import Curriculum, read_stages
from flowzoo.envs import Problem, Workflow
from flowzoo.envs.settings import read_named
from flowzoo.envs.tasks.rows import DataTask
from flowzoo.envs.workflow import Roles
from flowzoo.errors import UsageError

logger = logging.getLogger("flowzoo")


@dataclass(frozen=True, slots=True)
class Budgets:
    """Token budgets of a run."""

    roles: Mapping[str, Lengths]
    reply: int
    """Longest reply of any role, which the policies must allow."""


class Replies(NamedTuple):
    """Longest reply of any role, in tokens."""

    training: int
    evaluations: int


@dataclass(frozen=True, slots=True)
class Hooks:
    """Functions of the user; see `flowzoo.baselines.settings.hooks`."""

    advantages: AdvantageFunction | None
    loss: LossFunction | None
    reward: RewardFunction | None
    """Reward of training episodes; evaluations keep the task's scores."""
    callbacks: tuple[Callback, ...]

    def record(self) -> dict[str, str]:
        """Digest of each function's file, by option and name, for the record of a run."""
        hooks: list[Hook | None] = [self.advantages, self.loss, self.reward, *self.callbacks]
        return {f"{hook.setting} {hook.name}": hook.digest for hook in hooks if hook is not None}


@dataclass(frozen=True, slots=True)
class RunPlan(RunOutline):
    """Parts of a run that need no model's weights; what models decide is filled in."""

    algorithm: Algorithm
    sources: Mapping[str, str]
    """Source of the value of every setting; see `flowzoo.baselines.settings.layers`."""
    eval_workflows: Mapping[str, Workflow]
    """Workflow by evaluation set; that of the held-out problems is named ""."""
    samples: int
    """Episodes (or trees) per problem."""
    budgets: Budgets
    eval_budgets: Budgets
    """Token budgets of evaluations."""
    curriculum: Curriculum
    learners: Mapping[str, LearnerConfig]
    """Settings of the learner by policy that is trained."""
    compute_advantages: AdvantageComputer
    """Computes the advantages of the rows of a step."""
    hooks: Hooks
    judge: JudgePolicy | None
    """Answers what a workflow or the reward asks a judge."""

    @property
    def held_out(self) -> Sequence[Problem]:
        """Held-out problems of the task."""
        task, split, count = self.workflow.task, self.config.eval_split, self.config.eval_problems
        return distinct_problems(task, split, count, option="--eval-problems")

    def eval_problems(self) -> dict[str, Sequence[Problem]]:
        """List the problems of every evaluation set; a warning counts trained ones."""
        task, split = self.workflow.task, self.config.split
        sets = {
            name: distinct_problems(workflow.task, "all", None)
            for name, workflow in self.eval_workflows.items()
            if name
        }
        if sets and task.size(split) is not None:
            texts = {problem.text for problem in distinct_problems(task, split, None)}
            for name, listed in sets.items():
                if seen := sum(problem.text in texts for problem in listed):
                    logger.warning(
                        "evaluation set %s: %d of its %d problems are in split %s, which is "
                        "trained on", name, seen, len(listed), split,
                    )  # fmt: skip
        return {"": self.held_out, **sets}

    @property
    def by_model(self) -> dict[str, float | str]:
        """Settings that were filled in just now; none in a run that is continued."""
        values = {
            name: getattr(self.config, name)
            for name in AUTOMATIC
            if self.sources[name] not in (GIVEN, EARLIER, DEFAULT)
        }
        return {
            name: " ".join(value) if isinstance(value, tuple) else value
            for name, value in values.items()
        }

    @property
    def notes(self) -> list[str]:
        """Lines about settings that do less than they seem to."""
        idle = idle_weights(self.config, self.policies, self.workflow.role_counts())
        odd = [
            f"{name}: the learning rate {course}"
            for index, (name, learner) in enumerate(self.learners.items())
            for course in odd_rates(
                [
                    lr_in(step, UpdateTurn(index, len(self.learners)), learner)
                    for step in range(self.config.steps)
                ]
            )
        ]
        asked_apart = not isinstance(self.config.learner_workers, int)
        shared = [
            f"{', '.join(names)}: adapters on one base take turns in one group of {workers} "
            "learner workers"
            for names, workers in self.learner_groups
            if asked_apart and len(names) > 1
        ]
        return [*idle, *odd, *shared]

    @property
    def replies(self) -> Replies:
        """Longest replies, which the policies must allow."""
        return Replies(self.budgets.reply, self.eval_budgets.reply)

    def make_policy_map(self, policies: Mapping[str, Policy], budgets: Budgets) -> PolicyMap:
        """Map roles to `policies`, which are by name, with the `budgets`."""
        policy_map = PolicyMap.from_map(self.policies, policies, budgets.roles)
        return policy_map if self.judge is None else policy_map.with_judge(self.judge)


def resolve(
    settings: TrainConfig,
    earlier: Mapping[str, object] | None = None,
    *,
    reply_tokens: int | None = None,
) -> RunPlan:
    """Resolve the settings of a run, without loading a model's weights.

    Args:
        settings: what the user gives.
        earlier: the settings of the run that is continued, whose automatic values it keeps.
        reply_tokens: tokens of a reply to the task's problems, in place of the task's.
    """
    continued = LayeredConfig(settings).fill(earlier_layer(earlier))
    outline = outline_run(continued.config)
    workflow, roles, algorithm = outline.workflow, outline.roles, outline.algorithm
    assert algorithm is not None
    layered = continued.follow(outline.config).fill(earlier_layer(earlier), outline.names)
    tokens = reply_tokens or workflow.task.reply_tokens
    layered = fill_from_models(layered, outline.models, tokens)
    config = layered.config
    left = [name for name in algorithm.values if getattr(config, name) is None]
    samples = algorithm.fill(config).samples
    assert samples is not None
    budgets = token_budgets(config, roles, config.max_tokens)
    hooks = load_hooks(config)
    # Evaluations keep the task's score: a reward is not measured by itself.
    trained = workflow if hooks.reward is None else replace(workflow, episode_reward=hooks.reward)
    return RunPlan(
        config=config,
        policy_settings={name: of_policy(config, name) for name in outline.names},
        workflow=workflow,
        roles=roles,
        policies=outline.policies,
        models=outline.models,
        algorithm=algorithm,
        learner_groups=outline.learner_groups,
        sources=layered.sources | dict.fromkeys(left, ALGORITHM),
        learners=learner_configs(config, outline, budgets.reply, hooks.loss),
        eval_workflows={"": workflow} | evaluation_workflows(config, workflow),
        samples=samples,
        budgets=budgets,
        eval_budgets=token_budgets(config, roles, config.eval_max_tokens or config.max_tokens),
        curriculum=Curriculum(trained, read_stages(config.curriculum)),
        compute_advantages=advantage_computer(config, algorithm, budgets, hooks),
        hooks=hooks,
        judge=judge_of(config, trained, workflow),
    )


def evaluation_workflows(config: TrainConfig, workflow: Workflow) -> dict[str, Workflow]:
    """Make the workflow of every evaluation set, by name: other problems than the run is chosen by.

    Raises:
        UsageError: a task without files, an option that no file has, or a name that is no word.
        DataError: a broken file, with the line.
    """
    named, task = read_named(config.eval_sets, None, "eval_sets", "name"), workflow.task
    if not named:
        return {}
    if not isinstance(task, DataTask):
        raise UsageError(
            f"`eval_sets` names data, and the problems of task {task.name!r} are in no file: leave "
            "it out"
        )
    for name in named:
        if not name.isidentifier():
            raise UsageError(f"`eval_sets` names a set {name!r}: expected a word, such as aime24")
    return {name: replace(workflow, task=task.on(data)) for name, data in named.items()}


def judge_of(config: TrainConfig, trained: Workflow, evaluated: Workflow) -> JudgePolicy | None:
    """Make the judge that the settings name; nothing is loaded yet.

    Raises:
        UsageError: a judge that nothing asks, or none where one is asked.
    """
    needed = trained.needs_judge or evaluated.needs_judge
    if needed != bool(config.judge):
        raise UsageError(
            f"`judge` {config.judge} is asked nothing: the workflow has no Judge, and `reward` is "
            "no rubric with a question; leave it out"
            if config.judge
            else f"{trained.name} or its `reward` asks a judge, and there is none: set `judge`, "
            "e.g. --judge openai:MODEL@URL"
        )
    return make_judge(config.judge, evaluated, seed=config.seed) if needed else None


def load_hooks(config: TrainConfig) -> Hooks:
    """Load the functions that the settings name."""
    advantages, loss, reward = config.advantage_function, config.loss, config.reward
    return Hooks(
        AdvantageFunction("--advantage-function", advantages) if advantages else None,
        LossFunction("--loss", loss) if loss else None,
        RewardFunction("--reward", reward) if reward else None,
        tuple(Callback("--callback", name) for name in config.callback),
    )


def advantage_computer(
    config: TrainConfig, algorithm: Algorithm, budgets: Budgets, hooks: Hooks
) -> AdvantageComputer:
    """Make the advantage computer of a run."""
    shaping = None
    if config.truncated == "shape":
        limits = {name: entry.reply or budgets.reply for name, entry in budgets.roles.items()}
        shaping = LengthShaping(limits, config.length_cache, config.truncation_penalty)
    # A grader pays 0 for a wrong reply; on the scale of a user's function 0 means nothing.
    origin = 0.0 if hooks.reward is None else None
    return AdvantageComputer(algorithm.advantage, shaping, hooks.advantages, origin)


def token_budgets(config: TrainConfig, roles: Roles, max_tokens: int | None) -> Budgets:
    """Lengths of every role's prompts and replies, from settings without automatic values."""
    assert max_tokens is not None
    named = read_lengths(config.lengths, roles)
    full, longest = with_default(named, roles, max_tokens)
    if config.max_prompt:
        full = {
            name: Lengths(entry.prompt or config.max_prompt, entry.reply)
            for name, entry in full.items()
        }
    return Budgets(full, longest)


def _settings(kind: Any, *sources: Any, **derived: Any) -> Any:
    """A `kind` of `derived` values, then of the first source that has a field's name."""
    values = {
        field.name: getattr(source, field.name)
        for source in reversed(sources)
        for field in fields(kind)
        if hasattr(source, field.name)
    }
    return kind(**values | derived)


def schedule_ticks(config: TrainConfig, policies: int) -> int:
    """Length of the schedule in ticks of its clock, with this many trained policies."""
    if config.schedule == "constant":
        return 0
    steps = config.schedule_steps or config.steps
    return steps * policies if config.schedule_clock == "update" else steps


def learner_configs(
    config: TrainConfig, outline: RunOutline, reply: int, loss: LossFunction | None
) -> dict[str, LearnerConfig]:
    """Settings of the learner of every trained policy: shared by name, or derived from the run's.

    Args:
        config: the resolved settings.
        outline: the policies and the algorithm.
        reply: the longest reply, in tokens.
        loss: function in place of the clipped objective.
    """
    policies, roles, algorithm = outline.policies, outline.roles, outline.algorithm
    assert algorithm is not None
    rates, served = policy_rates(config, policies, roles), trained_roles(config, policies, roles)
    agents = Counter(agent_policies(policies, roles).values())
    role_kl = numbers_by_role(config.role_kl, roles, "role_kl")
    learners: dict[str, LearnerConfig] = {}
    for name in sorted(served):
        settings = algorithm.fill(of_policy(config, name))
        # A weight that is not that of any of its rows would make the policy keep a reference.
        kl = {role: weight for role, weight in role_kl.items() if role in served[name]}
        learners[name] = _settings(
            LearnerConfig,
            settings,
            lr=rates[name].lr,
            role_lr=rates[name].roles,
            loss=_settings(
                LossConfig,
                settings,
                algorithm,
                dual_clip=settings.dual_clip or None,
                constant=loss_constant(settings, agents[name], reply),
                kl_coef=settings.kl if served[name] - kl.keys() else 0.0,
                entropy_coef=settings.entropy,
                function=loss,
            ),
            iterations=schedule_ticks(config, len(served)),
            updates_per_iteration=settings.updates or "by_rows",
            fixed_order=config.deterministic,
            role_weights=numbers_by_role(config.role_weights, roles, "role_weights"),
            role_kl=kl,
        )
    return learners


def loss_constant(config: TrainConfig, agents: int, reply: int) -> float:
    """Divisor of token-sum: rows of an optimizer step, if all `agents` call once, times `reply`."""
    if config.aggregation != "token-sum":
        return 1.0
    if not config.updates:
        raise UsageError(
            "token-sum divides by the rows of an optimizer step, which updates=0 (steps by the "
            "number of rows) leaves open: choose `updates` above 0 or another `aggregation`"
        )
    assert config.samples is not None
    assert isinstance(config.updates, int)
    return config.problems * config.samples * agents * reply / config.updates
