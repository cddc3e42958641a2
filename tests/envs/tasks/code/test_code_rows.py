"""Files as they are published: rows of no use, long outputs, packages, arrays, contest layouts."""

import base64
import gzip
import json
import logging
import pickle
import zlib
from typing import Any

import pytest

from flowzoo.envs.tasks.code.layouts import listed_tests
from flowzoo.envs.tasks.code.task import CodeTask
from flowzoo.errors import DataError, UsageError
from flowzoo.sandbox.program import StdinTest
from flowzoo.sandbox.sandbox import Sandbox
from tests.envs.playing import write_rows as write
from tests.envs.tasks.code.grading import expert, grades

ADD = "a, b = map(int, input().split())\nprint(a + b)"
GOOD = {
    "question": "Add.",
    "solutions": [ADD],
    "input_output": {"inputs": ["2 3\n", "10 5\n"], "outputs": ["5\n", "15\n"]},
}
EMPTY = {**GOOD, "question": "Nothing.", "input_output": ""}
NO_TESTS = {**GOOD, "question": "Nothing here.", "input_output": {"inputs": [], "outputs": []}}
WRONG = {**GOOD, "question": "Subtract.", "solutions": ["print(0)"]}
ASSERTED = {
    "text": "Twice.",
    "code": "def twice(x):\n    return 2 * x",
    "test_list": ["assert twice(2) == 4"],
}


GOOD_ASSERTED = {**ASSERTED, "text": "Twice, as ever."}


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
        json.dumps(ASSERTED).encode()[:40],
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
    asserted = {**ASSERTED, "test_list": ["assert twice(1) == 2", "assert True"]}
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


def test_generated_problems_have_no_rows_to_skip():
    for name in ("skip_unusable", "check_references"):
        with pytest.raises(UsageError, match="give data"):
            CodeTask(**{name: True})


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
    row = {**ASSERTED, "test": "for n in range(9):\n    assert twice(n) == n + n"}
    task = CodeTask(data=write(tmp_path / "m.jsonl", row))
    assert grades(task, 0, expert(task, 0), "def twice(x):\n    return 4") == ["AC", "WA"]
    with pytest.raises(DataError, match="not Python, in column 'test'"):
        CodeTask(data=write(tmp_path / "n.jsonl", {**row, "test": "assert ("}))


def test_modules_that_a_box_does_not_have_are_named_before_anything_runs(tmp_path):
    for module, remedy in (("numpy", "packages=numpy"), ("pandas", "only have numpy")):
        row = {**ASSERTED, "test_imports": [f"import {module} as x"]}
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
        **ASSERTED,
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
    endless = {**ASSERTED, "test_list": ["twice(1)\nwhile True: pass"]}
    task = CodeTask(data=write(tmp_path / "a.jsonl", endless), cpu_s=0.1, wall_s=0.5)
    (status,) = grades(task, 0, ASSERTED["code"])
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
