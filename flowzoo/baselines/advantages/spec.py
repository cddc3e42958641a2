"""The choices that make an advantage, and the named sets of choices."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, get_type_hints

from flowzoo.declared import Fraction, NonNegative, Only, ProperFraction, check_declared
from flowzoo.envs.settings import Setting
from flowzoo.errors import UsageError, unknown

Target = Literal["episode", "row", "return_to_go", "node", "candidate"]
Baseline = Literal["mean", "loo", "max", "running", "none"]
Scale = Literal["sample", "population", "none"]
ScaleOf = Literal["target", "difference"]
Weight = Literal["episode", "call"]
Singleton = Literal["zero", "raw", "widen"]

SCALED = Only(lambda spec, _: spec.std != "none", "of std=sample or std=population")

COLUMNS: Mapping[str, str] = {
    name: name
    for name in (
        "problem", "episode", "role", "agent", "turn", "slot", "phase", "policy", "name", "node",
        "candidate",
    )
} | {"state": "state_hash"}  # fmt: skip
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
    gamma: Annotated[
        Fraction, Only(lambda spec, _: spec.target == "return_to_go", "of target=return_to_go")
    ] = 1.0
    """Discount per turn of the agent, for `return_to_go`."""
    mean_group: tuple[str, ...] = ("problem",)
    """Columns that rows must share to have one baseline, from the widest to the narrowest."""
    mean: Baseline = "mean"
    """`loo`: mean of the others. `max`: best of the group. `running`: mean of earlier batches, see
    `RunningMean`. `none`: no baseline."""
    mean_weight: Weight = "episode"
    """Unit that counts once. `episode`: each episode, with the mean target of its rows in the
    group. `call`: each row, so that an episode counts as often as it called."""
    decay: Annotated[
        ProperFraction, Only(lambda spec, _: spec.mean == "running", "of mean=running")
    ] = 0.99
    """Fraction of its value that a running mean keeps per batch."""
    std_group: Annotated[tuple[str, ...], SCALED] = ("problem",)
    std: Scale = "sample"
    """`sample` divides the squares by n - 1, `population` by n."""
    std_weight: Annotated[Weight, SCALED] = "episode"
    singleton: Singleton = "zero"
    """A group of one gets: `zero`, no advantage; `raw`, its target without baseline and scale;
    `widen`, the statistics of the group without its last column (again as needed; where the first
    column alone is still a group of one: zero). A running mean has no groups of one."""
    eps: Annotated[NonNegative[float], SCALED] = 1e-6
    std_of: Annotated[ScaleOf, SCALED] = "target"
    """Values whose deviation is the scale: the targets, or the differences that the baseline
    leaves, whose own mean over the scale's group is then taken off as well (REINFORCE++ with a
    baseline).
    """

    def __post_init__(self) -> None:
        check_declared(self)
        for name, columns in (("mean_group", self.mean_group), ("std_group", self.std_group)):
            if not columns:
                raise UsageError(f"`{name}` must be a tuple of column names, got {columns!r}.")
            for column in columns:
                if column not in COLUMNS:
                    raise unknown(f"column in `{name}`", column, COLUMNS)


def _by_call(group: tuple[str, ...], **choices: Any) -> AdvantageSpec:
    """Choices with one group for baseline and scale, in which every call counts."""
    return AdvantageSpec(
        mean_group=group, std_group=group, mean_weight="call", std_weight="call", **choices
    )


PRESETS: Mapping[str, AdvantageSpec] = {
    "grpo": AdvantageSpec(),
    "grpo_call": _by_call(("problem",)),
    "dr_grpo": AdvantageSpec(std="none"),
    "dr_mas": _by_call(("problem", "role"), target="row"),
    "dr_mas_mean": AdvantageSpec("row", mean_group=("problem", "role"), mean_weight="call"),
    "dr_mas_std": AdvantageSpec("row", std_group=("problem", "role"), std_weight="call"),
    "paper": _by_call(("problem", "name"), singleton="raw"),
    "at_grpo": _by_call(("problem", "episode", "turn", "agent", "state"), target="candidate"),
    "magrpo": _by_call(("problem", "role", "turn"), target="return_to_go", std="none"),
    "magrpo_tree": _by_call(("node", "agent"), target="node", std="none"),
    "rloo": AdvantageSpec(mean="loo", std="none", singleton="raw"),
    "reinforce_max": AdvantageSpec(mean="max", std="none", singleton="raw"),
    "reinforce": AdvantageSpec(mean="none", std="none", singleton="raw"),
    "reinforce_role": _by_call(
        ("role",), target="row", mean="running", std="none", singleton="raw"
    ),
    "reinforce_pp": AdvantageSpec(mean_group=("policy",), std_group=("policy",)),
    "reinforce_pp_base": AdvantageSpec(std_group=("policy",), std_of="difference"),
}
"""Named choices, by what differs from the defaults, which are GRPO's. `paper` is the code of arXiv
2605.24202, whose groups are trajectory names: all workers of a problem are one group, and so are
all turns of a generator or evaluator; voters are separate groups, but on code. The batch of
`reinforce_pp` is that of one policy."""


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
            changes[name] = value
        else:
            changes[name] = "none" if value is None else value  # NAME=none is a valid choice
    return replace(spec, **changes)
