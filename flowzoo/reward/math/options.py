"""Options of the math reward: how answers are read, and the conventions of their comparison."""

from dataclasses import dataclass
from typing import Literal

from flowzoo.errors import UsageError, check_choice
from flowzoo.reward.math.extract import AnswerSource

PercentRule = Literal["exact", "either"]
UnitRule = Literal["optional", "required", "ignored"]
ListRule = Literal["free", "strict"]
MathReading = Literal["auto", "answer", "strict", "lenient"]
Judging = Literal["pool", "none"]


@dataclass(frozen=True, slots=True)
class MathOptions:
    """Options of reading and comparing answers.

    Raises:
        UsageError: an unknown choice, or a number out of range.
    """

    read: MathReading = "auto"
    """`auto`: predictions are full replies or bare answers, read by box, `####`, answer phrase, as
    a whole if they are just an answer, or by the last formula or number of their last sentence.
    `answer`: predictions and golds are extracted answers, used unchanged. `strict` and `lenient`:
    predictions are full replies, read by `extract` in that mode."""
    order: tuple[AnswerSource, ...] | None = None
    """Sources of an answer in order, in place of `read`."""
    percent: PercentRule = "exact"
    """`exact`: 50% equals only 1/2. `either`: it also equals 50."""
    units: UnitRule = "optional"
    """`optional`: a unit may be missing on one side; two units must agree. `required`: both sides
    or none have a unit. `ignored`: units are not compared."""
    lists: ListRule = "free"
    """`free`: a bare list has no order. `strict`: its order counts. Tuples are always ordered, sets
    never."""
    digits: int = 6
    """Minimum number of significant digits of a decimal that equals the exact number, 1 to 40."""
    judge: Judging = "pool"
    """Judge of pairs that exact comparison and probing do not decide: sympy in the worker pool, or
    none, which means different."""
    deadline: float = 1.0
    """Most CPU seconds for a judged pair, up to 1.5; see `WorkerPool.run`."""

    def __post_init__(self) -> None:
        check_choice("reading", self.read, MathReading)
        check_choice("percent rule", self.percent, PercentRule)
        check_choice("unit rule", self.units, UnitRule)
        check_choice("list rule", self.lists, ListRule)
        check_choice("judge", self.judge, Judging)
        for source in self.order or ():
            check_choice("answer source", source, AnswerSource)
        if not 1 <= self.digits <= 40:
            raise UsageError(f"digits: expected 1 to 40, got {self.digits!r}.")
        if not 0 < self.deadline <= 1.5:
            raise UsageError(f"deadline: expected seconds in (0, 1.5], got {self.deadline!r}.")
