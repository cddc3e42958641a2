r"""# Code pair

A helper writes the function `aux`, and a main writer the requested function, which may call `aux`.
Both write at the same time, without seeing each other's text. Source: MAGRPO (coding tasks).

| | |
|---|---|
| Creation | `code_pair_v0.env(task="code")`, `code_pair_v0.parallel_env(...)` |
| Agents | `helper_0`, `main_0` |
| Observation | `{"messages": [...]}`: the problem and an instruction; in a second turn also the agent's own text and the feedback |
| Action | a reply with a `python` block |
| Reward | the reward of the pair over 4, in [0, 1], for both |
| End | after `max_turns` turns, or earlier when the pair passes all public tests |

## Arguments
| name | default | meaning |
|---|---|---|
| `max_turns` | 2 | turns of each agent |
| `feedback` | `"diagnostics"` | feedback in the second turn, with the agent's own text: the first failing public tests and syntax errors, or (`"plain"`) nothing |
| `shown_failures` | 1 | failing public tests that `diagnostics` shows |
| `preset` | `"strict"` | `"paper"` also reads programs without a closed block |

Problems must ask for a function: `level=1` or `2`, or a file of functions.
`flowzoo.reward.code.pair` has the reward's parts: the definitions of each agent, the fraction of
hidden tests passed, and cooperation, which is measured by running the pair with other versions of
`aux`. All parts are computed after every turn; no prompt depends on the results.

Role scores of every turn: helper, (its part + cooperation) / 1.9; main, (its part + tests) / 1.6.
The reward is that of the last turn's pair.

Facts in `info` at the end: `turns`, `reward` in [0, 4], `passed` (share of hidden tests), `solved`,
`cooperation` (in [0, 1.5]), and the parts `helper`, `main`, `syntax`, `tests`, `calls`, `depth`,
`ignored`.

## Version history
* v0: first version.
"""  # noqa: E501 - rows of tables

import ast
import builtins
import copy
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

from flowzoo.envs.script import (
    Ask,
    InterimScore,
    Message,
    Outcome,
    Reply,
    RoleScore,
    Run,
    RunResult,
    Script,
)
from flowzoo.envs.settings import check_whole
from flowzoo.envs.tasks.code.problems import LEVELS
from flowzoo.envs.tasks.code.task import CodeTask, fence, grading_tests
from flowzoo.envs.tasks.task import Problem, Task, read_levels
from flowzoo.envs.workflow import Workflow
from flowzoo.errors import UsageError, check_choice
from flowzoo.reward.code.pair import (
    AUX,
    HIGHEST,
    Parts,
    cooperation,
    function_nodes,
    join_programs,
    may_cooperate,
    pair_reward,
    variants,
)
from flowzoo.reward.code.score import extract_code, parse_code
from flowzoo.sandbox.program import CallTest

_MOVABLE = (ast.BinOp, ast.Call, ast.ListComp, ast.Subscript, ast.Compare)
_BUILTINS = frozenset(dir(builtins))


def split_solution(solution: str, entry: str) -> tuple[str, str]:
    """Split `solution` into the texts of a helper and a main function."""
    # The first expression that depends only on the arguments becomes `aux`. Without one, `aux` is
    # the whole solution and main a wrapper around it.
    tree = parse_code(solution) or ast.Module([], [])
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    function = next((node for node in functions if node.name == entry), None)
    if function is None:
        return "def aux(*args):\n    return None", solution
    names = [arg.arg for arg in function.args.args]
    arguments = ", ".join(names)
    for part in movable_parts(function, frozenset(names)):
        rest = [ast.unparse(node) for node in tree.body if node is not function]
        helper = [*rest, f"def {AUX}({arguments}):\n    return {ast.unparse(part)}"]
        main = _Replaced(part, f"{AUX}({arguments})").visit(copy.deepcopy(function))
        return "\n".join(helper), "\n".join([*rest, ast.unparse(ast.fix_missing_locations(main))])
    tree.body.sort(key=lambda node: node is function)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == entry:
            node.name = AUX
        elif isinstance(node, ast.Name) and node.id == entry:
            node.id = AUX
    return ast.unparse(tree), f"def {entry}({arguments}):\n    return {AUX}({arguments})"


