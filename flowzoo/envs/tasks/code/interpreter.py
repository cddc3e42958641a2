"""Interpreter for programs of generated problems that walks the syntax tree.

It is only for flowzoo's reference programs and their variants; programs of models run in the
sandbox.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

STEPS = 10_000  # most nodes visited by a run; a wrong variant may loop forever
LONGEST = 10_000  # most items of a sequence from repetition

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
    """The program raised, ran out of steps, or uses an unsupported feature."""


class _Return(Exception):
    """Carries the returned value out of a function's statements."""


class _Break(Exception):
    pass


class _Continue(Exception):
    pass


@lru_cache(maxsize=512)
def _parse(source: str) -> ast.Module:
    return ast.parse(source)


def run_function(program: str | ast.Module, entry: str, args: Sequence[Any]) -> Any:
    """Return value of a program's function `entry` for `args`, which are copied first."""
    machine = _Machine("")
    return machine.guarded(lambda: machine.run(program).call(entry, [_copy(arg) for arg in args]))


def run_program(program: str | ast.Module, stdin: str) -> str:
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
        # Call `work`; any exception of the program becomes `InterpreterError`.
        try:
            return work()
        except InterpreterError:
            raise
        except Exception as error:
            raise InterpreterError(f"{type(error).__name__}: {error}") from error

    def run(self, program: str | ast.Module) -> _Machine:
        tree = _parse(program) if isinstance(program, str) else program
        self.block(tree.body, self.names)
        return self

    def call(self, name: str, args: list[Any]) -> Any:
        return self.names[name](*args)

    # -- statements ----------------------------------------------------------------------------

    def block(self, body: list[ast.stmt], names: dict[str, Any]) -> None:
        for statement in body:
            self._step()
            self._execute(statement, names)

    def _step(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise InterpreterError(f"more than {STEPS} steps")

    def _execute(self, node: ast.stmt, names: dict[str, Any]) -> None:
        match node:
            case ast.Assign(targets=targets, value=value):
                result = self.value(value, names)
                for target in targets:
                    self.assign(target, result, names)
            case ast.AugAssign(target=target, op=op, value=value):
                before, change = self.value(target, names), self.value(value, names)
                self.assign(target, self.binary(op, before, change), names)
            case ast.If(test=test, body=body, orelse=orelse):
                self.block(body if self.value(test, names) else orelse, names)
            case ast.Expr(value=value):
                self.value(value, names)
            case ast.Return(value=value):
                raise _Return(None if value is None else self.value(value, names))
            case ast.For(target=target, iter=items, body=body):
                for item in self.value(items, names):
                    self._step()
                    self.assign(target, item, names)
                    if not self._round(body, names):
                        break
            case ast.While(test=test, body=body):
                while self.value(test, names) and self._round(body, names):
                    pass
            case ast.FunctionDef():
                names[node.name] = self._function(node, names)
            case ast.Break():
                raise _Break
            case ast.Continue():
                raise _Continue
            case _:
                raise InterpreterError(f"{type(node).__name__} is not read")

    def _round(self, body: list[ast.stmt], names: dict[str, Any]) -> bool:
        """Run one iteration of a loop; False after `break`."""
        try:
            self.block(body, names)
        except _Continue:
            pass
        except _Break:
            return False
        return True

    def _function(self, node: ast.FunctionDef, names: dict[str, Any]) -> Callable[..., Any]:
        parameters = [argument.arg for argument in node.args.args]

        def function(*args: Any) -> Any:
            try:
                self.block(node.body, {**names, **dict(zip(parameters, args, strict=True))})
            except _Return as done:
                return done.args[0]
            return None

        return function

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

    # -- expressions ---------------------------------------------------------------------------

    def value(self, node: ast.expr, names: dict[str, Any]) -> Any:
        self._step()
        match node:
            case ast.Name(id=name):
                return self._look_up(name, names)
            case ast.Constant(value=value):
                return value
            case ast.BinOp(left=left, op=op, right=right):
                return self.binary(op, self.value(left, names), self.value(right, names))
            case ast.Compare():
                return self._compare(node, names)
            case ast.Call(func=func, args=args, keywords=keywords):
                function = self.value(func, names)
                values = [self.value(arg, names) for arg in args]
                options = {key.arg: self.value(key.value, names) for key in keywords if key.arg}
                return function(*values, **options)
            case ast.Subscript(value=value, slice=index):
                return self.value(value, names)[self.value(index, names)]
            case ast.Attribute(value=value, attr=attr):
                owner = self.value(value, names)
                if attr not in _METHODS.get(type(owner), ()):
                    raise InterpreterError(f"{type(owner).__name__}.{attr} is not read")
                return getattr(owner, attr)
            case ast.UnaryOp(op=op, operand=operand):
                return _UNARY[type(op)](self.value(operand, names))
            case ast.BoolOp(op=op, values=parts):
                return self._evaluate_bool(isinstance(op, ast.Or), parts, names)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return self.value(body if self.value(test, names) else orelse, names)
            case ast.Slice(lower=lower, upper=upper, step=step):
                bounds = (lower, upper, step)
                return slice(*(None if b is None else self.value(b, names) for b in bounds))
        return self._build(node, names)

    def _build(self, node: ast.expr, names: dict[str, Any]) -> Any:
        match node:
            case ast.List(elts=items):
                return [self.value(item, names) for item in items]
            case ast.Tuple(elts=items):
                return tuple(self.value(item, names) for item in items)
            case ast.Dict(keys=keys, values=values):
                pairs = zip(keys, values, strict=True)
                return {self.value(k, names): self.value(v, names) for k, v in pairs if k}
            case ast.ListComp(elt=item, generators=generators):
                return [self.value(item, inner) for inner in self._scopes(generators, names)]
            case ast.GeneratorExp(elt=item, generators=generators):
                return (self.value(item, inner) for inner in self._scopes(generators, names))
            case ast.DictComp(key=key, value=item, generators=generators):
                scopes = self._scopes(generators, names)
                return {self.value(key, inner): self.value(item, inner) for inner in scopes}
            case ast.Lambda(args=arguments, body=body):
                parameters = [argument.arg for argument in arguments.args]
                return lambda *args: self.value(
                    body, {**names, **dict(zip(parameters, args, strict=True))}
                )
        raise InterpreterError(f"{type(node).__name__} is not read")

    def _look_up(self, name: str, names: dict[str, Any]) -> Any:
        if name in names:
            return names[name]
        if name in ("print", "input"):
            return self._print if name == "print" else self._input
        return _FUNCTIONS[name]

    def _print(self, *values: Any) -> None:
        self.output.append(" ".join(map(str, values)) + "\n")

    def _input(self) -> str:
        return next(self.lines)

    def binary(self, op: ast.operator, left: Any, right: Any) -> Any:
        if isinstance(op, ast.Mult) and not (isinstance(left, int) and isinstance(right, int)):
            times, items = (left, right) if isinstance(left, int) else (right, left)
            if times * len(items) > LONGEST:
                raise InterpreterError("the sequence is too long")
        return _BINARY[type(op)](left, right)

    def _evaluate_bool(self, is_or: bool, parts: list[ast.expr], names: dict[str, Any]) -> Any:
        value: Any = None
        for part in parts:
            value = self.value(part, names)
            if bool(value) == is_or:
                return value
        return value

    def _compare(self, node: ast.Compare, names: dict[str, Any]) -> bool:
        left = self.value(node.left, names)
        for op, part in zip(node.ops, node.comparators, strict=True):
            right = self.value(part, names)
            if not _COMPARISONS[type(op)](left, right):
                return False
            left = right
        return True

    def _scopes(
        self, generators: list[ast.comprehension], names: dict[str, Any]
    ) -> Iterator[dict[str, Any]]:
        """Yield the scope of every iteration of a comprehension."""
        first, *rest = generators
        for item in self.value(first.iter, names):
            self._step()
            inner = dict(names)
            self.assign(first.target, item, inner)
            if all(self.value(test, inner) for test in first.ifs):
                yield from self._scopes(rest, inner) if rest else (inner,)
