"""Option groups and readers that several commands share."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from flowzoo.agents.specs import EngineName
from flowzoo.envs.settings import Setting, add_setting, check_whole, read_settings
from flowzoo.envs.tasks.task import Split
from flowzoo.errors import UsageError, unknown
from flowzoo.sandbox.tier import SandboxName

# Specs may hold "=" themselves (a URL's query), so a role is told by its form: role or role_N.
_FOR_ROLE = re.compile(r"(?P<role>[a-z]+(?:_[a-z]+)*(?:_\d+)?)=(?P<spec>.+)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ProblemOptions:
    """Which problems are played."""

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
    options: tuple[str, ...] = ()
    """Further settings of the workflow or the task, as NAME=VALUE, e.g. n_votes=5 level=2."""

    def which_split(self) -> str:
        """The split to play: the one given, else all of a file, else validation."""
        return self.split or ("all" if self.data else "validation")

    def settings(self) -> dict[str, Setting]:
        """The further settings by name; see `read_settings`."""
        return read_settings(self.options)


@dataclass(frozen=True, slots=True)
class PolicyOptions:
    """Who answers, and how it samples."""

    policy: tuple[str, ...] = ("pocket",)
    """One policy for all roles, or several ROLE=POLICY.
    Policies: pocket (the task's own pocket model; of another task or size: pocket:TASK,
    pocket:SCALE, pocket:TASK-SCALE), scripted:P (right with probability P), hf:PATH, vllm:PATH,
    vllm:PATH@URL (a running `vllm serve`), openai:MODEL@URL, human (you, at this terminal)."""
    engine: EngineName = "transformers"
    """What runs `pocket` and `hf:PATH`: transformers, vLLM in this process, or the server at
    `endpoint`. Nothing falls back to another by itself."""
    endpoint: str = ""
    """URL of a running `vllm serve` for `engine=openai`, e.g. http://localhost:8000/v1."""
    temperature: float = 1.0
    """Divides the logits; 0 is greedy decoding."""
    top_p: float = 1.0
    """Sampled from the smallest set of tokens whose probability reaches this; 1 keeps all."""
    top_k: int = 0
    """Sampled from this many most likely tokens; 0 keeps all."""
    max_tokens: int = 256
    """Most tokens in one reply, in roles that `lengths` says nothing else about."""
    lengths: tuple[str, ...] = ()
    """Token budgets of single roles, as ROLE=PROMPT/REPLY, e.g. aggregator=4096/512 or
    aggregator=/512. A prompt over its budget is shortened: quotes first, the problem last."""
    thinking: tuple[str, ...] = ()
    """Whether models think before they answer: `on`, `off`, or ROLE=on, ROLE=off for single roles;
    by default as their chat template says."""

    def by_role(self, roles: Iterable[str]) -> dict[str, str]:
        """Role or agent -> policy spec; see `split_policies`."""
        return split_policies(self.policy, roles)


def split_policies(words: Sequence[str], roles: Iterable[str]) -> dict[str, str]:
    """Read `SPEC` or `ROLE=SPEC ...` into a map from role or agent to policy spec.

    A lone spec counts for every role that has none of its own.

    Raises:
        UsageError: two specs without a role, or a role given twice or unknown. (`build_roster`
            checks that every role has a policy.)
    """
    known = list(roles)
    given: dict[str, str] = {}
    rest: list[str] = []
    for word in words:
        match = _FOR_ROLE.fullmatch(word)
        if match is None:
            rest.append(word)
            continue
        role, spec = match["role"], match["spec"]
        if re.sub(r"_\d+$", "", role) not in known:
            raise unknown("role", role, known)
        if role in given:
            raise UsageError(f"--policy gives role {role!r} twice: {given[role]!r} and {spec!r}.")
        given[role] = spec
    if len(rest) > 1:
        raise UsageError(
            f"--policy takes one policy for all roles or ROLE=POLICY for each, got {rest} "
            f"without roles; the roles are {', '.join(known)}."
        )
    if rest:
        return {role: rest[0] for role in known if role not in given} | given
    return given


