"""Examples of a function in its docstring, read as tests."""

from __future__ import annotations

import ast
import re

from flowzoo.sandbox.program import CallTest, Compare

_QUOTES = re.compile(r'"""|\'\'\'')
_EXAMPLE = re.compile(
    r"^[ \t]*(?:>>>|For|\*|-|[0-9]+\.)?[ \t]*(\w+\(.*\))[ \t]*"
    r"(?:==?>?|➞|->|➔|returns?|should return)[ \t]*(.+?)[ \t]*[.;,]?$",
    re.MULTILINE,
)
_EQUAL = Compare("number")


def docstring_examples(prompt: str, entry: str) -> tuple[CallTest, ...]:
    """The examples that call `entry` with plain data and expect plain data.

    Doctests, and lines such as `f(2) == 4` or `f(2) ➞ 4`; they are parsed, never executed.
    """
    import doctest  # brings the debugger and unittest

    try:
        # The last example runs into the quotes that end the docstring.
        shown = [
            (item.source, _QUOTES.split(item.want)[0])
            for item in doctest.DocTestParser().get_examples(prompt)
        ]
    except ValueError:  # they are not indented alike
        shown = []
    shown += [match.groups() for match in _EXAMPLE.finditer(prompt)]
    tests = (_example(call.strip(), expected.strip(), entry) for call, expected in shown)
    return tuple(test for test in tests if test is not None)


def _example(call: str, expected: str, entry: str) -> CallTest | None:
    try:
        made = ast.parse(call, mode="eval").body
        if not isinstance(made, ast.Call) or ast.unparse(made.func) != entry:
            return None
        args = tuple(ast.literal_eval(arg) for arg in made.args)
        options = {str(item.arg): ast.literal_eval(item.value) for item in made.keywords}
        return CallTest(args, ast.literal_eval(expected), options, _EQUAL)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None
