"""Facts about tests that are code, seen in their syntax tree: nothing is executed."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

_LITERALS = (ast.List, ast.Tuple, ast.Set, ast.Dict)
_JUDGES = ("assert", "fail", "raise", "exit", "abort")
"""Parts of the names of functions that tell a test's outcome."""


def imported_modules(tree: ast.Module) -> frozenset[str]:
    """Modules that code imports in any case: not inside of a `try` or a function."""
    found: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.Import):
            found.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add(str(node.module).partition(".")[0])
    return frozenset(found)


def calls_program(tree: ast.Module, entry: str) -> bool:
    """Whether code may call the program: by the entry's name or a parameter of `check`."""
    names = {entry.rpartition(".")[2], "candidate"}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == "check":
            own = node.args
            names |= {arg.arg for arg in (*own.posonlyargs, *own.args, own.vararg) if arg}
    return any(_mentions(node, names) for node in _nodes(tree))


def asserts_something(trees: Iterable[ast.Module]) -> bool:
    """Whether code can tell a wrong answer: by an assertion, an exception, or a function's name."""
    return any(
        isinstance(node, ast.Assert | ast.Raise)
        or (isinstance(node, ast.Name) and any(part in node.id.lower() for part in _JUDGES))
        or (isinstance(node, ast.Attribute) and any(part in node.attr.lower() for part in _JUDGES))
        for tree in trees
        for node in _nodes(tree)
    )


def _mentions(node: ast.AST, names: set[str]) -> bool:
    """Whether a node is one of the names, or text that holds one, as `eval` could read it."""
    if isinstance(node, ast.Name):
        return isinstance(node.ctx, ast.Load) and node.id in names
    if isinstance(node, ast.Attribute):
        return node.attr in names
    text = node.value if isinstance(node, ast.Constant) else None
    return isinstance(text, str) and any(name in text for name in names)


def _nodes(tree: ast.Module) -> Iterator[ast.AST]:
    """All nodes; what stands inside of lists and dicts, which may be long, comes last."""
    waiting: list[ast.AST] = [tree]
    literals: list[ast.AST] = []
    while waiting or literals:
        node = (waiting or literals).pop()
        yield node
        for child in ast.iter_child_nodes(node):
            (literals if isinstance(child, _LITERALS) else waiting).append(child)
