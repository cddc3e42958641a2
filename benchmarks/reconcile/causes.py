"""Why a harness and flowzoo differ on a reply, by rules that a reader can check on it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.reconcile.replies import Stored
    from benchmarks.reconcile.scores import Score

ONLY = {
    "flowzoo, strict": "reads only a box",
    "lm-eval, strict-match": "reads only `#### N`",
    "lm-eval, exact_match": "reads only “Final Answer: The final answer is ….”",
    "Inspect, text": "reads only a line `ANSWER: …`",
    "Inspect, sympy": "reads only a line `ANSWER: …`",
}
"""What the prompt of a harness asks for, and its scorer reads alone."""
NOTHING = ("", "[invalid]", "[invalidanswer]", "[]", "None")
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


def cause(name: str, one: Stored, theirs: Score, ours: Score) -> str:
    """Name the cause of a difference."""
    if one["set"] == "HumanEval":
        return program_cause(one["reply"], theirs, ours)
    if theirs.read in NOTHING and name in ONLY and not theirs.value:
        return ONLY[name]
    if name.startswith(("lm-eval", "lighteval")) and "Question:" in one["reply"]:
        return "stops at `Question:`"
    if name == "lm-eval, math_verify" and not theirs.value:
        return math_verify_cause(one["reply"], theirs.read)
    numbers = [number.replace(",", "") for number in _NUMBER.findall(one["reply"])]
    first, last = value(theirs.read), value(ours.read)
    if first is not None and first == last:
        return "the same number, compared as text"
    if first is not None and numbers and value(numbers[-1]) == first:
        return "reads the last number"
    if name == "Inspect" and re.search(r"\\boxed|\$\d|####\d", one["reply"]):
        return "reads only numbers that are words of their own"
    if theirs.value and one["reply"].count("#### ") > 1:
        return "reads the first `####`"
    if theirs.value:
        return f"pays an answer that flowzoo reads as another ({place(one)})"
    return f"does not read or match it ({place(one)})"


def math_verify_cause(reply: str, read: str) -> str:
    """Why Math-Verify, as lm-eval calls it, refuses a reply."""
    if "\\boxed" not in reply:
        return "reads LaTeX only between signs of LaTeX"
    if "x = " in reply:
        return "reads a name before the answer as an equation"
    if read in NOTHING:
        return "found nothing within its seconds of the wall clock, on a busy machine"
    return f"reads {read}"


def place(one: Stored) -> str:
    """The form of a reply, or the model that gave it."""
    return one["form"] or f"{one['source']}, row {one['row'] + 1}"


def value(text: str) -> float | None:
    """A number as it may stand in an answer; None for what is none."""
    match = re.fullmatch(r"\W*?(-?\d[\d,]*(?:\.\d+)?)\W*", text)
    return float(match[1].replace(",", "")) if match else None


def program_cause(reply: str, theirs: Score, ours: Score) -> str:
    """Why the program of a harness ended otherwise than flowzoo's."""
    if theirs.value:
        return "flowzoo takes another program"
    if "SyntaxError" in theirs.read or "IndentationError" in theirs.read:
        fenced = "a fence or prose" if "```" in reply else "a second head"
        return f"its program is no Python: it holds {fenced}"
    if "NameError" in theirs.read:
        return "its program lacks an import or the function"
    if "AssertionError" in theirs.read or "TypeError" in theirs.read:
        return "its program is the head alone, or another function of the reply"
    return f"its program ends with {theirs.read[:2]}"
