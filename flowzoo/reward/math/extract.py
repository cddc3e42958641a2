r"""Extraction of the answer from a reply, by sources that scan it backward.

Strict reading, for training, uses only the last box: fallbacks could reward an answer that was not
given. An empty box is a missing answer. Boxes on one line joined only by commas or and/or are one
list.
"""

import json
import re
from collections.abc import Sequence
from typing import Final, Literal
from unicodedata import category

from flowzoo.errors import check_choice, unknown
from flowzoo.reward.listed import names
from flowzoo.reward.math.clean import clean, repaired
from flowzoo.reward.math.phrases import phrase_form
from flowzoo.reward.math.sorts import read_sort
from flowzoo.reward.math.vocabulary import HEDGED, NEGATIONS

_JOINT: Final = 60
_MAX_JOINED: Final = 64
_BRACES = re.compile(r"\\.|[{}]", re.DOTALL)
# Before a blank box: a mention of the format ("Put the final answer in \boxed{}."), not an answer.
_MENTION_BEFORE = re.compile(r"\bin (?:an? )?[$\\(`]{0,3}$")
PERCENT_AFTER = re.compile(r"\s?\$?\s?(?:\\?%|pct\b|percent)")
_JOINT_NOISE = re.compile(
    r"\\text\{([^{}]*)\}|\\(?:quad|qquad|,|;|:| |\(|\)|\[|\])|for part \(?\w\)?|[$\s.+&~(){}\[\]]"
)
_LABEL = r"(?:[A-Za-z]|\\[a-z]{2,10})(?:_(?:\w|\{\w{1,8}\}))?(?:\([A-Za-z]\))?\s*="
_LABEL_BEFORE = re.compile(rf"(?<![A-Za-z\\\d)]){_LABEL}\s*$")
_LABEL_IN = re.compile(rf"(?:(?<=[\s$,;(])|^){_LABEL}\s*(?=[\s$]*$)")
# The name of the part that a box answers, `Part 2:`, `(b)`, `2.`, which may be on another line.
_PART = re.compile(
    r"(?:^|(?<=[\s$;,.*]))\s*(?:[-*]\s+)?\**(?:(?:part|question|problem|case|answer|q)\s*)?"
    r"\(?(?:[a-h]|\d{1,2}|i{1,3}|iv|vi{0,3})[).:]{1,2}\**:?\s*(?=[\s$\\(*]*$)",
    re.IGNORECASE,
)
_JOINT_WORDS = re.compile(r"(?:,|;|and|or)*")


def last_box(text: str, with_percent: bool = False) -> tuple[bool, str | None]:
    r"""True if `text` has a balanced box, and the content of the last one (None if blank).

    A blank box that only mentions the format ("Put the answer in \boxed{}.") is skipped. With
    `with_percent`, a percent sign right after the box belongs to it. Boxes joined on one line are
    returned as a list of their contents. If a box is open at the end of the scanned text, an
    earlier box around it is open too, so only the text before it is scanned for the next candidate:
    the total time is linear.
    """
    box_found = _last_box(text, len(text))
    while box_found and not box_found[2]:
        # A blank box may only mention the format, like the task's instruction.
        start = text.rfind("\\", max(box_found[0] - 6, 0), box_found[0] + 1)
        if _MENTION_BEFORE.search(text, max(start - 12, 0), max(start, 0)) is None:
            break
        box_found = _last_box(text, box_found[0])
    if box_found is None:
        return False, None
    start, close_at, inside = box_found
    joined = _joined_boxes(text, start, inside)
    if joined is not None:
        return True, joined
    return True, (_percent(text, close_at + 1, inside) if with_percent else inside) or None


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
        # Some models write `\beginboxed`.
        is_command = text[start - 1 : start] == "\\" or text[max(start - 6, 0) : start] == "\\begin"
        is_box = start == frame or is_command
        if is_box and text[open_at : open_at + 1] == "{":
            close_at = _closing(text, open_at, end)
            if close_at >= 0:
                return start, close_at, text[open_at + 1 : close_at].strip()
        end = start


def _joined_boxes(text: str, start: int, inside: str) -> str | None:
    # The list of the boxes joined to the one at `start`, or None for a single box.
    boxes = [(start, inside)]
    while len(boxes) < _MAX_JOINED:
        close_at = text.rfind("}", max(start - _JOINT, 0), start)
        if close_at < 0 or not inside:
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
    # The content of the box at `start` with the left-hand side before it.
    begin = text.rfind("\\", max(start - 6, 0), start + 1)
    label = _LABEL_BEFORE.search(text, max(begin - 30, 0), max(begin, 0))
    return f"{label[0].strip()} {inside}" if label and inside and "=" not in inside else inside


