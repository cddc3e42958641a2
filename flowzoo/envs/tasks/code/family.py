"""Families of generated code problems: drafts, and their completion with tests."""

import ast
import copy
import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from types import CodeType
from typing import Any, Literal

from flowzoo.sandbox.program import CallTest, StdinTest
from flowzoo.seeding import key_rng

PUBLIC, HIDDEN = 2, 8  # tests shown in the prompt, and tests that grade
_MOST_DRAWS = 400
ROUNDS = 5_000  # most rounds of the loops of a run; a wrong variant may loop forever
_ROUND = "_next_round"
_FUNCTIONS = {
    function.__name__: function
    for function in (
        abs, all, any, chr, dict, enumerate, int, len, list, max, min, ord, range, reversed, set,
        sorted, str, sum, tuple, zip,
    )
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class CodeDraft:
    """A drawn problem without tests."""

    statement: str
    source: str
    # Draws an input: the tuple of arguments, or the text of stdin.
    draw: Callable[[random.Random], Any] = field(compare=False)

    @property
    def entry(self) -> str | None:
        """The function that the source defines; None: a program that reads stdin and prints."""
        return self.source[4:].partition("(")[0] if self.source.startswith("def ") else None


Draft = Callable[[random.Random], CodeDraft]


@dataclass(frozen=True, slots=True)
class CodeInstance:
    """A generated problem."""

    text: str  # the statement with the public tests, as a prompt shows it
    entry: str | None
    source: str  # the reference program
    public: tuple[CallTest | StdinTest, ...]
    hidden: tuple[CallTest | StdinTest, ...]


class ProgramError(Exception):
    """A generated program raised, or its loops do not end."""


class _Counted(ast.NodeTransformer):
    """Puts a call that counts at the start of every round of a loop."""

    def _count(self, node: ast.For | ast.While) -> ast.AST:
        self.generic_visit(node)
        node.body.insert(0, ast.Expr(ast.Call(ast.Name(_ROUND, ast.Load()), [], [])))
        return node

    visit_For = visit_While = _count


def compiled(program: str | ast.Module) -> CodeType:
    """The code of a reference or a variant, for `outcome`; programs of models need the sandbox."""
    tree = ast.parse(program) if isinstance(program, str) else copy.deepcopy(program)
    return compile(ast.fix_missing_locations(_Counted().visit(tree)), "<generated>", "exec")


def outcome(code: CodeType, entry: str | None, given: Any) -> Any:
    """Result of a generated program for an input: its return value or its output.

    Raises:
        ProgramError: the program raised, or its loops had more than `ROUNDS` rounds.
    """
    output: list[str] = []
    names: dict[str, Any] = {
        "__builtins__": {
            **_FUNCTIONS,
            "print": lambda *values: output.append(" ".join(map(str, values)) + "\n"),
            "input": iter(given.splitlines() if entry is None else ()).__next__,
            _ROUND: iter(range(ROUNDS)).__next__,
        }
    }
    try:
        exec(code, names)
        return "".join(output) if entry is None else names[entry](*copy.deepcopy(given))
    except Exception as error:
        raise ProgramError(f"{type(error).__name__}: {error}") from error


@lru_cache(maxsize=1024)
def complete(draft: CodeDraft) -> CodeInstance | None:
    """Complete a draft with tests from the reference program."""
    # None for a draft whose hidden tests would all expect the same output. Cached, since
    # evaluations repeat problems.
    source = ast.unparse(ast.parse(draft.source))  # the common layout, also of wrong variants
    tests = _tests(draft, source)
    public, hidden = tests[:PUBLIC], tests[PUBLIC:]
    if len({repr(test.expected) for test in hidden}) < 2:
        return None
    examples = "\n".join(example(test, draft.entry) for test in public)
    how = "" if draft.entry else "Write a program that reads stdin and prints. "
    text = f"{how}{draft.statement}\n{examples}"
    return CodeInstance(text, draft.entry, source, public, hidden)


def _tests(draft: CodeDraft, source: str) -> tuple[CallTest | StdinTest, ...]:
    # Depends on the statement only: equal statements are equal problems.
    rng = key_rng("code tests", draft.statement)
    cases: dict[str, tuple[object, object]] = {}
    code = compiled(source)
    for number in range(_MOST_DRAWS):
        given = draft.draw(rng)
        if repr(given) in cases:
            continue
        result = outcome(code, draft.entry, given)
        outputs = {repr(output) for _, output in cases.values()}
        # Half of the inputs may repeat an output; after that only new outputs are accepted, up to
        # the limit of draws.
        is_new = repr(result) not in outputs or len(cases) < (PUBLIC + HIDDEN) // 2
        if is_new or number > _MOST_DRAWS // 10:
            cases[repr(given)] = (given, result)
        if len(cases) == PUBLIC + HIDDEN:
            break
    # Inputs that repeat the first output come last and become hidden tests.
    return tuple(itertools.starmap(CallTest if draft.entry else StdinTest, cases.values()))


def example(test: CallTest | StdinTest, entry: str | None) -> str:
    """A public test in a prompt: `f(2) == 7`, or an input with its output."""
    if isinstance(test, CallTest):
        return f"{entry}({', '.join(map(repr, test.args))}) == {test.expected!r}"
    return f"Input:\n{test.stdin}Output:\n{test.expected.rstrip()}"


def fails(program: ast.Module, instance: CodeInstance) -> Literal["wrong", "error", "no"]:
    """Verdict of the hidden tests on a program: wrong outputs only, an error, or no failure."""
    verdict: Literal["wrong", "error", "no"] = "no"
    code = compiled(program)
    for test in instance.hidden:
        given = test.args if isinstance(test, CallTest) else test.stdin
        try:
            result = outcome(code, instance.entry, given)
        except ProgramError:
            return "error"
        if repr(result) != repr(test.expected):
            verdict = "wrong"
    return verdict


MOST_TRIED = 60

_OPERATORS: dict[type, tuple[type, ...]] = {
    ast.Add: (ast.Sub, ast.Mult),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Add,),
    ast.FloorDiv: (ast.Mod, ast.Mult),
    ast.Mod: (ast.FloorDiv,),
}
_PAIRS = ((ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq), (ast.In, ast.NotIn))
_COMPARISONS: dict[type, type] = {a: b for pair in _PAIRS for a, b in (pair, pair[::-1])}
_NAMES = {
    "min": "max", "max": "min", "any": "all", "all": "any", "sum": "len", "upper": "lower",
    "lower": "upper", "startswith": "endswith", "endswith": "startswith", "isdigit": "isalpha",
    "isalpha": "isdigit", "keys": "values",
}  # fmt: skip

