"""Dr. MAS's figures per problem and role (arXiv 2602.08847, Lemma 4.2)."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np

from flowzoo.baselines.advantages.grouped_targets import GroupedTargetsCache
from flowzoo.baselines.advantages.segments import Codes, Floats

ROLE = ("problem", "role")


@dataclass(frozen=True, slots=True)
class RoleStat:
    """Lemma 4.2's figures for one role on one problem (population deviations)."""

    problem: str
    role: str
    calls: int
    mu_k: float
    sigma_k: float
    mu: float
    """Mean over the problem's episodes."""
    sigma: float
    inflation: float
    """F_k; NaN where all episodes of the problem have one return (sigma = 0)."""
    shift: float
    """b_k; NaN likewise."""


@dataclass(frozen=True, slots=True)
class RoleStats(Sequence[RoleStat]):
    """The figures of every (problem, role), in order of first appearance: each array (pairs,).

    As a sequence it holds one `RoleStat` each, made when it is asked for.
    """

    problem: Sequence[Hashable]
    """The distinct problems."""
    role: Sequence[Hashable]
    """The distinct roles."""
    problem_code: Codes
    """Place of each pair's problem in `problem`."""
    role_code: Codes
    calls: Floats
    mu_k: Floats
    sigma_k: Floats
    mu: Floats
    sigma: Floats
    inflation: Floats
    shift: Floats

    def __len__(self) -> int:
        return len(self.calls)

    @overload
    def __getitem__(self, index: int) -> RoleStat: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[RoleStat]: ...
    def __getitem__(self, index: int | slice) -> RoleStat | Sequence[RoleStat]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        problem, role = self.problem[self.problem_code[index]], self.role[self.role_code[index]]
        arrays = (self.mu_k, self.sigma_k, self.mu, self.sigma, self.inflation, self.shift)
        figures = (float(array[index]) for array in arrays)
        return RoleStat(str(problem), str(role), int(self.calls[index]), *figures)


def role_stats(pools: GroupedTargetsCache) -> RoleStats:
    """Lemma 4.2's figures of the targets in `pools`."""
    groups = pools.groups
    role, problem = pools.of(ROLE, "call").segments, pools.of(("problem",), "episode")
    first = groups.by(ROLE).first
    of_role = problem.codes[first]
    whole = problem.segments
    mu = whole.mean[of_role]
    sigma = np.sqrt(whole.squares / whole.counts)[of_role]
    sigma_k = np.sqrt(role.squares / role.counts)
    known = np.where(sigma > 0, sigma, np.nan)
    return RoleStats(
        problem=groups.columns.ids("problem"),
        role=groups.columns.ids("role"),
        problem_code=groups.codes("problem")[first],
        role_code=groups.codes("role")[first],
        calls=role.counts,
        mu_k=role.mean,
        sigma_k=sigma_k,
        mu=mu,
        sigma=sigma,
        inflation=(sigma_k**2 + (role.mean - mu) ** 2) / known**2,
        shift=(role.mean - mu) / known,
    )
