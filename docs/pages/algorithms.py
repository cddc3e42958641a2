"""A page for every algorithm: formulas, choices, source, differences, and a batch worked out.

The batch is one problem of the evaluator-optimizer, played four times by scripted experts.
"""

from __future__ import annotations

import re

from flowzoo.agents import PolicyMap
from flowzoo.agents.rollout.episodes import EpisodeJob, Rollout
from flowzoo.agents.specs import make_policy
from flowzoo.baselines.advantages.compute import RunningMean, compute, episode_returns
from flowzoo.baselines.settings.algorithms import ALGORITHMS, Algorithm
from flowzoo.commands.algorithms import choices
from flowzoo.envs import EpisodeRecord, make_workflow
from flowzoo.envs.tasks.task import get_problem
from pages.curves import section
from pages.formulas import advantage, loss
from pages.papers import linked

EPISODES = 4
SKILL = 0.5
"""Half right, half wrong: a group with something to learn."""


def algorithm_pages() -> dict[str, str]:
    """File name -> page."""
    records = batch()
    return {f"{name}.md": page_of(algorithm, records) for name, algorithm in ALGORITHMS.items()}


def batch() -> list[EpisodeRecord]:
    """The episodes of the worked example."""
    workflow = make_workflow("eval_opt_v0")
    policy = make_policy(f"scripted:{SKILL}", oracle=workflow)
    policy_map = PolicyMap.shared(policy, workflow.role_counts())
    problem = get_problem(workflow.task, 0, "validation")
    jobs = [EpisodeJob(problem, sample) for sample in range(EPISODES)]
    return Rollout(workflow, policy_map, seed=0).run(jobs)


def page_of(algorithm: Algorithm, records: list[EpisodeRecord]) -> str:
    """The page, in Markdown."""
    formula, letters = advantage(algorithm.advantage)
    lines = [f"# {algorithm.name}", "", f"{linked(algorithm.source)}.", ""]
    lines += ["```shell", f"flowzoo train voting --algorithm {algorithm.name}", "```", ""]
    lines += [
        "## Advantage",
        "",
        display(formula),
        "",
        *(f"* {roles(line)}" for line in letters),
        "",
    ]
    lines += ["## Loss", ""]
    for each in loss(algorithm):
        lines += [display(each), ""]
    lines += [roles("$N$ calls in the batch" + cap(algorithm) + "."), ""]
    if algorithm.kl:
        lines += [f"A KL term to the starting weights is added, times {algorithm.kl:g}.", ""]
    lines += ["## What differs from the source", "", algorithm.differs, "", "## Choices", ""]
    lines += ["| choice | |", "|---|---|"]
    lines += [f"| {name} | {text} |" for name, text in choices(algorithm).items()]
    lines += ["", "[Their words](../../training.md#algorithms-are-settings), and how single ones"]
    lines += ["are changed.", "", *section(algorithm.name), "", *worked(algorithm, records), ""]
    return "\n".join(lines)


def cap(algorithm: Algorithm) -> str:
    """Letters of some losses."""
    text = ""
    if algorithm.aggregation == "token-sum":
        text += r", $T_{\max}$ the longest reply allowed"
    if algorithm.clipping == "weight":
        text += r", $\mathrm{sg}$ a constant to the gradient"
    return text


def worked(algorithm: Algorithm, records: list[EpisodeRecord]) -> list[str]:
    """The advantages of a small batch."""
    head = ["## A batch, worked out", ""]
    if algorithm.sampling != "episodes":
        what = {"tree": "candidates at every turn", "joint": "joint actions of every phase"}
        return [
            *head,
            f"It samples a tree ({what[algorithm.sampling]}; [sampling]"
            "(../../training.md#sampling)), so whole episodes are no batch of it.",
        ]
    calls = [call for record in records for call in record.calls]
    spec = algorithm.advantage
    state = RunningMean() if spec.mean == "running" else None
    advantages = compute(calls, spec, episode_returns(records), state)
    rows = [
        f"| {call.episode.rpartition('#')[2]} | `{call.agent}` | {call.turn} | {call.reward:g} "
        f"| {value:+.3f} |"
        for call, value in zip(calls, advantages.values, strict=True)
    ]
    return [
        *head,
        f"One problem of [eval_opt](../environments/eval_opt_v0.md), {EPISODES} episodes of "
        f"scripted experts that are right with probability {SKILL:g}; the team's score pays every "
        "call.",
        "",
        "| episode | agent | turn | reward | advantage |",
        "|--:|---|--:|--:|--:|",
        *rows,
    ]


def display(formula: str) -> str:
    """A displayed formula."""
    return f"```{{math}}\n{formula}\n```"


def roles(text: str) -> str:
    """Formulas between dollars as MyST's role."""
    return re.sub(r"\$([^$]+)\$", r"{math}`\1`", text)