def build_workflow(name: str, problems: ProblemOptions) -> Any:
    """The workflow on its task, as the options say."""
    from flowzoo.envs import make_workflow
    from flowzoo.envs.api.registry import workflow_class
    from flowzoo.envs.tasks import task_class, task_options

    settings = {"preset": problems.preset, **problems.settings()}
    taken = task_options(task_class(problems.task or workflow_class(name).default_task))
    if taken is None or "seed" in taken:  # a task of somebody's own may have none
        settings = {"seed": problems.seed, **settings}
    add_setting(settings, "data", problems.data)
    add_setting(settings, "sandbox", problems.sandbox)
    add_setting(settings, "skip_unusable", problems.skip_unusable or None)
    return make_workflow(name, problems.task, **settings)


_WITHOUT_MODEL = ("scripted", "openai", "human")
"""Policies that need no library of models."""
MOST = 1_000_000
"""Problems of an evaluation, and other counts that nobody means to be larger."""


def check_count(option: str, value: int | None, low: int = 1, high: int = MOST) -> None:
    """Refuse a count of the command line that cannot be meant.

    Raises:
        UsageError: it is not within `low`..`high`.
    """
    if value is not None:
        check_whole(f"--{option}", value, low, high)


def chosen_problems(workflow: Any, split: str, count: int | None) -> list[Any]:
    """The distinct problems that are played: `count` of them, else all of a file, else 500.

    Raises:
        UsageError: the split has fewer, or none.
    """
    from flowzoo.agents.problems import distinct_problems
    from flowzoo.envs.tasks.task import get_size

    if count is None:
        count = 500 if get_size(workflow.task, split) is None else None
    if (count or 0) > 20_000:
        print(f"looking for {count:,} distinct problems", file=sys.stderr, flush=True)
    found = distinct_problems(workflow.task, split, count)
    if not found:
        raise UsageError(f"split {split!r} of task {workflow.task.name!r} has no problems")
    return found


def check_folder(option: str, folder: str | Path) -> None:
    """Refuse a place for a directory where there cannot be one, before work is done for it.

    Raises:
        UsageError: there is a file there or above it, or it may not be written to.
    """
    path = Path(folder)
    try:
        there = next(one for one in (path, *path.absolute().parents) if os.path.lexists(one))
        if not there.is_dir():
            raise UsageError(
                f"--{option} {folder} needs a directory where the file {there} is: name another "
                "place"
            )
        usable = os.access(there, os.W_OK | os.X_OK)
    except OSError as error:
        raise UsageError(f"--{option} {folder}: {error.strerror}. Name another place.") from error
    if not usable:
        raise UsageError(f"--{option} {folder}: {there} may not be written to. Name another place.")


def check_run(folder: Path) -> None:
    """Refuse what is no run directory.

    Raises:
        UsageError: it has no run.json.
    """
    if not (folder / "run.json").is_file():
        near = [path.parent for path in sorted(folder.glob("*/run.json"))[:3]]
        hint = f"; {', '.join(map(str, near))} are some" if near else ""
        raise UsageError(f"{folder} is no run directory: it has no run.json{hint}")


def check_roster(workflow: Any, policies: PolicyOptions) -> None:
    """Refuse what is wrong with the policies' words before a library of models is loaded.

    Raises:
        UsageError: an unknown role or policy, a role without one, or a number out of range.
    """
    from flowzoo.agents import Roster, Sampling
    from flowzoo.agents.chat.thinking import read_thinking
    from flowzoo.agents.lengths import read_lengths, with_default
    from flowzoo.agents.scripted import ScriptedPolicy
    from flowzoo.agents.specs import check_spec

    if (policies.engine == "openai") != bool(policies.endpoint):
        raise UsageError(
            "--engine openai and --endpoint belong together, got "
            f"--engine {policies.engine} and --endpoint {policies.endpoint!r}."
        )
    roles = workflow.role_counts()
    by_role = policies.by_role(roles)
    _, longest = with_default(read_lengths(policies.lengths, roles), roles, policies.max_tokens)
    Sampling(policies.temperature, policies.top_p, policies.top_k, longest)
    read_thinking(policies.thinking, by_role)
    for spec in by_role.values():
        check_spec(spec, workflow.task.name)
    expert = ScriptedPolicy(workflow)
    Roster(dict.fromkeys(by_role, expert)).check(roles)


