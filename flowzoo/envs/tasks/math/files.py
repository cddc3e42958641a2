r"""The layouts of mathematics files.

| layout  | problem                    | answer                                         |
|---------|----------------------------|------------------------------------------------|
| `gsm8k` | `question`                 | `answer`: solution, then `####` and the answer |
| `math`  | `problem`                  | `answer`, else the last box of `solution`      |
| `dapo`  | `prompt` (text or a chat)  | `reward_model.ground_truth`, else `answer`     |
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args

from flowzoo.envs.tasks.rows import check_layout, first, objects, text_of
from flowzoo.errors import DataError
from flowzoo.reward import extract, is_gradable

MathLayout = Literal["auto", "gsm8k", "math", "dapo"]

_DEFAULT_COLUMNS: dict[str, dict[str, tuple[str, ...]]] = {
    "gsm8k": {"text": ("question",), "answer": ("answer",), "solution": ()},
    "math": {"text": ("problem",), "answer": ("answer",), "solution": ("solution",)},
    "dapo": {
        "text": ("prompt",),
        "answer": ("reward_model.ground_truth", "answer"),
        "solution": (),
    },
}
_ANNOTATION = re.compile(r"<<[^<>\n]*>>")
# The published DAPO prompts wrap the problem in an answer format that would contradict ours.
_DAPO_HEAD = re.compile(r"Solve the following math problem step by step\.[^\n]*\n\n")
_DAPO_FOOT = re.compile(r'\n\nRemember to put your answer on its own line after "Answer:"\.\s*\Z')


@dataclass(frozen=True, slots=True)
class MathRow:
    """One problem of a file. `line` counts from 1; `solution` may be empty."""

    line: int
    text: str
    gold: str
    solution: str


def math_rows(
    data: str, records: Iterable[tuple[int, Any]], layout: str, columns: dict[str, str]
) -> Iterator[MathRow]:
    """The rows of a mathematics file; see `rows.load`.

    Raises:
        DataError: a bad row, with its line.
        UsageError: unknown layout or column key.
    """
    check_layout(layout, get_args(MathLayout), columns, ("text", "answer", "solution"))
    names: dict[str, tuple[str, ...]] | None = None
    for line, where, record in objects(data, records):
        if names is None:
            layout, names = _layout(where, record, layout, columns)
        yield _row(where, line, record, layout, names)


def _layout(
    where: str, record: dict[str, Any], layout: str, columns: dict[str, str]
) -> tuple[str, dict[str, tuple[str, ...]]]:
    """The layout (told by the first record where it is `auto`) and its column names."""
    own = {key: (name,) for key, name in columns.items()}
    candidates: list[str] = [layout] if layout != "auto" else ["gsm8k", "dapo", "math"]
    for name in candidates:
        names = {**_DEFAULT_COLUMNS[name], **own}
        text, answer = first(record, names["text"]), first(record, names["answer"])
        solution = first(record, names["solution"])
        is_marked = name != "gsm8k" or "####" in str(answer)
        is_match = text is not None and is_marked and (answer is not None or solution is not None)
        if is_match or layout != "auto":
            return name, names
    expected = "; ".join(
        f"{name}: " + ", ".join(column for group in groups.values() for column in group)
        for name, groups in _DEFAULT_COLUMNS.items()
    )
    raise DataError(
        f"{where}: no known layout has the columns {sorted(record)}. Expected {expected}; "
        "or name them with columns={'text': ..., 'answer': ...}."
    )


def _row(
    where: str, line: int, record: dict[str, Any], layout: str, names: dict[str, tuple[str, ...]]
) -> MathRow:
    text = text_of(first(record, names["text"]))
    if text is None or not text.strip():
        raise DataError(f"{where}: column {names['text'][0]!r} is missing or blank.")
    answer = text_of(first(record, names["answer"]))
    solution = text_of(first(record, names["solution"])) or ""
    if layout == "gsm8k":
        worked, mark, answer = (answer or "").rpartition("####")
        if not mark:
            raise DataError(f"{where}: column {names['answer'][0]!r} has no '####' and answer.")
        solution = solution or _ANNOTATION.sub("", worked).strip()
    if layout == "dapo":
        text = _DAPO_FOOT.sub("", _DAPO_HEAD.sub("", text, count=1))
    gold = (answer or "").strip() or (extract(solution) or "")
    gold = extract(gold) or gold
    if not gold:
        columns = " and ".join(repr(name) for name in (*names["answer"], *names["solution"]))
        raise DataError(f"{where}: no answer in {columns}.")
    if not is_gradable(gold) or extract(f"\\boxed{{{gold}}}") != gold:
        raise DataError(f"{where}: answer {gold[:80]!r} is too long or its braces do not match.")
    return MathRow(line, text.strip(), gold, solution)