def _box_closed_at(text: str, close_at: int, start: int) -> tuple[int, str] | None:
    # The box before `start` if only a joint separates them.
    box = _last_box(text, start)
    if box is None:
        return None
    begin, closed, inside = box
    joint = text[closed + 1 : start]
    if closed > close_at or len(joint) > _JOINT:
        return None
    joint = _PART.sub("", joint.removesuffix("\\").removesuffix("\\"))
    if "\n" in joint:
        return None
    joint = _LABEL_IN.sub("", joint)
    plain = _JOINT_NOISE.sub(lambda match: (match[1] or "").replace(" ", ""), joint)
    if _JOINT_WORDS.fullmatch(plain) is None:
        return None
    return begin, inside


def _closing(text: str, open_at: int, end: int) -> int:
    # Index of the brace that closes the one at `open_at`, or -1. Escaped braces do not count.
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


ExtractMode = Literal["strict", "lenient", "auto"]
AnswerSource = Literal["box", "phrase", "hashes", "span", "whole", "number"]

# The sources of each mode, in the order of use.
# `box` is the last balanced `\boxed{...}` or `\fbox{...}`, `phrase` the text after "answer is" or
# "answer:", `hashes` the text after `####`, `span` the last formula or number of the last sentence
# or line, `whole` a text that is just an answer, `number` the last number anywhere.
ORDERS: Final[dict[ExtractMode, tuple[AnswerSource, ...]]] = {
    "strict": ("box",),
    "lenient": ("box", "hashes", "phrase", "number"),
    "auto": ("box", "hashes", "phrase", "whole", "span"),
}
TAIL: Final = 50_000  # characters at the end of a reply that are read
_SHORT: Final = 200  # most characters of a bare answer

