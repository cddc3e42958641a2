"""Lists in answers: the separators of their parts, and the lists that parts make."""

import re
from collections.abc import Sequence
from itertools import permutations
from typing import Final

from flowzoo.reward.math.tokens import MathToken
from flowzoo.reward.math.tree import ParsedAnswer

PERMUTED = re.compile(
    r"(.+?)[ ,]*(?:\\text\s?\{\s*|\b)(?:and|or) (?:all |any )?(?:of )?(?:its |their )?"
    r"permutations?(?: thereof)?\.?\s*\}?"
)
_MOST_PERMUTED: Final = 5


def permute_tuples(answer: ParsedAnswer | None, text: str) -> ParsedAnswer | None:
    """The tuples of an answer in every order."""
    tuples = answer.items if answer and answer.kind == "list" else (answer,) if answer else ()
    if any(item.kind != "seq" or len(item.items) > _MOST_PERMUTED for item in tuples):
        return ParsedAnswer("text", text)
    orders = {order: item for item in tuples for order in permutations(item.items)}
    members = tuple(item._replace(items=order) for order, item in orders.items())
    return ParsedAnswer("list", text, items=members)


# Words and signs between parts that both hold, or of which one does.
JOINTS: Final = {
    "land": "and", "lor": "or", **dict.fromkeys(("and", "und", "et", "和", "且"), "and"),
    **dict.fromkeys(("or", "oder", "ou", "или", "或", "或者"), "or"),
}  # fmt: skip


def separator(token: MathToken) -> str:
    """Return `,`, `;` or `and` for a token that separates items; `or` counts as `and`."""
    if token.kind == "p" and token.text in (",", ";"):
        return token.text
    if token.kind == "c" and token.text in ("land", "lor"):
        return "and"
    if token.kind in "wt":
        word = token.text.strip(" ,;").lower()
        if (word in JOINTS and (token.kind == "t" or word in ("and", "or"))) or (
            token.kind == "t" and word == "" and token.text
        ):
            return "and" if word else ","
    return ""


def is_condition(item: ParsedAnswer) -> bool:
    """True if an item says which values a letter has."""
    return item.is_range or (item.kind in ("setminus", "cap", "union") and bool(item.label))


def are_claims(items: Sequence[ParsedAnswer]) -> bool:
    """True for words, letters, congruences and values of several letters.

    Of these, `or` joins others than `and`; numbers may have any joint.
    """
    verdicts = (x.shape == "mod" or (x.node is not None and x.node.op == "sym") for x in items)
    return len({x.label for x in items}) > 1 or all(verdicts)


def leaves(answers: Sequence[ParsedAnswer]) -> list[ParsedAnswer]:
    """The items of answers that are lists, and the others themselves."""
    return [leaf for part in answers for leaf in (part.items if part.kind == "list" else (part,))]


def make_list(parts: list[ParsedAnswer], flat: bool) -> ParsedAnswer:
    """A list; `n = 1, 2, 3` labels the whole, and `±` inside adds two items."""
    if flat:
        parts = [
            leaf
            for part in parts
            for leaf in (part.items if part.kind == "list" and not part.shape else (part,))
        ]
    if len(parts) == 1:
        return parts[0]
    first = parts[0]
    rest_plain = not any(part.label for part in parts[1:])
    if first.label and rest_plain and first.kind == "scalar":
        parts = [first._replace(label="", relation=None), *parts[1:]]
        return ParsedAnswer("list", items=tuple(parts), label=first.label)
    return ParsedAnswer("list", items=tuple(parts))


def finite_union(left: ParsedAnswer, right: ParsedAnswer) -> ParsedAnswer | None:
    """The union of two sets or lists of values; None for others."""
    if left.kind not in ("set", "list") or right.kind not in ("set", "list"):
        return None
    items = (*left.items, *right.items)
    chosen = {item.node.key: item for item in items if item.node is not None}
    if any(item.node is None for item in items):
        return None
    return ParsedAnswer("set", items=tuple(chosen[key] for key in sorted(chosen)))
