"""Code answers: the program in a reply, and the score of its verdict.

| reading | what counts as the program |
|---|---|
| strict | the reply if it is a bare program (`bare_program`), else the last closed fence labeled `python`, else the last closed one without a label |
| lenient | as strict, else an unclosed fence, else the reply from its first line of code |

Thoughts are ignored: only text after the last `</think>` counts, and none after an open `<think>`.
Nothing is executed here; the sandbox decides whether a fence contains a program.
"""  # noqa: E501 - rows of tables

from __future__ import annotations

import ast
import logging
import math
import os
import re
import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from textwrap import dedent
from typing import TYPE_CHECKING, Literal, NamedTuple

from flowzoo.errors import check_choice
from flowzoo.reward.unknown import unknown_status
from flowzoo.reward.visible import visible
from flowzoo.sandbox.program import Limits, Program, StdinTest, Test, Verdict, package_names
from flowzoo.sandbox.tier import SandboxName

if TYPE_CHECKING:
    from flowzoo.sandbox.sandbox import Sandbox

# Most characters of a program without a fence, which must be parsed.
LONGEST_BARE = 20_000
_DEEPEST = 150  # nesting of brackets; human-written programs are far below it
# Beginnings of programs; most prose is rejected here without parsing.
_STARTS = re.compile(
    r"(?:\s*+(?:#[^\n]*+(?:\n|\Z)|\"\"\"|'''|@\w|(?:def|class|import|from|async|for|while|if|with)\s"
    r"|try:|[A-Za-z_][\w.]*+(?:\s*+,\s*+\w++)*+\s*+(?:[(=:]|[-+*/]=)))"
)
_SAYS = re.compile(
    r"(?m)^(?:[ \t]*+(?:async )?(?:def|class|import|from)\s|.*\bprint\(|.*\blambda\b)"
)
_STRAY = re.compile(r"\n[ \t]*```[ \t]*\Z")


def parse_code(code: str | None) -> ast.Module | None:
    """The syntax tree of a reply's code, or None. Never raises."""
    if code is None:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # on invalid escapes in a model's text
            return ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def python_tree(text: str, deepest: int = _DEEPEST) -> ast.Module | None:
    """The syntax tree of a text; None for other texts and brackets nested beyond `deepest`."""
    return None if len(text) > LONGEST_BARE or _depth(text) > deepest else parse_code(text)


