"""Mutants of reference solutions: programs with one change each."""

from __future__ import annotations

import ast
import random
from collections.abc import Callable, Iterator
from typing import Any

OPERATORS: dict[type, tuple[type, ...]] = {
    ast.Add: (ast.Sub,), ast.Sub: (ast.Add,), ast.Mult: (ast.Add,), ast.Div: (ast.FloorDiv,),
    ast.FloorDiv: (ast.Div,), ast.Mod: (ast.FloorDiv,), ast.Pow: (ast.Mult,),
    ast.Lt: (ast.LtE, ast.Gt), ast.LtE: (ast.Lt,), ast.Gt: (ast.GtE, ast.Lt), ast.GtE: (ast.Gt,),
    ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,), ast.In: (ast.NotIn,), ast.NotIn: (ast.In,),
    ast.And: (ast.Or,), ast.Or: (ast.And,), ast.BitXor: (ast.BitOr,), ast.BitAnd: (ast.BitOr,),
}  # fmt: skip
Change = Callable[[], None]  # changes one node of a tree in place


def _set(node: ast.AST, **values: Any) -> Change:
    return lambda: vars(node).update(values)


def changes(node: ast.AST) -> Iterator[Change]:
    """The changes of one node: operators, constants, conditions, statements, results."""
    if isinstance(node, ast.BinOp | ast.AugAssign | ast.BoolOp):
        yield from (_set(node, op=other()) for other in OPERATORS.get(type(node.op), ()))
    elif isinstance(node, ast.Compare):
        others = OPERATORS.get(type(node.ops[0]), ())
        yield from (_set(node, ops=[other(), *node.ops[1:]]) for other in others)
    elif isinstance(node, ast.Constant):
        yield from (_set(node, value=value) for value in _constants(node.value))
    elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.expr):
        if not isinstance(node.slice, ast.Slice):  # off by one
            yield _set(node, slice=ast.BinOp(node.slice, ast.Add(), ast.Constant(1)))
    elif isinstance(node, ast.If | ast.While | ast.IfExp):
        yield _set(node, test=ast.UnaryOp(ast.Not(), node.test))
    elif isinstance(node, ast.Return) and node.value is not None:
        yield _set(node, value=ast.Constant(None))
        yield _set(node, value=ast.Call(ast.Name("iter", ast.Load()), [node.value], []))
    for name in ("body", "orelse"):
        statements = getattr(node, name, None)
        if isinstance(statements, list) and not isinstance(node, ast.Module):
            for place in range(len(statements)):
                rest = [*statements[:place], ast.Pass(), *statements[place + 1 :]]
                yield _set(node, **{name: rest})


def _constants(value: Any) -> list[Any]:
    if type(value) is bool:
        return [not value]
    if type(value) in (int, float):
        return [value + 1, value - 1]
    return [value + "x", value[1:]] if type(value) is str and value else []


def mutants(source: str, count: int, rng: random.Random, given: int = 0) -> list[str]:
    """Up to `count` different programs, each made by one change behind the lines `given`."""
    nodes = [*ast.walk(ast.parse(source))]
    places = [
        (row, number)
        for row, node in enumerate(nodes)
        if getattr(node, "lineno", 0) > given
        for number, _ in enumerate(changes(node))
    ]
    rng.shuffle(places)
    original, found = ast.unparse(ast.parse(source)), dict[str, None]()
    for row, number in places:
        if len(found) == count:
            break
        tree = ast.parse(source)
        [*changes([*ast.walk(tree)][row])][number]()
        text = ast.unparse(ast.fix_missing_locations(tree))
        if text != original:
            found[text] = None
    return [*found]
