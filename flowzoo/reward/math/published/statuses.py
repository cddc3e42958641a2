r"""The grader of the public code of arXiv 2605.24202, and of Dr. MAS: "mathd or sympy".

Written anew from commit 6eafb3c of XHMY/marl-llm-workflows; `tools/published_grader.py` of 20b1b97b
compares both. An answer is right if its mathd form is the reference's, or if its plain form is, or
if in plain form the elements of both tuples are equal one by one:

| elements | equal |
|---|---|
| two fractions of numbers | as texts: `2/4` is not `1/2` |
| one integer | never |
| more than two letters, an exponent in braces, of two digits, or a tower | never |
| others | if sympy simplifies the difference to 0 |

Sympy has a deadline, after which elements differ, and its functions alone are called.
"""

import json
import re
from collections.abc import Sequence
from itertools import chain
from typing import Final, Literal

from flowzoo.reward.math.answer import MAX_CHARS
from flowzoo.reward.math.judge import status_of, sympy_pool
from flowzoo.reward.math.plain_text import UnreadableError, plain_text

PublishedStatus = Literal["equal", "different", "no_answer", "too_big", "timeout", "crashed"]
_Verdict = PublishedStatus | tuple[str, ...]
"""A status, or the differences that sympy must find to be 0."""

DEADLINE: Final = 1.0
"""Most CPU seconds of a difference in sympy."""

_TEXT = re.compile(r"\\text\{(.+?)\}")
_HEADLESS_POINT = re.compile(r"(?<=[ {])\.|^\.")
_ROOT_OF_NOTHING = re.compile(r"\\sqrt(?=\\sqrt|\Z)")
_ROOT = re.compile(r"\\sqrt(?!\{)(.)", re.DOTALL)
_INTEGER = r"-?[1-9][0-9]{0,999}|0"
_PLAIN_INTEGER = re.compile(_INTEGER)
_RATIO = re.compile(rf"({_INTEGER})/({_INTEGER})")
_UNITS = tuple(
    re.compile(rf"{unit}(es)?(s)? *(\^[0-9]+)?")
    for unit in (
        "degree", "cm", "centimeter", "meter", "mile", "second", "minute", "hour", "day", "week",
        "month", "year", "foot", "feet", "inch", "yard",
    )
)  # fmt: skip
_DEGREES = re.compile(r"\^ *\\circ")
_THOUSANDS_SPACE = re.compile(r",\\! *")
_MINUS = re.compile("- *")
_MIXED = re.compile("([0-9]) +([0-9])")
_THOUSANDS = re.compile(r"(\d),(\d\d\d)($|\D)")
_FRACTION = re.compile(r"-?[0-9]+.?/0*[1-9][0-9]*.?$")
_REFUSED = re.compile(r"\^[{(]|\^[0-9]+\^|\^[0-9][0-9]+")
_BRACKETS: Final = "()[]"
_MOST_LETTERS: Final = 2


def published_statuses(
    answers: Sequence[str | None], golds: Sequence[str], deadline: float = DEADLINE
) -> list[PublishedStatus]:
    """Statuses of extracted answers, as of `score_batch`; never raises on text."""
    pairs = [(answer or "", gold) for answer, gold in zip(answers, golds, strict=True)]
    verdicts = {pair: _compare(*pair) for pair in dict.fromkeys(pairs)}
    parts = (verdict for verdict in verdicts.values() if isinstance(verdict, tuple))
    differences = list(dict.fromkeys(chain.from_iterable(parts)))
    jobs = [json.dumps(difference).encode() for difference in differences]
    results = sympy_pool("published.worker", "published math").run(jobs, deadline) if jobs else []
    decided = {text: status_of(result) for text, result in zip(differences, results, strict=True)}

    def status(verdict: _Verdict) -> PublishedStatus:
        if not isinstance(verdict, tuple):
            return verdict
        parts = (decided[difference] for difference in verdict)
        return next((x for x in parts if x != "equal"), "equal")

    return [status(verdicts[pair]) for pair in pairs]


def _compare(answer: str, gold: str) -> _Verdict:
    """Compare a pair as far as texts decide."""
    if not answer.strip():
        return "no_answer"
    if len(answer) > MAX_CHARS:
        return "too_big"
    if mathd_form(answer) == mathd_form(gold):
        return "equal"
    given, reference = plain_form(answer), plain_form(gold)
    if given == reference:
        return "equal"
    parts, references = _elements(given), _elements(reference)
    is_tuple = len(references) > 1
    if not given or len(parts) != len(references):
        return "different"
    if is_tuple and given[0] + given[-1] != reference[0] + reference[-1]:
        return "different"
    return _differences(parts, references)


