"""Whom a run's transcripts blame: `diagnostics.blame` where something went wrong, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flowzoo.agents.problems import distinct_problems
from flowzoo.baselines.diagnostics.blame import FAITHFUL, STRANGE, Blame, RoleBlame, find_blame
from flowzoo.baselines.report.findings import Finding, listed, percent, points
from flowzoo.baselines.run.reading import RunData, read_episodes
from flowzoo.envs.api.registry import WORKFLOWS, make_workflow
from flowzoo.envs.settings import read_settings
from flowzoo.envs.tasks import TASKS
from flowzoo.envs.workflow import Workflow
from flowzoo.errors import FlowzooError, UsageError

MOST = 300
"""Problems that are played again, the first ones; more would take longer than the page is worth."""


def blame_facts(run: RunData, *, fell: bool) -> dict[str, Any]:
    """The blame for what the last evaluation lost: since the peak of a run that `fell`, else since
    step 0. `why` says why nobody could be judged.
    """
    steps, scores = run.steps, run.scores
    place = int(scores[:-1].mean(axis=1).argmax()) if fell else 0
    facts: dict[str, Any] = {"step": steps[place], "blame": None, "why": ""}
    files = run.transcript_files("eval")
    if not {steps[place], steps[-1]} <= files.keys():
        return facts | {"why": "the episodes of these evaluations are not there"}
    before, now = (read_episodes(files[step]) for step in (steps[place], steps[-1]))
    try:
        workflow = bundled_workflow(run.settings)
        problems = distinct_problems(
            workflow.task, run.settings["eval_split"], run.settings["eval_problems"]
        )
        if any([one["problem"] for one in part] != [p.id for p in problems]
               for part in (before, now)):  # fmt: skip
            return facts | {"why": "its problems were played several times, or are others by now"}
        facts["blame"] = find_blame(workflow, problems[:MOST], before[:MOST], now[:MOST])
    except FlowzooError as error:
        return facts | {"why": f"the episodes could not be played again ({error})"}
    if facts["blame"] is None:
        facts["why"] = "there are too few problems, or this version of the workflow asks otherwise"
    return facts


def bundled_workflow(settings: Mapping[str, Any]) -> Workflow:
    """The workflow of a run's record, if it can be made without running anybody's code.

    Raises:
        UsageError: it is another's, takes functions of others, or has programs run.
    """
    name, options = str(settings.get("workflow")), list(settings.get("options") or ())
    ours = {one.rsplit("_v", 1)[0] for one in WORKFLOWS} | WORKFLOWS.keys()
    task = settings.get("task")
    if settings.get("env") or name not in ours or (task is not None and task not in TASKS):
        raise UsageError("only those of bundled workflows and tasks are")
    if any(":" in word for word in options):
        raise UsageError("functions that its options may name are not called")
    workflow: Workflow = make_workflow(name, task, **read_settings(options))
    if workflow.runs_programs or workflow.task.runs_programs:
        raise UsageError("its answers are programs, which a report does not run")
    return workflow


def blame_finding(facts: Mapping[str, Any]) -> Finding:
    """Whose decisions cost the team what it lost."""
    blame: Blame | None = facts["blame"]
    title = "No role is blamed by replaying the transcripts"
    if blame is None:
        return Finding("unknown", title, f"It was not done: {facts['why']}.")
    said = "; ".join(_cost(one) for one in blame.roles)
    text = (
        f"The {blame.problems} episodes of the last evaluation were played again without a model, "
        f"each time with one role's decisions replaced. With those that it took at step "
        f"{facts['step']} the team, at {percent(blame.score)}, would change by: {said}. "
        "The intervals hold together with 95\u00a0%."
    )
    strange = [one.role for one in blame.roles if one.strange > STRANGE]
    if strange:
        text += (
            f" Not judged, since too many of their replies would be to situations that the "
            f"transcripts do not show: {listed(strange)}."
        )
    if blame.fidelity < FAITHFUL:
        text += (
            f" Role scores alone reproduce only {percent(blame.fidelity)} of the scores, so that "
            "the replay says little here."
        )
    if not blame.blamed:
        return Finding("unknown", title, text)
    return Finding("bad", f"The decisions of {blame.blamed} cost the most", text)


def _cost(one: RoleBlame) -> str:
    cost, room = one.cost, one.room
    return (
        f"{one.role} {points(cost.mean, sign=True)} points ({points(cost.low, sign=True)} to "
        f"{points(cost.high, sign=True)}; with an oracle's {points(room.mean, sign=True)})"
    )
