"""Cutting a reference solution in two, for the scripted experts of the code pair."""

from __future__ import annotations

import ast
import builtins
import copy
from collections.abc import Iterator

from flowzoo.reward.code.pair import AUX, own_nodes, parsed

_MOVABLE = (ast.BinOp, ast.Call, ast.ListComp, ast.Subscript, ast.Compare)
_BUILTINS = frozenset(dir(builtins))


def split_solution(solution: str, entry: str) -> tuple[str, str]:
    """Texts of a helper and a main function that do together what `solution` does.

    The first expression that depends on the arguments alone becomes `aux`. Where there is none,
    `aux` is the whole solution and main a wrapper around it.
    """
    tree = parsed(solution)
    function = next(
        (n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == entry), None
    ) if tree is not None else None  # fmt: skip
    if tree is None or function is None:
        return "def aux(*args):\n    return None", solution
    names = [arg.arg for arg in function.args.args]
    arguments = ", ".join(names)
    for part in movable_parts(function, frozenset(names)):
        rest = [ast.unparse(node) for node in tree.body if node is not function]
        helper = [*rest, f"def {AUX}({arguments}):\n    return {ast.unparse(part)}"]
        main = _Replaced(part, f"{AUX}({arguments})").visit(copy.deepcopy(function))
        return "\n".join(helper), "\n".join([*rest, ast.unparse(ast.fix_missing_locations(main))])
    whole = copy.deepcopy(function)
    renamed = _Renamed(entry).visit(ast.Module([*_others(tree, function), whole], []))
    return ast.unparse(renamed), f"def {entry}({arguments}):\n    return {AUX}({arguments})"


def _others(tree: ast.Module, function: ast.FunctionDef) -> list[ast.stmt]:
    return [copy.deepcopy(node) for node in tree.body if node is not function]


def movable_parts(function: ast.FunctionDef, arguments: frozenset[str]) -> Iterator[ast.expr]:
    """Expressions that use arguments and no other variable, and are not all that is returned.

    Arguments that the function assigns anew do not count.
    """
    assigned = {
        node.id
        for node in own_nodes(function)
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)
    }
    for outer in ast.walk(function):
        if isinstance(outer, ast.Return | ast.Expr):
            continue
        for part in ast.iter_child_nodes(outer):
            if isinstance(part, _MOVABLE) and _uses_only(part, arguments - assigned):
                yield part


def _uses_only(part: ast.AST, arguments: frozenset[str]) -> bool:
    """Whether the names in `part` are arguments (at least one), builtins, or bound inside it."""
    names = [node for node in ast.walk(part) if isinstance(node, ast.Name)]
    bound = {name.id for name in names if not isinstance(name.ctx, ast.Load)}
    read = {name.id for name in names} - bound
    has_lambda = any(isinstance(node, ast.Lambda | ast.NamedExpr) for node in ast.walk(part))
    return bool(read & arguments) and read <= arguments | _BUILTINS and not has_lambda


class _Replaced(ast.NodeTransformer):
    """Puts a call in the place of every expression that is written like `part`."""

    def __init__(self, part: ast.expr, call: str) -> None:
        self.text = ast.dump(part)
        self.call = call

    def visit(self, node: ast.AST) -> ast.AST:
        if ast.dump(node) == self.text:
            return ast.parse(self.call, mode="eval").body
        return self.generic_visit(node)


class _Renamed(ast.NodeTransformer):
    """Calls the entry `aux`, where it is defined and where it calls itself."""

    def __init__(self, entry: str) -> None:
        self.entry = entry

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        if node.name == self.entry:
            node.name = AUX
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id == self.entry:
            node.id = AUX
        return node