def _differences(parts: list[str], gold_parts: list[str]) -> _Verdict:
    left: list[str] = []
    for part, gold_part in zip(parts, gold_parts, strict=True):
        difference = f"({gold_part})-({part})"
        if _FRACTION.match(gold_part) and _FRACTION.match(part):
            is_equal: bool | None = gold_part == part
        elif _is_integer(gold_part) != _is_integer(part) or not _is_allowed(difference):
            is_equal = False
        elif _PLAIN_INTEGER.fullmatch(gold_part) and _PLAIN_INTEGER.fullmatch(part):
            is_equal = gold_part == part
        else:
            is_equal = None
        if is_equal is False:
            return "different"
        if is_equal is None:
            left.append(difference)
    return tuple(left) or "equal"


def _is_allowed(difference: str) -> bool:
    letters = difference.replace("sqrt", "").replace("frac", "")
    few = len({char for char in letters if char.isalpha()}) <= _MOST_LETTERS
    return few and _REFUSED.search(difference) is None


def mathd_form(answer: str) -> str:
    """The form in which the MATH benchmark compares answers; what has none stays as it is."""
    text = answer.strip()
    if mark := _TEXT.match(text):
        text = mark[1].strip()
    try:
        return _mathd(text)
    except UnreadableError:
        return text


def _mathd(text: str) -> str:
    for old, new in (
        ("\n", ""), ("\\!", ""), ("\\\\", "\\"), ("tfrac", "frac"), ("dfrac", "frac"),
        ("\\left", ""), ("\\right", ""), ("^{\\circ}", ""), ("^\\circ", ""), ("\\$", ""),
    ):  # fmt: skip
        text = text.replace(old, new)
    number, *units = text.split("\\text{ ")
    if len(units) > 1:
        raise UnreadableError
    text = _HEADLESS_POINT.sub("0.", number.replace("\\%", ""))
    name, *values = text.split("=")
    if len(values) == 1 and len(name) <= 2:
        text = values[0]
    if _ROOT_OF_NOTHING.search(text):
        raise UnreadableError
    text = _add_braces(_ROOT.sub(r"\\sqrt{\1}", text).replace(" ", ""))
    text = "\\frac{1}{2}" if text == "0.5" else text
    ratio = _RATIO.fullmatch(text)
    return f"\\frac{{{ratio[1]}}}{{{ratio[2]}}}" if ratio else text


def _add_braces(text: str) -> str:
    """`text` with braces around both parts of a fraction without them."""
    head, *parts = text.split("\\frac")
    written = [head]
    for part in parts:
        if not part:
            raise UnreadableError
        if part[0] == "{":
            written.append(part)
        elif len(part) == 1:
            return text
        else:
            bottom = part[1] if part[1] == "{" else f"{{{part[1]}}}"
            written.append(f"{{{part[0]}}}{bottom}{part[2:]}")
    return "\\frac".join(written)


def plain_form(answer: str) -> str:
    """The form that sympy is asked about, without units, spaces, braces and case."""
    mark = _TEXT.match(answer)
    text = mark[1] if mark else answer
    for old, new in (
        ("\\%", "%"), ("\\$", "$"), ("$", ""), ("%", ""), (" or ", " , "), (" and ", " , "),
        ("million", "*10^6"), ("billion", "*10^9"), ("trillion", "*10^12"),
    ):  # fmt: skip
        text = text.replace(old, new)
    for unit in _UNITS:
        text = unit.sub("", text)
    text = _DEGREES.sub("", text)
    if text.startswith("{") and text.endswith("}"):
        text = text[1:-1]
    text = _THOUSANDS_SPACE.sub("", text)
    number = _number(text)
    if number is not None and _is_whole(number):
        text = str(round(number))
    if "\\" in text:
        text = _without_latex(text)
    text = _MIXED.sub(r"\1+\2", _MINUS.sub("-", text))
    text = text.translate(dict.fromkeys(map(ord, " {}"))).lower()
    return str(int(float(text.replace(",", "")))) if _is_integer(text) else text


def _without_latex(text: str) -> str:
    latex = text.replace("\\tfrac", "\\frac").replace("\\dfrac", "\\frac")
    try:
        plain = plain_text(latex.replace("\\frac", " \\frac"))  # a space ends a mixed number's 1
    except UnreadableError:
        return text
    signs = {"√": "sqrt", "π": "pi", "∞": "inf", "∪": "U", "·": "*", "×": "*"}
    return plain.translate(str.maketrans(signs)).strip()


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _is_whole(number: float) -> bool:
    return abs(number) < float("inf") and abs(number - round(number)) <= 1e-7


def _is_integer(text: str) -> bool:
    number = _number(_without_thousands(text))
    return number is not None and _is_whole(number)


def _without_thousands(text: str) -> str:
    while (joined := _THOUSANDS.sub(r"\1\2\3", text)) != text:
        text = joined
    return text


def _elements(text: str) -> list[str]:
    """The elements of a tuple or an interval; else the text alone."""
    text = _without_thousands(text)
    inner = text[1:-1]
    is_tuple = len(text) > 2 and text[0] in _BRACKETS and text[-1] in _BRACKETS
    if is_tuple and not any(bracket in inner for bracket in _BRACKETS):
        return [part.strip() for part in inner.split(",")]
    return [text] if text else []
