"""`flowzoo play`: episodes as colored transcripts."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

from flowzoo.agents.human import HumanPolicy
from flowzoo.agents.pocket import NAMES as POCKETS
from flowzoo.agents.pocket import pocket_options
from flowzoo.agents.rollout.engine import EffectBatch, RequestBatch, Response
from flowzoo.commands.policies import PolicyOptions, check_policy_map, open_policy_map
from flowzoo.commands.problems import ProblemOptions, build_played, grading_of
from flowzoo.commands.progress.shown import to_stderr
from flowzoo.commands.shared import check_count
from flowzoo.envs import Episode, Problem, Workflow, make_workflow
from flowzoo.envs.api.registry import WORKFLOWS, highest_version
from flowzoo.envs.episode.effects import resolve
from flowzoo.envs.episode.recording import episode_rewards
from flowzoo.envs.episode.watchdog import watch
from flowzoo.envs.records import json_line
from flowzoo.envs.render import print_new
from flowzoo.envs.tasks import TASKS, make_task, task_class, task_names
from flowzoo.envs.tasks.task import get_problem
from flowzoo.errors import UsageError

if TYPE_CHECKING:
    from flowzoo.agents import PolicyMap

EXPERTS = "scripted:0.8"
"""Policy for tasks without a pocket model."""


@dataclass(frozen=True, slots=True)
class Options:
    """Arguments of `flowzoo play`."""

    workflow: str | None = field(default=None, metadata={"positional": "[WORKFLOW]"})
    """Name of the workflow, e.g. `voting` or `voting_v0`, module:Class or file.py:Class; or the
    name of a task, e.g. `sokoban`, for its default workflow."""
    env: str | None = None
    """Instead of a workflow, a PettingZoo AEC environment with text: `package.module:function` or
    `path/to/file.py:function`; `--options` are also arguments of the function. Needs --policy."""
    problems: ProblemOptions = field(default_factory=ProblemOptions)
    policies: PolicyOptions = field(default_factory=PolicyOptions)
    n: int = 1
    """Number of episodes, on consecutive problems."""
    index: int = 0
    """Index of the first problem."""
    chats: bool = False
    """Also show the prompts."""
    json: bool = False
    """Print one JSON record per episode instead of transcripts."""


def run(options: Options) -> int:
    """Play and print."""
    from flowzoo.agents.rollout.episodes import EpisodeJob, Rollout

    check_count("n", options.n)
    check_count("index", options.index, 0, 2**31)
    options = with_task(options)
    specs = options.policies.specs
    workflow = build_played("play", options.workflow, options.env, options.problems, specs)
    check_policy_map(workflow, options.policies)
    grading_of(workflow)
    split, seed = options.problems.which_split(), options.problems.seed
    indices = range(options.index, options.index + options.n)
    problems = [get_problem(workflow.task, index, split) for index in indices]
    with open_policy_map(workflow, options.policies, seed) as policy_map, watch(to_stderr):
        if options.json:
            jobs = [EpisodeJob(problem) for problem in problems]
            for record in Rollout(workflow, policy_map, seed=seed).run(jobs):
                print(json_line(record.to_json()), end="")
            return 0
        for problem in problems:
            asyncio.run(show(workflow, policy_map, problem, seed, options.chats))
    return 0


def with_task(options: Options) -> Options:
    """Resolve a task named instead of a workflow to its default workflow."""
    # Without a pocket model of the task, scripted experts play it. If the pocket model was trained
    # on other problems than the task's defaults and no options are given, it plays those.
    name = options.workflow
    if name is None:
        return options
    is_task = name in TASKS or (
        ":" not in name and highest_version(name, WORKFLOWS) is None and name in task_names()
    )
    if not is_task:
        return options
    if options.problems.task not in (None, name):
        raise UsageError(
            f"play {name!r} names a task, and --task names {options.problems.task!r}: give one."
        )
    policies, problems = options.policies, replace(options.problems, task=name)
    if policies.policy == ("pocket",) and name not in POCKETS:
        to_stderr(f"no pocket model plays {name}: playing {EXPERTS}")
        policies = replace(policies, policy=(EXPERTS,))
    elif policies.policy == ("pocket",) and not (problems.options or problems.data):
        home = task_class(name).home
        usual = {**vars(make_task(name)), **vars(make_workflow(home, name))}
        pocket = pocket_options(name, home)
        settings = tuple(f"{k}={v}" for k, v in pocket.items() if usual[k] != v)
        if settings:
            to_stderr(f"the pocket model plays {name} with {' '.join(settings)}")
            problems = replace(problems, options=settings)
    return replace(options, workflow=task_class(name).home, problems=problems, policies=policies)


async def show(
    workflow: Workflow, policy_map: PolicyMap, problem: Problem, seed: int, prompts: bool
) -> None:
    """Play one episode, printing each phase as soon as it is answered."""
    # With a human player, only the prompts of their role are printed before the end, since the rest
    # may contain hidden information.
    from flowzoo.agents.rollout.drivers import drive

    episode = Episode(workflow, problem, f"{problem.id}#0")
    printed = 0
    by_hand = any(isinstance(policy, HumanPolicy) for policy in policy_map.policies.values())
    play = drive(lambda: episode, policy_map, seed, 0, finish=lambda *_: None)
    results: Any = None  # starts the play
    while True:
        try:
            batch = play.send(results)
        except StopIteration:
            break
        if results and not by_hand:
            printed = print_new(episode, printed, prompts=prompts)
        if isinstance(batch, EffectBatch):
            results = resolve(workflow.task, batch.effects)
        elif isinstance(batch, RequestBatch):
            results = []
            for agent, requests in groupby(batch.requests, key=lambda request: request.agent):
                policy = policy_map.policy(agent)
                completions = await policy.generate(list(requests))
                results += [Response(policy.name, completion) for completion in completions]
    print_new(episode, printed, prompts=prompts)
    if by_hand:
        paid = episode_rewards(episode).returns.items()
        print("rewards:", ", ".join(f"{agent} {value:g}" for agent, value in paid))