def grading_of(workflow: Any) -> Mapping[str, Any]:
    """What answers are graded with; says on stderr how far programs are confined, if any run."""
    grading = workflow.grading()
    if "sandbox" in grading:
        print(f"sandbox: {grading['sandbox']['trust']}", file=sys.stderr, flush=True)
    return grading


@contextmanager
def open_roster(workflow: Any, policies: PolicyOptions, seed: int) -> Iterator[Any]:
    """The roster of the options, whose engines end with the block."""
    import asyncio

    roster = build_roster(workflow, policies, seed)
    try:
        yield roster
    finally:
        for policy in roster.policies.values():
            asyncio.run(policy.close())


def build_roster(workflow: Any, policies: PolicyOptions, seed: int) -> Any:
    """The roster of the options: one policy object per distinct spec.

    Raises:
        UsageError: no policy for a role, a bad spec, or an endpoint without its engine.
    """
    from flowzoo.agents import Roster, Sampling
    from flowzoo.agents.chat.thinking import read_thinking
    from flowzoo.agents.lengths import read_lengths, with_default

    check_roster(workflow, policies)
    roles = workflow.role_counts()
    by_role = policies.by_role(roles)
    if any(spec.partition(":")[0] not in _WITHOUT_MODEL for spec in by_role.values()):
        quiet_transformers()
    lengths, longest = with_default(
        read_lengths(policies.lengths, roles), roles, policies.max_tokens
    )
    sampling = Sampling(policies.temperature, policies.top_p, policies.top_k, longest)
    switches = read_thinking(policies.thinking, by_role)
    wanted = {role: (by_role[role], switches[role]) for role in by_role}
    made = make_policies(wanted.values(), workflow, policies, sampling, seed)
    roster = Roster({role: made[want] for role, want in wanted.items()}, lengths)
    roster.check(roles)
    return roster


def make_policies(
    wanted: Iterable[tuple[str, bool | None]],
    workflow: Any,
    policies: PolicyOptions,
    sampling: Any,
    seed: int,
) -> dict[tuple[str, bool | None], Any]:
    """One policy per distinct pair of spec and switch for thoughts, each under its own name."""
    from flowzoo.agents.specs import make_policy

    made: dict[tuple[str, bool | None], Any] = {}
    for spec, thinking in sorted(set(wanted), key=str):
        known = any(other == spec for other, _ in made)
        made[spec, thinking] = make_policy(
            spec,
            oracle=workflow,
            name=f"{spec} (thinking: {thinking})" if known else None,
            sampling=sampling,
            seed=seed,
            engine=policies.engine,
            endpoint=policies.endpoint,
            thinking=thinking,
        )
    return made


def quiet_transformers() -> None:
    """No progress bars for loading a model of a few megabytes, if transformers is there at all."""
    if find_spec("transformers") is not None:
        os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
        from transformers.utils import logging as transformers_logging

        transformers_logging.disable_progress_bar()


@contextmanager
def episode_progress(total: int, label: str) -> Iterator[Callable[[Any], None]]:
    """A progress bar on stderr; yields what to call with every finished episode."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    score = count = 0.0
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task(label, total=total, note="")

        def advance(record: Any) -> None:
            nonlocal score, count
            score, count = score + record.score, count + 1
            progress.update(bar, advance=1, note=f"accuracy {100 * score / count:.1f} %")

        yield advance


def own_name() -> str:
    """What to type for this program: `flowzoo`, or its path where the name is not its own.

    `make train` runs it in an environment that is not activated.
    """
    script, found = Path(sys.argv[0]), shutil.which("flowzoo")
    if script.name != "flowzoo" or (found and Path(found).resolve() == script.resolve()):
        return "flowzoo"
    return shlex.quote(str(script))
