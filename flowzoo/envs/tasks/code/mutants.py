"""Wrong variants of the reference programs: one node differs, as in a plausible mistake."""

from __future__ import annotations

import ast
import copy
import random
from collections.abc import Callable, Iterator

from flowzoo.envs.tasks.code.family import CodeInstance, fails

MOST_TRIED = 60

_OPERATORS: dict[type, tuple[type, ...]] = {
    ast.Add: (ast.Sub, ast.Mult),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Add,),
    ast.FloorDiv: (ast.Mod, ast.Mult),
    ast.Mod: (ast.FloorDiv,),
}
_COMPARISONS: dict[type, type] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_NAMES = {
    "min": "max",
    "max": "min",
    "any": "all",
    "all": "any",
    "sum": "len",
    "upper": "lower",
    "lower": "upper",
    "startswith": "endswith",
    "endswith": "startswith",
    "isdigit": "isalpha",
    "isalpha": "isdigit",
    "keys": "values",
}

Change = Callable[[], None]  # changes one node of a tree in place


def _set(node: ast.AST, **values: object) -> Change:
    def change() -> None:
        for name, value in values.items():
            setattr(node, name, value)

    return change


def _regrouped(node: ast.BinOp, inner: ast.BinOp) -> Change:
    """`(a + b) * c` as `a + b * c`."""
    right = ast.BinOp(inner.right, node.op, node.right)
    return _set(node, left=inner.left, op=inner.op, right=right)


def changes(node: ast.AST) -> Iterator[Change]:
    """Every mistake that can be made at a node."""
    if isinstance(node, ast.BinOp | ast.AugAssign):
        for other in _OPERATORS.get(type(node.op), ()):
            yield _set(node, op=other())
    if isinstance(node, ast.BinOp):
        if isinstance(node.op, ast.Sub | ast.FloorDiv | ast.Mod):
            yield _set(node, left=node.right, right=node.left)
        if isinstance(node.left, ast.BinOp):
            yield _regrouped(node, node.left)
    elif isinstance(node, ast.Compare):
        for position, op in enumerate(node.ops):
            changed = [*node.ops[:position], _COMPARISONS[type(op)](), *node.ops[position + 1 :]]
            yield _set(node, ops=changed)
    elif isinstance(node, ast.BoolOp):
        yield _set(node, op=ast.And() if isinstance(node.op, ast.Or) else ast.Or())
    elif isinstance(node, ast.Constant):
        if type(node.value) is bool:
            yield _set(node, value=not node.value)
        elif type(node.value) is int:
            yield _set(node, value=node.value + 1)
            if node.value > 0:
                yield _set(node, value=node.value - 1)
    elif isinstance(node, ast.Call) and len(node.args) == 2 and not node.keywords:
        yield _set(node, args=node.args[::-1])
    elif isinstance(node, ast.Name) and node.id in _NAMES:
        yield _set(node, id=_NAMES[node.id])
    elif isinstance(node, ast.Attribute) and node.attr in _NAMES:
        yield _set(node, attr=_NAMES[node.attr])


def count_changes(source: str) -> int:
    """Number of variants of a program."""
    return sum(1 for node in ast.walk(ast.parse(source)) for _ in changes(node))


def variant(source: str, number: int) -> ast.Module:
    """The program with change `number` made (from 0)."""
    tree = copy.deepcopy(ast.parse(source))
    position = 0
    for node in ast.walk(tree):
        for change in list(changes(node)):
            if position == number:
                change()
                return ast.fix_missing_locations(tree)
            position += 1
    raise IndexError(number)


def wrong_program(instance: CodeInstance, rng: random.Random) -> str:
    """A variant of the reference that fails the hidden tests."""
    # Wrong outputs come first, then errors, then a program that does nothing.
    total = count_changes(instance.source)
    unfinished = ""
    for number in rng.sample(range(total), min(total, MOST_TRIED)):
        tree = variant(instance.source, number)
        verdict = fails(tree, instance)
        if verdict == "wrong":
            return ast.unparse(tree)
        unfinished = unfinished or (ast.unparse(tree) if verdict == "error" else "")
    return unfinished or nothing(instance.entry)


def nothing(entry: str | None) -> str:
    """A program that does nothing: it prints nothing, or its entry returns None."""
    if entry is None:
        return "pass"
    owner, dot, method = entry.partition(".")
    if dot:
        return f"class {owner}:\n\n    def {method}(self, *args):\n        return None"
    return f"def {entry}(*args, **options):\n    return None"
