r"""The layouts of mathematics files.

| layout  | problem                    | answer                                         |
|---------|----------------------------|------------------------------------------------|
| `gsm8k` | `question`                 | `answer`: solution, then `####` and the answer |
| `math`  | `problem`                  | `answer`, else the last box of `solution`      |
| `dapo`  | `prompt` (text or a chat)  | `reward_model.ground_truth`, else `answer`     |
| `plain` | `question`                 | `answer`, else the last box of `solution`      |

A file with `question` and `answer` is `gsm8k` if the answer of its first row has `####`, and
`plain` if not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args

from flowzoo.envs.tasks.rows import check_layout, first, no_layout, objects, text_of
from flowzoo.errors import DataError
from flowzoo.reward import extract, is_gradable

MathLayout = Literal["auto", "gsm8k", "math", "dapo", "plain"]

_DEFAULT_COLUMNS: dict[str, dict[str, tuple[str, ...]]] = {
    "gsm8k": {"text": ("question",), "answer": ("answer",), "solution": ()},
    "math": {"text": ("problem",), "answer": ("answer",), "solution": ("solution",)},
    "dapo": {
        "text": ("prompt",),
        "answer": ("reward_model.ground_truth", "answer"),
        "solution": (),
    },
    "plain": {"text": ("question",), "answer": ("answer",), "solution": ("solution",)},
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
    candidates: list[str] = [layout] if layout != "auto" else ["gsm8k", "dapo", "math", "plain"]
    for name in candidates:
        names = {**_DEFAULT_COLUMNS[name], **own}
        text, answer = first(record, names["text"]), first(record, names["answer"])
        solution = first(record, names["solution"])
        is_marked = name != "gsm8k" or "####" in str(answer)
        is_match = text is not None and is_marked and (answer is not None or solution is not None)
        if is_match or layout != "auto":
            return name, names
    raise no_layout(where, record, _DEFAULT_COLUMNS, ("text", "answer"))


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
            raise DataError(
                f"{where}: column {names['answer'][0]!r} has no '####' and answer, as in the "
                "layout gsm8k; answers alone are layout=plain."
            )
        solution = solution or _ANNOTATION.sub("", worked).strip()
    if layout == "plain" and "####" in (answer or ""):
        raise DataError(
            f"{where}: column {names['answer'][0]!r} has '####', and the first row's has none: a "
            "file with '####' in every answer is layout=gsm8k."
        )
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
