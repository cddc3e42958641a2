"""Settings resolved without a library of models: the first stage of `training.plan.resolve`.

Commands call `preflight` before they load anything.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from flowzoo.agents.chat.template import read_thinking
from flowzoo.agents.model_files import check_model
from flowzoo.agents.pocket import pocket_path, read_pocket
from flowzoo.agents.policy_map import read_lengths
from flowzoo.agents.problems import distinct_problems
from flowzoo.agents.prompt_style import make_styled
from flowzoo.agents.rollout.branches import check_replayable
from flowzoo.baselines.advantages.spec import by_agent, with_choices
from flowzoo.baselines.settings.algorithms import ALGORITHMS, Algorithm
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.settings.hooks import check_alert
from flowzoo.baselines.settings.layers import EVAL_PROBLEMS, TINY_EVAL_PROBLEMS
from flowzoo.baselines.settings.policies import (
    LearnerGroupPlan,
    plan_learner_groups,
    read_policies,
    read_policy_map,
    starting_models,
)
from flowzoo.baselines.settings.rules import check, learner_rules, run_rules, training_rules
from flowzoo.declared import check_effects, unmet_condition
from flowzoo.envs import Task, Workflow, make_workflow
from flowzoo.envs.external.workflow import make_aec_workflow
from flowzoo.envs.settings import add_program, add_setting, add_wording, read_settings
from flowzoo.envs.workflow import Roles
from flowzoo.errors import UsageError, need_module, unknown


@dataclass(frozen=True, slots=True)
class RunOutline:
    """Settings of a run, resolved as far as names go."""

    config: TrainConfig
    """The settings, with the prompts that the models are given."""
    policy_settings: Mapping[str, TrainConfig]
    """The settings of each policy, with its own values in place of words."""
    workflow: Workflow
    roles: Roles
    policies: Mapping[str, str]
    """Policy by role or agent."""
    models: Mapping[str, str]
    """Starting model by policy, in the order of their names."""
    algorithm: Algorithm | None
    """The algorithm with the settings' own choices; None for a warm start."""
    learner_groups: tuple[LearnerGroupPlan, ...]

    @property
    def names(self) -> list[str]:
        """Names of the policies, frozen ones included."""
        return list(self.models)


def outline_run(config: TrainConfig, *, warm_start: bool = False) -> RunOutline:
    """Resolve names and check every rule that needs no model."""
    algorithm = None if warm_start else ALGORITHMS[config.algorithm]
    check(run_rules(config, algorithm))
    workflow, config = with_prompts(config)
    roles = workflow.role_counts()
    policies = read_policy_map(config.policy_words, roles)
    names = sorted(set(policies.values()))
    models = starting_models(config, names)
    read_lengths(config.lengths, roles)
    read_thinking(config.thinking, names)
    policy_settings = resolve_policies(config, names)
    groups: tuple[LearnerGroupPlan, ...] = ()
    if algorithm is not None:
        algorithm = with_own_advantage(algorithm, config, workflow)
        trained = [policy_settings[name] for name in names if name not in config.frozen]
        check_effects(trained, algorithm, f" ({algorithm.name})")
        check(training_rules(config, algorithm, workflow, policy_settings, models))
        if workflow.pays_agents:
            algorithm = replace(algorithm, advantage=by_agent(algorithm.advantage))
        groups = plan_learner_groups(config, policy_settings, models)
    return RunOutline(config, policy_settings, workflow, roles, policies, models, algorithm, groups)


def resolve_policies(config: TrainConfig, names: Sequence[str]) -> dict[str, TrainConfig]:
    """Settings of each policy, checked."""
    for name in config.frozen:
        if name not in names:
            raise UsageError(f"`frozen`: {unknown('policy', name, names)}")
    trained = [name for name in names if name not in config.frozen]
    if not trained:
        raise UsageError(
            f"every policy is frozen ({', '.join(names)}): leave one out of `frozen`, or use "
            "`flowzoo eval`, which trains nothing."
        )
    policy_settings = read_policies(config, trained)
    for name in trained:
        check(learner_rules(policy_settings[name]))
    return policy_settings


def preflight(config: TrainConfig, *, warm_start: bool = False) -> RunOutline:
    """Outline a run, and check that its libraries and models are there."""
    # Rules first: gigabytes are not installed for settings that are refused then.
    outline = outline_run(config, warm_start=warm_start)
    check_alert(config.alert)
    need_modules(config, outline.policy_settings.values())
    continued = (Path(config.directory) / "run.json").exists()  # its models were found before
    for model in set(outline.models.values()):
        kind, _, rest = model.partition(":")
        if kind == "pocket":
            pocket_path(*read_pocket(rest, outline.workflow.task.name))
        elif not continued:
            check_model(model)
    return outline


