"""HumanEval, MBPP and APPS/DeepCoder layouts: reading, grading, broken lines."""

import json
import random

import pytest

from flowzoo.envs.tasks import make_task
from flowzoo.envs.tasks.code.layouts import docstring_examples, with_prelude
from flowzoo.envs.tasks.code.task import CodeTask
from flowzoo.errors import DataError, UsageError
from flowzoo.sandbox.program import CallTest, CheckTest, StdinTest
from tests.envs.playing import write_rows as write
from tests.envs.tasks.code.grading import expert, grades
from tests.tables import read_tables, shared_file

TABLES = read_tables(__file__)
CHECKED, ASSERTED, PRINTED, CALLED, LISTED = TABLES["rows"].values()


def test_humaneval_layout(tmp_path):
    task = CodeTask(data=write(tmp_path / "h.jsonl", CHECKED))
    problem = task.problem(0, "all")
    assert problem.meta["entry"] == "total"
    assert [test.args for test in problem.meta["public"]] == [([1, 2],), ([],)]
    assert "assert" not in task.prompt(problem)
    assert "sum(" not in task.prompt(problem)
    plain = "def total(xs: List[int]) -> int:\n    return sum(x + 1 for x in xs)"
    future = f"from __future__ import annotations\n{plain}"
    using = "def total(xs):\n    return sum(map(helper, xs))"
    results = grades(
        task, 0, expert(task, 0, True), plain, future, using, expert(task, 0, False), "x = 1"
    )
    assert results[:5] == ["AC"] * 4 + ["WA"]
    assert results[5] in ("RE", "WA")
    assert task.classes(problem, [plain, None, using, "def total(xs):\n    return 5"]) == (
        0, -1, 0, 1,
    )  # fmt: skip


def test_mbpp_layout(tmp_path):
    task = CodeTask(data=write(tmp_path / "m.jsonl", ASSERTED), reward="fraction")
    problem = task.problem(0, "all")
    assert task.prompt(problem).startswith(f"{ASSERTED['text']}\n{ASSERTED['test_list'][0]}\nPut")
    assert ASSERTED["test_list"][1] not in problem.text
    half = "def similar(a, b):\n    return (4, 5) if len(a) > 2 else (1,)"
    answers = [expert(task, 0, True), half, "def similar(a, b):\n    return [4, 5]"]
    scores = [grade.score for grade in task.grade_batch([problem] * 3, answers)]
    assert scores == pytest.approx([1.0, 2 / 3, 0.0])
    assert task.classes(problem, [answers[0], half, answers[2]]) == (0, 0, 1)


def test_apps_layout_of_programs_that_print(tmp_path):
    task = CodeTask(data=write(tmp_path / "a.jsonl", PRINTED))
    problem = task.problem(0, "all")
    assert (len(problem.meta["public"]), len(problem.meta["hidden"])) == (1, 1)
    assert "10 5" not in task.prompt(problem)
    assert "reads the input from stdin" in task.prompt(problem)
    assert grades(task, 0, expert(task, 0, True), "print(15)", expert(task, 0, False)) == [
        "AC", "WA", "WA",
    ]  # fmt: skip


def test_apps_layout_of_functions_takes_tuples_for_lists(tmp_path):
    task = CodeTask(data=write(tmp_path / "c.jsonl", CALLED))
    problem = task.problem(0, "all")
    assert problem.meta["entry"] == "Solution.pair"
    assert [test.expected for test in problem.meta["hidden"]] == [[1, 2], ["x", [3]]]
    lists = "class Solution:\n    def pair(self, a, b):\n        return [a, b]"
    wrong = lists.replace("[a, b]", "[b, a]")
    results = grades(task, 0, expert(task, 0, True), lists, wrong, expert(task, 0, False))
    assert results == ["AC", "AC", "WA", "WA"]


def test_a_class_solution_finds_what_its_signature_names(tmp_path):
    head = "class Solution:\n    def most(self, xs: List[int]) -> Optional[int]:\n        "
    row = {
        "question": "The commonest number.",
        "solutions": [f"{head}return Counter(xs).most_common(1)[0][0] if xs else None"],
        "input_output": {"fn_name": "most", "inputs": [[[2, 1, 2]], [[]]], "outputs": [2, None]},
        "starter_code": head,
    }
    task = CodeTask(data=write(tmp_path / "s.jsonl", row))
    wrong = f"{head}return xs[0] if xs else 0"
    assert grades(task, 0, expert(task, 0, True), wrong) == ["AC", "WA"]


def test_outputs_that_apps_wraps_are_unwrapped_for_functions_only(tmp_path):
    tests = {"fn_name": "f", "inputs": [[1], [2]], "outputs": [[1], [2]]}
    row = {"question": "Give it back.", "input_output": tests}
    method = {**row, "starter_code": "class Solution:\n    def f(self, x):"}
    task = CodeTask(data=write(tmp_path / "w.jsonl", row, method))
    plain, listed = "def f(x):\n    return x", "def f(x):\n    return [x]"
    assert grades(task, 0, plain, listed) == ["AC", "WA"]
    inside = "class Solution:\n    f = staticmethod(lambda x: {})"
    assert grades(task, 1, inside.format("x"), inside.format("[x]")) == ["WA", "AC"]


