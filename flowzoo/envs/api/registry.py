"""Workflows and environments by name."""

import importlib
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, fields
from typing import Any

from flowzoo.errors import FlowzooError, OptionError, UsageError, unknown
from flowzoo.functions import load_class
from flowzoo.plugins import WORKFLOW_GROUP, load_plugin, plugin_named, plugins, with_packages

# Versioned name -> `module:Class`, in the order they are listed.
WORKFLOWS: dict[str, str] = {
    "voting_v0": "flowzoo.envs.workflows.voting:Voting",
    "eval_opt_v0": "flowzoo.envs.workflows.eval_opt:EvalOpt",
    "orch_workers_v0": "flowzoo.envs.workflows.orch_workers:OrchWorkers",
    "single_v0": "flowzoo.envs.workflows.single:Single",
    "reasoner_tool_v0": "flowzoo.envs.workflows.reasoner_tool:ReasonerTool",
    "reasoner_python_v0": "flowzoo.envs.workflows.reasoner_python:ReasonerPython",
    "coder_tester_v0": "flowzoo.envs.workflows.coder_tester:CoderTester",
    "code_pair_v0": "flowzoo.envs.workflows.code_pair:CodePair",
    "tool_planner_v0": "flowzoo.envs.workflows.tool_planner:ToolPlanner",
    "search_team_v0": "flowzoo.envs.workflows.search_team:SearchTeam",
    "writing_pair_v0": "flowzoo.envs.workflows.writing_pair:WritingPair",
}

# Workflows that wrap the object named by a setting; they are not listed.
UNLISTED = {"openai_program_v0": "flowzoo.envs.external.program:OpenAIProgram"}


def register_all() -> None:
    """Register every workflow with PettingZoo and Gymnasium, as parallel ones too.

    To make the parallel environment of a workflow that is not simultaneous is an error.
    """
    import gymnasium
    import pettingzoo

    pettingzoo.register("aec", "flowzoo/workflow-v0", "flowzoo.envs.api.registry:make_env")
    parallel = "flowzoo.envs.api.parallel:make_parallel_env"
    pettingzoo.register("parallel", "flowzoo/workflow-v0", parallel)
    seat = "flowzoo.adapters.outside:make_seat"
    gymnasium.register("flowzoo/Workflow-v0", seat)
    for name in WORKFLOWS:
        base, version = name.rsplit("_", 1)
        dashed = f"flowzoo/{base.replace('_', '-')}-{version}"
        pettingzoo.register("aec", dashed, f"flowzoo.envs.{name}:env")
        pettingzoo.register("parallel", dashed, parallel, kwargs={"workflow": name})
        camel = "".join(part.capitalize() for part in base.split("_"))
        gymnasium.register(f"flowzoo/{camel}-{version}", seat, kwargs={"workflow": name})


def workflow_class(name: str) -> Any:
    """The class of a workflow: `voting_v0`, `voting` (its highest version), or `module:Class`.

    A class may also be named as `path/to/file.py:Class`. flowzoo's names are reserved and
    precede names of installed packages; see `flowzoo.plugins`.

    Raises:
        UsageError: the workflow is unknown, or the module has no such Workflow class.
    """
    from flowzoo.envs.workflow import Workflow

    bundled = {**WORKFLOWS, **UNLISTED}
    full = highest_version(name, bundled)
    if full is not None:
        module, _, attribute = bundled[full].partition(":")
        return getattr(importlib.import_module(module), attribute)
    if ":" in name:
        return _complete(f"workflow {name}", load_class("workflow", name, Workflow))
    others = [plugin.name for plugin in plugins(WORKFLOW_GROUP)]
    full = highest_version(name, others)
    plugin = plugin_named(WORKFLOW_GROUP, full) if full is not None else None
    if plugin is None:
        from flowzoo.envs.tasks import TASKS, task_class

        hint = "name your own class as module:Class or path/to/file.py:Class"
        if name in TASKS:
            hint = f"{name} is a task: {task_class(name).home} --task {name}"
        raise unknown("workflow", name, [*WORKFLOWS, *others], hint)
    return load_plugin("workflow", plugin, Workflow, _complete)


def highest_version(name: str, names: Iterable[str]) -> str | None:
    """`name` if it exists, else its highest version ("voting" gives "voting_v0"), or None."""
    if name in names:
        return name
    versions = {
        int(match[1]): version
        for version in names
        if (match := re.fullmatch(rf"{re.escape(name)}_v(\d+)", version))
    }
    return versions[max(versions)] if versions else None


def _complete(setting: str, value: Any) -> Any:
    from flowzoo.envs.workflow import Workflow

    if not isinstance(getattr(value, "name", None), str):
        raise UsageError(f'{setting} has no name: set name = "..._v0" in the class.')
    computed = value.role_counts is not Workflow.role_counts
    if not (computed or (isinstance(getattr(value, "roles", None), Mapping) and value.roles)):
        raise UsageError(f'{setting} has no roles: set roles = {{"role": 1}}.')
    if value.play is Workflow.play and value.script is Workflow.script:
        raise UsageError(f"{setting} has no play(): define the workflow's script there.")
    return value