def with_own_advantage(algorithm: Algorithm, config: TrainConfig, workflow: Workflow) -> Algorithm:
    """Return the algorithm with the settings' own choices of the advantage."""
    if config.candidates is not None and algorithm.sampling == "episodes":
        branching = [row.name for row in ALGORITHMS.values() if row.sampling != "episodes"]
        raise UsageError(
            f"{algorithm.name} plays whole episodes and samples no candidates: leave out "
            f"`candidates`, or use one of {', '.join(branching)}"
        )
    if algorithm.sampling != "episodes":
        check_replayable(workflow)
    choices = read_settings(config.advantage, "advantage")
    spec = with_choices(algorithm.advantage, choices)
    if "gamma" in choices and config.gamma != TrainConfig.gamma:
        raise UsageError("`gamma` is given twice, by itself and in `advantage`: leave one out")
    for name in choices:
        if only := unmet_condition([spec], name):
            raise UsageError(
                f"`advantage` {name} has no effect here: it is a choice {only.subject}; leave it "
                "out"
            )
    if spec.target == "return_to_go" and "gamma" not in choices:
        spec = replace(spec, gamma=config.gamma)
    return replace(algorithm, advantage=spec)


def check_held_out(config: TrainConfig, task: Task) -> None:
    """Refuse more held-out problems than the task has, before any model is loaded."""
    # A count that is left to the model is checked with its least value.
    count = config.eval_problems
    if count is None:
        pocket = all(model.partition(":")[0] == "pocket" for model in named_models(config))
        count = TINY_EVAL_PROBLEMS if pocket else EVAL_PROBLEMS
    distinct_problems(task, config.eval_split, count, option="--eval-problems")


def named_models(config: TrainConfig) -> list[str]:
    """List the models that the settings name; the default only if they name no other."""
    models = [word.partition("=")[2] for word in config.models]
    return models if models and config.model == "pocket" else [*models, config.model]


def need_modules(config: TrainConfig, policies: Iterable[TrainConfig]) -> None:
    """Refuse settings whose library is not installed, before models are loaded for them."""
    need_module("torch", "training")
    # With rollout workers of Ray this process needs no engine: the workers have it.
    needs = {
        "ray": (config.backend == "ray", "`backend` ray"),
        **{
            module: (config.backend != "ray", purpose)
            for module, purpose in config.engine_traits.modules.items()
        },
        "bitsandbytes": (
            any(policy.optimizer == "adamw8bit" for policy in policies),
            "`optimizer` adamw8bit",
        ),
        "wandb": (bool(config.wandb), "`wandb`"),
        "trackio": (bool(config.trackio), "`trackio`"),
    }
    for module, (needed, purpose) in needs.items():
        if needed:
            need_module(module, purpose)


def with_prompts(config: TrainConfig) -> tuple[Workflow, TrainConfig]:
    """Make the workflow of a run, or the one around its environment, and fill in its prompts.

    The settings that are returned name the prompts that the run's models are given.
    """
    if config.env is not None:
        for name in ("task", "sandbox", "difficulty", "curriculum", "reward"):
            if getattr(config, name):
                raise UsageError(
                    f"`{name}` is a setting of tasks, and `env` {config.env} has none: leave it "
                    "out, or give options of the environment as NAME=VALUE in `options`"
                )
        # Which pocket model it is follows from the task.
        if config.model == "pocket" and not config.models:
            raise UsageError(
                "`model` pocket is the model of the task that is played, and `env` has no task: "
                "name a model, e.g. pocket:math"
            )
    options = read_settings(config.options)
    settings: dict[str, object] = dict(options)
    add_setting(settings, "max_calls", config.max_calls)
    add_wording(settings, config.prompts, config.system, config.examples)
    add_setting(settings, "sandbox", config.sandbox)
    add_program(settings, config.program)
    if config.env is not None:
        return make_aec_workflow(config.env, **settings), config
    make = partial(make_workflow, config.workflow, config.task)
    workflow, style = make_styled(make, settings, named_models(config))
    prompts = config.prompts if "texts" in options else style.texts
    examples = config.examples if "examples" in options else style.examples
    return workflow, replace(config, prompts=prompts, examples=examples)