def test_tests_in_a_list_with_json_values(tmp_path):
    as_text = {**LISTED, "tests": json.dumps(LISTED["tests"])}
    cases = {"test_cases": [{"type": "function_call", "fn_name": "inc", "input": [3], "output": 4}]}
    task = CodeTask(
        data=write(tmp_path / "l.jsonl", LISTED, as_text, {**LISTED, "tests": cases, "metadata": 0})
    )
    for index in range(3):
        assert grades(task, index, expert(task, index, True), "def inc(n):\n    return 2") == [
            "AC", "WA",
        ]  # fmt: skip


def test_columns_and_layouts_by_name(tmp_path):
    row = {"ask": "Add.", "ref": "def f(a):\n    return a", "checks": ["assert f(1) == 1"]}
    columns = {"text": "ask", "solution": "ref", "tests": "checks"}
    task = CodeTask(data=write(tmp_path / "o.jsonl", row), layout="mbpp", columns=columns)
    assert grades(task, 0, expert(task, 0, True)) == ["AC"]
    arguments = "text:ask, solution:ref, tests:checks"
    assert CodeTask(data=task.data, layout="mbpp", columns=arguments) == task
    for wrong in ("text", "text:", 5, {"text": 5}, [("text",)]):
        with pytest.raises(UsageError, match="columns: expected column names by key of the layout"):
            CodeTask(data=task.data, columns=wrong)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="neither an existing file"):
        CodeTask(data="x" * 5000)
    with pytest.raises(UsageError, match="Did you mean 'tests'"):
        CodeTask(data=str(tmp_path / "o.jsonl"), columns={"test": "checks"})
    with pytest.raises(UsageError, match="humaneval"):
        CodeTask(data=str(tmp_path / "o.jsonl"), layout="humanevil")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        *(({**TABLES["rows"][n], **new}, message) for n, new, message in TABLES["humaneval"]),
        ("{broken", "line 2: not a JSON object"),
        ([1], "line 2: expected an object"),
        ({**CHECKED, "prompt": "import (\n" + CHECKED["prompt"]}, "the code before the function"),
        ({**CHECKED, "prompt": CHECKED["prompt"] + "\ud800"}, "text is not Unicode text"),
        ({k: v for k, v in CHECKED.items() if k != "test"}, "line 2: column 'test' with the tests"),
    ],
)
def test_broken_humaneval_lines_are_named(tmp_path, row, message):
    with pytest.raises(DataError, match=message):
        CodeTask(data=write(tmp_path / "b.jsonl", CHECKED, row))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        *(({**TABLES["rows"][n], **new}, message) for n, new, message in TABLES["broken"]),
        ({"foo": 1}, r"line 1: no known layout has the columns \['foo'\]"),
    ],
)
def test_broken_lines_of_other_layouts_are_named(tmp_path, row, message):
    with pytest.raises(DataError, match=message):
        CodeTask(data=write(tmp_path / "b.jsonl", row))


def test_a_problem_without_a_reference_cannot_be_played_by_experts(tmp_path):
    row = {key: value for key, value in PRINTED.items() if key != "solutions"}
    task = CodeTask(data=write(tmp_path / "n.jsonl", row))
    with pytest.raises(UsageError, match=r"n\.jsonl, line 1: the problem has no reference"):
        expert(task, 0, True)
    assert grades(task, 0, "a, b = map(int, input().split())\nprint(a + b)") == ["AC"]


def test_examples_of_docstrings_are_read_not_executed():
    prompt = (
        'def f(x):\n    """\n    >>> f([1], k=2)\n    3\n    >>> f(__import__("os"))\n    1\n'
        "    >>> g(1)\n    1\n    >>> f(2)\n    Error: no\n    >>> f(\n    7\n"
        '    >>> f((1, 2))\n    (2, 1)\n    """\n'
    )
    results = docstring_examples(prompt, "f")
    assert [(test.args, dict(test.kwargs), test.expected) for test in results] == [
        (([1],), {"k": 2}, 3),
        (((1, 2),), {}, (2, 1)),
    ]


def test_a_prelude_stands_before_the_answer():
    assert with_prelude("a = 1", "") == "a = 1"
    assert with_prelude("a = 1", "import os\n") == "import os\n\na = 1"
    late = "from __future__ import annotations\na = 1"
    assert with_prelude(late, "import os") == (
        "from __future__ import annotations\nimport os\n\na = 1"
    )


def test_humaneval_itself():
    task = CodeTask(data=str(shared_file("humaneval/HumanEval.jsonl")))
    assert task.size("all") == 164
    problems = [task.problem(index, "all") for index in range(164)]
    assert sum(bool(problem.meta["public"]) for problem in problems) > 100
    for right in (True, False):
        answers = [task.answer(task.solve(p, random.Random(0), right)) for p in problems]
        graded = task.grade_batch(problems, answers)
        bad = [p.meta["entry"] for p, g in zip(problems, graded, strict=True) if g.score != right]
        assert bad == []


def test_kinds_of_tests(tmp_path):
    kinds = {}
    for name, row in (("h", CHECKED), ("m", ASSERTED), ("p", PRINTED), ("c", CALLED)):
        task = make_task("code", data=write(tmp_path / f"{name}.jsonl", row))
        kinds[name] = {type(test) for test in task.problem(0, "all").meta["hidden"]}
    assert kinds == {"h": {CheckTest}, "m": {CheckTest}, "p": {StdinTest}, "c": {CallTest}}
