"""Which weights workers are to have, and which will be needed. No I/O and no Ray.

The driver publishes after every update, and with `max_staleness` above 1 batches that wait their
turn are to be played with older weights. They are begun in the order of their versions: so what is
older than the weights that are played with is never asked for again, and what is newer is kept, as
far as a batch may still ask for it.
A worker that comes back while a batch is played gets the weights of that batch, whatever has been
published since.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from flowzoo.errors import FlowzooError


class VersionError(FlowzooError, RuntimeError):
    """Weights were asked for that are not kept."""


class PublishedWeights(NamedTuple):
    """The weights of a policy after so many optimiser steps, owned by the driver."""

    version: int
    file: Any
    """Reference to the safetensors file, as bytes in an array."""
    digest: str
    """Of the tensors in it."""


class WeightVersions:
    """The weights that are played with, by policy, and those after them.

    One thread may add while another chooses.
    """

    def __init__(self, ahead: int = 0) -> None:
        """Nothing was published; batches are begun at most `ahead` steps before their own."""
        self._most = ahead + 1
        self._kept: dict[str, dict[int, PublishedWeights]] = {}
        self._now: dict[str, PublishedWeights] = {}
        self._lock = threading.Lock()

    def __getitem__(self, policy: str) -> PublishedWeights:
        """The weights of `policy` that are played with."""
        return self._now[policy]

    def __len__(self) -> int:
        """How many versions are kept, of all policies together."""
        with self._lock:
            return sum(map(len, self._kept.values()))

    @property
    def policies(self) -> list[str]:
        """Those of which weights are played with."""
        return list(self._now)

    @property
    def versions(self) -> dict[str, int]:
        """Policy -> version of the weights that are played with."""
        return {policy: one.version for policy, one in self._now.items()}

    def add(self, policy: str, weights: PublishedWeights) -> None:
        """Keep the newest weights of a policy; nothing is played with them yet."""
        with self._lock:
            kept = self._kept.setdefault(policy, {})
            kept[weights.version] = weights
            if len(kept) > self._most:  # of a step that was played
                del kept[next(iter(kept))]

    def newest(self, policies: Iterable[str] | None = None) -> dict[str, int]:
        """The versions that were added last, of these policies or of all."""
        with self._lock:
            names = self._kept if policies is None else policies
            return {policy: next(reversed(self._kept[policy])) for policy in names}

    def choose(self, versions: Mapping[str, int]) -> list[str]:
        """Play with these versions from now on and forget older ones; the policies that change.

        Raises:
            VersionError: one is not kept.
        """
        with self._lock:
            for policy, version in versions.items():
                if version not in self._kept.get(policy, {}):
                    raise VersionError(
                        f"the weights of policy {policy!r} after {version} optimiser steps are not "
                        f"kept; there are those after {sorted(self._kept.get(policy, {}))}"
                    )
            changed = []
            for policy, version in versions.items():
                kept = self._kept[policy]
                if self._now.get(policy) is not kept[version]:
                    changed.append(policy)
                    self._now[policy] = kept[version]
                for older in [one for one in kept if one < version]:
                    del kept[older]
            return changed
