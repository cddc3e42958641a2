"""Code files as they are published: layouts, rows of no use, inputs and outputs, packages."""

import base64
import gzip
import json
import logging
import pickle
import random
import zlib
from itertools import product
from typing import Any

import pytest

from flowzoo.envs.tasks.code.io import output_rule, runs_here
from flowzoo.envs.tasks.code.layouts import docstring_examples, listed_tests, with_prelude
from flowzoo.envs.tasks.code.task import CodeTask
from flowzoo.errors import DataError, UsageError
from flowzoo.sandbox.program import StdinTest
from flowzoo.sandbox.sandbox import Sandbox
from tests.envs.playing import write_rows as write
from tests.tables import read_tables, shared_file


def grades(task: CodeTask, index: int, *answers: str) -> list[str]:
    """Statuses of answers to a problem."""
    problem = task.problem(index, "all")
    return [grade.status for grade in task.grade_batch([problem] * len(answers), list(answers))]


def expert(task: CodeTask, index: int, right: bool = True) -> str:
    """The answer of a right or a wrong expert."""
    reply = task.solve(task.problem(index, "all"), random.Random(0), right)
    return task.answer(reply) or ""


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


def test_outputs_are_compared_by_their_rule(tmp_path):
    rows = [
        ("Print it.", ["009"], "9", "WA"),
        ("Print it.", ["40"], "39.9999999990", "WA"),
        ("Print it.", ["40"], "40.0", "AC"),
        ("Print it.", ["3.5"], "3.4999999999", "AC"),
        ("The error may be 1e-6.", ["3"], "2.9999999990", "AC"),
    ]
    tests = [{"inputs": [""] * len(outputs), "outputs": outputs} for _, outputs, *_ in rows]
    asked = [{"question": row[0], "input_output": t} for row, t in zip(rows, tests, strict=True)]
    task = CodeTask(data=write(tmp_path / "a.jsonl", *asked))
    for index, (*_, printed, status) in enumerate(rows):
        assert grades(task, index, f"print('{printed}')") == [status]


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


ADD = "a, b = map(int, input().split())\nprint(a + b)"
GOOD = {
    "question": "Add.",
    "solutions": [ADD],
    "input_output": {"inputs": ["2 3\n", "10 5\n"], "outputs": ["5\n", "15\n"]},
}
EMPTY = {**GOOD, "question": "Nothing.", "input_output": ""}
NO_TESTS = {**GOOD, "question": "Nothing here.", "input_output": {"inputs": [], "outputs": []}}
WRONG = {**GOOD, "question": "Subtract.", "solutions": ["print(0)"]}
TWICE = {
    "text": "Twice.",
    "code": "def twice(x):\n    return 2 * x",
    "test_list": ["assert twice(2) == 4"],
}


GOOD_ASSERTED = {**TWICE, "text": "Twice, as ever."}


def test_all_rows_of_no_use_are_listed_at_once(tmp_path):
    data = write(tmp_path / "a.jsonl", GOOD, EMPTY, {**GOOD, "question": "More."}, NO_TESTS)
    with pytest.raises(DataError) as caught:
        CodeTask(data=data)
    lines = str(caught.value).split("\n")
    assert "2 of 4 rows cannot be used" in lines[0]
    assert "skip_unusable" in lines[0]
    assert "line 2: the tests are not JSON" in lines[1]
    assert "line 4: the tests have no lists" in lines[2]
    task = CodeTask(data=data, skip_unusable=True)
    assert (task.size("all"), task.unusable) == (2, 2)
    assert [task.problem(index, "all").meta["row"] for index in range(2)] == [1, 3]


def test_torn_lines_and_other_encodings_are_rows_of_no_use(tmp_path):
    path = tmp_path / "torn.jsonl"
    lines = [
        json.dumps(TWICE).encode()[:40],
        json.dumps(GOOD_ASSERTED).encode(),
        b'{"text": "\xff"}',
    ]
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(DataError, match=r"2 of 3 rows cannot be used.*skip_unusable") as caught:
        CodeTask(data=str(path))
    for line in (1, 3):
        assert f"line {line}: not a JSON object" in str(caught.value)
    task = CodeTask(data=str(path), skip_unusable=True)
    assert (task.size("all"), task.unusable, task.problem(0, "all").meta["row"]) == (1, 2, 2)


