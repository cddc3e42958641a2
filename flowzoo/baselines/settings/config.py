"""Settings of a training run. Importing this needs no torch, so that help is fast."""

import re
from dataclasses import dataclass
from pathlib import Path

from flowzoo.agents.engines import EngineTraits, find_engine, no_int8
from flowzoo.agents.evaluation.protocol import check_selection
from flowzoo.agents.traits import EngineDType
from flowzoo.baselines.learner.config import OldLogp
from flowzoo.baselines.settings.algorithms import ALGORITHMS, SUPERVISED, algorithm_named
from flowzoo.baselines.settings.options import (
    EngineOptions,
    EvaluationOptions,
    LossOptions,
    ModelSettings,
    OptimizerOptions,
    RunSettings,
    SamplingOptions,
    ScaleOptions,
)
from flowzoo.declared import check_declared
from flowzoo.envs.api.registry import workflow_class
from flowzoo.envs.settings import PROGRAM
from flowzoo.envs.tasks.task import check_split
from flowzoo.errors import UsageError
from flowzoo.functions import class_words

AEC = "aec"
"""Value of `workflow` in the records of a run with `env`."""


@dataclass(frozen=True)
class TrainConfig(  # a dataclass lists the fields of its last base first
    ScaleOptions,
    EvaluationOptions,
    OptimizerOptions,
    LossOptions,
    SamplingOptions,
    EngineOptions,
    ModelSettings,
    RunSettings,
):
    """A training run.

    From Python, `workflow` and `task` may be classes; they are kept as `module:Class`.

    Raises:
        UsageError: a number out of range, or a class that no name leads to.
    """

    @property
    def engine_traits(self) -> EngineTraits:
        """Capabilities and needs of the run's engine."""
        return find_engine(self.engine).traits

    @property
    def engine_place(self) -> str:
        """The engine, with its placement where it has a choice, as messages name it."""
        return (
            f"{self.engine}, {self.placement}"
            if self.engine_traits.takes_placement
            else self.engine
        )

    def __post_init__(self) -> None:
        # A record of the run holds names, and other processes import them.
        for name in ("workflow", "task"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                object.__setattr__(self, name, class_words(name, value))
        check_declared(self)
        if self.algorithm != SUPERVISED:
            algorithm_named(self.algorithm)
        check_split(self.split)
        check_split(self.eval_split, "eval_split")
        check_selection(self.eval_split)
        if self.stop_at is not None and not 0 < self.stop_at <= 1:
            raise UsageError(
                f"`stop_at` is an accuracy above 0 and at most 1, got {self.stop_at}: 0.9 is 90 %"
            )
        traits = self.engine_traits
        if not (traits.returns_ids and traits.training):
            raise UsageError(
                f"`engine` {self.engine} only plays (`flowzoo play`, `eval`, `filter`), and "
                "training needs one that returns token ids and takes new weights: use "
                "transformers or vllm"
            )
        if traits.server != bool(self.endpoint):
            raise UsageError(
                "`engine` openai and `endpoint` belong together, got "
                f"engine={self.engine!r} and endpoint={self.endpoint!r}"
            )
        if self.engine_dtype == "int8" and not traits.int8:
            raise UsageError(no_int8(self.engine))
        self._check_eval_at()
        self.replace_workflow("program", PROGRAM)
        self.replace_workflow("env", AEC)
        low, high = self.pass_rates
        if low > high:
            raise UsageError(f"`pass_rates` must be 0 <= low <= high <= 1, got {low} and {high}")
        length, name = (self.steps, "steps")
        if self.schedule_steps:
            length, name = (self.schedule_steps, "schedule_steps")
        if self.schedule != "constant" and length <= self.warmup:
            raise UsageError(
                f"`schedule` {self.schedule} falls after the warm-up, for which `{name}` must be "
                f"more than `warmup`: got {length} and {self.warmup}"
            )

    def _check_eval_at(self) -> None:
        if self.eval_at and self.eval_every:
            raise UsageError(
                "`eval_at` names the steps that are evaluated, and `eval_every` their distance: "
                f"give one of them, got {list(self.eval_at)} and {self.eval_every}"
            )
        beyond = [step for step in self.eval_at if not 0 <= step <= self.steps]
        if beyond:
            raise UsageError(
                f"`eval_at` takes steps from 0 to `steps` {self.steps}, got {beyond[0]}"
            )

    def evaluates(self, step: int) -> bool:
        """True if a resolved config evaluates after `step`; the first and last step always do."""
        return step in self.eval_at if self.eval_at else step % self.eval_every == 0

    @property
    def policy_words(self) -> tuple[str, ...]:
        """`sharing`, or the usual one of the algorithm if it is left out."""
        if self.sharing:
            return self.sharing
        return (ALGORITHMS[self.algorithm].usual_sharing,)

    @property
    def module_dtype(self) -> EngineDType:
        """Number format in which a learner's modules sample; bfloat16 weights keep theirs."""
        dtype = self.resolved_dtype
        return dtype if dtype == "int8" or self.weights == "float32" else self.weights

    @property
    def recomputes(self) -> bool:
        """True if ratios are to the learner's own log-probs."""
        return (self.old_logp or self.usual_old_logp) == "recomputed"

    @property
    def usual_old_logp(self) -> OldLogp:
        """`old_logp` where it is left out."""
        return "recomputed" if self.engine_dtype == "int8" else "sampler"

    @property
    def probe_distance(self) -> int:
        """Steps between probes of an engine, by `sync_check_every`."""
        alone = self.backend == "local" and not self.max_staleness
        return self.sync_check_every or (10 if alone else 1)

    @property
    def updates_in_flight(self) -> bool:
        """True if an engine gets new weights while batches are under way."""
        return bool(self.max_staleness) and not self.deterministic and self.backend == "local"

    @property
    def batches_at_once(self) -> int:
        """Most batches of training that are played beside each other."""
        if self.updates_in_flight:
            return 2
        # With `refill` a step draws problems until it ends, and the next step draws after it.
        return 1 + self.max_staleness if self.backend == "ray" and not self.refill else 1

    @property
    def longest_sequence(self) -> int:
        """Most tokens of prompt and reply; 0 if only the model's own limit bounds all roles."""
        if not self.max_prompt or self.lengths or self.max_tokens is None:
            return 0
        reply = max(self.max_tokens, self.eval_max_tokens or 0)
        return max(self.max_prompt + reply, 1024)  # holds the prompts that prove a sync

    @property
    def resolved_dtype(self) -> EngineDType:
        """`engine_dtype` of resolved settings."""
        assert self.engine_dtype != "auto"
        return self.engine_dtype

    @property
    def directory(self) -> Path:
        """The run directory."""
        if self.out:
            return Path(self.out)
        task = self.env or self.task or workflow_class(self.workflow).default_task
        workflow, task = (
            re.sub(r"[^\w.-]+", "-", part).strip("-")
            for part in (self.program or self.workflow, task)
        )
        sharing = "-".join(part.replace("=", "_") for part in self.policy_words)
        return Path("runs") / f"{workflow}-{task}-{self.algorithm}-{sharing}-s{self.seed}"
