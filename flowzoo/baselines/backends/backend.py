"""The backend of a run (one process, ranks, or a driver with workers), and its messages."""

import pickle
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

from flowzoo.agents.identity import ModelIdentity
from flowzoo.agents.policy import Policy
from flowzoo.agents.policy_map import PolicyMap
from flowzoo.agents.rollout.episodes import EpisodeJob, RolloutBatch
from flowzoo.aliases import MetricRow, T
from flowzoo.baselines.learner.update import Learner
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.settings.options import BackendName
from flowzoo.baselines.settings.policies import LearnerGroupPlan
from flowzoo.envs.records import Call
from flowzoo.errors import FlowzooError, UsageError


@dataclass(frozen=True, slots=True)
class RolloutSpec:
    """Arguments from which a process with the same settings makes the same sampler; picklable."""

    mode: Literal["train", "eval"]
    policies: Mapping[str, tuple[str, bool | None]]
    """Policy and its thinking switch, by role or agent."""
    step: int = 0
    """Step of the training batch: it decides the stage of the curriculum and the noise."""
    eval_set: str = ""
    """Name of the evaluation set; empty: the held-out problems."""
    versions: Mapping[str, int] | None = None
    """Exact number of optimizer steps behind the weights, by policy; None: the newest."""


def policies_of(policy_map: PolicyMap) -> dict[str, tuple[str, bool | None]]:
    """Policies of `policy_map` in the format of `RolloutSpec`."""

    def say(policy: Policy) -> tuple[str, bool | None]:
        return getattr(policy, "original", policy.name), getattr(policy, "thinking", None)

    # Every process makes its own judge.
    return {role: say(policy_map.policy(role)) for role in policy_map.entries}


class Shard(NamedTuple):
    """Jobs that are played as one batch."""

    number: int
    jobs: tuple[EpisodeJob, ...]


def cut_shards(jobs: Sequence[EpisodeJob], size: int) -> list[Shard]:
    """Shards of `size` jobs each, in order; the last may have fewer. 0: one shard of all."""
    size = size or max(1, len(jobs))
    starts = range(0, max(1, len(jobs)), size)
    return [Shard(n, tuple(jobs[start : start + size])) for n, start in enumerate(starts)]


class LearnerProtocol(Protocol):
    """A `Learner` of this process, or the proxy of one in other processes."""

    steps: int
    """Optimizer steps so far: the version of the weights."""
    lr_scale: float
    """Factor on the scheduled learning rate."""
    notes: list[str]
    """Remarks about how it trains."""

    def update(self, calls: Sequence[Call], advantages: Sequence[float]) -> dict[str, float]:
        """Train on `calls` with one advantage each; see `Learner.update`."""

    def apply(self, work: Callable[..., T], *given: Any) -> T:
        """Call `work`, a function of a module, with the `Learner` and `given` in its process."""
        # Where several processes train together all of them do it, and the first one's result
        # counts.


class LearnersLostError(FlowzooError, RuntimeError):
    """Other processes that learn for this one are gone; what they had is in the last checkpoint."""


class NoRoomError(UsageError):
    """A cluster has no room for the workers of a run, for now or for ever."""


class RunBackend:
    """The backend of one process; ranks, and a driver with workers, override what differs."""

    # All methods but `stop` and `grading` are collective: what one rank raises is raised on all.

    writes = True
    """True if this process writes the files of the run."""
    has_ranks = False
    """True if other ranks go through the same loop beside this one."""

    @classmethod
    def open(
        cls,
        config: TrainConfig,
        learner_groups: Sequence[LearnerGroupPlan],
        began: Mapping[str, ModelIdentity],
    ) -> "RunBackend":
        """Open the backend of a run, whose models are those it `began` with."""
        return cls()

    def play(
        self, plan: RolloutSpec, shards: Sequence[Shard], play: Callable[[Shard], RolloutBatch]
    ) -> list[RolloutBatch]:
        """Batches of `shards` in order, each played once with `play`, or elsewhere by `plan`."""
        return [play(shard) for shard in shards]

    def once(self, work: Callable[[], T]) -> T:
        """Do `work` where files are written; every rank gets what it returned."""
        return work()

    def each(self, work: Callable[[], T]) -> list[T]:
        """Do `work` everywhere; what every rank returned, by rank."""
        return [work()]

    def join(self, make: Callable[[], Mapping[str, Learner]]) -> Mapping[str, LearnerProtocol]:
        """The learners that `make` returns, or proxies of learners in other processes."""
        return make()

    def together(self, works: Mapping[str, Callable[[], T]]) -> dict[str, T]:
        """Results of a work for each policy, called with its learner; maybe at the same time."""
        return {policy: work() for policy, work in works.items()}

    def grading(self, here: Callable[[], Mapping[str, object]]) -> Mapping[str, object]:
        """Settings that answers are graded with, for the run's record: `here`, or the graders'."""
        return here()

    def publish(self, learners: Mapping[str, LearnerProtocol]) -> MetricRow:
        """Send the learners' weights to remote workers, and check that they have arrived."""
        # May be called while another thread is in `play`, where `max_staleness` is above 1.
        return {}

    def stop(self) -> None:
        """Let a `play` in another thread end soon, with an error; `close` follows."""

    def close(self) -> None:
        """Leave the other processes; may be called again."""


BACKENDS: dict[BackendName, str] = {
    "local": "flowzoo.baselines.backends.backend:RunBackend",
    "torchrun": "flowzoo.baselines.backends.torchrun:TorchrunBackend",
    "ray": "flowzoo.baselines.backends.ray.backend:RayRunBackend",
}
"""Class of each backend, as `module:Class`; a run never falls back to another one."""


def serialize_error(process: str, error: Exception) -> bytes | str:
    """Pickle of a flowzoo error; of others, or if it cannot be pickled, message and place."""
    message = f"{process} stopped: {type(error).__name__}: {error}"
    frames = traceback.extract_tb(error.__traceback__)
    if frames:
        message += f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})"
    if not isinstance(error, FlowzooError):
        return message
    try:
        sent = pickle.dumps(error)
        pickle.loads(sent)  # noqa: S301  # our own, of a moment ago
    except Exception:  # a class of the user may raise anything when pickled
        return message
    return sent


def deserialize_error(data: bytes | str, kind: type[FlowzooError]) -> FlowzooError:
    """The error that another process of this run has sent; a message becomes a `kind`."""
    return kind(data) if isinstance(data, str) else pickle.loads(data)  # noqa: S301  # of this run
