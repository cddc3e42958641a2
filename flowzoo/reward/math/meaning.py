"""The parsed answer, which `answer` reads and `compare` compares."""

from __future__ import annotations

from typing import Literal, NamedTuple

from flowzoo.reward.math.tree import ExprNode

AnswerKind = Literal[
    "scalar", "list", "set", "seq", "union", "cap", "setminus", "ratio", "relation", "text",
]  # fmt: skip


class ParsedAnswer(NamedTuple):
    """The meaning of an answer."""

    kind: AnswerKind
    text: str = ""  # normal form as a text, of the whole answer only; a text's meaning
    node: ExprNode | None = None  # the expression of a scalar
    items: tuple[ParsedAnswer, ...] = ()  # members of a container, in order
    # Brackets of a `seq`: `()`, `[]`, `[)`, `(]`; of a list, `{}` if it was in braces.
    shape: str = ""
    unit: str = ""  # unit of a scalar; `%` means that the value was divided by 100
    label: str = ""  # left-hand side, such as `x` in `x = 5`
    # True if a `seq` was written as an inequality or a membership, so that it is no tuple.
    is_range: bool = False
    digits: int = 0  # significant digits of a scalar written as one decimal; 0 for everything else
    # `(op, difference)` with op `=`, `<`, `<=` or `!=`, for a single relation.
    relation: tuple[str, ExprNode] | None = None
