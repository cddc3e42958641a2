"""The proof that engines of rollout workers have the learner's weights.

When weights are published the learner's own log-probs of the workers' probes are kept. Whenever a
worker has loaded them, then or much later, it says its engine's, and both must agree: so it does
not matter what the learner holds by then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import torch

from flowzoo.agents.policy import Completion
from flowzoo.baselines.backends.like import LearnerLike
from flowzoo.baselines.backends.ray.worker import Loaded
from flowzoo.baselines.backends.sync_proof import LogprobGap, SyncError, check
from flowzoo.baselines.learner.update import Learner

KEPT = 256
"""Versions of a policy whose log-probs are kept: many more than a run is ahead."""


def plain_logps(learner: Learner, rows: Sequence[Completion]) -> list[list[float]]:
    """What the learner's weights of now say, where it is."""
    return learner.plain_logps(rows)


class ReplicaProof:
    """Compares what workers say with what the learners say."""

    def __init__(self, *, exact: bool, tolerance: float) -> None:
        """Nothing is known yet; both are as for `check`."""
        self._exact, self._tolerance = exact, tolerance
        self._learners: dict[str, dict[int, list[list[float]]]] = {}
        self._gaps: dict[str, list[LogprobGap]] = {}
        self.probes: Mapping[str, Sequence[Completion]] = {}
        """Of every policy whose engines say log-probs."""

    def remember(self, policy: str, learner: LearnerLike) -> None:
        """Keep what the learner's weights of now say."""
        rows = self.probes.get(policy)
        if rows:
            known = self._learners.setdefault(policy, {})
            known[learner.steps] = learner.apply(plain_logps, rows)
            while len(known) > KEPT:
                del known[next(iter(known))]

    def __call__(self, worker: int, policy: str, loaded: Loaded) -> None:
        """Check what a worker says after it loaded weights.

        Raises:
            SyncError: its engine has others, or not all was said.
        """
        if policy not in self.probes:
            return
        want = self._learners[policy].get(loaded.version, [])
        who = f"the engine of rollout worker {worker} for policy {policy!r}"
        if [len(row) for row in loaded.logps] != [len(row) for row in want]:
            raise SyncError(f"{who} has not said its log-probs of version {loaded.version}")
        mine, theirs = (torch.tensor([*chain(*rows)]) for rows in (want, loaded.logps))
        gap = LogprobGap.of((mine - theirs).abs())
        check(gap, who, exact=self._exact, tolerance=self._tolerance)
        self._gaps.setdefault(policy, []).append(gap)

    def metrics(self) -> dict[str, Any]:
        """The largest differences of all proofs since they were last asked for."""
        found: dict[str, Any] = {}
        proved, self._gaps = self._gaps, {}  # a batch that is ahead may be proving in its thread
        for policy, gaps in list(proved.items()):
            found[f"sync/gap_max/{policy}"] = max(gap.largest for gap in gaps)
            found[f"sync/gap_mean/{policy}"] = max(gap.mean for gap in gaps)
        return found
