"""Scores of Inspect: the scorers of inspect_evals' tasks. Programs are returned, not run.

Reads rows of JSON (`set`, `reply`, `doc`), writes one row each: name, score, what was read.
"""

import asyncio
import json
import sys

from inspect_ai.model import ModelOutput
from inspect_ai.scorer import Target, match
from inspect_ai.solver import TaskState
from inspect_evals.gsm8k.gsm8k import record_to_sample
from inspect_evals.humaneval.humaneval import find_code
from inspect_evals.math.math import expression_exact_match, expression_exact_match_sympy
from inspect_evals.math.utils import extract_answer


def scored(scorer, reply, target):
    """The score of a reply, and the answer that the scorer names."""
    output = ModelOutput.from_content("stored", reply)
    state = TaskState("stored", 1, 1, "", [], output=output)
    score = asyncio.run(scorer(state, Target(target)))
    return float(score.value == "C"), str(score.answer)


def gsm8k(reply, doc):
    """`match(numeric=True)`."""
    yield ("Inspect", *scored(match(numeric=True), reply, record_to_sample(doc).target))


def math500(reply, doc):
    """The two scorers of `math` that ask no model."""
    read = extract_answer(reply)
    for name, make in (("text", expression_exact_match), ("sympy", expression_exact_match_sympy)):
        yield f"Inspect, {name}", scored(make(), reply, doc["answer"])[0], read


def programs(reply, doc):
    """The program that `verify` of `humaneval` would run."""
    tests = f"\n{doc['test']}\ncheck({doc['entry_point']})"
    yield "Inspect", None, doc["prompt"] + find_code(reply) + tests


SCORERS = {"GSM8K": gsm8k, "MATH-500": math500, "HumanEval": programs}
for line in sys.stdin:
    row = json.loads(line)
    print(json.dumps([*SCORERS[row["set"]](row["reply"], row["doc"])]), flush=True)