_PHRASE = re.compile(
    r"(?:answer|réponse|respuesta|antwort|odpowiedź|risposta|resposta|ответ)"
    r"(?:\s{0,3}(?:is|est|es|ist|to|è|é)\b|\s?[:：])"
    r"|答(?:案|え)?\s{0,3}(?:[是为為は]\s?[:：]?|[:：])|답\s?(?:은|[:：])",
    re.IGNORECASE,
)
# Marks of emphasis and of code, and what the last of them holds.
_EMPHASIS = re.compile(r"(\*\*|__|`)((?:(?!\1)[^\n])+)\1")
_EMPHASIZED = re.compile(rf"{_EMPHASIS.pattern}[\s.!)]*$")
# Words that doubt what is said behind them.
_DOUBTS: Final = (
    r"unless|suppose|assum\w+|why|doubt\w*|rule out|mistake|contra\w+|might|hardly|fails? to"
    r"|(?:would|some|students?) (?:say|think)"
    r"|(?:wrong|incorrect|false) (?:answer|value|result|one|that|to)"
    r"|(?:not|\w+n't) (?:sure|certain|true|clear|think|believe)"
)
_DOUBTED = re.compile(rf"(?i)\b(?:{_DOUBTS})\b")
# Words by which a sentence says something else than the words at its end.
_UNSAID = re.compile(
    rf"(?i)\b(?:{NEGATIONS}|if|think|fails?|opposite|negation|complement|could|differs?"
    r"|the square of|number of)\b|n't\b|\?"
)
_IS: Final = r"is|are|was|were|equals|has|gives|would be|will be|must be|to be"
# Before a value: words that deny or doubt it, compute with it, or list it beside another value.
_UNCLAIMED = re.compile(
    rf"(?i)\b(?:{_DOUBTS}|if\b.*\bwere)\b|^\W*without\b.*\bwould be\b"
    r"|^\W*(?:(?:no|none|nothing|neither)\b|(?:[a-z]+ ){0,2}(?:or|and)\W*$)"
    rf"|\b(?:(?:{NEGATIONS})\b|\w+n't\b)(?!.*\b(?:{_IS})\b|.* than\W*$)|\bof the answer\b|-$"
    r"|\b(?:(?:negative|opposite|inverse|reciprocal|half|instead) of|twice|divided by|rather than"
    r"|differs from|could be|close to|except|exclude|eliminate|reject|last digit)\W*$"
    rf"|^(?!.*\b(?:{NEGATIONS})\b|.*n't\b).*\b(?:more|less|\w+er) than\W*$"
)
# What was not done to some of several leaves their number: `She did not sell 6 of them`.
_UNDONE = re.compile(r"(?i)\bdid(?: not|n't) \w+\W*$")
_SOME = re.compile(r"(?i)\s+of\s+(?:them|the|these|those|his|her|its|their|my|our|your)\b")
# Clauses before that of a value.
_CLAUSES = re.compile(r"(?s)\A.*(?<!say)(?:[,;:]|\bso\b|\band\b(?=\W*[A-Za-z]{2}))")
# Before "answer": words that deny or doubt it, or make it something else.
_BESIDE = re.compile(
    rf"(?i)\b(?:(?:(?:{_DOUBTS}|{NEGATIONS})\b|say,)(?: \w+)*|of the(?: final)?) $"
)
# Before a number: its name, which tells it from another value.
_EXTREME = re.compile(r"(?i)\b(m(?:ax|in)(?:imum)?)(?: value)?(?: is)?:?\W*$")
_DENIALS: Final = "impossible|infeasible|invalid|incorrect|unacceptable|implausible|inadmissible"
# Behind a value: words that deny or doubt it.
_DENIED_AFTER = re.compile(
    rf"(?i)\W*(?:(?:is|are|was|were|does|can)\b.*\b(?:{NEGATIONS})\b"
    rf"|(?:is|are|was|were) (?:\w+ly )?(?:{_DENIALS})\b"
    r"|(?:doesn|can)'t\b|.*\?)",
    re.DOTALL,
)
# What a sentence that opens with `No` says of a value denies it.
_ANSWERED_NO = re.compile(r"(?i)\W*no\W*$")
_IS_SUBJECT = re.compile(r"(?i)\W*is\b(?! (?:\w+ly )?(?:the|correct|right|true)\b)")
# What a sentence says how its answer is found by, `Dividing, `.
_MEANS = re.compile(r"^[A-Z][a-z]+ing, ")
_BLOCK = re.compile(r"```\w*\n([^\n`]+)\n?```\s*$")
_INSTEAD = re.compile(r",?\s+(?:and |but )?(?:not|rather than|instead of)\s.*", re.DOTALL)
# A short sentence whose verb has a number for its object. Verbs of thought and of what was left
# out say nothing of how many there are; nor does a number behind a preposition.
_SENTENCE = re.compile(
    r"(?:(?:(?:He|She|They|There) (?:\w+ )?"
    r"|(?!It|This|That|We|You|No|See|Use|Recall|Apply)[A-Z][a-z]+ )"
    r"(?!(?:think|thought|sa(?:y|id)|tr[iy]|want|wish|hop|guess|claim|expect|assum|suppos|believ"
    r"|predict|estimat|forg[eo]t|miss|fail|exclud|reject|rul|den[iy]|doubt|avoid|skip|ignor)\w* )"
    r"(?!(?:about|above|after|around|at|before|below|by|for|from|in|near|of|on|out|over|past|than"
    r"|to|under|until|up|with|within) )[a-z]+ "
    r"|It (?:is|was|takes|took|costs?|needs|has|had|weighs|equals) "
    r"|(?:It|That)'s (?:not [^,;\d]*\d+ but )?)"
    r"(?:(?:exactly|only|just|a total of) )?[$€£]?\d[\d,./]*(?: [a-z ]+|%)?\.?"
)
_INSTEAD_OF = re.compile(r"\bnot [^,;]*\d but\b")
_EAST_ASIAN = re.compile(r"[\u3040-\u30ff\u4e00-\u9fff\uac00-\ud7af]")
_HEADED = re.compile(r"\**(?:the )?(?:final )?answer(?: is)?\s*[:：]?\**[\s:]*", re.IGNORECASE)
_TAG = "<answer>"
_ANSWER_KEY = re.compile(r"\"(?:final[_ ]?)?answer\"\s*:\s*", re.IGNORECASE)
_OBJECT = re.compile(r"(?:```\w*\s*)?\{\s*\"\w[^\n{}]{0,60}\"\s*:.*\}\s*(?:```)?", re.DOTALL)
_SENTENCE_END = re.compile(r"(?<!\d)\.(?:\s|\*|$)|\.\s+(?=[A-Z])|\.\s*$|。")
_NUMBER = re.compile(
    r"(?:(?<![\w.)])-|(?<=\s)-)?[$€£]?(?:\d{1,3}(?:,\d{3})+(?![\d]|,\d)|\d+)(?:\.\d+)?(?:/\d+)?"
    r"(?:\s?\\?%)?|(?<!\d)\.\d+",
    re.ASCII,
)
_LAST_NUMBER = re.compile(r"[-+]?(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?:/\d+)?", re.ASCII)
_CLOSER = "I hope it is correct"
_CHAT_MARK = re.compile(r"(?:<\|[a-z_]{2,20}\|>\s*+(?:user|assistant|system)?+\s*+)++$")
_QUOTED = re.compile(r"^>+ (?=[*_$\d])", re.MULTILINE)
_MATH = re.compile(
    r"\$\$(.+?)\$\$|(?<!\\)\$((?:[^$\\]|\\.)+)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL
)
# A letter that formulas do not have: neither Latin without marks, Greek, raised or lowered.
_FOREIGN = re.compile(r"[^\W\d_\x00-\x7fª²³µ¹-¾\u0370-\u03ff\u2070-\u209f\u2100-\u215f]")
_INTRODUCTION = re.compile(r"[^\W\d_]\s*:")
_LEAD = re.compile(
    r"\s*(?:(?:[A-Za-z]|ans|answer|sol|solution|result|total)\b\s?[.:]\s|=+>?|-+>|→|⇒|\*\*?:)\s*"
    r"(?=[-+$€£\\(.\d*])",
    re.IGNORECASE,
)
_DISPLAY = re.compile(r"\\begin\{([a-z]*matrix)\}")
_WORDS = re.compile(r"[^\W\d_]{2,}")
_TYPESET = re.compile(r"\\[A-Za-z]+(?:\{[A-Za-z* ]*\})?")
_ANSWER_WORDS: Final = names(
    "and or if inf sin cos tan cot sec csc log ln exp sqrt pi mod abs floor ceil max min gcd "
    "lcm percent pct percentage infinity theta alpha beta cm mm km mi kg ft in cubic square "
    "of"
)
_NUMBERED: Final = names(
    "part case step question problem figure section equation example option exercise input digit "
    "nearest first last next top page row column level line"
)
_SENTENCE_WORDS: Final = names(
    "is are was the answer therefore so thus hence final we get that result because since "
    "it's equals value solution have here know think sure cannot unable guess maybe let"
)


