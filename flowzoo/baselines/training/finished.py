"""A finished training run, opened again: its last policies and held-out problems."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flowzoo.agents import PolicyMap
from flowzoo.agents.evaluation.summary import mean, problem_scores
from flowzoo.agents.hf.process import prepare_process
from flowzoo.baselines.engines.hf import Engines, identities, load_policies, policy_models
from flowzoo.baselines.run.directory import earlier_run, failures_path
from flowzoo.baselines.run.manifest import find_checkpoint
from flowzoo.baselines.run.reading import RunData, read_run
from flowzoo.baselines.settings.file import from_table
from flowzoo.baselines.training.build import find_models
from flowzoo.baselines.training.evaluation import Evaluation, swapped_scores
from flowzoo.baselines.training.factories import make_learners, open_engines
from flowzoo.baselines.training.plan import RunPlan, resolve
from flowzoo.errors import UsageError
from flowzoo.files import read_json, write_json


def read_finished(folder: Path) -> RunData:
    """Read the files of a finished run."""
    if not (folder / "run.json").is_file():
        raise UsageError(f"{folder} is no run directory: it has no run.json")
    data = read_run(folder, folder.name)
    if data.summary is None or not data.evaluations:
        raise UsageError(
            f"the run in {folder} is not finished (no summary.json): repeat the command that "
            "trains it, which goes on where it stopped"
        )
    return data


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """The last policies of a run, ready to play."""

    data: RunData
    plan: RunPlan
    evaluation: Evaluation
    engines: Engines
    step: int
    """Step of the policies, which is that of the last evaluation."""
    accepted: Mapping[str, tuple[str, ...]]
    """Differences of accepted bases from the recorded ones, by policy."""

    @property
    def policy_map(self) -> PolicyMap:
        """Policies by role, at the temperature of evaluations."""
        return self.plan.make_policy_map(self.engines.eval_policies, self.plan.eval_budgets)


@contextmanager
def open_finished(folder: Path, accept_base: bool = False) -> Iterator[FinishedRun]:
    """Load the last checkpoint of a finished run; its engines end with the block.

    `accept_base`: also if the models that the run began with have changed.
    """
    data = read_finished(folder)
    config = from_table(data.settings, str(folder / "run.json"))
    info = find_checkpoint(folder, "last")
    if info.step != data.steps[-1]:
        raise UsageError(
            f"the last checkpoint of {folder} is of step {info.step} and its last evaluation of "
            f"step {data.steps[-1]}: they are not of the same policies; repeat the command that "
            "trains it, which does again what is missing"
        )
    prepare_process(config.threads)
    plan = resolve(config)
    config = plan.config
    workflow, held_out = plan.workflow, plan.held_out
    task = workflow.task.name
    if accept_base:
        models = find_models(config, plan.models, task, earlier_run(folder), True)
    else:
        models = policy_models(config, plan.models, task, info.models)
    trained = load_policies(config, models)
    for name, policy in trained.items():
        if not policy.frozen:  # before its learner, which would hold the starting weights
            policy.weights.load(info.policy_path(name))
    learners = make_learners(trained, plan.learners)
    # Parts are built as in training, so on the same machine a transformers run repeats its last
    # evaluation with the same scores.
    here = replace(config, backend="local")  # also a run that was trained elsewhere
    engines = open_engines(here, trained, learners, held_out, plan.replies)
    try:
        engines.sync()
        evaluation = Evaluation(
            workflow, held_out, engines, config.deterministic, failures_path(folder),
            config.eval_samples, shard_jobs=config.shard_jobs or 0,
        )  # fmt: skip
        accepted = {
            name: model.accepted for name, model in identities(models).items() if model.accepted
        }
        yield FinishedRun(data, plan, evaluation, engines, info.step, accepted)
    finally:
        engines.close()


def run_swaps(folder: Path, accept_base: bool = False) -> dict[str, Any]:
    """Run the policy-swap probe of a finished run, unless its `swaps.json` is up to date.

    Returns `step`, `accuracy` and `scores` (unexchanged), and `swaps`: see `swap.swap_probe`.
    """
    path = folder / "swaps.json"
    last = read_finished(folder).steps[-1]
    if path.is_file():
        record = read_json(path)
        if record["step"] == last:
            return record
    with open_finished(folder, accept_base) as run:
        records = run.evaluation.play(run.policy_map)
        before = problem_scores(records, run.evaluation.names)
        swapped = swapped_scores(run.plan, run.evaluation, before)
        accepted = {"accepted": dict(run.accepted)} if run.accepted else {}
    record = {
        "step": last,
        "accuracy": mean(before),
        "scores": before,
        "swaps": swapped,
        **accepted,
    }
    write_json(path, record)
    return record
