"""Building a run from its settings and the last intact checkpoint in its directory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial

from flowzoo.agents.hf.process import prepare_process
from flowzoo.agents.identity import ModelIdentity
from flowzoo.agents.problems import ProblemStream, distinct_problems
from flowzoo.baselines.backends.backend import BACKENDS, LearnerProtocol, RunBackend
from flowzoo.baselines.engines.hf import Engines, load_policies, policy_models
from flowzoo.baselines.learner.update import Learner
from flowzoo.baselines.run.checkpoint import random_state, seed_random, set_random_state
from flowzoo.baselines.run.directory import RunDirectory, RunFollower
from flowzoo.baselines.run.history import Earlier, earlier_run, keep_speech
from flowzoo.baselines.run.metric_logger import MetricLogger
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.settings.eval_sets import set_problems
from flowzoo.baselines.settings.preflight import need_modules
from flowzoo.baselines.training.async_rollouts import StepSampler
from flowzoo.baselines.training.batch import StepDraws
from flowzoo.baselines.training.difficulty import trainable
from flowzoo.baselines.training.evaluation import Evaluation
from flowzoo.baselines.training.factories import make_learners, open_engines
from flowzoo.baselines.training.model_checks import warn_of_faults
from flowzoo.baselines.training.plan import RunPlan, resolve
from flowzoo.baselines.training.train_state import RunState
from flowzoo.envs import Workflow
from flowzoo.errors import UsageError
from flowzoo.functions import load_class


@dataclass(frozen=True, slots=True)
class OpenRun:
    """An open run: its plan, its state, and everything that plays, learns and records."""

    plan: RunPlan
    backend: RunBackend
    directory: RunDirectory | RunFollower
    """The run directory, or a `RunFollower` in processes that do not write it."""
    board: MetricLogger | RunFollower
    state: RunState
    engines: Engines
    draws: StepDraws
    batches: StepSampler
    evaluation: Evaluation
    eval_sets: Sequence[Evaluation]
    """Evaluations on other data."""
    close: Callable[[], None]
    """Ends the engines, closes the files, unlocks the directory; may be called again."""
    reopen: Callable[[], OpenRun]
    """Continues the run from its last checkpoint, as the same command would."""

    @property
    def config(self) -> TrainConfig:
        """The resolved settings."""
        return self.plan.config

    @property
    def workflow(self) -> Workflow:
        """The workflow that is played."""
        return self.plan.workflow

    @property
    def learners(self) -> Mapping[str, LearnerProtocol]:
        """Learners by policy."""
        return self.state.learners


def start_run(
    settings: TrainConfig, *, restart: bool = False, accept_base: bool = False
) -> OpenRun:
    """Resolve settings and open their run, which continues the one in its directory.

    Args:
        settings: what the user gives.
        restart: move a run in the directory aside and begin anew.
        accept_base: go on although the model that the run began with has changed.
    """
    prepare_process(settings.threads)
    earlier = None if restart else earlier_run(settings.directory)
    plan = resolve(settings, earlier.settings if earlier else None)
    reopen = partial(start_run, settings, accept_base=accept_base)
    return open_run(plan, earlier, reopen, restart=restart, accept_base=accept_base)


def open_run(
    plan: RunPlan,
    earlier: Earlier | None,
    reopen: Callable[[], OpenRun],
    *,
    restart: bool,
    accept_base: bool,
) -> OpenRun:
    """Load the models, open the run directory, continue the run in it, start the engines."""
    config, task = plan.config, plan.workflow.task
    need_modules(config, plan.names)
    began = began_with(config, plan.names, task.name, earlier, accept_base)
    with ExitStack() as opened:  # closed again if a later part fails
        kind = load_class("backend", BACKENDS[config.backend], RunBackend)
        backend = kind.open(config, plan.learner_groups, began)
        opened.callback(backend.close)
        held_out = distinct_problems(
            task, config.eval_split, config.eval_problems, option="--eval-problems"
        )
        eval_problems = set_problems(config, plan.eval_workflows)
        state = _new_state(plan, backend, began)
        backend.once(lambda: warn_of_faults(state.trained))
        run = _open_directory(plan, backend, restart)
        opened.callback(run.close)
        # Before the checkpoint is loaded, which puts back its own states.
        seed_random(config.seed)
        sampled = state.resume(run, backend)
        drawn = random_state()
        local = {
            name: learner
            for name, learner in state.learners.items()
            if isinstance(learner, Learner)
        }
        engines = open_engines(config, state.trained, local, held_out, plan.replies)
        draws = StepDraws(plan, engines, state.stream, run.failures)
        shard_jobs = config.shard_jobs or 0
        batches = StepSampler(
            draws.draw, engines, state.stream, state.means, lambda: state.versions, backend,
            shard_jobs, at_once=config.batches_at_once, in_flight=config.updates_in_flight,
        )  # fmt: skip
        batches.ready.extend(sampled)
        opened.callback(batches.close)
        opened.callback(backend.stop)  # runs before the others: nothing waits for work any more
        opened.callback(engines.close)
        if plan.judge is not None:
            opened.callback(lambda judge: asyncio.run(judge.close()), plan.judge)
        evaluation = Evaluation(
            plan.workflow, held_out, engines, config.deterministic, run.failures,
            config.eval_samples, backend, shard_jobs,
        )  # fmt: skip
        eval_sets = [
            replace(evaluation, workflow=plan.eval_workflows[name], problems=problems, name=name)
            for name, problems in eval_problems.items()
        ]
        engines.sync()
        backend.publish(state.learners)
        board = (
            run
            if isinstance(run, RunFollower)
            else MetricLogger(run.root, config, state.step, state.history)
        )
        opened.callback(board.close)
        set_random_state(drawn)  # engines may have drawn while they started
        return OpenRun(
            plan, backend, run, board, state, engines, draws, batches, evaluation, eval_sets,
            close=opened.pop_all().close, reopen=reopen,
        )  # fmt: skip


def began_with(
    config: TrainConfig,
    names: Sequence[str],
    task: str,
    earlier: Earlier | None,
    accept_base: bool,
) -> dict[str, ModelIdentity]:
    """The models of a run: the recorded ones of its newest checkpoint, or accepted ones."""
    recorded = earlier.models if earlier else {}
    models = policy_models(config, names, task, recorded, accept_base)
    began = {name: policy.model for name, policy in models.items()}
    if any(model.accepted for model in began.values()) and config.engine_traits.own_weights:
        raise UsageError(
            "--accept-base is for the engine transformers: another engine has the tokenizer of the "
            "new base"
        )
    return keep_speech(config.directory, began)


def _new_state(plan: RunPlan, backend: RunBackend, began: Mapping[str, ModelIdentity]) -> RunState:
    config, task = plan.config, plan.workflow.task
    stream = ProblemStream(config.split, config.seed, trainable(config, task))
    # With learner workers this process neither learns nor plays: it needs shapes only.
    placed = replace(config, device="meta") if config.learner_workers else config
    trained = load_policies(placed, plan.names, task.name, began=began)
    learners = backend.join(lambda: make_learners(trained, plan.learners))
    return RunState(config, trained, learners, stream)


def _open_directory(
    plan: RunPlan, backend: RunBackend, restart: bool
) -> RunDirectory | RunFollower:
    opened: list[RunDirectory] = []

    def open_it() -> None:
        graded_with = backend.grading(plan.workflow.grading)
        functions = {**plan.hooks.record(), **plan.workflow.functions}
        opened.append(RunDirectory(plan.config, graded_with, functions, anew=restart))

    backend.once(open_it)
    return opened[0] if opened else RunFollower(plan.config.directory)
