r"""Reader of an orchestrator's strategies, or parts of a problem.

| read | not read |
|---|---|
| labeled lines in any case, with bullets, numbers, headings, bold: `STRATEGY 1: text`, `- **Strategy 2** - text` | labels inside a line, without a number, without a text, or copied from the instruction (`STRATEGY k: text`) |
| the paragraph below a label that is alone on its line | a program below it |
| else a list numbered from 1, with at least two entries, that is headed as strategies or whose entries are ideas | a list of steps or of results, prose, one sentence, a solution |
"""  # noqa: E501 - rows of tables

import re
from functools import lru_cache
from itertools import islice, takewhile

from flowzoo.envs.text import visible

LONGEST = 10_000  # characters of a reply that are searched for a list without labels
_MOST = 64  # labels that are read
_HEADS = {
    "STRATEGY": "strateg(?:y|ies)|approach(?:es)?|methods?|ways?|ideas?|techniques?",
    "SUBTASK": "sub-?tasks?|parts?|pieces?|sub-?problems?",
}
_FRONT = r"[ \t]*+(?:(?:[-*+•>]|#{1,6}|\d{1,2}[.)])[ \t]+)*+(?:\*\*|__|\*|_)?"
_NUMBER = r"(?:\d{1,6}|k|one|two|three|four|five|six|seven|eight|nine|ten)"
_BULLET = re.compile(r"\A(?:[-*+•]|\d{1,2}[.)])[ \t]+")
_ITEM = re.compile(r"^[ \t]*+(\d{1,4})[.)][ \t]++(\S.*)$", re.M)
_FORM = re.compile(r"\W*|(?:text|strategy|subtask|\.\.\.|…|<.*>|\[.*\]|_+)\.?", re.IGNORECASE)
_SOLVED = re.compile(
    r"\\boxed|####|```|~~~|\b(?:answer|result|solution|total) (?:is|will be|=)|=[ \t]*[-$]?\d"
    r"|^[ \t]*(?:therefore|so|thus|hence)\b|\b(?:final|correct) (?:answer|result)\b|^[ \t]*def ",
    re.IGNORECASE | re.MULTILINE,
)
# Beginnings of a step of one solution; without a heading such a list is not one of strategies.
_STEP = re.compile(
    r"(?:(?:first|then|next|finally|now|after that|let)\b[ ,]"
    r"|(?:add|subtract|multiply|divide|compute|calculate|sum|convert|find|determine|write|define|import|return|print|initiali[sz]e|create"
    r"|iterate|loop|read|evaluate|replace|count|plug|put|take|get|remove|perform|identify|box|step"
    r"|simplify|combine|substitute|set|open|call|check|so|therefore)\b)",
    re.IGNORECASE,
)
_OPEN = re.compile(r"[=?]|:$")
# Marks of an entry that is a fact, a question or a value, not an idea.
_CLAUSE = re.compile(
    r"\b(?:is|are|was|were|has|have|had|am|i|we|he|she|it|they|there|takes?|costs?|returns|comes?"
    r"|then|candidate|correct|incorrect|true|false)\b|[=?\d]|^\W*\w\W*$",
    re.IGNORECASE,
)


def read_plan(text: str, word: str, most: int) -> tuple[str, ...] | None:
    """Read texts labeled `word` and a number, or items of a plain list; at most `most`."""
    reply = visible(text)
    steps = _read_labeled(reply, word) or _read_list(reply, word)
    return tuple(steps[:most]) or None


@lru_cache(maxsize=16)
def _label(word: str) -> re.Pattern[str]:
    """Pattern for the start of a labeled line; the group holds the rest of the line."""
    name = word.replace("SUBTASK", "SUB-?TASK") + rf"[ \t]++#?{_NUMBER}(?![0-9A-Za-z])"
    bold = r"[ \t]*+(?:\*\*|__|\*|_)?[ \t]*+"
    mark = rf"(?:{bold}(?:[:.)–—]|-(?=[ \t])){bold}|{bold}$)"
    return re.compile(rf"^{_FRONT}{name}{mark}(.*)$", re.IGNORECASE | re.MULTILINE)


def _read_labeled(reply: str, word: str) -> list[str]:
    """The texts after labels, or below labels without a text on their line."""
    if word.lower() not in reply.lower().replace("-", ""):
        return []
    labels = islice(_label(word).finditer(reply), _MOST)
    matches = [label for label in labels if not _is_comment(reply, label)]
    ends = [match.start() for match in matches[1:]] + [len(reply)]
    texts = (
        _plain(match[1]) or _first_paragraph(reply[match.end() : end])
        for match, end in zip(matches, ends, strict=False)
    )
    return [text for text in texts if text and not _FORM.fullmatch(text)]


def _is_comment(reply: str, label: re.Match[str]) -> bool:
    """True if a label is a comment in a fenced program, not a heading."""
    return label[0].lstrip().startswith("#") and reply.count("```", 0, label.start()) % 2 == 1


def _first_paragraph(rest: str) -> str:
    """The first paragraph below a label, on one line; nothing if it is a program."""
    lines = rest.strip("\r\n \t").splitlines()
    if lines and lines[0].lstrip().startswith(("```", "~~~", "def ", "#", ">>>")):
        return ""
    paragraph = takewhile(lambda line: line and not line.startswith("```"), map(str.strip, lines))
    text = _plain(" ".join(_BULLET.sub("", line) for line in paragraph))
    return text if re.search(r"(?<!\\)\b[A-Za-z]{3,}", text) else ""


def _plain(text: str) -> str:
    """Strip spaces and an unpaired Markdown mark."""
    text = text.strip()
    for mark in ("**", "__"):
        if text.count(mark) == 1 or (text.startswith(mark) and text.count(mark) == 2):
            text = text.removeprefix(mark).removesuffix(mark).strip()
    return text


def _read_list(reply: str, word: str) -> list[str]:
    """The entries of a numbered list that is clearly one of strategies or parts."""
    if len(reply) > LONGEST or _SOLVED.search(reply):
        return []
    items = list(_ITEM.finditer(reply))
    numbers = [int(item[1]) for item in items]
    if len(items) < 2 or numbers != list(range(1, len(items) + 1)):
        return []
    texts = [_plain(item[2]) for item in items]
    before = reply[: items[0].start()].strip().lower()
    headed = re.search(rf"\b(?:{_HEADS[word]})\b", before[-200:])
    if before and not headed:
        return []
    doubtful = (_STEP.match, _CLAUSE.search) if not headed else (_OPEN.search,)
    if any(check(text) for text in texts for check in doubtful):
        return []
    return [] if any(_FORM.fullmatch(text) or len(text) < 3 for text in texts) else texts