def extract(
    text: str, mode: ExtractMode = "strict", order: Sequence[AnswerSource] | None = None
) -> str | None:
    """Return the answer of a reply, stripped of outer white space, or None.

    Never raises on any text.

    Args:
        text: a reply.
        mode: one of the orders of `ORDERS`.
        order: sources to use in place of `mode`.

    Raises:
        UsageError: unknown `mode` or source.
    """
    if mode not in ORDERS:
        raise unknown("extraction mode", mode, ORDERS)
    chosen = ORDERS[mode]
    if order is not None:
        chosen = tuple(order)
        for source in chosen:
            check_choice("answer source", source, AnswerSource)
    tail = without_thinking(text) if len(text) > TAIL or "think>" in text else text
    if tail is None:
        return None
    if chosen and chosen[0] == "box":
        has_box, answer = last_box(tail)
        if has_box or len(chosen) == 1:
            return answer
        chosen = chosen[1:]
    tail = _read_statement(_without_marks(tail))
    if tail is None:
        return None
    for source in chosen:
        answer = _from_source(tail, source)
        if answer:
            return answer
    return None


def _read_statement(tail: str) -> str | None:
    # The last `<answer>`, or the last `"answer"` of an object, else the text itself. None if an
    # object has no such entry or an empty one.
    close_at = tail.rfind("</answer>")
    open_at = tail.rfind(_TAG, 0, close_at) if close_at >= 0 else -1
    if open_at >= 0:
        return tail[open_at + len(_TAG) : close_at].strip()
    if '":' not in tail and '" :' not in tail:
        return tail
    keys = list(_ANSWER_KEY.finditer(tail))
    if not keys:
        return None if _OBJECT.fullmatch(tail[-TAIL:].strip()) else tail
    try:
        value, end = json.JSONDecoder().raw_decode(
            tail[: keys[-1].end() + 4 * _SHORT], keys[-1].end()
        )
    except (ValueError, RecursionError):
        return tail
    if value is None or isinstance(value, str):
        return value or None
    return tail[keys[-1].end() : end]


