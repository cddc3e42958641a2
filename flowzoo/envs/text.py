"""Small pure functions for parsing and showing replies."""

import re
from collections.abc import Mapping

from flowzoo import reward
from flowzoo.reward.visible import visible

__all__ = ["boxed_choice", "boxed_number", "encodable", "lone_number", "visible", "without_box"]

_LONGEST = 4  # digits of a number that is read
_TEXT = re.compile(r"\\text\{(.*)\}")


def boxed_number(text: str, count: int) -> int | None:
    """Read the number in the last box if it is within 1..count, else None."""
    box = (reward.extract(text, "strict") or "").strip()
    if not (box.isascii() and box.isdigit() and len(box) <= _LONGEST):
        return None
    return int(box) if 1 <= int(box) <= count else None


def lone_number(text: str, count: int) -> int | None:
    """The first lone digit within 1..count, or None (a published fallback)."""
    for digit in re.findall(r"(?<![0-9])[1-9](?![0-9])", text):
        if int(digit) <= count:
            return int(digit)
    return None


def boxed_choice(text: str, choices: Mapping[str, bool]) -> bool | None:
    """The value in `choices` for the last box's content, ignoring case, or None."""
    box = reward.extract(text, "strict")
    if box is None:
        return None
    content = box.strip()
    worded = _TEXT.fullmatch(content)
    content = (worded[1] if worded else content).strip().rstrip(".").lower()
    return choices.get(content)


def without_box(text: str) -> str:
    """A worked solution up to its last box, without the answer."""
    start = text.rfind("\\boxed")
    return (text if start < 0 else text[:start]).rstrip(" $")


def encodable(text: str) -> str:
    """Replace lone surrogates, which tokenizers and UTF-8 reject, by U+FFFD."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


# Most characters of a reply that is read as prose.
LONGEST = 10_000
_SHORT = 40
_FENCED = re.compile(r"^[ \t]*+(`{3,}+|~{3,}+)[^\n]*+\n(.*?)(?:^[ \t]*+\1[ \t]*+$|\Z)", re.M | re.S)
_INLINE = re.compile(r"`[^`\n]{0,400}[(=][^`\n]{0,400}`")
_QUOTES = str.maketrans("‘’“”", "''\"\"")
_TYPESET = re.compile(r"\\(?:text(?:bf|it|rm)?|math(?:rm|bf)|boxed|fbox)[ \t]*(?=\{)")
_MARKS = re.compile(
    r"(?<!\w)[*_]+|[*_]+(?!\w)|[`$#{}\"⟦⟧]|\\[()\[\]]|^[ \t]*(?:>+|[-+•*][ \t])[ \t]*", re.M
)
_END = re.compile(r"(?<=[.!?])[\s)']+|\n+")

# Words that retract a statement, anywhere in the reply.
DOUBT = re.compile(
    r"\b(?:maybe|perhaps|probabl[ey]|possibly|possible that|presumably|guess|suppose|hope"
    r"|(?:not|n't) sure|unsure|uncertain|unclear|undecided|hard to (?:say|tell)"
    r"|(?:not|n't|not to) (?:know|tell|say)|likely|unlikely|doubt\w*"
    r"|(?:not|never|n't|no) (?:certain|clear)|assum(?:e|es|ed|ing)|on second thought"
    r"|kidding|joking)\b"
)
# Words that turn their sentence into less than a statement.
MODAL = re.compile(
    r"\b(?:might|may|could|would|should|seems?|seemed|appears?|appeared|looks?|if|unless|whether"
    r"|almost|nearly|partly|partially|mostly|half|somewhat|somehow|sometimes|cannot|can't)\b"
)


def prose(text: str) -> str:
    """The plain text of a reply: without thoughts, fenced blocks and marks, in lower case."""
    # A reply with only a fence of one line is read as that line.
    reply = visible(text)
    if len(reply) > LONGEST:
        return ""
    reply = reply.translate(_QUOTES)
    if "```" in reply or "~~~" in reply:
        whole = _FENCED.fullmatch(reply)
        lone = whole is not None and "\n" not in whole[2].strip() and len(whole[2]) <= _SHORT
        reply = whole[2] if whole and lone else _FENCED.sub("\n", reply)
    reply = _INLINE.sub("code", reply)
    reply = _MARKS.sub("", _TYPESET.sub("", reply))
    return re.sub(r"[ \t\r]+", " ", reply).strip().lower()


def sentences(statement: str) -> list[str]:
    """The sentences and lines of a prose text, with their end marks."""
    return [part.strip() for part in _END.split(statement) if part and part.strip()]
