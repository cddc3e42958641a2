"""Workflow and problems of a command line."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from flowzoo.envs.settings import PROGRAM, add_program, add_setting, add_wording, read_settings
from flowzoo.envs.tasks.task import Split
from flowzoo.errors import UsageError
from flowzoo.sandbox.tier import SandboxName


@dataclass(frozen=True, slots=True)
class ProblemOptions:
    """Problems and prompts."""

    task: str | None = None
    """Task the workflow works on: a name of `flowzoo list`, or module:Class. Default: the
    workflow's own."""
    preset: str = "strict"
    """Rules of the workflow: strict, paper, or another that `flowzoo list` names."""
    data: str | None = None
    """Data file of the task, or id of a data set on the hub; default: generated problems."""
    split: Split | None = None
    """Part of the problems; by default `all` of a data file and `validation` of a generator."""
    seed: int = 0
    """Seed of problems and of sampling."""
    sandbox: SandboxName | None = None
    """Isolation of programs, for tasks that run them; default: the best this machine has."""
    skip_unusable: bool = False
    """Leave out rows of the data file that cannot be used (task code), instead of listing them."""
    max_calls: int | None = None
    """Most calls of an episode; a workflow that asks more is an error. Default: 1,000."""
    prompts: str | None = None
    """`short` or `full` texts, or a TOML file of texts and system messages, as `flowzoo prompts`
    prints it; default: short for pocket models, full for others."""
    system: tuple[str, ...] = ()
    """System messages, as ROLE=TEXT."""
    examples: int | None = None
    """Worked examples of its job that every role is shown, as earlier turns of its chat;
    default: 0 for pocket models, 4 for others."""
    options: tuple[str, ...] = ()
    """Other settings of the workflow or the task, as NAME=VALUE, e.g. n_votes=5 level=2."""
    program: str | None = None
    """In place of a workflow, a program that asks its agents by an OpenAI client: the function
    `module:solve` or `path/to/file.py:solve`, or a command, e.g. "node agent.js"."""

    def which_split(self) -> str:
        """The split to play: the one given, else all of a file, else validation."""
        return self.split or ("all" if self.data else "validation")

    def settings(self) -> dict[str, Any]:
        """The further settings by name, see `read_settings`, with the wording of prompts."""
        settings: dict[str, Any] = dict(read_settings(self.options))
        add_wording(settings, self.prompts, self.system, self.examples)
        return settings


def build_workflow(name: str | None, problems: ProblemOptions, policies: Iterable[str] = ()) -> Any:
    """The workflow on its task, as the options say, with the usual prompts for `policies`."""
    from flowzoo.agents.prompt_style import make_styled
    from flowzoo.envs import make_workflow
    from flowzoo.envs.api.registry import workflow_class
    from flowzoo.envs.tasks import task_class, task_options

    settings = {"preset": problems.preset, **problems.settings()}
    if (name is None) == (problems.program is None):
        raise UsageError("name either a workflow, e.g. voting, or --program")
    if name is None:
        name = PROGRAM
        add_program(settings, problems.program)
    accepted = task_options(task_class(problems.task or workflow_class(name).default_task))
    if accepted is None or "seed" in accepted:  # user-defined tasks may have none
        settings = {"seed": problems.seed, **settings}
    add_setting(settings, "data", problems.data)
    add_setting(settings, "sandbox", problems.sandbox)
    add_setting(settings, "skip_unusable", problems.skip_unusable or None)
    add_setting(settings, "max_calls", problems.max_calls)
    return make_styled(partial(make_workflow, name, problems.task), settings, policies)[0]


def build_played(
    command: str,
    workflow: str | None,
    env: str | None,
    problems: ProblemOptions,
    policies: Iterable[str] = (),
) -> Any:
    """The workflow that a command names, or the one around its environment."""
    from flowzoo.envs.external.workflow import make_aec_workflow

    if sum(given is not None for given in (workflow, env, problems.program)) != 1:
        raise UsageError(
            f"name either a workflow, e.g. `flowzoo {command} voting`, or --env or --program"
        )
    if env is None:
        return build_workflow(workflow, problems, policies)
    for name in ("task", "data", "sandbox"):
        if getattr(problems, name) is not None:
            raise UsageError(f"--{name} is a setting of tasks: leave it out with --env")
    settings = problems.settings()
    add_setting(settings, "max_calls", problems.max_calls)
    return make_aec_workflow(env, preset=problems.preset, seed=problems.seed, **settings)


def chosen_problems(workflow: Any, split: str, count: int | None) -> list[Any]:
    """The distinct problems that are played: `count` of them, else all of a file, else 500."""
    from flowzoo.agents.problems import distinct_problems
    from flowzoo.envs.tasks.task import get_size

    if count is None:
        count = 500 if get_size(workflow.task, split) is None else None
    if (count or 0) > 20_000:
        print(f"looking for {count:,} distinct problems", file=sys.stderr, flush=True)
    problems = distinct_problems(workflow.task, split, count, option="--n")
    if not problems:
        raise UsageError(f"split {split!r} of task {workflow.task.name!r} has no problems")
    return problems


def grading_of(workflow: Any) -> Mapping[str, Any]:
    """Settings of grading; prints the sandbox's isolation on stderr if programs run."""
    # Worked examples are the default for most models: a note says so.
    if workflow.examples:
        print(
            "prompts: every role is shown worked examples (--prompts short --examples 0: the bare "
            "prompts that pocket models know)",
            file=sys.stderr,
            flush=True,
        )
    grading = workflow.grading()
    if "sandbox" in grading:
        print(f"sandbox: {grading['sandbox']['trust']}", file=sys.stderr, flush=True)
    return grading
