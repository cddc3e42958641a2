r"""Reader of a tester's test cases.

| read | not read |
|---|---|
| a list of `{"input": ..., "output": ...}`, as JSON or with Python's literals (`True`, tuples, a comma at the end) | calls, sums, comprehensions, sets, bytes: anything that would have to be evaluated |
| the reply itself, or the last block labeled `json`, `python` or not at all; behind a name, `tests = [...]` | a list within prose; a program; several lists side by side |
"""  # noqa: E501 - rows of tables

import ast
import json
import re
from typing import Any

from flowzoo.envs.text import visible
from flowzoo.reward.code.score import python_tree
from flowzoo.sandbox.program import CallTest, Compare, StdinTest, Test

MOST_CASES = 8  # test cases of one reply that are used
LONGEST = 10_000  # characters of the list of test cases
DEEPEST = 20  # lists within lists of a test case
_LOOSE = Compare("number", tuples_as_lists=True)
_BLOCK = re.compile(r"```(?:json|python|py|)[ \t]*\n(.*?)\n[ \t]*```", re.DOTALL | re.IGNORECASE)
_NAMED = re.compile(r"#|[A-Za-z_]\w{0,40}(?:: ?\w{1,40})? ?= ?\[")
_JSON = {"true": True, "false": False, "null": None}


def read_tests(text: str, entry: str | None) -> tuple[Test, ...] | None:
    """Read the test cases of a reply: its last block, or the reply itself; None if unreadable."""
    reply = visible(text)[-2 * LONGEST :]
    blocks = _BLOCK.findall(reply) if "```" in reply else []
    raw = (blocks[-1] if blocks else reply).strip()
    cases = _list(raw) if len(raw) <= LONGEST else None
    if cases is None:
        return None
    tests = [_test(case, entry) for case in cases[:MOST_CASES]]
    readable = tuple(test for test in tests if test is not None)
    return readable if readable and len(readable) == len(tests) else None


def _list(raw: str) -> list[Any] | None:
    if raw.startswith("["):
        try:
            return json.loads(raw)
        except (ValueError, RecursionError):
            pass
    elif not _NAMED.match(raw):
        return None
    tree = python_tree(raw, 2 * DEEPEST)
    match tree.body if tree is not None else []:
        case [ast.Expr(value=ast.List() as listed)]:
            pass
        case [ast.Assign(targets=[ast.Name()], value=ast.List() as listed)]:
            pass
        case [ast.AnnAssign(target=ast.Name(), value=ast.List() as listed)]:
            pass
        case _:
            return None
    try:
        return _value(listed)
    except ValueError:
        return None


def _value(node: ast.expr | None) -> Any:
    # The value of a literal; tuples become lists, as in JSON.
    match node:
        case ast.Constant(value=str() | int() | float() | None as value):
            return value
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_value(item) for item in items]
        case ast.Dict(keys=keys, values=values):
            names = [_value(key) for key in keys]
            if all(isinstance(name, str) for name in names):
                return dict(zip(names, map(_value, values), strict=True))
        case ast.UnaryOp(
            op=ast.USub() | ast.UAdd() as sign, operand=ast.Constant(value=int() | float() as value)
        ) if not isinstance(value, bool):
            return -value if isinstance(sign, ast.USub) else value
        case ast.Name(id="true" | "false" | "null" as name):
            return _JSON[name]
    raise ValueError("not a JSON literal")


def _test(case: object, entry: str | None) -> Test | None:
    if not isinstance(case, dict) or not {"input", "output"} <= case.keys():
        return None
    given, expected = case["input"], case["output"]
    if max(depth(given), depth(expected)) > DEEPEST:
        return None
    if entry is None:
        both = isinstance(given, str) and isinstance(expected, str)
        return StdinTest(given, expected) if both else None
    return CallTest(tuple(given), expected, compare=_LOOSE) if isinstance(given, list) else None


def depth(value: object) -> int:
    """Depth of nested lists and objects, 1 for a plain value; without recursion."""
    level, deep = [value], 0
    while level:
        deep += 1
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
    return deep