def workflow_names() -> dict[str, str]:
    """Providing package by versioned name of every workflow; "" for flowzoo's own."""
    return with_packages(WORKFLOWS, WORKFLOW_GROUP)


def make_workflow(kind: Any, /, task: Any = None, **options: Any) -> Any:
    """Make a workflow of class (or name) `kind` on `task`; each option goes to the one that has it.

    Without a task it is the workflow's `default_task`.

    A Workflow instance is returned as it is.

    Raises:
        UsageError: an option that neither the workflow nor the task has.
    """
    from flowzoo.envs.episode.examples import with_examples
    from flowzoo.envs.tasks import Task, make_task, task_class, task_options
    from flowzoo.envs.workflow import Workflow

    if isinstance(kind, Workflow):
        if task is not None and task is not kind.task:
            raise UsageError("a Workflow instance has a task already: pass only one of the two")
        if options:
            names = ", ".join(sorted(options))
            raise UsageError(f"{names}: a Workflow instance takes no further options")
        return kind
    cls = _class_of(kind)
    task = cls.default_task if task is None else task
    task_type = task_class(task) if isinstance(task, str) else task
    is_class = isinstance(task_type, type) and issubclass(task_type, Task)
    of_task = task_options(task_type) if is_class else None
    if isinstance(task, str) and not {"name", "kind"} & {*(of_task or ())}:
        cls.check_kind(task_type)  # before the task looks for modules and data
    accepted = {field.name for field in fields(cls)} - {"task"}
    count = options.pop("examples") if isinstance(options.get("examples"), int) else 0
    values = {name: options.pop(name) for name in list(options) if name in accepted}
    for option in options:
        if of_task is not None and option not in of_task:
            name = task if isinstance(task, str) else task_type.__name__
            # In Python's words, by which other libraries know what they may leave out.
            further = (
                f"{cls.name} and its task {name} got an unexpected keyword argument {option!r}"
            )
            raise OptionError(
                str(unknown("option", option, {"task", *accepted, *of_task}, further))
            )
    task_instance = make_task(task, **options)
    try:
        return with_examples(cls(task=task_instance, **values), count)
    except (FlowzooError, KeyboardInterrupt):
        raise
    except BaseException as error:  # also SystemExit
        message = " ".join(str(error).split())
        raise UsageError(
            f"workflow {cls.name}: making it raised {type(error).__name__}: {message}."
        ) from error


def _class_of(kind: object) -> Any:
    from flowzoo.envs.workflow import Workflow

    if isinstance(kind, str):
        return workflow_class(kind)
    if isinstance(kind, type) and issubclass(kind, Workflow):
        return _complete(f"workflow {kind.__name__}", kind)
    raise UsageError(
        f"workflow: expected a name, a Workflow or its class, got {type(kind).__name__}: "
        f"{kind!r:.80}."
    )


def make_env(workflow: object, task: object = None, **options: Any) -> Any:
    """An AEC environment of a workflow, its class or its name; see `WorkflowEnv` for arguments."""
    return _open(workflow, task, **options)


def _open(
    kind: object,
    task: object,
    /,
    *,
    split: str = "train",
    max_cycles: int | None = None,
    render_mode: str | None = None,
    guard: bool = True,
    **options: object,
) -> Any:
    from flowzoo.envs.api.aec import Guard, WorkflowEnv

    workflow = make_workflow(kind, task, **options)
    env = WorkflowEnv(workflow, split=split, max_cycles=max_cycles, render_mode=render_mode)
    return Guard(env) if guard else env


def env_functions(kind: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """`env` and `raw_env` of a workflow class, for a versioned module.

    `env(task=..., **options)` is guarded, `raw_env` is not. Their signatures list every option
    of the workflow; options of the task (`level`, `data` …) are accepted too.
    """

    def env(task: object = None, **options: Any) -> Any:
        return _open(kind, task, **options)

    def raw_env(task: object = None, **options: Any) -> Any:
        return _open(kind, task, guard=False, **options)

    for function, what in ((env, "guarded"), (raw_env, "unguarded")):
        function.__doc__ = f"The {what} AEC environment of {kind.name}; see the module's page."
        function.__signature__ = _signature(kind)  # type: ignore[attr-defined]
    return env, raw_env


def _signature(kind: Any) -> inspect.Signature:
    task = inspect.Parameter(
        "task", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=kind.default_task
    )
    defaults: dict[str, object] = {"split": "train", "max_cycles": None, "render_mode": None}
    for field in fields(kind):
        if field.name != "task":
            defaults[field.name] = task.empty if field.default is MISSING else field.default
    options = [
        inspect.Parameter(name, task.KEYWORD_ONLY, default=default)
        for name, default in defaults.items()
    ]
    return inspect.Signature([task, *options, inspect.Parameter("task_options", task.VAR_KEYWORD)])