HUMANEVAL = {"prompt": "def f(x):\n", "entry_point": "f", "canonical_solution": "    return x\n"}


@pytest.mark.parametrize(
    "test",
    [
        "def check(candidate):\n    pass",
        "def check(candidate):\n    assert True",
        "def check(g):\n    candidates = [1]\n    assert candidates",
    ],
)
def test_tests_that_never_call_the_program_are_of_no_use(tmp_path, test):
    good = {**HUMANEVAL, "test": "def check(g):\n    assert all(map(g, [1]))"}
    data = write(tmp_path / "a.jsonl", good, {**HUMANEVAL, "test": test})
    with pytest.raises(DataError, match="line 2: the tests never call f, so every program passes"):
        CodeTask(data=data)
    assert CodeTask(data=data, skip_unusable=True).size("all") == 1
    asserted = {**TWICE, "test_list": ["assert twice(1) == 2", "assert True"]}
    assert CodeTask(data=write(tmp_path / "b.jsonl", asserted)).size("all") == 1


def test_tests_that_assert_nothing_are_said_with_their_lines(tmp_path, caplog):
    bodies = "c(1)", "assert c(1) == 1", "c(2)", "if c(1) != 1:\n        raise ValueError"
    rows = [f"def check(c):\n    {body}" for body in bodies]
    data = write(tmp_path / "a.jsonl", *({**HUMANEVAL, "test": test} for test in rows))
    with caplog.at_level(logging.WARNING, logger="flowzoo.tasks"):
        assert CodeTask(data=data).size("all") == 4
    assert "assert nothing" in caplog.text
    assert "line 1, 3\n" in caplog.text


def test_a_first_row_of_no_use_does_not_hide_the_layout(tmp_path):
    data = write(tmp_path / "a.jsonl", {"question": "?"}, GOOD)
    assert CodeTask(data=data, skip_unusable=True).size("all") == 1


def test_a_file_without_a_usable_row_is_an_error_in_any_case(tmp_path):
    data = write(tmp_path / "a.jsonl", EMPTY, NO_TESTS)
    with pytest.raises(DataError, match="2 of 2 rows"):
        CodeTask(data=data, skip_unusable=True)


def test_references_are_checked_where_asked_for(tmp_path):
    data = write(tmp_path / "a.jsonl", GOOD, WRONG, {**GOOD, "question": "?", "solutions": []})
    assert CodeTask(data=data).size("all") == 3
    with pytest.raises(DataError, match=r"line 2: the reference does not pass \(WA\)"):
        CodeTask(data=data, check_references=True)
    task = CodeTask(data=data, check_references=True, skip_unusable=True)
    assert (task.size("all"), task.unusable) == (2, 1)


def test_there_is_room_for_the_longest_expected_output(tmp_path, caplog):
    text = "x" * 100_000
    row = {**GOOD, "solutions": ["print('x' * 100_000)"]}
    row["input_output"] = {"inputs": ["", ""], "outputs": [text, text]}
    data = write(tmp_path / "a.jsonl", GOOD, row)
    with caplog.at_level(logging.WARNING, logger="flowzoo.tasks"):
        task = CodeTask(data=data)
    assert "output_bytes" in caplog.text
    assert "line 2" in caplog.text
    assert task.limits().output_bytes == 200_000
    assert grades(task, 1, expert(task, 1), "print('x' * 99_999)", "print('x' * 300_000)") == [
        "AC", "WA", "OLE",
    ]  # fmt: skip
    assert CodeTask(data=data, output_bytes=100_001).limits().output_bytes == 100_001
    with pytest.raises(UsageError, match="line 2, which has 100000 bytes"):
        CodeTask(data=data, output_bytes=1_000)


