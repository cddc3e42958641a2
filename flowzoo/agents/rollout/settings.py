"""Settings of tree and joint sampling; importing them loads no sampler."""

from dataclasses import dataclass
from typing import Literal

from flowzoo.declared import Count, check_declared
from flowzoo.errors import UsageError

Value = Literal["now", "rollout"]
Select = Literal["best", "sample", "first"]
Joint = Literal["aligned", "cross"]


@dataclass(frozen=True, slots=True)
class TreeSettings:
    """Sampling, valuation and selection of candidates."""

    candidates: Count = 4
    """Replies sampled at every decision: K."""
    value: Value = "now"
    """`now`: alpha * team + local + format, of the parts that a candidate's branch knows at once;
    `rollout`: the call's final reward, mean over plays of the branch by the current policies."""
    value_rollouts: Count = 1
    """Plays to the end per candidate, for `value="rollout"`."""
    select: Select = "best"
    """Selection of the executed candidate: the `best` (ties: the lowest number), one drawn at
    random (`sample`), or the `first`, which leaves the episodes distributed as without a tree."""

    def __post_init__(self) -> None:
        check_declared(self)


@dataclass(frozen=True, slots=True)
class JointSettings:
    """Branching of nodes."""

    candidates: Count = 4
    """Replies of every agent at a node, where the budget allows: G."""
    joint: Joint = "aligned"
    """Joint actions that become children: the j-th candidates of all agents, or (`cross`) further
    combinations too, with every candidate in equally many."""
    leaves: Count = 16
    """Most finished episodes of one job."""

    def __post_init__(self) -> None:
        check_declared(self)
        if self.leaves < self.candidates:
            raise UsageError(
                f"`leaves` must be at least `candidates` ({self.candidates}), so that the first "
                f"node has its candidates; got {self.leaves}"
            )
