r"""The last balanced `\boxed{...}` or `\fbox{...}` of a text, by a backward scan.

Boxes side by side on one line, joined by commas or and/or only, are one list.
"""

from __future__ import annotations

import re
from typing import Final

_JOINT: Final = 60
_MAX_JOINED: Final = 64
_BRACES = re.compile(r"\\.|[{}]", re.DOTALL)
# Before a blank box: a mention of the form ("Put the final answer in \boxed{}."), no answer.
_MENTION_BEFORE = re.compile(r"\bin (?:an? )?[$\\(`]{0,3}$")
PERCENT_AFTER = re.compile(r"\s?\$?\s?(?:\\?%|pct\b|percent)")
_JOINT_NOISE = re.compile(
    r"\\text\{([^{}]*)\}|\\(?:quad|qquad|,|;|:| |\(|\)|\[|\])|for part \(?\w\)?|[$\s.+&~(){}\[\]]"
)
_LABEL = r"(?:[A-Za-z]|\\[a-z]{2,10})(?:_(?:\w|\{\w{1,8}\}))?(?:\([A-Za-z]\))?\s*="
_LABEL_BEFORE = re.compile(rf"(?<![A-Za-z\\\d)]){_LABEL}\s*$")
_LABEL_IN = re.compile(rf"(?:(?<=[\s$,;(])|^){_LABEL}\s*(?=[\s$]*$)")
_JOINT_WORDS = re.compile(r"(?:,|;|and|or)*")


def last_box(text: str, with_percent: bool = False) -> tuple[bool, str | None]:
    r"""True if `text` has a balanced box, and the content of the last one (None if blank).

    A blank box that only mentions the form ("Put the answer in \boxed{}.") is passed over. With
    `with_percent`, a percent sign right behind the box belongs to it. Boxes joined on one
    line give the list of their contents. Where a box is open to the end of the scanned text, an
    earlier box that contains it is open too, so only the text before it has to be scanned for the
    next candidate: linear in all.
    """
    box = text.rfind("\\boxed{")
    if box >= 0:  # the plain case, without the loop: the last box, and no brace or command in it
        close_at = text.find("}", box)
        inside = text[box + 7 : close_at]
        is_last = text.find("boxed", close_at) < 0 and text.find("\\fbox", close_at) < 0
        is_plain = close_at >= 0 and is_last and "{" not in inside and "\\" not in inside
        inside = inside.strip()
        if is_plain and inside and text.find("box", max(box - 80, 0), box) < 0:
            return True, (_percent(text, close_at + 1, inside) if with_percent else inside)
    box_found = _last_box(text, len(text))
    while box_found and not box_found[2] and _is_mention(text, box_found[0]):
        box_found = _last_box(text, box_found[0])
    if box_found is None:
        return False, None
    start, close_at, inside = box_found
    joined = _joined_boxes(text, start, inside)
    if joined is not None:
        return True, joined
    return True, (_percent(text, close_at + 1, inside) if with_percent else inside) or None


def _is_mention(text: str, start: int) -> bool:
    # True if the blank box at `start` only names the form, as the task's own instruction does.
    begin = text.rfind("\\", max(start - 6, 0), start + 1)
    return _MENTION_BEFORE.search(text, max(begin - 12, 0), max(begin, 0)) is not None


def _percent(text: str, end: int, inside: str) -> str:
    following = PERCENT_AFTER.match(text, end, end + 12)
    return f"{inside}\\%" if following and inside and inside[-1].isdigit() else inside


def _last_box(text: str, end: int) -> tuple[int, int, str] | None:
    # Start, closing brace and content of the last balanced box before `end`.
    while True:
        box = text.rfind("boxed", 0, end)
        frame = text.rfind("\\fbox", max(box, 0), end)
        start = max(box, frame)
        if start < 0:
            return None
        open_at = start + 5
        while text[open_at : open_at + 1] in (" ", "\n", "\t"):
            open_at += 1
        is_box = start == frame or _is_command(text, start)
        if is_box and text[open_at : open_at + 1] == "{":
            close_at = _closing(text, open_at, end)
            if close_at >= 0:
                return start, close_at, text[open_at + 1 : close_at].strip()
        end = start


def _is_command(text: str, start: int) -> bool:
    # True if `boxed` at `start` is `\boxed`, or `\beginboxed`, which some models write.
    return text[start - 1 : start] == "\\" or text[max(start - 6, 0) : start] == "\\begin"


def _joined_boxes(text: str, start: int, inside: str) -> str | None:
    # The list of the boxes joined to the one at `start`, or None if it stands alone.
    boxes = [(start, inside)]
    while len(boxes) < _MAX_JOINED:
        close_at = text.rfind("}", max(start - _JOINT, 0), start)
        if close_at < 0 or text.rfind("\n", close_at, start) >= 0 or not inside:
            break
        before = _box_closed_at(text, close_at, start)
        if before is None:
            break
        start, inside = before
        boxes.append(before)
    if len(boxes) == 1:
        return None
    parts = [_read_label(text, *box) for box in reversed(boxes)]
    return ", ".join(dict.fromkeys(part for part in parts if part)) or None


def _read_label(text: str, start: int, inside: str) -> str:
    # The content of the box at `start` with the left-hand side that stands before it.
    begin = text.rfind("\\", max(start - 6, 0), start + 1)
    label = _LABEL_BEFORE.search(text, max(begin - 30, 0), max(begin, 0))
    return f"{label[0].strip()} {inside}" if label and inside and "=" not in inside else inside


def _box_closed_at(text: str, close_at: int, start: int) -> tuple[int, str] | None:
    # The box before `start` if nothing but a joint stands between.
    box = _last_box(text, start)
    if box is None:
        return None
    begin, closed, inside = box
    joint = text[closed + 1 : start]
    if closed > close_at or len(joint) > _JOINT or "\n" in joint:
        return None
    joint = joint.removesuffix("\\").removesuffix("\\")
    joint = _LABEL_IN.sub("", joint)
    plain = _JOINT_NOISE.sub(lambda match: (match[1] or "").replace(" ", ""), joint)
    plain = re.sub(r"forpart\w|forpart\(\w\)", "", plain)
    if _JOINT_WORDS.fullmatch(plain) is None:
        return None
    return begin, inside


def _closing(text: str, open_at: int, end: int) -> int:
    # Index of the brace that closes the one at `open_at`, or -1. Escaped braces do not count.
    first = text.find("}", open_at, end)
    if first < 0:
        return -1
    if text.find("{", open_at + 1, first) < 0 and text.find("\\", open_at, first) < 0:
        return first
    depth = 0
    for match in _BRACES.finditer(text, open_at, end):
        token = match[0]
        if token == "{":
            depth += 1
        elif token == "}":
            depth -= 1
            if depth == 0:
                return match.start()
    return -1
