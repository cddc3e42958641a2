"""Interpreter for the programs of generated problems: a walk over the syntax tree, no execution.

Only flowzoo's own reference programs and their variants may come here; a model's program goes to
the sandbox.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

STEPS = 10_000  # nodes that one run may visit; a wrong variant may loop for ever
LONGEST = 10_000  # length of the longest sequence that may be made by repetition

_BINARY: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARISONS: dict[type, Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.In: lambda item, items: item in items,
    ast.NotIn: lambda item, items: item not in items,
}
_UNARY: dict[type, Callable[[Any], Any]] = {ast.USub: operator.neg, ast.Not: operator.not_}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (
        abs, all, any, chr, dict, enumerate, int, len, list, max, min, ord, range, reversed, set,
        sorted, str, sum, tuple, zip,
    )
}  # fmt: skip
_METHODS: dict[type, tuple[str, ...]] = {
    str: (
        "count", "endswith", "find", "isalpha", "isdigit", "islower", "isupper", "join", "lower",
        "replace", "split", "startswith", "strip", "swapcase", "title", "upper",
    ),
    list: ("append", "count", "extend", "index", "insert", "pop", "reverse", "sort"),
    dict: ("get", "items", "keys", "values"),
    set: ("add",),
}  # fmt: skip


class InterpreterError(Exception):
    """The program raised, ran out of steps, or uses what is not read here."""


class _Return(Exception):
    """Carries the returned value out of a function's statements."""


class _Break(Exception):
    pass


class _Continue(Exception):
    pass


@lru_cache(maxsize=512)
def _parsed(source: str) -> ast.Module:
    return ast.parse(source)


def returned(program: str | ast.Module, entry: str, args: Sequence[Any]) -> Any:
    """Return value of a program's function `entry` for `args`, which are copied first."""
    machine = _Machine("")
    return machine.guarded(lambda: machine.run(program).call(entry, [_copy(arg) for arg in args]))


def printed(program: str | ast.Module, stdin: str) -> str:
    """Output of a program that reads `stdin`."""
    machine = _Machine(stdin)
    machine.guarded(lambda: machine.run(program))
    return "".join(machine.output)


