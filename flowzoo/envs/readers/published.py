r"""Readers of the preset `published`, as in the public code of arXiv 2605.24202.

Written anew from commit 6eafb3c of XHMY/marl-llm-workflows; `tools/published_readers.py` of
20b1b97b compares both.

| reader | read | else |
|---|---|---|
| verdict | the first `\boxed{Correct}` or `\boxed{Incorrect}`, in any case | unreadable |
| choice | the number in the first box that holds only digits; if it is out of range, the first lone digit, and only that one | unreadable: the first candidate |
| plan | `STRATEGY k:` in any case and anywhere, with all text up to the next label, sorted by k | the entries of a numbered list, else lines over 10 characters, else the whole reply |
| answer | the last `\boxed{`, with its braces balanced | unreadable: no earlier box is tried |
| program | the last closed block, of any language | unreadable |
"""  # noqa: E501 - rows of tables

import re

from flowzoo.envs.text import visible

_VERDICT = re.compile(r"\\boxed\{(in)?correct\}", re.IGNORECASE)
_NUMBER_BOX = re.compile(r"\\boxed\{(\d+)\}", re.IGNORECASE)
_LONE_DIGIT = re.compile(r"\b[1-9]\b")
_MOST_DIGITS = 4_000  # Python converts no text of more than 4,300
_ITEM = re.compile(rf"^[^\S\n]*(\d{{1,{_MOST_DIGITS}}})[.)](?=(\s*))", re.MULTILINE)
_LEAST_LINE = 11  # characters of a line that is a strategy
_BOX_START, _BOX_END = "<|begin_of_box|>", "<|end_of_box|>"
_BOX = "\\boxed"
_BRACE = re.compile(r"[{}]")
_BLOCK = re.compile(r"```\w*\n(.*?)```", re.DOTALL)


def read_verdict(text: str) -> bool | None:
    """Read the first boxed verdict: True for correct, False for incorrect, None without one."""
    first = _VERDICT.search(visible(text))
    return None if first is None else first[1] is None


def read_choice(text: str, count: int) -> int | None:
    """Read the chosen candidate's number, within 1..count, or None."""
    reply = visible(text)
    box, digit = _NUMBER_BOX.search(reply), _LONE_DIGIT.search(reply)
    numbers = [box[1] if box else "", digit[0] if digit else ""]
    within = (int(number) for number in numbers if 0 < len(number) <= _MOST_DIGITS)
    return next((number for number in within if 1 <= number <= count), None)


def read_plan(text: str, word: str, most: int) -> tuple[str, ...]:
    """Read the parts labeled `word`, at most `most`; there is always one, which may be empty."""
    reply = visible(text)
    label = re.compile(rf"{word}\s*(\d{{1,{_MOST_DIGITS}}})\s*:(?=(\s*))", re.IGNORECASE)
    lines = map(str.strip, reply.split("\n"))
    parts = (
        _label_texts(label, reply)
        or _label_texts(_ITEM, reply)
        or [line for line in lines if len(line) >= _LEAST_LINE]
        or [reply]
    )
    return tuple(parts[:most])


def _label_texts(label: re.Pattern[str], reply: str) -> list[str]:
    """The texts between labels, sorted by number; group 2 of a label is the space after it.

    A label right after another is its text, and one that ends the reply has none.
    """
    marks: list[re.Match[str]] = []
    for mark in label.finditer(reply):
        if not marks or mark.start() > marks[-1].end(2):
            marks.append(mark)
    ends = [mark.start() for mark in marks[1:]] + [len(reply)]
    parts = [
        (int(mark[1]), reply[mark.end() : end].strip())
        for mark, end in zip(marks, ends, strict=False)
        if mark.end() < len(reply)
    ]
    return [part for _, part in sorted(parts, key=lambda part: part[0])]


def read_answer(text: str) -> str | None:
    """Read the content of the last box, or None."""
    reply = visible(text)
    *closed, _ = reply.split(_BOX_END)
    if marked := [part for part in closed if _BOX_START in part]:
        return marked[-1].partition(_BOX_START)[2].strip()
    start = reply.rfind(_BOX) + len(_BOX)
    if start < len(_BOX) or reply[start : start + 1] != "{":
        return None
    depth = 0
    for brace in _BRACE.finditer(reply, start):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            return reply[start + 1 : brace.start()]
    return None


def read_program(text: str) -> str | None:
    """Read the last closed block, or None."""
    blocks = _BLOCK.findall(visible(text))
    return blocks[-1].strip() if blocks else None
