"""Rollouts of a workflow for TRL's `AsyncGRPOTrainer`: all roles that one policy plays, our pay.

    server = connect(MODEL, "http://localhost:8000/v1")        # the server that TRL syncs
    policy = VLLMPolicy(server, name="main", sampling=Sampling(max_tokens=512))
    worker = TRLRolloutWorker(make_workflow("voting"), policy, algorithm="dr_mas")
    trainer = AsyncGRPOTrainer(MODEL, args=..., train_dataset=worker.placeholder,
                               reward_funcs=[], rollout_worker=worker)

Problems, keys and advantages equal the ones in `flowzoo train` with the same seed, step for step;
the loss, the clips and the weights are TRL's.
"""

from __future__ import annotations

import asyncio
import queue
import time
from collections.abc import Mapping
from concurrent.futures import Future
from itertools import count
from typing import Any

import numpy as np

from flowzoo.adapters.outside import data_set
from flowzoo.agents.policy import Policy
from flowzoo.agents.policy_map import PolicyMap
from flowzoo.agents.problems import ProblemStream
from flowzoo.agents.rollout.episodes import EpisodeJob, Rollout, RolloutBatch
from flowzoo.agents.vllm.loop_thread import LoopThread
from flowzoo.baselines.advantages.compute import RunningMean, compute, episode_returns
from flowzoo.baselines.advantages.spec import AdvantageSpec, by_agent
from flowzoo.baselines.settings.algorithms import algorithm_named
from flowzoo.envs import Call, Workflow
from flowzoo.envs.settings import check_whole
from flowzoo.errors import UsageError
from flowzoo.seeding import key_int

_POLL_S = 0.05


