"""Replies in the forms on which harnesses are known to differ, made from rows of public sets.

A form says whether a reader would call the reply right; None where readers would not agree.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from typing import Any, NamedTuple

Row = dict[str, Any]


class Reply(NamedTuple):
    """A reply to the row of a set."""

    form: str
    text: str
    right: bool | None


def gsm8k(row: Row) -> Iterator[Reply]:
    """Forms of a whole number after its solution."""
    steps, gold = row["answer"].split("\n#### ")
    steps = re.sub(r"<<.*?>>", "", steps)
    number = int(gold.replace(",", ""))
    wrong = number + 3
    for form, end in {
        "####": f"#### {gold}",
        "box": f"So the answer is \\boxed{{{number}}}.",
        "ANSWER line": f"ANSWER: {number}",
        "the answer is": f"The answer is {number}.",
        "final answer in LaTeX": f"The final answer is ${number}$. I hope it is correct.",
        "bold": f"**{number}**",
        "thousands": f"The answer is {number:,}.",
        "two decimals": f"The answer is {number}.00.",
        "currency": f"The answer is ${number}.",
        "unit": f"The answer is {number} dollars.",
        "sum with the result last": f"So {number - 1} + 1 = {number}.",
        "number after the answer": f"#### {gold}\nI checked this 2 times.",
        "corrected answer": f"The answer is {wrong}. No, that is wrong. The answer is {number}.",
        "thought with another answer": f"<think>Is it {wrong}?</think>\nThe answer is {number}.",
        "no space after ####": f"####{gold}",
    }.items():
        yield Reply(form, f"{steps}\n{end}", True)
    yield Reply("right answer taken back", f"#### {gold}\nNo, it is {wrong}.\n#### {wrong}", False)
    yield Reply("wrong ####", f"{steps}\n#### {wrong}", False)
    yield Reply("wrong box", f"{steps}\nIt is not {number}. So \\boxed{{{wrong}}}.", False)
    yield Reply("negative", f"{steps}\nThe answer is -{number}.", number == 0)
    yield Reply("cut off", steps[: len(steps) // 2], False)
    follow = f"Question: And one more?\nAnswer: one more.\n#### {number + 1}"
    yield Reply("a further question", f"{steps}\n#### {gold}\n\n{follow}", None)


def math500(row: Row) -> Iterator[Reply]:
    """Forms of an answer in LaTeX."""
    answer = row["answer"]
    large = answer.replace("\\frac", "\\dfrac")
    for form, text in {
        "solution of the set": row["solution"],
        "box": f"So \\boxed{{{answer}}}.",
        "ANSWER line": f"We add.\nANSWER: {answer}",
        "ANSWER line in LaTeX": f"We add.\nANSWER: ${answer}$",
        "final answer": f"Final Answer: The final answer is ${answer}$. I hope it is correct.",
        "bold answer": f"We add.\n\n**Answer:** ${answer}$",
        "the answer is": f"The answer is ${answer}$.",
        "box with a name": f"So $\\boxed{{x = {answer}}}$.",
        "box with blanks": f"So $\\boxed{{\\,{answer}\\;}}$.",
        "large fractions": f"So $\\boxed{{{large}}}$.",
        "corrected box": f"First $\\boxed{{-77}}$. That is wrong: $\\boxed{{{answer}}}$.",
        "box before a number": f"So $\\boxed{{{answer}}}$.\n\nI took 3 steps.",
    }.items():
        yield Reply(form, text, True)
    yield Reply("box taken back", f"First $\\boxed{{{answer}}}$. No: $\\boxed{{-77}}$.", False)
    yield Reply("box with one more", f"So $\\boxed{{{answer} + 1}}$.", False)
    yield Reply("no answer", "We look at all the cases in turn, and then", False)


def humaneval(row: Row) -> Iterator[Reply]:
    """Forms of a function whose head the prompt shows."""
    head, body = row["prompt"], row["canonical_solution"].rstrip()
    entry = row["entry_point"]
    whole = f"{head}{body}"
    short = f"{re.sub(chr(34) * 3 + '.*?' + chr(34) * 3, '', head, flags=re.DOTALL)}{body}"
    wrong = f"{head}    return None"
    fence = "```python\n{}\n```".format
    for form, text in {
        "function in a fence": f"Here is the function:\n\n{fence(whole)}",
        "without a docstring": fence(short),
        "fence, then prose": f"{fence(whole)}\n\nIt looks at every item, then returns.",
        "fence of py": f"```py\n{whole}\n```",
        "fence without a language": f"```\n{whole}\n```",
        "fence with CRLF": fence(whole).replace("\n", "\r\n"),
        "open fence": f"```python\n{whole}",
        "plain function": whole,
        "body alone": body,
        "body in a fence": fence(body),
        "body in a fence, not indented": fence(textwrap.dedent(body)),
        "wrong fence, then right fence": f"{fence(wrong)}\n\nBetter:\n\n{fence(whole)}",
        "fence, then an example": f"{fence(whole)}\n\nUsage:\n\n{fence(f'print({entry})')}",
        "fence with a main block": fence(f'{whole}\n\nif __name__ == "__main__":\n    print(1)'),
        "helper above": fence(f"def helper():\n    return 1\n\n\n{whole}"),
    }.items():
        yield Reply(form, text, True)
    yield Reply("wrong body", fence(wrong), False)
    yield Reply("head alone", fence(head.rstrip()), False)
    yield Reply("right fence, then wrong fence", f"{fence(whole)}\n\nNo:\n\n{fence(wrong)}", False)
    yield Reply("no program", "I would loop over the items.", False)


FORMS = {"GSM8K": gsm8k, "MATH-500": math500, "HumanEval": humaneval}
