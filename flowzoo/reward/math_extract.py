r"""Which part of a reply is its answer.

Strict reading is the last balanced `\boxed{...}` or `\fbox{...}`, nothing else: the reading for
training, because every fallback is a way to be paid for an answer that was not given. Lenient
reading falls back to an answer phrase, to `####` and to the last number.

Only what follows the last `</think>` counts, and a `<think>` that never ends gives no answer.
Everything here is linear in the length of the text and looks at its last 50,000 characters only.
"""

from __future__ import annotations

import re
from typing import Literal

from flowzoo.errors import unknown

ExtractMode = Literal["strict", "lenient"]

TAIL = 50_000
"""Characters at the end of a reply that are looked at."""
_SHORT = 200
"""A text up to this long without any marker may be a bare answer."""

_BRACES = re.compile(r"\\.|[{}]", re.DOTALL)
_PHRASE = re.compile(r"answer(?:\s{1,3}is\b|\s?:)", re.IGNORECASE)
_SENTENCE_END = re.compile(r"\.(?:\s|\*|$)")
_NUMBER = re.compile(r"[-+]?(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?:/\d+)?", re.ASCII)
_BOXES = ("\\boxed", "\\fbox")


def extract(text: str, mode: ExtractMode = "strict") -> str | None:
    """The answer that the reply `text` gives, stripped of outer white space, or None.

    Never raises on any text.

    Raises:
        UsageError: unknown `mode`.
    """
    if mode != "strict" and mode != "lenient":
        raise unknown("extraction mode", mode, ("strict", "lenient"))
    tail = spoken(text) if len(text) > TAIL or "think>" in text else text
    if tail is None:
        return None
    found, answer = last_box(tail)
    if found or mode == "strict":
        return answer
    return answer_phrase(tail) or _after_hashes(tail) or _last_number(tail)


def read_any(text: str) -> str | None:
    """The answer in `text`, which may be a full reply or an answer already.

    In this order: box, answer phrase, `####`, last `$...$` span of a sentence, the whole text if
    it is short.
    """
    tail = spoken(text)
    if tail is None:
        return None
    found, answer = last_box(tail)
    if found:
        return answer
    tail = tail.strip()
    answer = answer_phrase(tail) or _after_hashes(tail) or _last_span(tail)
    return answer or (tail if 0 < len(tail) <= _SHORT else None)


def spoken(text: str) -> str | None:
    """The end of `text` that is not thought: at most `TAIL` characters, None if all is thought."""
    closed = text.rfind("</think>")
    if text.find("<think>", max(closed, 0)) >= 0:
        return None
    start = max(closed + len("</think>") if closed >= 0 else 0, len(text) - TAIL)
    return text[start:] if start else text


def last_box(text: str) -> tuple[bool, str | None]:
    r"""Whether `text` has a balanced box, and the content of the last one (None if blank).

    Where a box is open to the end of the scanned text, an earlier box that contains it is open
    too, so only the text before it has to be scanned for the next candidate: linear in all.
    """
    box = text.rfind("\\boxed{")
    if box >= 0:  # the plain case, without the loop: the last box, and no brace or command in it
        close_at = text.find("}", box)
        inside = text[box + 7 : close_at]
        is_last = text.find("\\boxed", close_at) < 0 and text.find("\\fbox", close_at) < 0
        if close_at >= 0 and is_last and "{" not in inside and "\\" not in inside:
            return True, inside.strip() or None
    return _last_box(text)


def _last_box(text: str) -> tuple[bool, str | None]:
    end = len(text)
    while True:
        box = text.rfind("\\boxed", 0, end)
        frame = text.rfind("\\fbox", max(box, 0), end)
        start = max(box, frame)
        if start < 0:
            return False, None
        open_at = start + len(_BOXES[start == frame])
        while text[open_at : open_at + 1] in (" ", "\n", "\t"):
            open_at += 1
        if text[open_at : open_at + 1] == "{":
            close_at = _closing(text, open_at, end)
            if close_at >= 0:
                return True, text[open_at + 1 : close_at].strip() or None
        end = start


def _closing(text: str, open_at: int, end: int) -> int:
    """Index of the brace that closes the one at `open_at`, or -1. Escaped braces do not count."""
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


def answer_phrase(text: str) -> str | None:
    """What follows the last "answer is" or "answer:", to the end of its sentence."""
    ends = [match.end() for match in _PHRASE.finditer(text)]
    if not ends:
        return None
    line = _first_line(text[ends[-1] :].lstrip(" :*\n\t"))
    stop = _SENTENCE_END.search(line)
    sentence = line[: stop.start()] if stop else line
    return _last_span(sentence) or sentence.strip(" *.") or None


def _after_hashes(text: str) -> str | None:
    """The rest of the line after the last `####`, GSM8K's mark."""
    at = text.rfind("####")
    return (_first_line(text[at + 4 :].lstrip(" ")) or None) if at >= 0 else None


def _first_line(text: str) -> str:
    return text.split("\n", 1)[0].strip()


def _last_span(text: str) -> str | None:
    """Content of the last `$...$` span where the text holds more than that span."""
    close_at = text.rfind("$")
    if close_at <= 0 or text[close_at - 1] == "\\":
        return None
    open_at = text.rfind("$", 0, close_at)
    if open_at < 0 or (text[:1] == "$" and close_at == len(text) - 1):
        return None
    return text[open_at + 1 : close_at].strip() or None


def _last_number(text: str) -> str | None:
    found = _NUMBER.findall(text)
    return found[-1].rstrip(",") if found else None