def _from_source(tail: str, source: AnswerSource) -> str | None:
    if source == "box":
        return last_box(tail)[1]
    if source == "whole":
        text = _whole(tail.strip()) or _whole(_skip_lead(_last_line(tail)))
        # A short sentence that says a number without a bound or a doubt is read by its number.
        if not text or _SENTENCE.fullmatch(text) is None or _is_phrase(text):
            return text
        return text if HEDGED.search(_INSTEAD_OF.sub("", text)) else None
    if source == "span":
        line = _skip_lead(_last_line(tail))
        return _in_words(line) or _last_item(line)
    if source == "number":
        numbers = _LAST_NUMBER.findall(tail)
        return numbers[-1].rstrip(",") if numbers else None
    return answer_phrase(tail) if source == "phrase" else _after_hashes(tail)


def without_thinking(text: str) -> str | None:
    """The end of `text` without thoughts: at most `TAIL` characters, None if all is thought."""
    closed = text.rfind("</think>")
    if text.find("<think>", max(closed, 0)) >= 0:
        return None
    start = max(closed + len("</think>") if closed >= 0 else 0, len(text) - TAIL)
    return text[start:] if start else text


def _without_marks(text: str) -> str:
    # `text` without chat-template tokens and a customary last sentence at its end.
    text = text.rstrip()
    while (
        text
        and text[-1] > "\u2000"
        and text[-1] not in "℃℉"
        and category(text[-1]) in ("So", "Mn", "Cf")
    ):
        text = text[:-1].rstrip()
    if "</" in text:
        text = repaired(text)
    text = _QUOTED.sub("", text)
    if text.endswith((">", "user", "assistant")):
        text = _CHAT_MARK.sub("", text).rstrip()
    if text.endswith("```") and (block := _BLOCK.search(text)):
        text = block[1]
    bare = text.rstrip(". ")
    return bare[: -len(_CLOSER)].rstrip() if bare.endswith(_CLOSER) else text


def boxed_percent(text: str) -> str | None:
    """Like `extract(text, "auto")`, with a percent sign right after the box in the answer."""
    tail = without_thinking(text)
    has_box, answer = (False, None) if tail is None else last_box(tail, with_percent=True)
    return answer if has_box else extract(text, "auto")


def answer_phrase(text: str) -> str | None:
    """Return the text from the last "answer is" or "answer:" to the end of its sentence."""
    starts = (match.span() for match in _PHRASE.finditer(text))
    end = max(
        (end for at, end in starts if not _BESIDE.search(text[max(at - 80, 0) : at])), default=-1
    )
    if end < 0:
        return None
    line = _first_line(text[end : end + 4 * _SHORT].lstrip(" :：*\n\t"))
    stop = _SENTENCE_END.search(line)
    sentence = (line[: stop.start()] if stop else line).lstrip(" *").rstrip(" *.")
    if (aside := _INSTEAD.search(sentence)) and aside.start() > 0:
        sentence = sentence[: aside.start()]
    if _EAST_ASIAN.search(sentence):
        return _last_item(sentence) or sentence
    return _whole(sentence) or _in_words(sentence) or _last_item(sentence) or sentence or None


def _in_words(sentence: str) -> str | None:
    # What a sentence says in words: all of it, or what it ends with, emphasized or behind a verb.
    if len(sentence) > 2 * _SHORT or _DOUBTED.search(sentence):
        return None
    whole = _EMPHASIS.sub(r"\2", sentence)
    if _is_phrase(whole):
        return whole
    last = _EMPHASIZED.search(sentence)
    if _UNSAID.search(sentence[: last.start()] if last else whole):
        return None
    if _is_phrase(plain := _MEANS.sub("", whole)):
        return plain
    if last and not _is_unclaimed(sentence, last):
        return _whole(last[2]) or (last[2] if _is_phrase(last[2]) else _last_item(last[2]))
    return None


def _is_phrase(text: str) -> bool:
    cleaned = clean(text)
    return phrase_form(cleaned) is not None or read_sort(cleaned) is not None


def _after_hashes(text: str) -> str | None:
    # The rest of the line after the last `####`, GSM8K's mark.
    at = text.rfind("####")
    if at < 0:
        return None
    rest = text[at + 4 : at + 4 + 4 * _SHORT].lstrip(" ")
    if headed := _HEADED.match(rest):
        rest = rest[headed.end() :]
    return _first_line(rest) or None


def _first_line(text: str) -> str:
    return text.split("\n", 1)[0].strip()