def bare_program(text: str) -> str | None:
    """Return a reply that is just a program, or None.

    Read: a text that parses as Python and defines, imports or prints something; a lone closing
        fence at its end is removed. Not read: prose around a program, expressions, assignments and
        words that parse as Python (`x = 5`, `f(2) == 3`, `None`), and any other fence.
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
    # True if only the parser sees a statement: `Output: 3` parses as an annotation.
    return isinstance(statement, ast.AnnAssign) and statement.value is None


def _does_something(statement: ast.stmt) -> bool:
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
    deepest = level = 0
    for match in re.finditer(r"[()\[\]{}]", text):
        level = level + 1 if match[0] in "([{" else max(0, level - 1)
        deepest = max(deepest, level)
    return deepest


_log = logging.getLogger(__name__)

LONGEST = 65_536  # most characters of a program; a longer one counts as no answer
TAIL = 2 * LONGEST  # characters at the end of a reply that are searched

# Most verdicts cached by program, tests and limits, except time limit verdicts.
REMEMBERED = 2048

CodeReading = Literal["strict", "lenient"]
Scoring = Literal["all", "fraction"]

_LABELS = ("python", "py", "python3")
_FENCE = re.compile(r"^([ \t]*)(`{3,}|~{3,})[ \t]*([\w+#.-]*)[^`\n]*$", re.MULTILINE)
# Spaces by which an inner or closing fence may be indented more than the opening one; deeper ones
# belong to the program, e.g. to a docstring.
_DEEPER = 3
_CODE = re.compile(
    r"^(?:(?:def|class|import|from|async[ ]def|@)[ \w].*|print\(.*|for[ ].*:|while[ ].*:"
    r"|[a-z_]\w*(?:,[ ]?\w+)*[ ]*=[ ]*\S.*)$",
    re.MULTILINE,
)


class CodeScore(NamedTuple):
    """Score of a program in [0, 1] and status of its verdict (`none`: no program).

    Under an unknown status (`flowzoo.reward.unknown`) the score is NaN.
    """

    score: float
    status: str


class Block(NamedTuple):
    """A fenced block of a reply; `closed` unless the reply ended first."""

    label: str
    text: str
    closed: bool


@lru_cache(maxsize=8)
def blocks(text: str) -> tuple[Block, ...]:
    """The fenced blocks of a reply, in order, in linear time."""
    fences: list[Block] = []
    margin, fence, label, start = "", "", "", 0
    for match in _FENCE.finditer(text):
        if fence and len(match[1]) > len(margin) + _DEEPER:
            continue
        if fence and match[2].startswith(fence) and not match[3]:
            body = text[start : max(start, match.start() - 1)]
            fences.append(Block(label, body, True))
            fence = ""
        elif not fence or match[3].lower() in _LABELS:
            # Inside a block that is not closed, or that quotes a program, the inner one counts.
            margin, fence, label = match[1], match[2], match[3].lower()
            start = match.end() + 1
    if fence:
        fences.append(Block(label, text[start:], False))
    return tuple(fences)


def extract_code(text: str, reading: CodeReading = "strict") -> str | None:
    """Extract the program of a reply, or None. Never raises on any text."""
    # This comes first, since a program may quote fences in its docstring.
    if (bare := bare_program(text)) is not None:
        return bare
    reply = visible(text)[-TAIL:]
    fences = blocks(reply)
    labeled = [block for block in fences if block.label in _LABELS]
    plain = [block for block in fences if not block.label]
    candidates = [block.text for block in reversed(plain) if block.closed]
    candidates = [block.text for block in reversed(labeled) if block.closed] + candidates
    if not candidates and reading == "lenient":
        candidates = [block.text for block in reversed(labeled + plain)]
        match = None if fences else _CODE.search(reply)
        if match is not None:
            candidates = [reply[match.start() :]]
    program = candidates[0].strip("\r\n").rstrip() if candidates else ""
    if program[:1] in (" ", "\t"):  # a block in a list; it must be dedented to parse
        program = dedent(program)
    return program if program and len(program) <= LONGEST else None


def code_sandbox(name: SandboxName, packages: str = "") -> Sandbox:
    """The shared sandbox of all code tasks of this process, with the isolation `name`.

    It caches verdicts: groups repeat programs, and a random program must not get another chance.
    """
    from flowzoo.sandbox.sandbox import shared_sandbox

    return shared_sandbox(name, cache=REMEMBERED, packages=package_names(packages))


def judge_again(
    sandbox: Sandbox,
    programs: Sequence[Program],
    tests: Sequence[Sequence[Test]],
    limits: Sequence[Limits],
    stop: bool = False,
) -> list[Verdict]:
    """Return verdicts; programs for which the sandbox failed are run once more.

    After a second failure the status is SE, which is logged, if the sandbox cannot run a harmless
    program either; if it can, the program is the cause, and the status is RE. If the test itself
    failed, it is SE at once.
    """
    verdicts = sandbox.run_sync(programs, tests, limits, stop, on_error="verdict")
    lost = _broken_rows(verdicts)
    if lost:
        again = sandbox.run_sync(
            [programs[row] for row in lost],
            [tests[row] for row in lost],
            [limits[row] for row in lost],
            stop,
            on_error="verdict",
        )
        for row, verdict in zip(lost, again, strict=True):
            verdicts[row] = verdict
        lost = _broken_rows(verdicts)
    if lost and _works(sandbox):
        for row in lost:
            verdicts[row] = _blame(verdicts[row])
    for verdict in verdicts:
        if verdict.status == "SE":
            trouble = trouble_of(verdict)
            _log.warning("not judged and not scored: a program (%s): %s", sandbox.tier, trouble)
    return verdicts


def _broken_rows(verdicts: Sequence[Verdict]) -> list[int]:
    # Rows for which the sandbox failed, not the test.
    return [
        row
        for row, verdict in enumerate(verdicts)
        if verdict.status == "SE" and not verdict.facts.get("test_failed")
    ]


def _works(sandbox: Sandbox) -> bool:
    harmless = Program(f"# {os.urandom(8).hex()}")  # no cache has a verdict of it
    test = StdinTest("", "")
    (verdict,) = sandbox.run_sync([harmless], [[test]], [Limits()], on_error="verdict")
    return verdict.status == "AC"


def _blame(verdict: Verdict) -> Verdict:
    cases = tuple(
        replace(case, status="RE", detail=f"it made its box fail: {case.detail}")
        if case.status == "SE"
        else case
        for case in verdict.cases
    )
    return replace(verdict, status="RE", cases=cases)


def trouble_of(verdict: Verdict) -> str:
    """The reason of the status SE."""
    return next(case.detail for case in verdict.cases if case.status == "SE")


def score_of(verdict: Verdict, scoring: Scoring) -> CodeScore:
    """The score of a verdict: 1 if every test passed, or the fraction of passed tests."""
    if verdict.status == "SE":
        return CodeScore(math.nan, unknown_status(trouble_of(verdict)))
    score = verdict.fraction if scoring == "fraction" else float(verdict.status == "AC")
    return CodeScore(score, verdict.status)


def score_programs(
    programs: Sequence[Program | None],
    tests: Sequence[Sequence[Test]],
    *,
    scoring: Scoring = "all",
    sandbox: SandboxName = "auto",
    packages: str = "",
    limits: Limits | None = None,
) -> list[CodeScore]:
    """Score programs in one batch of the sandbox.

    Args:
        programs: programs; None for replies without one (score 0, status `none`).
        tests: tests by program.
        scoring: `all` (1 if all tests pass, the run stops at the first that fails) or `fraction`.
        sandbox: name of the isolation.
        packages: names of packages that programs may import.
        limits: limits of every test.

    Raises:
        UsageError: unknown scoring, or an isolation that is not available.
    """
    check_choice("reward of task 'code'", scoring, Scoring)
    scores = [CodeScore(0.0, "none")] * len(programs)
    indices = [index for index, program in enumerate(programs) if program is not None]
    if not indices:
        return scores
    verdicts = judge_again(
        code_sandbox(sandbox, packages),
        [program for program in programs if program is not None],
        [tests[index] for index in indices],
        [limits or Limits()] * len(indices),
        stop=scoring == "all",
    )
    for index, verdict in zip(indices, verdicts, strict=True):
        scores[index] = score_of(verdict, scoring)
    return scores
