"""Options of the workflow and problems."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from flowzoo.agents.problems import distinct_problems
from flowzoo.agents.prompt_style import make_styled
from flowzoo.commands.progress.shown import to_stderr
from flowzoo.envs import Problem, Workflow, make_workflow
from flowzoo.envs.api.registry import workflow_class
from flowzoo.envs.settings import PROGRAM, add_program, add_setting, add_wording, read_settings
from flowzoo.envs.tasks import task_class, task_options
from flowzoo.envs.tasks.task import Split, get_size
from flowzoo.errors import UsageError
from flowzoo.sandbox.tier import SandboxName


@dataclass(frozen=True, slots=True)
class ProblemOptions:
    """Problems and prompts."""

    task: str | None = None
    """Task of the workflow: a name from `flowzoo list`, module:Class or file.py:Class. Default: the
    workflow's default task."""
    preset: str = "strict"
    """Preset of the workflow: strict, paper, or another one in `flowzoo list`."""
    data: str | None = None
    """Data file of the task, or dataset id on the Hub; default: generated problems."""
    split: Split | None = None
    """Split of the problems; default: `all` for a data file, `validation` for a generator."""
    seed: int = 0
    """Seed of problems and of sampling."""
    sandbox: SandboxName | None = None
    """Isolation of programs, for tasks that run them; default: the best one on this machine."""
    skip_unusable: bool = False
    """Skip unusable rows of the data file (task code) instead of raising an error."""
    max_calls: int | None = None
    """Most calls of an episode; exceeding it is an error. Default: 1,000."""
    prompts: str | None = None
    """`short` or `full` texts, or a TOML file of texts and system messages, as `flowzoo prompts`
    prints it; default: short for pocket models, full for others."""
    system: tuple[str, ...] = ()
    """System messages, as ROLE=TEXT."""
    examples: int | None = None
    """Number of worked examples in every role's prompt, as earlier turns of the chat; default: 0
    for pocket models, else 4."""
    options: tuple[str, ...] = ()
    """Other settings of the workflow or the task, as NAME=VALUE, e.g. n_votes=5 level=2."""
    program: str | None = None
    """Instead of a workflow, a program that calls its agents with an OpenAI client: a function,
    `module:solve` or `path/to/file.py:solve`, or a command, e.g. "node agent.js"."""

    def which_split(self) -> str:
        """The given split, else `all` for a file, else `validation`."""
        return self.split or ("all" if self.data else "validation")

    def settings(self) -> dict[str, Any]:
        """The other settings by name, see `read_settings`, and the wording of prompts."""
        settings: dict[str, object] = dict(read_settings(self.options))
        add_wording(settings, self.prompts, self.system, self.examples)
        return settings


def build_workflow(
    name: str | None, problems: ProblemOptions, policies: Iterable[str] = ()
) -> Workflow:
    """Build the workflow and task of the options, with the default prompts for `policies`."""
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
) -> Workflow:
    """Build the workflow of a command, or that of its environment."""
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


def chosen_problems(workflow: Workflow, split: str, count: int | None) -> list[Problem]:
    """Distinct problems to play: `count`, else all of a file, else 500."""
    if count is None:
        count = 500 if get_size(workflow.task, split) is None else None
    if (count or 0) > 20_000:
        to_stderr(f"looking for {count:,} distinct problems")
    problems = distinct_problems(workflow.task, split, count, option="--n")
    if not problems:
        raise UsageError(f"split {split!r} of task {workflow.task.name!r} has no problems")
    return problems


def grading_of(workflow: Workflow) -> Mapping[str, Any]:
    """Settings of grading; prints the sandbox's isolation to stderr if programs are run."""
    # Worked examples are the default for most models, so a note is printed.
    if workflow.examples:
        to_stderr(
            "prompts: every role sees worked examples (--prompts short --examples 0: the short "
            "prompts of pocket models)"
        )
    grading = workflow.grading()
    if "sandbox" in grading:
        to_stderr(f"sandbox: {grading['sandbox']['trust']}")
    return grading
