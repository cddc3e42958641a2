"""Building a run from its settings and the last intact checkpoint in its directory."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial

from flowzoo.agents.hf.process import prepare_process
from flowzoo.agents.problems import ProblemStream
from flowzoo.baselines.backends.backend import BACKENDS, LearnerProtocol, RunBackend
from flowzoo.baselines.engines.hf import (
    Engines,
    PolicyModel,
    identities,
    load_policies,
    policy_models,
)
from flowzoo.baselines.learner.update import Learner
from flowzoo.baselines.run.checkpoint import random_state, seed_random, set_random_state
from flowzoo.baselines.run.directory import (
    Earlier,
    RunDirectory,
    RunFollower,
    earlier_run,
    keep_speech,
)
from flowzoo.baselines.run.metric_logger import MetricLogger
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.settings.preflight import need_modules
from flowzoo.baselines.training.async_rollouts import SampledStep, StepDraws, StepSampler
from flowzoo.baselines.training.difficulty import trainable
from flowzoo.baselines.training.evaluation import Evaluation
from flowzoo.baselines.training.factories import make_learners, open_engines
from flowzoo.baselines.training.model_checks import warn_of_faults
from flowzoo.baselines.training.plan import RunPlan, resolve
from flowzoo.baselines.training.train_state import RunState
from flowzoo.envs import Problem, Workflow
from flowzoo.errors import UsageError
from flowzoo.functions import load_class
from flowzoo.waits import LIMITS


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
    reopen: "Callable[[], OpenRun]"
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
    LIMITS.put(settings.wait_limit, settings.function_limit)
    earlier = None if restart else earlier_run(settings.directory)
    plan = resolve(settings, earlier.settings if earlier else None)
    reopen = partial(start_run, settings, accept_base=accept_base)
    return RunOpening(plan, earlier, restart, accept_base, reopen).open()


@dataclass(frozen=True, slots=True)
class RunOpening:
    """Opens the run of a plan, part by part; if one fails, what is open is closed again."""

    plan: RunPlan
    earlier: Earlier | None
    restart: bool
    accept_base: bool
    reopen: Callable[[], OpenRun]

    def open(self) -> OpenRun:
        """Find the models, load the state, and start what plays, learns and records."""
        plan, config = self.plan, self.plan.config
        need_modules(config, plan.policy_settings.values())
        task = plan.workflow.task
        models = find_models(config, plan.models, task.name, self.earlier, self.accept_base)
        with ExitStack() as opened:
            kind = load_class("backend", BACKENDS[config.backend], RunBackend)
            backend = kind.open(config, plan.learner_groups, identities(models))
            opened.callback(backend.close)
            problems = plan.eval_problems()
            stream = ProblemStream(config.split, config.seed, trainable(config, task))
            # With learner workers this process neither learns nor plays: it needs shapes only.
            placed = replace(config, device="meta") if config.learner_workers else config
            trained = load_policies(placed, models)
            learners = backend.join(lambda: make_learners(trained, plan.learners))
            state = RunState(config, trained, learners, stream)
            backend.once(lambda: warn_of_faults(trained))
            directory = self._open_directory(backend)
            opened.callback(directory.close)
            # Before the checkpoint is loaded, which puts back its own states.
            seed_random(config.seed)
            sampled = state.resume(directory, backend)
            drawn = random_state()
            run = self._start(backend, state, directory, sampled, problems, opened)
            set_random_state(drawn)  # engines may have drawn while they started
        return run

    def _open_directory(self, backend: RunBackend) -> RunDirectory | RunFollower:
        plan = self.plan
        opened: list[RunDirectory] = []

        def open_it() -> None:
            graded_with = backend.grading(plan.workflow.grading)
            functions = {**plan.hooks.record(), **plan.workflow.functions}
            opened.append(RunDirectory(plan.config, graded_with, functions, anew=self.restart))

        backend.once(open_it)
        return opened[0] if opened else RunFollower(plan.config.directory)

    def _start(
        self,
        backend: RunBackend,
        state: RunState,
        directory: RunDirectory | RunFollower,
        sampled: Sequence[SampledStep],
        problems: Mapping[str, Sequence[Problem]],
        opened: ExitStack,
    ) -> OpenRun:
        """Start the engines, and go on with the batches that the checkpoint was `sampled` with."""
        plan, config = self.plan, self.plan.config
        shard_jobs = config.shard_jobs or 0
        local = {
            name: learner for name, learner in state.learners.items()
            if isinstance(learner, Learner)
        }  # fmt: skip
        engines = open_engines(config, state.trained, local, problems[""], plan.replies)
        draws = StepDraws(plan, engines, state.stream, directory.failures)
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
        evaluations = [
            Evaluation(
                workflow, problems[name], engines, config.deterministic, directory.failures,
                config.eval_samples, backend, shard_jobs, name,
            )
            for name, workflow in plan.eval_workflows.items()
        ]  # fmt: skip
        engines.sync()
        backend.publish(state.learners)
        board = (
            directory
            if isinstance(directory, RunFollower)
            else MetricLogger(directory.root, config, state.step, state.history)
        )
        opened.callback(board.close)
        return OpenRun(
            plan, backend, directory, board, state, engines, draws, batches, evaluations[0],
            evaluations[1:], close=opened.pop_all().close, reopen=self.reopen,
        )  # fmt: skip


def find_models(
    config: TrainConfig,
    models: Mapping[str, str],
    task: str,
    earlier: Earlier | None,
    accept_base: bool,
) -> dict[str, PolicyModel]:
    """Find the models of a run: the recorded ones of its newest checkpoint, or accepted ones."""
    recorded = earlier.models if earlier else {}
    policies = policy_models(config, models, task, recorded, accept_base)
    began = identities(policies)
    if any(model.accepted for model in began.values()) and config.engine_traits.own_weights:
        raise UsageError(
            "--accept-base is for the engine transformers: another engine has the tokenizer of the "
            "new base"
        )
    identity = keep_speech(config.directory, began)
    return {name: policy._replace(model=identity[name]) for name, policy in policies.items()}