def _last_line(text: str) -> str:
    # The last line, or the last sentence if it is shorter; a display is part of its line.
    text = text[-8 * _SHORT :].strip()
    if text.endswith(("$$", "\\]", "\\)")) or "\\end{" in text[-20:]:
        opening = {"$$": "$$", "\\]": "\\[", "\\)": "\\("}.get(text[-2:], "\\begin{")
        start = text.rfind(opening, 0, len(text) - 2)
        start = text.rfind("\n", 0, max(start, 0)) + 1
    else:
        start = text.rfind("\n") + 1
    line = text[start:].strip()
    body = line.rstrip(". 。")
    cut = max((match.end() for match in _SENTENCE_END.finditer(body)), default=0)
    return line[cut:].strip() if body[cut:].strip() else line


def _skip_lead(line: str) -> str:
    # A last line without an introduction of its value: `A: 18`, `Ans. 18`, `= 18`, `-> 18`.
    lead = _LEAD.match(line)
    if lead is None or ":" in line[lead.end() :] or "=" in line[lead.end() :]:
        return line
    return line[lead.end() :]


def _whole(text: str) -> str | None:
    # `text` if it is short and just an answer, with few nonmathematical words.
    if not 0 < len(text) <= _SHORT * 2:
        return None
    opens_math = text.startswith(("$", "\\(", "\\[", "\\begin"))
    if "\n" in text and not opens_math:
        return None
    plain = _TYPESET.sub(" ", _MATH.sub(lambda m: " " if _is_formula(m) else m[0], text))
    text_words = [word.lower() for word in _WORDS.findall(plain)]
    others = [word for word in text_words if word not in _ANSWER_WORDS]
    if any(word in _SENTENCE_WORDS for word in others) or "?" in plain or "!!" in plain:
        return None
    formulas = sum(_is_formula(match) for match in _MATH.finditer(text))
    if not others or (opens_math and formulas > 1 and len(others) <= 8):
        return text
    if opens_math:
        return None
    most = 1 if "$" in text or "\\(" in text else 3
    is_short = len(others) <= most and len(text) <= _SHORT
    return (
        text
        if is_short and _FOREIGN.search(plain) is None and not _INTRODUCTION.search(plain)
        else None
    )


def _last_item(sentence: str) -> str | None:
    # The last formula, or a number behind it, if the sentence claims it.
    sentence = _EMPHASIS.sub(r"\2", sentence)
    spans = [match for match in _MATH.finditer(sentence) if _is_formula(match)]
    numbers = list(_NUMBER.finditer(sentence, spans[-1].end() if spans else 0))
    if numbers and not (spans and _is_aside(sentence[spans[-1].end() : numbers[-1].start()])):
        spans.append(numbers[-1])
    if not spans:
        matrix = _DISPLAY.search(sentence)
        return sentence[matrix.start() :] if matrix else None
    last = spans[-1]
    after = sentence[last.end() :]
    is_denied = _ANSWERED_NO.match(sentence[: last.start()]) and _IS_SUBJECT.match(after)
    if is_denied or _is_unclaimed(sentence, last) or _DENIED_AFTER.match(after):
        return None
    if last.re is _NUMBER:
        named = _EXTREME.search(sentence, 0, last.start())
        return f"{named[1]}: {last[0]}" if named else last[0]
    body = next(group for group in last.groups() if group is not None).strip()
    percent = PERCENT_AFTER.match(after)
    return f"{body}\\%" if percent and body[-1:].isdigit() else body


def formulas_of(text: str) -> list[str]:
    """Return the formulas between the math marks of `text`."""
    return [next(filter(None, match.groups())).strip() for match in _MATH.finditer(text)]


def _is_unclaimed(sentence: str, value: re.Match[str]) -> bool:
    # True if the words between a value and the value or clause before it leave open whether it is
    # the answer.
    start = value.start()
    others = (*_MATH.finditer(sentence, 0, start), *_NUMBER.finditer(sentence, 0, start))
    led = sentence[max((match.end() for match in others), default=0) : start]
    led = _CLAUSES.sub("", led)
    if _SOME.match(sentence, value.end()):
        led = _UNDONE.sub("", led)
    return _UNCLAIMED.search(led) is not None or (bool(others) and _is_aside(led))


def _is_aside(led: str) -> bool:
    # True if a value belongs to the word before it, as in `part 2`.
    before = _WORDS.findall(led)
    return bool(before) and before[-1].lower() in _NUMBERED


def _is_formula(match: re.Match[str]) -> bool:
    body = next(group for group in match.groups() if group is not None)
    if "?" in body:
        return False
    text_words = _WORDS.findall(_TYPESET.sub(" ", body))
    return sum(word.lower() not in _ANSWER_WORDS and len(word) > 2 for word in text_words) <= 2
