"""Reward of a helper function and a main function together.

The scale is MAGRPO's, at most 4.0:

| part | worth | for |
|---|---|---|
| `helper` | 0.4 | the helper's reply defines `aux`, which returns something |
| `main` | 0.6 | the main reply defines the entry, which returns something |
| `syntax` | 0.5 | both replies parse |
| `tests` | 1.0 | fraction of hidden tests passed |
| `calls` | 0.5 | a test passes only because main calls `aux` |
| `depth` | 1.0 | as above, and main is more than a wrapper around `aux` |
| `ignored` | -0.5 | main calls `aux`, but no result of it reaches an output |

The published reward searches for `aux` in main's text: a comment or a call with an unused result
earns the bonus. Here it is decided on the syntax tree and by execution: with an `aux` that raises,
a passing test must fail (`aux` is called and its failure is not caught); with an `aux` that returns
another result, the output must change (`variants`); and `aux` alone, in place of the entry, must
neither pass the tests that main passes nor return the same value for all inputs. A call with an
ignored result earns `calls` and loses it again, and never earns `depth`. A main that can inspect
its own program (`globals()`, `aux.__code__`) could distinguish the variants, so it earns nothing.
Execution cannot detect a main that does all the work and only checks `aux`.
"""

import ast
from collections.abc import Iterator, Sequence

from flowzoo.reward.code.score import parse_code
from flowzoo.reward.listed import names

HIGHEST = 4.0  # highest sum of `pair_reward`
AUX = "aux"
# Names with which a program can inspect itself.
INTROSPECTION = names(
    "globals locals vars dir eval exec compile getattr modules _getframe settrace setprofile "
    "inspect dis gc traceback importlib builtins ctypes"
)
Parts = dict[str, float]

_WRAP = """
_aux_given = aux
_aux_depth = 0
def aux(*args, **kwargs):
    global _aux_depth
    _aux_depth += 1
    try:
        result = _aux_given(*args, **kwargs)
    finally:
        _aux_depth -= 1
    return _aux_changed(result) if _aux_depth == 0 else result
"""
_RAISES = """
def aux(*args, **kwargs):
    raise RuntimeError("aux was called")
"""
# Two ways to change a result without changing its type, so its use does not have to fail.
_CHANGES = (
    """
def _aux_changed(value):
    kind = type(value)
    if kind is bool:
        return not value
    if kind in (int, float, complex):
        return value + 1
    if kind in (str, bytes, list, tuple):
        return value + (value[:1] or kind("x" if kind is str else b"x" if kind is bytes else (0,)))
    if kind in (set, frozenset):
        return kind(list(value)[1:]) if value else kind((0,))
    if kind is dict:
        return dict(list(value.items())[1:]) if value else {0: 0}
    if hasattr(value, "__iter__"):
        return list(value)[1:]
    return 0 if value is None else None
""",
    """
def _aux_changed(value):
    kind = type(value)
    if kind is bool:
        return not value
    if kind in (int, float, complex):
        return -value if value else value + 2
    if kind in (str, bytes, list, tuple):
        return value[:-1]
    if kind in (set, frozenset):
        return kind(list(value) + [0])
    if kind is dict:
        return {key: None for key in value}
    if hasattr(value, "__iter__"):
        return list(value)[:-1]
    return 1 if value is None else 0
""",
)


def function_nodes(function: ast.FunctionDef) -> Iterator[ast.AST]:
    """Yield the nodes of a function, except those in nested functions and classes."""
    stack: list[ast.AST] = list(function.body)
    while stack:
        node = stack.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            stack.extend(ast.iter_child_nodes(node))


def find_function(tree: ast.Module | None, name: str) -> ast.FunctionDef | None:
    """The last top-level definition of the function `name` that returns something, or None."""
    for node in reversed(tree.body if tree is not None else ()):
        if isinstance(node, ast.FunctionDef) and node.name == name:
            returns = any(
                isinstance(n, ast.Return) and n.value is not None for n in function_nodes(node)
            )
            return node if returns else None
    return None


def binds(tree: ast.Module, name: str) -> bool:
    """Return True if a module binds `name` anywhere."""
    for node in ast.walk(tree):
        bound = ""
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            bound = node.name
        elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            bound = node.id
        elif isinstance(node, ast.arg):
            bound = node.arg
        elif isinstance(node, ast.alias):
            bound = (node.asname or node.name).split(".")[0]
        if bound == name:
            return True
    return False


def calls(tree: ast.AST, name: str) -> bool:
    """Return True if `name` is called anywhere in the tree, which has no comments."""
    return any(
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name
        for node in ast.walk(tree)
    )


