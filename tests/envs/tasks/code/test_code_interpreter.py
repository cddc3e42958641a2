"""The walk over programs of ours: values by hand, and what it refuses."""

from __future__ import annotations

import ast
from typing import Any

import pytest

from flowzoo.envs.tasks.code.interpreter import STEPS, InterpreterError, printed, returned


@pytest.mark.parametrize(
    ("source", "args", "value"),
    [
        ("def f(x):\n    return (x + 3) * 4 // 5 % 3 - -x", (4,), 6),
        ("def f(s):\n    return s[::-1].upper()[1:]", ("abc",), "BA"),
        ("def f(a):\n    a[0], b = a[1], 7\n    return a + [b]", ([1, 2],), [2, 2, 7]),
        ("def f(n):\n    while True:\n        n -= 1\n        if n < 3:\n            break\n"
         "        if n % 2:\n            continue\n    return n", (9,), 2),
        ("def f(d):\n    return {k: v for k, v in d.items() if v > 1 and not k == 'b'}",
         ({"a": 2, "b": 3, "c": 0},), {"a": 2}),
        ("def f(w):\n    return sorted(w, key=lambda x: (-len(x), x))", (["b", "aa", "a"],),
         ["aa", "a", "b"]),
        ("def f(x):\n    return 1 < x < 5 or x == 9", (9,), True),
        ("def f(x):\n    return [i * j for i in range(3) if i for j in (1, x)]", (5,),
         [1, 5, 2, 10]),
        ("def f(x):\n    pass_by = x\n    if x > 3:\n        return 'big'", (1,), None),
        ("def f(t):\n    return sum((int(c) for c in t if c.isdigit()))", ("a1b2",), 3),
    ],
)  # fmt: skip
def test_values(source: str, args: tuple[Any, ...], value: Any) -> None:
    assert returned(source, "f", args) == value


def test_arguments_are_copied() -> None:
    given = [[1], {"a": [2]}]
    source = "def f(x):\n    x[0].append(5)\n    x[1]['a'].append(6)\n    return x"
    assert returned(source, "f", (given,)) == [[1, 5], {"a": [2, 6]}]
    assert given == [[1], {"a": [2]}]


def test_printing() -> None:
    source = "n = int(input())\nfor i in range(n):\n    print(i, input())\nprint()"
    assert printed(source, "2\na b\nc\n") == "0 a b\n1 c\n\n"


@pytest.mark.parametrize(
    "body",
    ["while True:\n        pass", "while x:\n        x = x + 1", "return f(x)", "return x // 0",
     "return missing", "import os", "return open('a')", "return x.real", "return ''.format",
     "return 'a' * 100000 * x", "return [0] * 99999", "return __import__('os')", "return 2 ** x",
     "return x.__class__", "global y", "return eval('1')"],
)  # fmt: skip
def test_what_does_not_end_raises_or_is_not_read_is_stuck(body: str) -> None:
    with pytest.raises(InterpreterError):
        returned(ast.parse(f"def f(x):\n    {body}"), "f", (3,))


def test_input_that_is_missing_is_stuck() -> None:
    with pytest.raises(InterpreterError):
        printed("print(input() + input())", "one line\n")
    assert STEPS > 1_000