Change = Callable[[], None]  # changes one node of a tree in place


def _set(node: ast.AST, **values: object) -> Change:
    def change() -> None:
        for name, value in values.items():
            setattr(node, name, value)

    return change


def _regroup(node: ast.BinOp, inner: ast.BinOp) -> Change:
    """`(a + b) * c` as `a + b * c`."""
    right = ast.BinOp(inner.right, node.op, node.right)
    return _set(node, left=inner.left, op=inner.op, right=right)


def changes(node: ast.AST) -> Iterator[Change]:
    """All mutations of a node."""
    if isinstance(node, ast.BinOp | ast.AugAssign):
        for other in _OPERATORS.get(type(node.op), ()):
            yield _set(node, op=other())
    if isinstance(node, ast.BinOp):
        if isinstance(node.op, ast.Sub | ast.FloorDiv | ast.Mod):
            yield _set(node, left=node.right, right=node.left)
        if isinstance(node.left, ast.BinOp):
            yield _regroup(node, node.left)
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


def tree_changes(tree: ast.Module) -> Iterator[Change]:
    """All mutations of a program."""
    return (change for node in ast.walk(tree) for change in changes(node))


def count_changes(source: str) -> int:
    """The number of mutations of a program."""
    return sum(1 for _ in tree_changes(ast.parse(source)))


def variant(source: str, number: int) -> ast.Module:
    """The program with change `number` applied (from 0)."""
    tree = ast.parse(source)
    next(itertools.islice(tree_changes(tree), number, None))()
    return ast.fix_missing_locations(tree)


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
