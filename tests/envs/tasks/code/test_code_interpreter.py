"""The walk over programs of ours: values by hand, and what it refuses."""

import ast

import pytest

from flowzoo.envs.tasks.code.interpreter import STEPS, InterpreterError, run_function, run_program
from tests.tables import read_tables

TABLES = read_tables(__file__)


@pytest.mark.parametrize(
    ("source", "args", "value"),
    [
        *TABLES["values"],
        ("def f(x):\n    pass_by = x\n    if x > 3:\n        return 'big'", [1], None),
    ],
)
def test_values(source, args, value):
    assert run_function(source, "f", tuple(args)) == value


def test_arguments_are_copied():
    given = [[1], {"a": [2]}]
    source = "def f(x):\n    x[0].append(5)\n    x[1]['a'].append(6)\n    return x"
    assert run_function(source, "f", (given,)) == [[1, 5], {"a": [2, 6]}]
    assert given == [[1], {"a": [2]}]


def test_printing():
    source = "n = int(input())\nfor i in range(n):\n    print(i, input())\nprint()"
    assert run_program(source, "2\na b\nc\n") == "0 a b\n1 c\n\n"


@pytest.mark.parametrize("body", TABLES["stuck"])
def test_what_does_not_end_raises_or_is_not_read_is_stuck(body):
    with pytest.raises(InterpreterError):
        run_function(ast.parse(f"def f(x):\n    {body}"), "f", (3,))


def test_input_that_is_missing_is_stuck():
    with pytest.raises(InterpreterError):
        run_program("print(input() + input())", "one line\n")
    assert STEPS > 1_000
