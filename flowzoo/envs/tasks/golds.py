"""Reference answers of data files: read out of their wrapping, missing ones, sorts, respelling."""

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from flowzoo.reward import MathOptions, extract, score_batch
from flowzoo.reward.math.answer import read_answer
from flowzoo.reward.math.clean import clean
from flowzoo.reward.math.score import choice_of
from flowzoo.reward.math.sorts import read_sort

SHOWN = 3
"""Most rows in a message."""
LISTED = 20
"""Most rows of a kind in a listing."""
_AS_GIVEN = MathOptions(read="answer")
# How programs and people write a missing value, letters only.
_MISSING = {
    "na", "nan", "nat", "nil", "none", "null", "tba", "tbd", "todo", "unknown", "missing",
    "placeholder", "noanswer", "notapplicable", "notavailable", "notgiven", "notprovided",
}  # fmt: skip
_QUOTED = re.compile(r"""\s*[\[{][\[{\s]*["']""")
_DIGIT = re.compile(r"\d")
_DOTS = re.compile(r"\\[lc]?dots(?![A-Za-z])")
_FRACTION = re.compile(r"\\frac(?=\s*[{\d])")
_WORD = re.compile(r"(?<![\\A-Za-z{])[A-Za-z]{3,}")
_KINDS = {"seq": "interval or tuple", "cap": "intersection", "setminus": "difference of sets"}
_WORDS = re.compile(r"[^\W_]+(?:[-'.][^\W_]+)*")


class GoldRow(NamedTuple):
    """A reference answer, and what is remarkable about it."""

    line: int
    gold: str
    remark: str
    """Empty for an ordinary one."""


class GoldSurvey(NamedTuple):
    """The reference answers of a data file."""

    sorts: dict[str, int]
    """Number of answers by sort, the most frequent first."""
    remarkable: list[GoldRow]

    def to_json(self) -> dict[str, object]:
        """The fields as plain values."""
        return {"sorts": self.sorts, "remarkable": [row._asdict() for row in self.remarkable]}

    def lines(self) -> Iterator[str]:
        """Lines of text: the sorts, then the first remarkable rows of every kind."""
        counts = ", ".join(f"{sort} {count:,}" for sort, count in self.sorts.items())
        yield f"{sum(self.sorts.values()):,} reference answers by sort: {counts}"
        kinds: dict[str, list[GoldRow]] = {}
        for row in self.remarkable:
            kinds.setdefault(" ".join(row.remark.split()[:3]), []).append(row)
        if kinds:
            yield f"{len(self.remarkable):,} of them to look at:"
        for rows in kinds.values():
            yield from (
                f"  line {row.line}: {row.gold!r:.80} {row.remark}" for row in rows[:LISTED]
            )
            if len(rows) > LISTED:
                yield f"  and {len(rows) - LISTED:,} more like these"


def is_placeholder(gold: str) -> bool:
    """True if `gold` marks a missing answer: `NaN`, `N/A`, `?`, `...`, `[]`.

    Such a text has no digit, and its letters are a word for a missing value, or it has neither
    letters nor mathematical symbols. A LaTeX brace, as in the empty set, is a symbol.
    """
    if _DIGIT.search(gold):
        return False
    text = _DOTS.sub("", clean(gold))
    word = "".join(char for char in text if char.isalpha()).lower()
    if word:
        return word in _MISSING
    return "\\{" not in text and not any(unicodedata.category(char) == "Sm" for char in text)


def unwrapped(value: object) -> Any:
    """The only item of a list, which may be JSON text, such as `34` of `["34"]`; else `value`.

    Raises:
        ValueError: a list of several items, an object, or a list that is not valid JSON.
    """
    items = value
    if isinstance(value, str) and _QUOTED.match(value):  # other brackets are mathematics
        try:
            items = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"is a list that is not valid JSON ({error})") from error
    while isinstance(items, list) and len(items) == 1:
        items = items[0]
    if isinstance(items, list | dict):
        raise ValueError("is a list or an object, not one answer")
    if items is not value and isinstance(items, str) and not items.isprintable():
        raise ValueError("has control characters: JSON text needs two backslashes for one")
    return items


def stated_answer(gold: str) -> str:
    """The answer that a sentence states, such as `34` in `#### 34`; else `gold` itself."""
    stated = extract(gold, order=("hashes", "phrase"))
    return stated if stated and extract(f"\\boxed{{{stated}}}") == stated else gold


def is_right(answer: str, gold: str) -> bool:
    """True if the extracted `answer` is graded equal to `gold`."""
    return score_batch([answer], [gold], _AS_GIVEN).scores[0] == 1.0


def sort_of(gold: str) -> str:
    """The sort of a reference answer, by what its reader makes of it.

    `text` is a text that no reader understands; such an answer equals only itself.
    """
    parsed = read_answer(gold)
    if parsed is None:
        return "unreadable"
    if parsed.kind == "text":
        return parsed.text.partition(":")[0] if read_sort(clean(gold)) is not None else "text"
    if parsed.kind != "scalar" or parsed.node is None:
        return _KINDS.get(parsed.kind, parsed.kind)
    if parsed.unit:
        return "quantity"
    if parsed.node.op == "num":
        return "number"
    if choice_of(gold):
        return "choice"
    return "words" if _WORD.search(clean(gold)) else "expression"


def respelled(gold: str) -> str:
    """The answer that a model would write for `gold`: of the same sort, in its own spelling."""
    # Punctuation of a text that no reader understands is the file's, not a model's.
    if sort_of(gold) == "text":
        return " ".join(_WORDS.findall(gold)) or gold
    return _FRACTION.sub(r"\\dfrac", gold)


def other_boxes(pairs: Sequence[tuple[str, str]]) -> list[bool]:
    """Tell for each pair of an answer and its solution whether the solution's box differs."""
    boxes = [extract(solution) if "box" in solution else None for _, solution in pairs]
    rows = [row for row, box in enumerate(boxes) if box is not None and box != pairs[row][0]]
    scores = score_batch([boxes[row] for row in rows], [pairs[row][0] for row in rows], _AS_GIVEN)
    others = {row for row, score in zip(rows, scores.scores, strict=True) if score < 1.0}
    return [row in others for row in range(len(pairs))]


def survey(rows: Sequence[GoldRow]) -> GoldSurvey:
    """Count the sorts of reference answers, and list remarkable and unmatchable ones."""
    golds = dict.fromkeys(row.gold for row in rows)
    scores = score_batch([respelled(gold) for gold in golds], list(golds), _AS_GIVEN).scores
    lost = {gold for gold, score in zip(golds, scores, strict=True) if score < 1.0}
    remarks = (
        row._replace(remark=f"{_LOST}; {row.remark}".removesuffix("; "))
        if row.gold in lost
        else row
        for row in rows
    )
    sorts = {gold: sort_of(gold) for gold in golds}
    counts = Counter(sorts[row.gold] for row in rows)
    return GoldSurvey(dict(counts.most_common()), [row for row in remarks if row.remark])


_LOST = "is not matched by the answer that a model would write for it"
