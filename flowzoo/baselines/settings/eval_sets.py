"""Evaluation sets: other problems of the task, which a run is measured on and not chosen by."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from flowzoo.agents.problems import distinct_problems
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.envs import Problem, Workflow
from flowzoo.envs.settings import read_named
from flowzoo.envs.tasks.rows import DataTask
from flowzoo.errors import UsageError

logger = logging.getLogger("flowzoo")


def evaluation_workflows(config: TrainConfig, workflow: Workflow) -> dict[str, Workflow]:
    """Make the workflow of every evaluation set, by name.

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


def set_problems(
    config: TrainConfig, workflows: Mapping[str, Workflow]
) -> dict[str, list[Problem]]:
    """List the problems of every evaluation set; a warning counts trained ones.

    `workflows` are by set; that of the training problems is named "".
    """
    problems = {
        name: distinct_problems(of_set.task, "all", None)
        for name, of_set in workflows.items()
        if name
    }
    task = workflows[""].task
    if problems and task.size(config.split) is not None:
        texts = {problem.text for problem in distinct_problems(task, config.split, None)}
        for name, listed in problems.items():
            if seen := sum(problem.text in texts for problem in listed):
                logger.warning(
                    "evaluation set %s: %d of its %d problems are in split %s, which is trained on",
                    name, seen, len(listed), config.split,
                )  # fmt: skip
    return problems