def movable_parts(function: ast.FunctionDef, arguments: frozenset[str]) -> Iterator[ast.expr]:
    """Expressions that use only arguments and are not a whole return value."""
    # Arguments that the function reassigns do not count.
    assigned = {
        node.id
        for node in function_nodes(function)
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)
    }
    for outer in ast.walk(function):
        if isinstance(outer, ast.Return | ast.Expr):
            continue
        for part in ast.iter_child_nodes(outer):
            if isinstance(part, _MOVABLE) and _uses_only(part, arguments - assigned):
                yield part


def _uses_only(part: ast.AST, arguments: frozenset[str]) -> bool:
    """True if the names in `part` are arguments (at least one), builtins, or bound inside it."""
    names = [node for node in ast.walk(part) if isinstance(node, ast.Name)]
    bound = {name.id for name in names if not isinstance(name.ctx, ast.Load)}
    read = {name.id for name in names} - bound
    has_lambda = any(isinstance(node, ast.Lambda | ast.NamedExpr) for node in ast.walk(part))
    return bool(read & arguments) and read <= arguments | _BUILTINS and not has_lambda


class _Replaced(ast.NodeTransformer):
    """Replaces every expression equal to `part` by a call."""

    def __init__(self, part: ast.expr, call: str) -> None:
        self.text = ast.dump(part)
        self.call = call

    def visit(self, node: ast.AST) -> ast.AST:
        if ast.dump(node) == self.text:
            return ast.parse(self.call, mode="eval").body
        return self.generic_visit(node)


Feedback = Literal["diagnostics", "plain"]
NO_COOPERATION: Parts = {"calls": 0.0, "depth": 0.0, "ignored": 0.0}
SHOWN = 300  # characters of a failure that the feedback shows


def passes(ran: RunResult) -> list[bool]:
    return [case.status == "AC" for case in ran.cases]


def syntax_note(code: str | None) -> str:
    """Error text for invalid Python, in one line; "" for a valid program."""
    if code is None:
        return "Your last reply had no ```python block."
    if parse_code(code) is not None:
        return ""
    try:
        ast.parse(code)
    except SyntaxError as error:
        return f"Your code has a syntax error in line {error.lineno}: {error.msg}."
    except (ValueError, RecursionError, MemoryError):
        pass
    return "Your code cannot be parsed."


def failure_notes(run: Run, ran: RunResult, most: int) -> list[str]:
    """The first `most` public tests that fail."""
    notes = []
    for test, case in zip(run.tests, ran.cases, strict=False):
        if case.status != "AC" and len(notes) < most:
            arguments = ", ".join(map(repr, test.args)) if isinstance(test, CallTest) else str(test)
            came = case.output if case.status == "WA" else f"{case.status} {case.detail}".strip()
            notes.append(f"A test fails: {run.entry}({arguments}): got {came}"[:SHOWN])
    return notes