def test_limits_are_options(tmp_path):
    data = write(tmp_path / "a.jsonl", GOOD)
    limits = CodeTask(data=data, wall_s=7.5, total_s=3.0, memory_mb=99, cpu_s=1).limits()
    assert (limits.wall, limits.total_s, limits.memory_mb) == (7.5, 3.0, 99)
    with pytest.raises(UsageError, match="`wall_s` must be a number"):
        CodeTask(data=data, wall_s=-1.0)


@pytest.mark.parametrize("name", ["a.json", "a.jsonl", "a.json.gz", "a.jsonl.gz"])
@pytest.mark.parametrize("array", [True, False])
def test_arrays_lines_and_gzip(tmp_path, name, array):
    rows = [GOOD, {**GOOD, "question": "More."}]
    text = json.dumps(rows, indent=1) if array else "".join(json.dumps(row) + "\n" for row in rows)
    content = text.encode()
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    assert CodeTask(data=str(tmp_path / name)).size("all") == 2


def test_broken_arrays_and_gzip_are_named(tmp_path):
    (tmp_path / "a.json").write_text("[{}, ")
    with pytest.raises(DataError, match="starts like a JSON array"):
        CodeTask(data=str(tmp_path / "a.json"))
    (tmp_path / "a.jsonl.gz").write_bytes(b"{}")
    with pytest.raises(DataError, match="not a readable gzip file"):
        CodeTask(data=str(tmp_path / "a.jsonl.gz"))


def test_the_whole_test_of_mbpp_plus_grades(tmp_path):
    row = {**TWICE, "test": "for n in range(9):\n    assert twice(n) == n + n"}
    task = CodeTask(data=write(tmp_path / "m.jsonl", row))
    assert grades(task, 0, expert(task, 0), "def twice(x):\n    return 4") == ["AC", "WA"]
    with pytest.raises(DataError, match="not Python, in column 'test'"):
        CodeTask(data=write(tmp_path / "n.jsonl", {**row, "test": "assert ("}))


def test_modules_that_a_box_does_not_have_are_named_before_anything_runs(tmp_path):
    for module, remedy in (("numpy", "packages=numpy"), ("pandas", "only have numpy")):
        row = {**TWICE, "test_imports": [f"import {module} as x"]}
        data = write(tmp_path / f"{module}.jsonl", GOOD_ASSERTED, row)
        error = UsageError if module == "numpy" else DataError
        with pytest.raises(error, match=f"line 2, import {module}, which .*{remedy}"):
            CodeTask(data=data)
    task = CodeTask(data=data, skip_unusable=True)
    assert (task.size("all"), task.unusable) == (1, 1)
    with pytest.raises(UsageError, match="packages=numpy"):  # to be had, so no row to be skipped
        CodeTask(data=str(tmp_path / "numpy.jsonl"), skip_unusable=True)
    with pytest.raises(UsageError, match="package of the sandbox 'nunpy'"):
        CodeTask(packages="nunpy")


def test_tests_with_numpy(tmp_path):
    row = {
        **TWICE,
        "test": "import numpy as np\nassert np.allclose(twice(np.pi.real), 2 * np.pi)",
    }
    task = CodeTask(data=write(tmp_path / "n.jsonl", row), packages="numpy")
    assert grades(task, 0, expert(task, 0), "def twice(x):\n    return x + 2") == ["AC", "WA"]


def test_a_test_that_never_ends_is_run_once_and_is_no_score(tmp_path, monkeypatch, caplog):
    run, batches = Sandbox.run_sync, []

    def count(sandbox: Sandbox, programs: list[Any], *rest: Any, **more: Any) -> Any:
        batches.append(len(programs))
        return run(sandbox, programs, *rest, **more)

    monkeypatch.setattr(Sandbox, "run_sync", count)
    endless = {**TWICE, "test_list": ["twice(1)\nwhile True: pass"]}
    task = CodeTask(data=write(tmp_path / "a.jsonl", endless), cpu_s=0.1, wall_s=0.5)
    (status,) = grades(task, 0, TWICE["code"])
    assert status.startswith("unknown: the test's own code failed: it does not end")
    assert batches == [1]
    assert "the test's own code failed: it does not end" in caplog.text


