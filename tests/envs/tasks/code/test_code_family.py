"""Runs of flowzoo's own programs: values by hand, and what ends a run."""

import pytest

from flowzoo.envs.tasks.code.family import ProgramError, compiled, outcome
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
    assert outcome(compiled(source), "f", tuple(args)) == value


def test_arguments_are_copied():
    given = [[1], {"a": [2]}]
    source = "def f(x):\n    x[0].append(5)\n    x[1]['a'].append(6)\n    return x"
    assert outcome(compiled(source), "f", (given,)) == [[1, 5], {"a": [2, 6]}]
    assert given == [[1], {"a": [2]}]


def test_printing():
    source = "n = int(input())\nfor i in range(n):\n    print(i, input())\nprint()"
    assert outcome(compiled(source), None, "2\na b\nc\n") == "0 a b\n1 c\n\n"


@pytest.mark.parametrize("body", TABLES["stuck"])
def test_what_does_not_end_or_raises_is_stuck(body):
    with pytest.raises(ProgramError):
        outcome(compiled(f"def f(x):\n    {body}"), "f", (3,))


def test_input_that_is_missing_is_stuck():
    with pytest.raises(ProgramError):
        outcome(compiled("print(input() + input())"), None, "one line\n")