@dataclass(frozen=True)
class CodePair(Workflow):
    """A helper and a main function, written at the same time."""

    name: ClassVar[str] = "code_pair_v0"
    roles: ClassVar[Mapping[str, int]] = {"helper": 1, "main": 1}
    presets: ClassVar[tuple[str, ...]] = ("strict", "paper")
    kinds: ClassVar[tuple[str, ...]] = ("code",)
    runs_programs: ClassVar[bool] = True
    own_instruction: ClassVar[bool] = True
    default_task: ClassVar[str] = "code"
    simultaneous: ClassVar[bool] = True
    task_class: ClassVar[type[Task]] = CodeTask
    prompts: ClassVar[Mapping[str, str]] = {
        "helper": "{problem}\n\nDo not write {entry} itself: write a helper function aux for it, "
        "with the arguments that {entry} has, in a ```python block. Somebody else writes {entry} "
        "and may call aux.",
        "main": "{problem}\n\nWrite {entry} in a ```python block. Somebody else writes a helper "
        "function aux, with the arguments that {entry} has: call it, do not define it.",
        "again": "{notes}\n\nWrite your function again.",
        "nothing": "No problem was found.",
    }

    task: CodeTask
    max_turns: int = 2
    feedback: Feedback = "diagnostics"
    shown_failures: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.task.data is None and 3 in read_levels(self.task.level or 1, LEVELS):
            raise UsageError(
                f"{self.name} needs problems that ask for a function; level 3 asks for programs "
                f"that read stdin. Use level=1 or 2, got level={self.task.level!r}."
            )
        check_choice("feedback", self.feedback, Feedback)
        for name in ("max_turns", "shown_failures"):
            check_whole(name, getattr(self, name), 1)

    def play(self, problem: Problem) -> Script:
        self.check(problem)
        entry, read_lenient = problem.meta["entry"], partial(extract_code, reading="lenient")
        chats: dict[str, list[Message]] = {}
        for role in ("helper", "main"):
            text = self.prompts[role].format(problem=problem.text, entry=entry)
            chats[role] = [{"role": "user", "content": text}]
        turns = 0
        while True:
            turns += 1
            replies = yield [
                Ask(f"{role}_0", chat, self.task.answer, read_lenient)
                for role, chat in chats.items()
            ]
            helper, main = codes = [self.read(reply) for reply in replies]
            parts = yield from self.graded(problem, helper, main)
            reward, together = sum(parts.values()), sum(parts[name] for name in NO_COOPERATION)
            yield RoleScore(replies[0], (parts["helper"] + together) / 1.9)
            yield RoleScore(replies[1], (parts["main"] + parts["tests"]) / 1.6)
            yield InterimScore(reward / HIGHEST)
            if turns == self.max_turns:
                break
            run = self.task.trial(problem, join_programs(helper, main))
            ran = (yield run) if main is not None and run.tests else None
            if ran is not None and ran.status == "AC":
                break
            notes = failure_notes(run, ran, self.shown_failures) if ran is not None else []
            for role, reply, code in zip(chats, replies, codes, strict=True):
                chats[role] = [*chats[role], *self.again(reply, code, notes)]
        facts = {
            "turns": turns,
            "reward": reward,
            "passed": parts["tests"],
            "solved": parts["tests"] == 1.0,
            "cooperation": together,
            **parts,
        }
        return Outcome(join_programs(helper, main) if main else None, reward / HIGHEST, facts)

    def check(self, problem: Problem) -> None:
        """Raise `UsageError` unless the problem asks for a plain function."""
        entry = problem.meta["entry"]
        if entry is None or not entry.isidentifier():
            raise UsageError(
                f"{self.name} needs problems that ask for a function; {problem.id} asks for "
                f"{'a program that reads stdin' if entry is None else entry}. Use level=1 or 2, or "
                "a file of functions."
            )

    def again(self, reply: Reply, code: str | None, notes: list[str]) -> list[Message]:
        """Messages of a second turn: the agent's own reply, and feedback."""
        own_reply = {"role": "assistant", "content": reply.text.strip()}
        remarks = [note for note in (syntax_note(code), *notes) if note]
        text = "\n".join(remarks) if self.feedback == "diagnostics" else ""
        if self.feedback == "diagnostics" and not remarks:
            text = self.prompts["nothing"]
        content = self.prompts["again"].format(notes=text).strip()
        return [own_reply, {"role": "user", "content": content}]

    def graded(self, problem: Problem, helper: str | None, main: str | None) -> Any:
        """Compute the parts of the reward; the results of hidden tests affect nothing else."""
        entry, hidden = problem.meta["entry"], grading_tests(problem)
        parts = {**pair_reward(helper, main, entry, 0.0), **NO_COOPERATION}
        if main is None or parts["main"] == 0.0:
            return parts
        run = self.task.trial(problem, join_programs(helper, main))._replace(tests=hidden)
        ran = yield run
        passed = passes(ran)
        parts["tests"] = sum(passed) / len(passed) if passed else 0.0
        if helper is not None and any(passed) and may_cooperate(helper, main, entry):
            others = [
                self.task.trial(problem, source)._replace(tests=hidden)
                for source in variants(helper, main)
            ]
            raising, *changed, alone = yield [*others, run._replace(entry=AUX)]
            statuses = [[case.status for case in result.cases] for result in changed]
            values = [case.output if case.status in ("AC", "WA") else "" for case in alone.cases]
            parts |= cooperation(
                main, entry, passed, passes(raising), statuses, passes(alone), values
            )
        return parts

    def expert(
        self, role: str, messages: list[Message], problem: Problem, rng: random.Random, right: bool
    ) -> str:
        """The reference, split in two; if wrong, an `aux` or a function without an effect."""
        helper, main = split_solution(problem.meta["solution"], problem.meta["entry"])
        if role == "helper":
            return fence(helper if right else "def aux(*args):\n    return args")
        return fence(main) if right else self.task.solve(problem, rng, False)

    def samples(self) -> tuple[str, ...]:
        return (
            *self.task.samples(),
            fence("def aux(x):\n    return x + 3"),
            fence("def f(x):\n    return aux(x) * 4"),
            fence("def f(x):\n    aux(x)\n    return x"),
        )
