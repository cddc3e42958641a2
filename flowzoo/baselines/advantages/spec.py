"""The choices that make an advantage, and the named sets of choices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_type_hints

from flowzoo.envs.settings import Setting
from flowzoo.errors import UsageError, check_choice, unknown

Target = Literal["episode", "row", "return_to_go", "node", "candidate"]
Baseline = Literal["mean", "loo", "max", "running", "none"]
Scale = Literal["sample", "population", "none"]
ScaleOf = Literal["target", "difference"]
Weight = Literal["episode", "call"]
Singleton = Literal["zero", "raw", "widen"]

COLUMNS: Mapping[str, str] = {
    "problem": "problem",
    "episode": "episode",
    "role": "role",
    "agent": "agent",
    "turn": "turn",
    "slot": "slot",
    "phase": "phase",
    "policy": "policy",
    "name": "name",
    "node": "node",
    "candidate": "candidate",
    "state": "state_hash",
}
"""Columns that a group may be made of -> the fields of `Call` they are read from."""


@dataclass(frozen=True, slots=True)
class AdvantageSpec:
    """Choices of how advantages are computed.

    Raises:
        UsageError: an unknown column or choice, an empty group, or a number out of range.
    """

    target: Target = "episode"
    """`episode`: the return of the row's episode. `row`: the row's own `reward`. `return_to_go`:
    the `immediate` rewards of this agent's calls from this one on, discounted, and once the row's
    share of the team's outcome, discounted by the turns to the agent's last call. `node` and
    `candidate`: what tree sampling found the row to be worth, `Call.value`."""
    gamma: float = 1.0
    """Discount per turn of the agent, for `return_to_go`."""
    mean_group: tuple[str, ...] = ("problem",)
    """Columns that rows must share to have one baseline, from the widest to the narrowest."""
    mean: Baseline = "mean"
    """`loo`: mean of the others. `max`: best of the group. `running`: mean of earlier batches, see
    `RunningMean`. `none`: no baseline."""
    mean_weight: Weight = "episode"
    """Unit that counts once. `episode`: each episode, with the mean target of its rows in the
    group. `call`: each row, so that an episode counts as often as it called."""
    decay: float = 0.99
    """Fraction of its value that a running mean keeps per batch."""
    std_group: tuple[str, ...] = ("problem",)
    std: Scale = "sample"
    """`sample` divides the squares by n - 1, `population` by n."""
    std_weight: Weight = "episode"
    singleton: Singleton = "zero"
    """A group of one gets: `zero`, no advantage; `raw`, its target without baseline and scale;
    `widen`, the statistics of the group without its last column (again as needed; where the first
    column alone is still a group of one: zero). A running mean has no groups of one."""
    eps: float = 1e-6
    std_of: ScaleOf = "target"
    """Values whose deviation is the scale: the targets, or the differences that the baseline
    leaves, whose own mean over the scale's group is then taken off as well (REINFORCE++ with a
    baseline).
    """

    def __post_init__(self) -> None:
        check_choice("target", self.target, Target)
        check_choice("mean", self.mean, Baseline)
        check_choice("mean_weight", self.mean_weight, Weight)
        check_choice("std", self.std, Scale)
        check_choice("std_weight", self.std_weight, Weight)
        check_choice("std_of", self.std_of, ScaleOf)
        check_choice("singleton", self.singleton, Singleton)
        for name, columns in (("mean_group", self.mean_group), ("std_group", self.std_group)):
            if isinstance(columns, str) or not columns:
                raise UsageError(f"`{name}` must be a tuple of column names, got {columns!r}.")
            for column in columns:
                if column not in COLUMNS:
                    raise unknown(f"column in `{name}`", column, COLUMNS)
        if not 0 <= self.gamma <= 1:
            raise UsageError(f"`gamma` must be between 0 and 1, got {self.gamma}.")
        if not 0 <= self.decay < 1:
            raise UsageError(f"`decay` must be at least 0 and below 1, got {self.decay}.")
        if not self.eps >= 0:
            raise UsageError(f"`eps` must be at least 0, got {self.eps}.")


_PROBLEM = ("problem",)
_ROLE = ("problem", "role")
_NAME = ("problem", "name")
_PROMPT = ("problem", "episode", "turn", "agent", "state")
_TURN = ("problem", "role", "turn")
_NODE = ("node", "agent")
_BATCH = ("policy",)

PRESETS: Mapping[str, AdvantageSpec] = {
    "grpo": AdvantageSpec(
        target="episode", mean_group=_PROBLEM, mean="mean", mean_weight="episode",
        std_group=_PROBLEM, std="sample", std_weight="episode", singleton="zero",
    ),
    "grpo_call": AdvantageSpec(
        target="episode", mean_group=_PROBLEM, mean="mean", mean_weight="call",
        std_group=_PROBLEM, std="sample", std_weight="call", singleton="zero",
    ),
    "dr_grpo": AdvantageSpec(
        target="episode", mean_group=_PROBLEM, mean="mean", mean_weight="episode",
        std_group=_PROBLEM, std="none", std_weight="episode", singleton="zero",
    ),
    "dr_mas": AdvantageSpec(
        target="row", mean_group=_ROLE, mean="mean", mean_weight="call",
        std_group=_ROLE, std="sample", std_weight="call", singleton="zero",
    ),
    "dr_mas_mean": AdvantageSpec(
        target="row", mean_group=_ROLE, mean="mean", mean_weight="call",
        std_group=_PROBLEM, std="sample", std_weight="episode", singleton="zero",
    ),
    "dr_mas_std": AdvantageSpec(
        target="row", mean_group=_PROBLEM, mean="mean", mean_weight="episode",
        std_group=_ROLE, std="sample", std_weight="call", singleton="zero",
    ),
    "paper": AdvantageSpec(
        target="episode", mean_group=_NAME, mean="mean", mean_weight="call",
        std_group=_NAME, std="sample", std_weight="call", singleton="raw",
    ),
    "at_grpo": AdvantageSpec(
        target="candidate", mean_group=_PROMPT, mean="mean", mean_weight="call",
        std_group=_PROMPT, std="sample", std_weight="call", singleton="zero",
    ),
    "magrpo": AdvantageSpec(
        target="return_to_go", gamma=1.0, mean_group=_TURN, mean="mean", mean_weight="call",
        std_group=_TURN, std="none", std_weight="call", singleton="zero",
    ),
    "magrpo_tree": AdvantageSpec(
        target="node", mean_group=_NODE, mean="mean", mean_weight="call",
        std_group=_NODE, std="none", std_weight="call", singleton="zero",
    ),
    "rloo": AdvantageSpec(
        target="episode", mean_group=_PROBLEM, mean="loo", mean_weight="episode",
        std_group=_PROBLEM, std="none", std_weight="episode", singleton="raw",
    ),
    "reinforce_max": AdvantageSpec(
        target="episode", mean_group=_PROBLEM, mean="max", mean_weight="episode",
        std_group=_PROBLEM, std="none", std_weight="episode", singleton="raw",
    ),
    "reinforce": AdvantageSpec(
        target="episode", mean_group=_PROBLEM, mean="none", mean_weight="episode",
        std_group=_PROBLEM, std="none", std_weight="episode", singleton="raw",
    ),
    "reinforce_role": AdvantageSpec(
        target="row", mean_group=("role",), mean="running", mean_weight="call", decay=0.99,
        std_group=("role",), std="none", std_weight="call", singleton="raw",
    ),
    "reinforce_pp": AdvantageSpec(
        target="episode", mean_group=_BATCH, mean="mean", mean_weight="episode",
        std_group=_BATCH, std="sample", std_weight="episode", singleton="zero",
    ),
    "reinforce_pp_base": AdvantageSpec(
        target="episode", mean_group=_PROBLEM, mean="mean", mean_weight="episode",
        std_group=_BATCH, std="sample", std_weight="episode", singleton="zero",
        std_of="difference",
    ),
}  # fmt: skip
"""Named choices. `paper` is the code of arXiv 2605.24202, whose groups are trajectory names: on
mathematics every voter is a separate group, on code all voters are one, and the turns of a
generator or evaluator are mixed. The batch of `reinforce_pp` is that of one policy."""


def named_spec(spec: AdvantageSpec | str) -> AdvantageSpec:
    """Return `spec`, or the preset of that name."""
    if isinstance(spec, AdvantageSpec):
        return spec
    if spec not in PRESETS:
        raise unknown("advantage preset", spec, PRESETS)
    return PRESETS[spec]


def by_agent(spec: AdvantageSpec) -> AdvantageSpec:
    """`spec` for episodes in which every agent has a separate return."""
    # An agent's return counts once an episode, and is compared with the same agent's in others.
    if spec.target != "episode":
        return spec
    groups: dict[str, Any] = {
        name: (*getattr(spec, name), "agent")
        for name in ("mean_group", "std_group")
        if "agent" not in getattr(spec, name)
    }
    return replace(spec, target="row", **groups)


def with_choices(spec: AdvantageSpec, choices: Mapping[str, Setting]) -> AdvantageSpec:
    """`spec` with the choices of NAME=VALUE arguments; a group is written `problem+role`."""
    kinds = get_type_hints(AdvantageSpec)
    changes: dict[str, Any] = {}
    for name, value in choices.items():
        if name not in kinds:
            raise unknown("choice of the advantage", name, kinds)
        if name in ("mean_group", "std_group"):
            changes[name] = tuple(str(value).split("+"))
        elif name in ("gamma", "decay", "eps"):
            if not isinstance(value, (int, float)):
                raise UsageError(f"`advantage` {name} must be a number, got {value!r}")
            changes[name] = value
        else:
            changes[name] = "none" if value is None else value  # NAME=none is a valid choice
    return replace(spec, **changes)