class TRLRolloutWorker:
    """A rollout worker for `trl.experimental.async_grpo`."""

    def __init__(
        self,
        workflow: Workflow,
        policy: Policy,
        *,
        others: Mapping[str, Policy] | None = None,
        algorithm: str = "dr_mas",
        problems: int = 8,
        samples: int = 8,
        split: str = "train",
        seed: int = 0,
        max_queued: int = 1024,
        steps: int | None = None,
    ) -> None:
        """Describe the rollouts; `start` begins them.

        Args:
            workflow: what is played.
            policy: who is trained; its completions carry token ids and log-probs.
            others: policies by role or agent for the roles that `policy` does not play; they are
                not trained.
            algorithm: whose advantages; one that plays whole episodes.
            problems: per step.
            samples: episodes of each.
            split: of the problems.
            seed: of problems and sampling.
            max_queued: samples that wait for the trainer at most, or else rollouts wait.
            steps: number of steps; None: until the trainer stops.

        Raises:
            UsageError: an algorithm that branches, a number below 1, a role without a policy, or
                another version of TRL.
            ImportError: TRL is not installed.
        """
        check_whole("problems", problems, 1)
        check_whole("samples", samples, 1)
        check_whole("max_queued", max_queued, 1)
        self._spec = episode_spec(algorithm, workflow)
        self._sample_type = _rollout_sample()
        others = dict(others or {})
        roles = workflow.role_counts()
        self._policy_map = PolicyMap({**dict.fromkeys(roles, policy), **others})
        self._policy_map.check(roles)
        self._workflow, self._policy, self._seed = workflow, policy.name, seed
        self._problems, self._samples, self._steps = problems, samples, steps
        self._stream = ProblemStream(split, seed)
        self._baselines = RunningMean()
        self._version, self._groups = 0, count()
        self._max_queued = max_queued
        self._loop: LoopThread | None = None
        self._running: Future[None] | None = None
        self._produced_at = time.monotonic()
        self.rollout_buffer: queue.Queue[Any] = queue.Queue()
        """`RolloutSample`s for the trainer."""
        self.metrics_queue: queue.Queue[dict[str, float]] = queue.Queue()
        """One row a step: `rollout/score`, `rollout/episodes_total`, `rollout/cut_off_total`."""

    @property
    def placeholder(self) -> Any:
        """A data set for the trainer, which asks for one and does not look at it."""
        rows = [{"prompt": [{"role": "user", "content": ""}]}] * self._problems
        return data_set(rows, "the placeholder data set")

    def start(self) -> None:
        """Begin to play."""
        if self._loop is not None:
            raise UsageError("the worker runs already.")
        self._loop = LoopThread("flowzoo-trl-worker")
        self._produced_at = time.monotonic()
        self._running = self._loop.start(self._produce())

    def stop(self) -> None:
        """Give up what is under way; calling it twice is harmless."""
        if self._loop is not None:
            self._loop.close()
            self._loop = None

    def update_model_version(self, model_version: int) -> None:
        """Samples of steps that begin from now on carry this version."""
        self._version = model_version

    def check_health(self, stale_after_s: float) -> None:
        """Raise if rollouts failed, or nothing came for so long."""
        running = self._running
        if running is not None and running.done() and not running.cancelled():
            error = running.exception()
            if error is not None:
                raise RuntimeError(f"the rollouts of flowzoo failed: {error}") from error
            raise RuntimeError(f"the rollouts of flowzoo ended after {self._steps} steps.")
        idle = time.monotonic() - self._produced_at
        if idle > stale_after_s:
            raise RuntimeError(f"no episode ended for {idle:.0f} s: is the server alive?")

    # -- on the loop ---------------------------------------------------------------------------

    async def _produce(self) -> None:
        for step in count(1):
            if self._steps is not None and step > self._steps:
                return
            version = self._version
            rollout = Rollout(
                self._workflow, self._policy_map, seed=key_int("train", self._seed, step)
            )
            batch = await rollout.asample(self._jobs())
            for sample in self.samples_of(batch, version):
                while self.rollout_buffer.qsize() >= self._max_queued:
                    await asyncio.sleep(_POLL_S)
                sample.enqueued_at = time.time()
                self.rollout_buffer.put(sample)
            self._produced_at = time.monotonic()

    def _jobs(self) -> list[EpisodeJob]:
        # Numbered as our trainer numbers them.
        problems = self._stream.take(self._workflow.task, self._problems)
        return [
            EpisodeJob(problem, index * self._samples + sample)
            for index, problem in enumerate(problems)
            for sample in range(self._samples)
        ]

    def samples_of(self, batch: RolloutBatch, version: int) -> list[Any]:
        """The samples of what was played, in the order of its rows; counts go to the metrics."""
        returns = episode_returns(batch.records)
        values = compute(batch.rows, self._spec, returns, self._baselines).values
        group: dict[str, int] = {}
        results, cut = [], 0
        for call, advantage in zip(batch.rows, values.tolist(), strict=True):
            if call.policy != self._policy:
                continue
            if call.finish == "length":
                cut += 1
                continue
            if call.problem not in group:
                group[call.problem] = next(self._groups)
            number, score = group[call.problem], returns[call.episode]
            results.append(self._sample(call, advantage, version, number, score))
        scores = list(returns.values())
        self.metrics_queue.put(
            {
                "rollout/score": sum(scores) / max(1, len(scores)),
                "rollout/episodes_total": float(len(scores)),
                "rollout/cut_off_total": float(cut),
            }
        )
        return results

    def _sample(self, call: Call, advantage: float, version: int, group: int, score: float) -> Any:
        if not call.output_ids:
            raise UsageError(
                f"policy {call.policy!r} gave a reply without token ids: take one that samples "
                "tokens (VLLMPolicy, TransformersPolicy)."
            )
        prompt, output = len(call.prompt_ids), len(call.output_ids)
        return self._sample_type(
            prompt=[dict(message) for message in call.messages],
            completion=[{"role": "assistant", "content": call.reply}],
            input_ids=np.asarray([*call.prompt_ids, *call.output_ids], np.int64),
            completion_mask=np.repeat(np.asarray([0, 1], np.int64), [prompt, output]),
            old_log_probs=np.asarray([*[0.0] * prompt, *call.logps], np.float32),
            advantage=advantage,
            model_version=version,
            group_id=group,
            metrics={"reward": call.reward, f"rewards/{call.role}": call.reward, "score": score},
        )


def episode_spec(algorithm: str, workflow: Workflow) -> AdvantageSpec:
    """The advantages of an algorithm that plays whole episodes, for `workflow`."""
    row = algorithm_named(algorithm)
    if row.sampling != "episodes":
        raise UsageError(f"{algorithm} branches episodes: only `flowzoo train` samples for it.")
    return by_agent(row.advantage) if workflow.pays_agents else row.advantage


def _rollout_sample() -> Any:
    import trl

    try:
        from trl.experimental.async_grpo.async_rollout_worker import RolloutSample
    except ModuleNotFoundError as error:
        raise UsageError(
            f"TRLRolloutWorker was written for trl 1.16.0, and trl {trl.__version__} has no "
            f"`{error.name}` (1.18 removed it): pip install 'trl==1.16.0'."
        ) from error
    return RolloutSample
