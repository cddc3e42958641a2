"""Weights on their way: one safetensors file, which Ray's object store keeps once per node."""

import hashlib
import json
import threading
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import safetensors.torch
import torch

from flowzoo.agents.policy import Completion
from flowzoo.aliases import MetricRow
from flowzoo.baselines.backends.backend import LearnerProtocol
from flowzoo.baselines.backends.ray.worker import Loaded
from flowzoo.baselines.backends.sync_check import LogprobGap, SyncError, check
from flowzoo.baselines.learner.update import Learner
from flowzoo.errors import FlowzooError

_OTHERS = "other_names"


def distinct(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors under the first of their names, on the CPU: a tied weight is sent once."""
    tensors: dict[int, tuple[str, torch.Tensor]] = {}
    for name in sorted(state):
        tensors.setdefault(state[name].data_ptr(), (name, state[name]))
    return {name: value.detach().cpu().contiguous() for name, value in tensors.values()}


def digest(tensors: Mapping[str, torch.Tensor]) -> str:
    """SHA-256 of names, kinds, shapes and bytes of the tensors."""
    sha256 = hashlib.sha256()
    for name in sorted(tensors):
        value = tensors[name]
        sha256.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        sha256.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return sha256.hexdigest()


def to_file(state: Mapping[str, torch.Tensor]) -> bytes:
    """A safetensors file of the distinct tensors, which says what other names they have."""
    tensors = distinct(state)
    first = {state[name].data_ptr(): name for name in tensors}
    others = {name: first[state[name].data_ptr()] for name in state if name not in tensors}
    return safetensors.torch.save(tensors, {_OTHERS: json.dumps(others)})


def weights_file(learner: Learner, *, keep: bool = True) -> tuple[bytes, str]:
    """A learner's weights as a file, and their digest; collective, None where not to `keep`."""
    state = learner.weights.state(keep=keep)
    if not keep:
        return b"", ""
    return to_file(state), digest(distinct(state))


def from_file(weights: bytes) -> dict[str, torch.Tensor]:
    """Tensors of a file that `to_file` wrote, on the CPU."""
    tensors = safetensors.torch.load(weights)
    size = int.from_bytes(weights[:8], "little")  # of the header, which is JSON
    metadata = json.loads(weights[8 : 8 + size]).get("__metadata__", {})
    others: dict[str, str] = json.loads(metadata.get(_OTHERS, "{}"))
    return tensors | {name: tensors[first] for name, first in others.items()}


class VersionError(FlowzooError, RuntimeError):
    """Weights were asked for that are not kept."""


class PublishedWeights(NamedTuple):
    """The weights of a policy after a number of optimizer steps, owned by the driver."""

    version: int
    file: Any  # reference to the safetensors file, as bytes in an array
    digest: str  # digest of the tensors in the file


class WeightVersions:
    """The newest weights of every policy that batches under way are played with."""

    # One thread may add while others read.

    def __init__(self, ahead: int = 0) -> None:
        self._most = ahead + 1
        self._kept: dict[str, dict[int, PublishedWeights]] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        with self._lock:
            return sum(map(len, self._kept.values()))

    def add(self, policy: str, weights: PublishedWeights) -> None:
        """Keep the newest weights of a policy."""
        with self._lock:
            files = self._kept.setdefault(policy, {})
            files[weights.version] = weights
            if len(files) > self._most:  # of a step that was played
                del files[next(iter(files))]

    def newest(self) -> dict[str, int]:
        """The version that was added last, by policy."""
        with self._lock:
            return {policy: next(reversed(files)) for policy, files in self._kept.items()}

    def get(self, policy: str, version: int) -> PublishedWeights:
        """Weights of a policy after `version` optimizer steps."""
        with self._lock:
            files = self._kept.get(policy, {})
            if version not in files:
                raise VersionError(
                    f"the weights of policy {policy!r} after {version} optimizer steps are not "
                    f"kept; there are those after {sorted(files)}"
                )
            return files[version]


KEPT = 256  # versions of a policy whose log-probs are kept: many more than a run is ahead


class ReplicaProof:
    """Compares log-probs of rollout workers' engines with the learners'."""

    def __init__(self, *, exact: bool, tolerance: float) -> None:
        self._exact, self._tolerance = exact, tolerance
        self._learners: dict[str, dict[int, list[list[float]]]] = {}
        self._gaps: dict[str, list[LogprobGap]] = {}
        self.probes: Mapping[str, Sequence[Completion]] = {}
        """Probes of every policy whose engines report log-probs."""

    def remember(self, policy: str, learner: LearnerProtocol) -> None:
        """Store the log-probs of the learner's present weights."""
        rows = self.probes.get(policy)
        if rows:
            versions = self._learners.setdefault(policy, {})
            versions[learner.steps] = learner.apply(Learner.plain_logps, rows)
            while len(versions) > KEPT:
                del versions[next(iter(versions))]

    def __call__(self, worker: int, policy: str, loaded: Loaded) -> None:
        """Check the log-probs that a worker reports after it has loaded weights."""
        if policy not in self.probes:
            return
        want = self._learners[policy].get(loaded.version, [])
        who = f"the engine of rollout worker {worker} for policy {policy!r}"
        if [len(row) for row in loaded.logps] != [len(row) for row in want]:
            raise SyncError(f"{who} has not said its log-probs of version {loaded.version}")
        learner_logps, engine_logps = (
            torch.tensor([*chain(*rows)]) for rows in (want, loaded.logps)
        )
        gap = LogprobGap.of((learner_logps - engine_logps).abs())
        check(gap, who, exact=self._exact, tolerance=self._tolerance)
        self._gaps.setdefault(policy, []).append(gap)

    def metrics(self) -> MetricRow:
        """The largest differences of all proofs since they were last asked for."""
        metrics: MetricRow = {}
        proved, self._gaps = self._gaps, {}  # a batch that is ahead may be proving in its thread
        for policy, gaps in list(proved.items()):
            metrics[f"sync/gap_max/{policy}"] = max(gap.largest for gap in gaps)
            metrics[f"sync/gap_mean/{policy}"] = max(gap.mean for gap in gaps)
        return metrics
