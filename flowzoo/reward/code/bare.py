"""Bare programs: replies that are nothing but Python, without a fence.

The text is parsed, within bounds, and never executed.
"""

from __future__ import annotations

import ast
import re
import warnings

from flowzoo.reward.visible import visible

LONGEST_BARE = 20_000
"""Characters of the longest program that is read without a fence: it has to be parsed."""
_DEEPEST = 150
"""Brackets within brackets; no program that a person writes comes near it."""
_STARTS = re.compile(
    r"(?:\s*+(?:#[^\n]*+(?:\n|\Z)|\"\"\"|'''|@\w|(?:def|class|import|from|async|for|while|if|with)\s"
    r"|try:|[A-Za-z_][\w.]*+(?:\s*+,\s*+\w++)*+\s*+(?:[(=:]|[-+*/]=)))"
)
"""Beginnings of programs; most prose is turned away here without being parsed."""
_SAYS = re.compile(
    r"(?m)^(?:[ \t]*+(?:async )?(?:def|class|import|from)\s|.*\bprint\(|.*\blambda\b)"
)
_STRAY = re.compile(r"\n[ \t]*```[ \t]*\Z")


def python_tree(text: str, deepest: int = _DEEPEST) -> ast.Module | None:
    """The syntax tree of a text, or None: no Python, or brackets nested deeper than `deepest`."""
    if len(text) > LONGEST_BARE or _depth(text) > deepest:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def bare_program(text: str) -> str | None:
    """The program that a reply is, as a whole, or None.

    Read: a text that parses as Python and that defines, imports or prints something; a lone closing
    fence at its end is left out. Not read: prose around a program, expressions, assignments
    and words that happen to be Python (`x = 5`, `f(2) == 3`, `None`), and any other fence.
    """
    program = _STRAY.sub("", visible(text))
    if len(program) > LONGEST_BARE:
        return None
    if not _STARTS.match(program) or not _SAYS.search(program):
        return None
    tree = python_tree(program)
    if tree is None or any(map(_is_remark, tree.body)):
        return None
    return program if any(map(_does_something, tree.body)) else None


def _is_remark(statement: ast.stmt) -> bool:
    """Whether a statement is one to the parser only: `Output: 3` reads as an annotation."""
    return isinstance(statement, ast.AnnAssign) and statement.value is None


def _does_something(statement: ast.stmt) -> bool:
    """Whether a statement defines or imports a name, or prints, itself or in a block of its own."""
    match statement:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return True
        case ast.Import() | ast.ImportFrom():
            return True
        case ast.Assign(value=ast.Lambda()):
            return True
        case ast.Expr(value=ast.Call(func=ast.Name(id="print"))):
            return True
        case ast.If() | ast.For() | ast.While() | ast.With() | ast.Try():
            return any(map(_does_something, statement.body))
    return False


def _depth(text: str) -> int:
    """The most brackets that are open at once, those in strings and comments included."""
    deepest = level = 0
    for match in re.finditer(r"[()\[\]{}]", text):
        level = level + 1 if match[0] in "([{" else max(0, level - 1)
        deepest = max(deepest, level)
    return deepest