def test_an_empty_answer_is_close_to_no_number(tmp_path):
    check = "import numpy as np\ndef check(c):\n    assert np.allclose(c(3.5), 3.5)"
    data = write(tmp_path / "a.jsonl", {**HUMANEVAL, "test": check})
    answers = [
        f"def f(x):\n    return {value}" for value in ("x", "[x]", "x + 1e-12", "[]", "[[]]")
    ]
    task = CodeTask(data=data, packages="numpy")
    assert grades(task, 0, *answers) == ["AC", "AC", "AC", "WA", "WA"]


def packed(tests: list[dict[str, Any]]) -> str:
    return base64.b64encode(zlib.compress(pickle.dumps(json.dumps(tests)))).decode()


def contest(**more: Any) -> dict[str, Any]:
    shown = [{"input": "1 2\n", "output": "3\n", "testtype": "stdin"}]
    hidden = [{"input": "5 5\n", "output": "10\n", "testtype": "stdin"}]
    row = {
        "question_content": "Add two numbers.", "platform": "x", "starter_code": "",
        "public_test_cases": json.dumps(shown), "private_test_cases": packed(hidden),
        "metadata": "{}",
    }  # fmt: skip
    return {**row, **more}


def test_livecodebench(tmp_path):
    method = contest(
        starter_code="class Solution:\n    def add(self, a: int, b: int) -> int:\n        ",
        public_test_cases=json.dumps([{"input": "1\n2", "output": "3", "testtype": "functional"}]),
        private_test_cases=json.dumps([{"input": "4\n4", "output": "8", "testtype": "functional"}]),
        metadata=json.dumps({"func_name": "add"}),
    )
    task = CodeTask(data=write(tmp_path / "l.jsonl", contest(), method))
    problem = task.problem(0, "all")
    assert (len(problem.meta["public"]), len(problem.meta["hidden"])) == (1, 1)
    assert grades(task, 0, ADD, "print(3)") == ["AC", "WA"]
    assert task.problem(1, "all").meta["entry"] == "Solution.add"
    right = "class Solution:\n    def add(self, a, b):\n        return a + b"
    assert grades(task, 1, right, right.replace("a + b", "3")) == ["AC", "WA"]


class Evil:
    def __reduce__(self) -> Any:
        return print, ("executed",)


@pytest.mark.parametrize(
    "value",
    [
        base64.b64encode(zlib.compress(pickle.dumps(Evil()))).decode(),
        base64.b64encode(zlib.compress(pickle.dumps(["[]"]))).decode(),
        base64.b64encode(zlib.compress(b"not a pickle")).decode(),
        base64.b64encode(b"not compressed").decode(),
        "not base64!",
        base64.b64encode(zlib.compress(pickle.dumps("{}"))[:-4]).decode(),
    ],
)
def test_packed_tests_are_read_and_never_executed(value, capsys):
    with pytest.raises(DataError):
        listed_tests("x, line 1", value)
    assert capsys.readouterr().out == ""


def test_codecontests(tmp_path):
    row = {
        "name": "1_A", "description": "Add two numbers.",
        "public_tests": {"input": ["1 2\n"], "output": ["3\n"]},
        "private_tests": {"input": ["5 5\n"], "output": ["10\n"]},
        "generated_tests": {"input": ["7 1\n", "0 0\n"], "output": ["8\n", "0\n"]},
        "solutions": {"language": [2, 3], "solution": ["int main() {}", ADD]},
    }  # fmt: skip
    task = CodeTask(data=write(tmp_path / "c.jsonl", row))
    problem = task.problem(0, "all")
    assert [test.stdin for test in problem.meta["public"]] == ["1 2\n"]
    assert len(problem.meta["hidden"]) == 3
    assert all(isinstance(test, StdinTest) for test in problem.meta["hidden"])
    assert grades(task, 0, expert(task, 0), "print(3)") == ["AC", "WA"]
    bad = {**row, "private_tests": {"input": ["1"], "output": []}}
    with pytest.raises(
        DataError, match="'private_tests' has different numbers of inputs and outputs"
    ):
        CodeTask(data=write(tmp_path / "d.jsonl", bad))