def uses_introspection(tree: ast.AST) -> bool:
    """Return True if a program can inspect itself, by `INTROSPECTION` or names with `__`."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, ast.Attribute):
            names.add(node.attr)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names.update(part for alias in node.names for part in alias.name.split("."))
            names.update((getattr(node, "module", None) or "").split("."))
    hidden = {name for name in names if name.startswith(("__", "_aux"))} - {"__name__", "__init__"}
    return bool(hidden or names & INTROSPECTION)


def is_wrapper(main: ast.FunctionDef) -> bool:
    """Return True if a function only passes its arguments to `aux` and returns the result."""
    results: set[str] = set()
    for node in main.body:
        value = getattr(node, "value", None)
        if isinstance(node, ast.Pass) or (isinstance(node, ast.Expr) and is_plain(value)):
            continue
        handed = isinstance(value, ast.Call) and is_call_of_aux(value)
        handed = handed or (isinstance(value, ast.Name) and value.id in results)
        if isinstance(node, ast.Return):
            return handed
        targets = node.targets if isinstance(node, ast.Assign) else ()
        if not handed or not all(isinstance(target, ast.Name) for target in targets) or not targets:
            return False
        results |= {target.id for target in targets if isinstance(target, ast.Name)}
    return False


def is_plain(value: ast.AST | None) -> bool:
    """True for a constant or a name, also with `*`."""
    value = value.value if isinstance(value, ast.Starred) else value
    return isinstance(value, ast.Constant | ast.Name)


def is_call_of_aux(call: ast.Call) -> bool:
    """True for `aux(...)` with plain arguments."""
    plain = all(map(is_plain, [*call.args, *(keyword.value for keyword in call.keywords)]))
    return plain and isinstance(call.func, ast.Name) and call.func.id == AUX


def join_programs(helper: str | None, main: str | None) -> str:
    """The program of a pair: the helper's text, if it parses, then main's."""
    return f"{helper}\n\n{main}\n" if parse_code(helper) is not None else f"{main}\n"


def variants(helper: str, main: str) -> tuple[str, ...]:
    """Variants of the program: `aux` raises, or returns a changed result."""
    changed = [f"{helper}\n{change}{_WRAP}\n{main}\n" for change in _CHANGES]
    return (f"{helper}\n{_RAISES}\n{main}\n", *changed)


def may_cooperate(helper: str | None, main: str | None, entry: str) -> bool:
    """Return True if running the variants could show cooperation."""
    tree, other = parse_code(main), parse_code(helper)
    if tree is None or find_function(other, AUX) is None or find_function(tree, entry) is None:
        return False
    return calls(tree, AUX) and not binds(tree, AUX) and not uses_introspection(tree)


def cooperation(
    main: str,
    entry: str,
    passes: Sequence[bool],
    raising: Sequence[bool],
    changed: Sequence[Sequence[str]],
    alone: Sequence[bool],
    values: Sequence[str],
) -> Parts:
    """`calls`, `depth` and `ignored` of a pair that `may_cooperate`.

    Args:
        main: main's text.
        entry: name of the entry.
        passes: per hidden test, whether the program passes it.
        raising: the same with an `aux` that raises.
        changed: per changed `aux`, the status of each test.
        alone: the same with `aux` in place of the entry.
        values: per test, what `aux` alone returns; empty where it fails or is unknown.
    """
    good = [index for index, passed in enumerate(passes) if passed]
    if not any(not raising[index] for index in good):
        return {"calls": 0.0, "depth": 0.0, "ignored": 0.0}
    # WA: it ended without an error and with another output; `aux(x) + 0` would already fail.
    used = any(statuses[index] == "WA" for statuses in changed for index in good)
    function = find_function(parse_code(main), entry)
    thin = all(alone[index] for index in good) or function is None or is_wrapper(function)
    measured = [value for value in values if value]
    thin = thin or (len(measured) > 1 and len(set(measured)) == 1)
    return {
        "calls": 0.5,
        "depth": 1.0 if used and not thin else 0.0,
        "ignored": 0.0 if used else -0.5,
    }


def pair_reward(helper: str | None, main: str | None, entry: str, passed: float) -> Parts:
    """Parts without cooperation: definitions, syntax and the fraction of tests passed."""
    helper_module, main_module = parse_code(helper), parse_code(main)
    return {
        "helper": 0.4 if find_function(helper_module, AUX) is not None else 0.0,
        "main": 0.6 if find_function(main_module, entry) is not None else 0.0,
        "syntax": 0.5 if helper_module is not None and main_module is not None else 0.0,
        "tests": passed,
    }
