"""Differences of answers in sympy, for the published grader. Runs in killable workers.

Sympy's transformations turn a text into an expression of Python, whose tree is computed here: no
text of a model reaches `eval`, and nothing but sympy's numbers, symbols and functions is called.
"""

import ast
import builtins
import json
import operator
from collections.abc import Callable
from types import BuiltinFunctionType
from typing import Any, Final

import sympy
from sympy.core.function import FunctionClass
from sympy.parsing.sympy_parser import (
    implicit_multiplication_application,
    standard_transformations,
    stringify_expr,
)

_RULES: Final = (*standard_transformations, implicit_multiplication_application)
_NAMES: Final = {name: getattr(sympy, name) for name in sympy.__all__} | {
    # Names that sympy's parser finds, so that none of them is read as a product of symbols.
    name: function
    for name, function in vars(builtins).items()
    if isinstance(function, BuiltinFunctionType)
}
_MAKERS: Final = ("Integer", "Float", "Number", "Rational", "Symbol", "Function")
"""Classes that the transformations make of numbers and letters."""
_OPERATORS: Final[dict[type[ast.AST], Callable[..., Any]]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.Div: operator.truediv, ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
    ast.Pow: operator.pow, ast.USub: operator.neg, ast.UAdd: operator.pos, ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}  # fmt: skip


def setup() -> Callable[[bytes], bytes]:
    """Return the handler of a difference, as JSON, to `1` or `0`."""
    handle(b'"(sqrt(2)*x)-(x)"')  # imports what sympy loads late
    return handle


def handle(job: bytes) -> bytes:
    """Return `1` if sympy simplifies a difference to 0, else `0`."""
    try:
        return b"1" if sympy.simplify(_parse_value(json.loads(job))) == 0 else b"0"
    except MemoryError:
        raise
    except Exception:  # sympy raises many kinds on what is no expression
        return b"0"


def _parse_value(text: str) -> Any:
    code = stringify_expr(text.replace("^", "**"), {}, dict(_NAMES), _RULES)
    return _value(ast.parse(code, mode="eval").body)


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.BinOp):
        return _OPERATORS[type(node.op)](_value(node.left), _value(node.right))
    if isinstance(node, ast.UnaryOp):
        return _OPERATORS[type(node.op)](_value(node.operand))
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        return _OPERATORS[type(node.ops[0])](_value(node.left), _value(node.comparators[0]))
    if isinstance(node, ast.Name) and isinstance(_NAMES[node.id], sympy.Basic):
        return _NAMES[node.id]
    if isinstance(node, ast.Call) and not node.keywords:
        return _call_maker(node)
    raise ValueError(f"no expression: {ast.dump(node)}")


def _call_maker(node: ast.Call) -> Any:
    if isinstance(node.func, ast.Name) and node.func.id in _MAKERS:
        constants = [argument.value for argument in node.args if isinstance(argument, ast.Constant)]
        if len(constants) == len(node.args):
            return getattr(sympy, node.func.id)(*constants)
    function = _NAMES.get(node.func.id) if isinstance(node.func, ast.Name) else _value(node.func)
    if not (isinstance(function, FunctionClass) or function is sympy.sqrt):
        raise ValueError(f"no function of sympy: {function!r}")
    return function(*map(_value, node.args))
