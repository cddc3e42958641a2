"""Scores of lighteval: the metrics of its tasks `gsm8k` and `math_500`; it has no HumanEval.

Reads rows of JSON (`set`, `reply`, `doc`), writes one row each: name, score, what was read.
"""

import json
import sys

from lighteval.metrics.metrics import Metrics
from lighteval.models.model_output import ModelResponse
from lighteval.tasks.tasks.gsm8k import gsm8k_prompt
from lighteval.tasks.tasks.math_500 import math_500, math_500_prompt

EXPRESSION = Metrics.expr_gold_metric.value.sample_level_fn
(PASS,) = (metric.sample_level_fn for metric in math_500.metrics)


def gsm8k(reply, doc):
    """`expr_gold_metric` on the reply up to the task's stop string."""
    reply = reply.split("Question:")[0]
    found = gsm8k_prompt(doc)
    score = EXPRESSION.compute(doc=found, model_response=ModelResponse(text=[reply]))
    yield "lighteval", float(score), str((found.specific or {}).get("extracted_predictions", ""))


def math500(reply, doc):
    """`pass_at_k_math` with one sample."""
    found = math_500_prompt(doc)
    score = PASS.compute(doc=found, model_response=ModelResponse(text=[reply]))
    yield "lighteval", float(score), ""


SCORERS = {"GSM8K": gsm8k, "MATH-500": math500}
for line in sys.stdin:
    row = json.loads(line)
    scorer = SCORERS.get(row["set"])
    print(json.dumps([*scorer(row["reply"], row["doc"])] if scorer else []), flush=True)
