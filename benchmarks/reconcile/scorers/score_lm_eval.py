"""Scores of lm-eval: its filters, metrics and functions, from the files of its tasks.

Reads rows of JSON (`set`, `reply`, `doc`), writes one row each: score by name of the metric, and
what was read. Programs are returned, not run.
"""

import importlib
import json
import sys
import types
from importlib.resources import files

import yaml
from lm_eval.api.metrics import exact_match_hf_evaluate
from lm_eval.filters.extraction import RegexFilter

# The tasks of programs load the hub's `code_eval` at their import, which would run programs here.
sys.modules["evaluate"] = types.ModuleType("evaluate")
vars(sys.modules["evaluate"])["load"] = lambda name: types.SimpleNamespace(
    compute=lambda **kwargs: [{"pass@1": 0.0}]
)
humaneval = importlib.import_module("lm_eval.tasks.humaneval.utils")
minerva = importlib.import_module("lm_eval.tasks.minerva_math.utils")
TASKS = files("lm_eval.tasks")
GSM8K = yaml.safe_load((TASKS / "gsm8k" / "gsm8k.yaml").read_text("utf-8"))
STOPS = ["\nclass", "\ndef", "\n#", "\nif", "\nprint"]
assert all(
    repr(stop)[1:-1] in (TASKS / "humaneval" / "humaneval.yaml").read_text() for stop in STOPS
)


def stopped(reply, stops):
    """The reply up to the first stop string."""
    return reply[: min((reply.find(stop) for stop in stops if stop in reply), default=None)]


def gsm8k(reply, doc):
    """Both filters of the task, each with the task's exact match."""
    reply = stopped(reply, GSM8K["generation_kwargs"]["until"])
    rule = {name: value for name, value in GSM8K["metric_list"][0].items()
            if name in ("regexes_to_ignore", "ignore_case", "ignore_punctuation")}  # fmt: skip
    for filters in GSM8K["filter_list"]:
        settings = {key: value for key, value in filters["filter"][0].items() if key != "function"}
        ((read,),) = RegexFilter(**settings).apply([[reply]], [doc])
        score = exact_match_hf_evaluate([read], [doc["answer"]], **rule)["exact_match"]
        yield f"lm-eval, {filters['name']}", float(score), read


def math500(reply, doc):
    """The two metrics of `minerva_math500`."""
    reply = stopped(reply, ["Problem:"])
    boxed = minerva.remove_boxed(minerva.last_boxed_only_string(doc["solution"]))
    doc = {**doc, "answer": minerva.normalize_final_answer(boxed)}
    scores = minerva.process_results(doc, [reply])
    read = minerva.get_unnormalized_answer(reply)
    yield "lm-eval, exact_match", float(scores["exact_match"]), read
    yield "lm-eval, math_verify", float(scores["math_verify"]), str(minerva.parse(reply)[:1])


def programs(reply, doc):
    """The programs of `humaneval` and `humaneval_instruct`."""
    reply = stopped(reply, STOPS)
    tests = f"\n{doc['test']}\ncheck({doc['entry_point']})"
    for name, build in (("humaneval", humaneval.build_predictions),
                        ("humaneval_instruct", humaneval.build_predictions_instruct)):  # fmt: skip
        ((program,),) = build([[reply]], [doc])
        yield f"lm-eval, {name}", None, program + tests


SCORERS = {"GSM8K": gsm8k, "MATH-500": math500, "HumanEval": programs}
for line in sys.stdin:
    row = json.loads(line)
    print(json.dumps([*SCORERS[row["set"]](row["reply"], row["doc"])]), flush=True)
