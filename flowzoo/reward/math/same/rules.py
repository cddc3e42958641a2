"""The conventions of the math reward that can be chosen."""

from __future__ import annotations

from typing import Literal, NamedTuple

PercentRule = Literal["exact", "either"]
UnitRule = Literal["optional", "required", "ignored"]
ListRule = Literal["free", "strict"]


class Rules(NamedTuple):
    """The conventions that can be chosen; see `flowzoo.reward.MathOptions`."""

    percent: PercentRule = "exact"
    units: UnitRule = "optional"
    order: ListRule = "free"
    digits: int = 6
