"""Columns of inputs and outputs: keys of dicts, references in Python 2, outputs that are words."""

import json
from itertools import product
from typing import Any

import pytest

from flowzoo.envs.tasks.code.io import output_rule, runs_here
from flowzoo.envs.tasks.code.task import CodeTask
from flowzoo.sandbox.program import StdinTest
from tests.envs.playing import write_rows as write
from tests.envs.tasks.code.grading import expert, grades

# Functions of a dict whose keys are integers.
OF_DICTS = [
    "def f(d):\n    return {k + 1: v for k, v in d.items()}",
    "def f(d):\n    return sum(k * v for k, v in d.items())",
    "def f(d):\n    return {v: k for k, v in d.items()}",
    "def f(d):\n    return {k: [k] for k in sorted(d)}",
    "def f(d):\n    return d.get(2, d.get(-5))",
    "def f(d):\n    return max(d, default=0)",
]
DICTS: list[dict[int, int]] = [
    {}, {1: 2}, {2: 1, 3: 3}, {-5: 7}, {10: 0, 2: 5}, {k: k * k for k in range(9)},
]  # fmt: skip


@pytest.mark.parametrize("wrapped", [False, True])
def test_digit_keys_of_dicts_are_integers_as_apps_reads_them(tmp_path, wrapped):
    rows = []
    for source, given in product(OF_DICTS, DICTS):
        names: dict[str, Any] = {}
        exec(source, names)
        inputs = [given, {2: 1, 4: 3}]
        outputs = [names["f"](dict(keys)) for keys in inputs]
        tests = {
            "fn_name": "f",
            "inputs": [[keys] for keys in inputs],
            "outputs": [[output] for output in outputs] if wrapped else outputs,
        }
        text = json.dumps(tests)  # whose keys are texts
        rows.append({"question": f"{source} {given}", "solutions": [source], "input_output": text})
    task = CodeTask(data=write(tmp_path / "a.jsonl", *rows))
    assert len(rows) >= 30
    for index, row in enumerate(rows):
        texts = "def f(d):\n    return {'x': d}"
        assert grades(task, index, row["solutions"][0], texts) == ["AC", "WA"]


def test_other_keys_stay_texts(tmp_path):
    tests = {"fn_name": "f", "inputs": [[{"1": 2, "a": 3}]], "outputs": [{"1": 2, "a": 3}]}
    data = write(tmp_path / "a.jsonl", {"question": "Same.", "input_output": tests})
    assert grades(CodeTask(data=data), 0, "def f(d):\n    return d") == ["AC"]


OLD = [
    "print input()",
    "n = raw_input()\nprint(n)",
    "for i in xrange(1):\n    print(input())",
    "exec 'print(1)'",
    "print(unicode(input()))",
    "def f():\n    return reduce(max, [1])\nprint(input())",
]
NEW = [
    "print(input())",
    "import sys\nprint(sys.stdin.read())",
    "from functools import *\nprint(reduce(max, [input()]))",
    "def g():\n    global x\n    x = input()\ng()\nprint(x)",
    "try:\n    raw_input\nexcept NameError:\n    raw_input = input\nprint(raw_input())",
]


def test_the_first_reference_that_runs_is_taken(tmp_path):
    rows = [
        {
            "question": f"{number}",
            "solutions": solutions,
            "input_output": {"inputs": ["7\n"], "outputs": ["7\n"]},
        }
        for number, solutions in enumerate([old, new, "print(1)"] for old, new in product(OLD, NEW))
    ]
    assert len(rows) >= 30
    task = CodeTask(data=write(tmp_path / "a.jsonl", *rows))
    for index, row in enumerate(rows):
        assert expert(task, index) == row["solutions"][1]
    assert grades(task, 0, expert(task, 0)) == ["AC"]
    only = {**rows[0], "solutions": OLD[:1]}
    assert expert(CodeTask(data=write(tmp_path / "b.jsonl", only)), 0) == OLD[0]
    assert runs_here("class Solution:\n    def f(self, x: List[int]):\n        return x")


def columns(*outputs: str) -> dict[str, list[str]]:
    """Tests of a program that reads nothing."""
    return {"inputs": [""] * len(outputs), "outputs": [*outputs]}


def test_words_of_digits_are_no_numbers(tmp_path):
    rows = [
        *(("Print it.", (f"{n:03}",), str(n), False) for n in range(0, 99, 9)),
        *(("Print it.", (f"{n}.10", f"{n}.9"), f"{n}.1", False) for n in range(4)),
        *(("Print it.", (str(n),), f"{n - 1e-9:.10f}", False) for n in (3, 40, 500)),
        *(("Print it.", (str(n),), f"{n}.0", True) for n in (3, 40, 500)),
        *(("Print it.", (f"{n}.5",), f"{n}.4999999999", True) for n in (3, 40, 500)),
        *(("Print it.", (str(n), "0.5"), f"{n - 1e-9:.10f}", True) for n in (3, 40)),
        *(("The error may be 1e-6.", (str(n),), f"{n - 1e-9:.10f}", True) for n in (3, 40, 500)),
        *(("Print it.", (f"{n}.50",), f"{n}.5", True) for n in (3, 40, 500)),
        *(("Rounded to two decimal places.", (f"{n}.50", "1.5"), f"{n}.5", True) for n in (3, 4)),
    ]  # fmt: skip
    assert len(rows) >= 30
    records = [
        {"question": f"{text} {number}", "input_output": columns(*outputs)}
        for number, (text, outputs, _, _) in enumerate(rows)
    ]
    data = write(tmp_path / "a.jsonl", *records)
    task = CodeTask(data=data, reward="fraction")
    for index, (_, outputs, printed, right) in enumerate(rows):
        problem = task.problem(index, "all")
        [test, *_] = [*problem.meta["public"], *problem.meta["hidden"]]
        assert isinstance(test, StdinTest)
        assert test.expected == outputs[0]
        got = task.grade_batch([problem], [f"print('{printed}')"])[0].score
        assert (got > 0) == right or len(outputs) > 1, (outputs, printed)


def test_the_rule_of_outputs():
    exact = {"absolute": 0.0, "relative": 0.0}
    assert output_rule("Print it.", ["1 2", "3"]) == exact
    assert output_rule("Print it.", [[1, 2], {"a": 3}]) == exact
    assert output_rule("Print it.", [[1, 0.5]]) == {}
    assert output_rule("Print it.", ["1e-05"]) == {}
    assert output_rule("Print it.", ["1.10", "1.9"]) == {"mode": "tokens"}
    assert output_rule("Print it.", ["1.2.3"]) == exact
    assert output_rule("Print it.", ["1.0", "1.25"]) == {}
    assert output_rule("An absolute or relative error of 1e-6 is allowed.", ["1", "2"]) == {}