def _copy(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(_copy(item) for item in value)
    return {key: _copy(item) for key, item in value.items()} if type(value) is dict else value


class _Machine:
    def __init__(self, stdin: str) -> None:
        self.names: dict[str, Any] = {}
        self.lines: Iterator[str] = iter(stdin.splitlines())
        self.output: list[str] = []
        self.left = STEPS

    def guarded(self, work: Callable[[], Any]) -> Any:
        # The result of `work`; any exception of the program becomes `InterpreterError`.
        try:
            return work()
        except InterpreterError:
            raise
        except Exception as error:
            raise InterpreterError(f"{type(error).__name__}: {error}") from error

    def run(self, program: str | ast.Module) -> _Machine:
        tree = _parsed(program) if isinstance(program, str) else program
        self.block(tree.body, self.names)
        return self

    def call(self, name: str, args: list[Any]) -> Any:
        return self.names[name](*args)

    # -- statements ----------------------------------------------------------------------------

    def block(self, body: list[ast.stmt], names: dict[str, Any]) -> None:
        for statement in body:
            self._step()
            handler = getattr(self, f"do_{type(statement).__name__}", None)
            if handler is None:
                raise InterpreterError(f"{type(statement).__name__} is not read")
            handler(statement, names)

    def _step(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise InterpreterError(f"more than {STEPS} steps")

    def do_FunctionDef(self, node: ast.FunctionDef, names: dict[str, Any]) -> None:
        parameters = [argument.arg for argument in node.args.args]

        def function(*args: Any) -> Any:
            try:
                self.block(node.body, {**names, **dict(zip(parameters, args, strict=True))})
            except _Return as done:
                return done.args[0]
            return None

        names[node.name] = function

    def do_Return(self, node: ast.Return, names: dict[str, Any]) -> None:
        raise _Return(None if node.value is None else self.value(node.value, names))

    def do_Expr(self, node: ast.Expr, names: dict[str, Any]) -> None:
        self.value(node.value, names)

    def do_Assign(self, node: ast.Assign, names: dict[str, Any]) -> None:
        value = self.value(node.value, names)
        for target in node.targets:
            self.assign(target, value, names)

    def do_AugAssign(self, node: ast.AugAssign, names: dict[str, Any]) -> None:
        before, change = self.value(_loaded(node.target), names), self.value(node.value, names)
        self.assign(node.target, self.binary(node.op, before, change), names)

    def assign(self, target: ast.expr, value: Any, names: dict[str, Any]) -> None:
        if isinstance(target, ast.Name):
            names[target.id] = value
        elif isinstance(target, ast.Tuple):
            for part, item in zip(target.elts, value, strict=True):
                self.assign(part, item, names)
        elif isinstance(target, ast.Subscript):
            self.value(target.value, names)[self.value(target.slice, names)] = value
        else:
            raise InterpreterError(f"assignment to {type(target).__name__} is not read")

    def do_If(self, node: ast.If, names: dict[str, Any]) -> None:
        self.block(node.body if self.value(node.test, names) else node.orelse, names)

    def do_While(self, node: ast.While, names: dict[str, Any]) -> None:
        while self.value(node.test, names):
            try:
                self.block(node.body, names)
            except _Continue:
                continue
            except _Break:
                break

    def do_For(self, node: ast.For, names: dict[str, Any]) -> None:
        for item in self.value(node.iter, names):
            self._step()
            self.assign(node.target, item, names)
            try:
                self.block(node.body, names)
            except _Continue:
                continue
            except _Break:
                break

    def do_Break(self, node: ast.Break, names: dict[str, Any]) -> None:
        raise _Break

    def do_Continue(self, node: ast.Continue, names: dict[str, Any]) -> None:
        raise _Continue

    # -- expressions ---------------------------------------------------------------------------

    def value(self, node: ast.expr, names: dict[str, Any]) -> Any:
        self._step()
        handler = getattr(self, f"of_{type(node).__name__}", None)
        if handler is None:
            raise InterpreterError(f"{type(node).__name__} is not read")
        return handler(node, names)

    def of_Constant(self, node: ast.Constant, names: dict[str, Any]) -> Any:
        return node.value

    def of_Name(self, node: ast.Name, names: dict[str, Any]) -> Any:
        if node.id in names:
            return names[node.id]
        if node.id in ("print", "input"):
            return self._print if node.id == "print" else self._input
        return _FUNCTIONS[node.id]

    def _print(self, *values: Any) -> None:
        self.output.append(" ".join(map(str, values)) + "\n")

    def _input(self) -> str:
        return next(self.lines)

    def of_BinOp(self, node: ast.BinOp, names: dict[str, Any]) -> Any:
        return self.binary(node.op, self.value(node.left, names), self.value(node.right, names))

    def binary(self, op: ast.operator, left: Any, right: Any) -> Any:
        if isinstance(op, ast.Mult) and not (isinstance(left, int) and isinstance(right, int)):
            times, items = (left, right) if isinstance(left, int) else (right, left)
            if times * len(items) > LONGEST:
                raise InterpreterError("the sequence is too long")
        return _BINARY[type(op)](left, right)

    def of_UnaryOp(self, node: ast.UnaryOp, names: dict[str, Any]) -> Any:
        return _UNARY[type(node.op)](self.value(node.operand, names))

    def of_BoolOp(self, node: ast.BoolOp, names: dict[str, Any]) -> Any:
        value: Any = None
        for part in node.values:
            value = self.value(part, names)
            if bool(value) == isinstance(node.op, ast.Or):
                return value
        return value

    def of_Compare(self, node: ast.Compare, names: dict[str, Any]) -> bool:
        left = self.value(node.left, names)
        for op, part in zip(node.ops, node.comparators, strict=True):
            right = self.value(part, names)
            if not _COMPARISONS[type(op)](left, right):
                return False
            left = right
        return True

    def of_IfExp(self, node: ast.IfExp, names: dict[str, Any]) -> Any:
        return self.value(node.body if self.value(node.test, names) else node.orelse, names)

    def of_Call(self, node: ast.Call, names: dict[str, Any]) -> Any:
        function = self.value(node.func, names)
        args = [self.value(arg, names) for arg in node.args]
        options = {item.arg: self.value(item.value, names) for item in node.keywords if item.arg}
        return function(*args, **options)

    def of_Attribute(self, node: ast.Attribute, names: dict[str, Any]) -> Any:
        owner = self.value(node.value, names)
        if node.attr not in _METHODS.get(type(owner), ()):
            raise InterpreterError(f"{type(owner).__name__}.{node.attr} is not read")
        return getattr(owner, node.attr)

    def of_Subscript(self, node: ast.Subscript, names: dict[str, Any]) -> Any:
        return self.value(node.value, names)[self.value(node.slice, names)]

    def of_Slice(self, node: ast.Slice, names: dict[str, Any]) -> slice:
        parts = (node.lower, node.upper, node.step)
        return slice(*(None if part is None else self.value(part, names) for part in parts))

    def of_List(self, node: ast.List, names: dict[str, Any]) -> list[Any]:
        return [self.value(item, names) for item in node.elts]

    def of_Tuple(self, node: ast.Tuple, names: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(self.value(item, names) for item in node.elts)

    def of_Dict(self, node: ast.Dict, names: dict[str, Any]) -> dict[Any, Any]:
        return {
            self.value(key, names): self.value(item, names)
            for key, item in zip(node.keys, node.values, strict=True)
            if key is not None
        }

    def of_ListComp(self, node: ast.ListComp, names: dict[str, Any]) -> list[Any]:
        return [self.value(node.elt, inner) for inner in self._scopes(node.generators, names)]

    def of_GeneratorExp(self, node: ast.GeneratorExp, names: dict[str, Any]) -> Iterator[Any]:
        return (self.value(node.elt, inner) for inner in self._scopes(node.generators, names))

    def of_DictComp(self, node: ast.DictComp, names: dict[str, Any]) -> dict[Any, Any]:
        scopes = self._scopes(node.generators, names)
        return {self.value(node.key, scope): self.value(node.value, scope) for scope in scopes}

    def _scopes(
        self, generators: list[ast.comprehension], names: dict[str, Any]
    ) -> Iterator[dict[str, Any]]:
        first, *rest = generators
        for item in self.value(first.iter, names):
            self._step()
            inner = dict(names)
            self.assign(first.target, item, inner)
            if all(self.value(test, inner) for test in first.ifs):
                yield from self._scopes(rest, inner) if rest else (inner,)

    def of_Lambda(self, node: ast.Lambda, names: dict[str, Any]) -> Callable[..., Any]:
        parameters = [argument.arg for argument in node.args.args]
        return lambda *args: self.value(
            node.body, {**names, **dict(zip(parameters, args, strict=True))}
        )


def _loaded(target: ast.expr) -> ast.expr:
    return target
