r"""The task `code`: problems whose answer is a Python program, generated or from a file.

| | |
|---|---|
| Creation | `make_task("code", level=2)`, `make_task("code", data="HumanEval.jsonl")` |
| Problems | generated in three levels, or the rows of a file |
| Prompt | the statement, its public tests, and `Put the code in a ```python block.` |
| Answer | strict: a bare program or the last block (python first); lenient: also unfenced |
| Score | 1 if all hidden tests pass (`reward="fraction"`: the share that does), in the sandbox |

Two styles: a program that reads stdin and prints, or a function that is called. `meta` holds
`entry` (None: stdin), the `public` tests, which are shown, the `hidden` ones, which grade, and the
reference `solution`. Status of a grade: AC, WA, RE, TLE, MLE, OLE, CE, or `none` for no program.
A failure of the sandbox itself (SE) is tried again, and never a score: an episode ends without one.

Two programs are equivalent (majority votes) if they do the same on the *public* inputs; hidden
tests are not touched. Equal programs on one problem are run once and get one verdict.

Version history: v0, first release.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, cast

from flowzoo.envs.script import Graded, Ran, Run
from flowzoo.envs.tasks.code.family import (
    CodeDraft,
    ProblemFamily,
    complete,
    nothing,
    wrong_program,
)
from flowzoo.envs.tasks.code.layouts import (
    LEAST_OUTPUT,
    CodeLayout,
    CodeRow,
    check_packages_of,
    code_rows,
    failing_references,
    longest_output,
    output_room,
    usable_source,
    warn_of_vacuous,
    with_prelude,
)
from flowzoo.envs.tasks.code.problems import LEVELS, draw, family_named
from flowzoo.envs.tasks.rows import (
    Columns,
    DataSource,
    DataTask,
    Unusable,
    check_either,
    data_source,
    read_columns,
)
from flowzoo.envs.tasks.task import Problem, is_in, number_by_first, read_levels, run_programs
from flowzoo.errors import UsageError, check_choice
from flowzoo.reward.code.score import Scoring, code_sandbox, extract_code, score_programs
from flowzoo.sandbox.program import Limits, Program, Test, check_packages
from flowzoo.sandbox.tier import SandboxName
from flowzoo.seeding import key_rng


def fence(source: str) -> str:
    """A program as a reply gives it."""
    return f"```python\n{source}\n```"


def grading_tests(problem: Problem) -> tuple[Test, ...]:
    """The hidden tests; before them the public ones, where the file's layout says they count."""
    public = problem.meta["public"] if problem.meta.get("public_grade") else ()
    return (*public, *problem.meta["hidden"])


def observed_outputs(ran: Ran, entry: str | None) -> tuple[str, ...]:
    """Behavior of a program on each input: its output, or else the status."""
    # Tests that are code give no output: of those only the status is known.
    outputs = []
    for case in ran.cases:
        is_output = case.status in ("AC", "WA") and case.output
        output = " ".join(case.output.split()) if entry is None else case.output
        outputs.append(f"output {output}" if is_output else case.status)
    return tuple(outputs)


def lines_of(answer: str) -> tuple[str, ...]:
    """The lines of a program, without blank ones and white space at their ends."""
    return tuple(line.rstrip() for line in answer.splitlines() if line.strip())


_log = logging.getLogger("flowzoo.tasks")

INSTRUCTION = "Put the code in a ```python block."
_MOST_DRAWS = 10_000


@dataclass(frozen=True)
class CodeTask(DataTask[CodeRow]):
    """Programming problems.

    Raises:
        UsageError: a bad option, or options of files together with options of generated problems.
        DataError: a broken file, with the line.
    """

    name: ClassVar[str] = "code"
    kind: ClassVar[str] = "code"
    instruction: ClassVar[str] = INSTRUCTION
    runs_programs: ClassVar[bool] = True

    level: int | str | None = None
    """Difficulty of generated problems: 1 to 3, or a range such as "1-3", whose levels take turns.
    Default 1. Not for files."""
    family: str | None = None
    """One family of generated problems, whichever its level, e.g. "merge". Not for files."""
    data: str | None = None
    layout: CodeLayout = "auto"
    """Layout of `data`: humaneval, mbpp, livecodebench, codecontests, apps, or auto to tell by its
    columns."""
    columns: Mapping[str, str] | Columns | str = ()
    """Column names of `data` where they differ from the layout's (keys `text`, `solution`, `tests`,
    `entry`); on a command line as `columns=text:ask,tests:checks`."""
    reward: Scoring = "all"
    """`all`: 1 if every hidden test passes, else 0. `fraction`: the share that passes."""
    sandbox: SandboxName = "auto"  # pyrefly: ignore[bad-override]
    """Isolation of the programs: the best this machine has, or the one named."""
    cpu_s: float = 2.0
    """CPU seconds that a program has for each test."""
    memory_mb: int = 256
    """Memory of a program."""
    wall_s: float | None = None
    """Seconds on the wall for each test; default: 4 * cpu_s + 1. See `Limits`."""
    total_s: float | None = 120.0
    """CPU seconds for all tests of a program together; none: no limit."""
    output_bytes: int | None = None
    """Bytes that a program may print or return; default: 65,536, of a file whose tests are code
    24 MiB, and at least twice the longest expected output of the file."""
    packages: str = ""
    """Packages that tests and programs may import: `numpy`, which must be installed here (for
    docker: `flowzoo sandbox build --with numpy`)."""
    skip_unusable: bool = False
    """Leave out rows of `data` that cannot be used, instead of listing them and stopping."""
    check_references: bool = False
    """Run every reference solution of `data` once; rows whose reference fails cannot be used."""
    seed: int = 0
    digest: str = field(default="", repr=False)
    failing: tuple[Unusable, ...] = field(default=(), repr=False)
    """Rows whose reference fails, or whose tests need other packages; found when the task is
    made."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", read_columns(self.columns))
        super().__post_init__()
        check_choice("reward", self.reward, Scoring)
        check_packages(self.packages)
        self.limits()
        check_either(self, "level", "family")
        if self.data is None:
            if self.skip_unusable or self.check_references:
                raise UsageError("skip_unusable and check_references are for files: give data.")
            self._check_generated()
            return
        self._read()

    def _read(self) -> None:
        columns = cast(Columns, self.columns)
        whole = data_source(str(self.data), code_rows, self.layout, columns, self.digest)
        object.__setattr__(self, "digest", whole.digest)
        failing = check_packages_of(whole, self.packages)
        warn_of_vacuous(whole)
        if self.check_references and not self.failing:
            usable = usable_source(
                str(self.data), self.layout, columns, whole.digest, failing, skip=True
            )
            sandbox = code_sandbox(self.sandbox, self.packages)
            failing += failing_references(usable, sandbox, self._fitted(usable))
        object.__setattr__(self, "failing", self.failing or failing)
        object.__setattr__(self, "output_bytes", self._fitted(self._source()).output_bytes)

    def _fitted(self, source: DataSource[CodeRow]) -> Limits:
        # The limits with room for the longest expected output, which is said if it is unusual.
        longest, line = longest_output(source.splits["all"])
        if self.output_bytes is None:
            room = output_room(longest, source.splits["all"])
            if 2 * longest > LEAST_OUTPUT:
                _log.warning(
                    "%s: programs may print %d bytes (output_bytes), since the longest expected "
                    "output, in line %d, has %d", source.name, room, line, longest,
                )  # fmt: skip
            return replace(self.limits(), output_bytes=room)
        if self.output_bytes < longest:
            raise UsageError(
                f"output_bytes={self.output_bytes} lets no program print the expected output of "
                f"{source.name}, line {line}, which has {longest} bytes"
            )
        return self.limits()

    def _check_generated(self) -> None:
        if self.family is not None:
            level = family_named(self.family).level
            if self.level not in (None, level, str(level)):
                raise UsageError(f"family {self.family!r} is of level {level}, not {self.level!r}.")
            object.__setattr__(self, "level", level)
        object.__setattr__(self, "level", 1 if self.level is None else self.level)
        read_levels(cast("int | str", self.level), LEVELS)

    @property
    def reply_tokens(self) -> int:
        """512 for a function, 1024 where programs of a file read standard input."""
        if self.data is None:
            return 512
        return 512 if any(row.entry for row in self._source().splits["all"]) else 1024

    def _source(self) -> DataSource[CodeRow]:
        columns = cast(Columns, self.columns)
        return usable_source(
            str(self.data), self.layout, columns, self.digest, self.failing, self.skip_unusable
        )

    @property
    def unusable(self) -> int:
        """Rows of the file that were left out."""
        return 0 if self.data is None else len(self._source().unusable)

    def limits(self) -> Limits:
        """Limits of every run of a program.

        Raises:
            UsageError: one of them is out of range.
        """
        return Limits(
            cpu_s=self.cpu_s,
            wall_s=self.wall_s,
            total_s=self.total_s,
            memory_mb=self.memory_mb,
            output_bytes=LEAST_OUTPUT if self.output_bytes is None else self.output_bytes,
        )

    def _of_row(self, row: CodeRow, index: int, split: str, where: dict[str, Any]) -> Problem:
        meta = {
            **where,
            "entry": row.entry,
            "public": row.public,
            "hidden": row.hidden,
            "solution": row.solution,
            "prelude": row.prelude,
            "public_grade": row.public_grade,
        }
        return Problem(self.name, split, self.seed, index, row.text, row.solution, meta)

    def _generated(self, index: int, split: str) -> Problem:
        # Draw until the statement belongs to `split`, so that the item depends on its key only.
        levels = read_levels(self.level or 1, LEVELS)
        level = levels[index % len(levels)]
        for number in range(_MOST_DRAWS):
            family, draft = self._draft(level, split, index, number)
            if not is_in(split, draft.statement):
                continue
            generated = complete(family, draft)
            if generated is not None:
                meta = {
                    "source": self.family or f"level-{self.level}",
                    "level": level,
                    "family": generated.family,
                    "draw": number,
                    "entry": generated.entry,
                    "public": generated.public,
                    "hidden": generated.hidden,
                    "solution": generated.source,
                }
                text, source = generated.text, generated.source
                return Problem(self.name, split, self.seed, index, text, source, meta)
        raise UsageError(f"family {self.family!r} has no problem in split {split!r}: it is small.")

    def _draft(
        self, level: int, split: str, index: int, number: int
    ) -> tuple[ProblemFamily, CodeDraft]:
        rng = key_rng("task", self.name, level, split, self.seed, index, number)
        return draw(level, rng, self.family)

    def question(self, text: str) -> Problem:
        """A question without tests; its program may read standard input."""
        problem = super().question(text)
        meta = {**problem.meta, "entry": None, "public": (), "hidden": ()}
        return replace(problem, meta=meta)

    def example(self, number: int) -> Problem:
        """A generated problem of the split `pretrain`, also where the task's own are in a file."""
        task = self if self.data is None else CodeTask(level="1-2", seed=self.seed)
        return task.problem(number, "pretrain")

    def prompt(self, problem: Problem) -> str:
        return f"{problem.text}\n{self.instruction}"

    def answer(self, text: str) -> str | None:
        return extract_code(text, "strict")

    def answer_lenient(self, text: str) -> str | None:
        """As `answer`; else an unclosed block, or a reply from its first line of code on."""
        return extract_code(text, "lenient")

    def grade_batch(
        self, problems: Sequence[Problem], answers: Sequence[str | None]
    ) -> list[Graded]:
        """Grades on the hidden tests; equal answers to one problem are run once.

        Raises:
            UsageError: this machine does not offer the sandbox.
        """
        pairs = list(zip(problems, answers, strict=True))
        keys = [(problem.id, problem.text, answer) for problem, answer in pairs]
        distinct = dict(zip(keys, pairs, strict=True))
        scored = score_programs(
            [
                None if answer is None else self._program(problem, answer)
                for problem, answer in distinct.values()
            ],
            [grading_tests(problem) for problem, _ in distinct.values()],
            scoring=self.reward,
            sandbox=self.sandbox,
            packages=self.packages,
            limits=self.limits(),
        )
        grades = {key: Graded(*score) for key, score in zip(distinct, scored, strict=True)}
        return [grades[key] for key in keys]

    def _program(self, problem: Problem, answer: str) -> Program:
        source = with_prelude(answer, problem.meta.get("prelude", ""))
        return Program(source, problem.meta["entry"])

    def trial(self, problem: Problem, answer: str) -> Run:
        program = self._program(problem, answer)
        return Run(program.source, problem.meta["public"], program.entry, limits=self.limits())

    def grading(self) -> Mapping[str, Any]:
        """The sandbox; it is started by this."""
        return {"sandbox": code_sandbox(self.sandbox, self.packages).describe()}

    def run_batch(self, runs: Sequence[Run]) -> list[Ran]:
        return run_programs(runs, self.sandbox, self.limits(), self.packages)

    def classes(self, problem: Problem, answers: Sequence[str | None]) -> tuple[int, ...]:
        return self.classes_batch([problem], [answers])[0]

    def classes_batch(
        self, problems: Sequence[Problem], groups: Sequence[Sequence[str | None]]
    ) -> list[tuple[int, ...]]:
        """`classes` of several groups in one batch; without public tests equal texts are equal."""
        jobs: dict[tuple[str, str, str], Run] = {}
        for problem, answers in zip(problems, groups, strict=True):
            for answer in answers:
                if answer is not None and problem.meta["public"]:
                    key = problem.id, problem.text, answer
                    jobs.setdefault(key, self.trial(problem, answer))
        runs = list(jobs.values())
        results = zip(runs, self.run_batch(runs), strict=True)
        did = dict(
            zip(jobs, (observed_outputs(ran, run.entry) for run, ran in results), strict=True)
        )
        return [
            number_by_first(
                [
                    None
                    if answer is None
                    else did.get((problem.id, problem.text, answer), lines_of(answer))
                    for answer in answers
                ]
            )
            for problem, answers in zip(problems, groups, strict=True)
        ]

    def solve(self, problem: Problem, rng: random.Random, right: bool) -> str:
        """The reference program in a fence; if not `right`, a variant that fails hidden tests.

        For files the wrong program does nothing: mistakes in unknown code cannot be verified
        without running it.
        """
        if right:
            if not problem.gold:
                where = f"{problem.meta.get('source')}, line {problem.meta.get('row')}"
                raise UsageError(
                    f"{where}: the problem has no reference solution, so no scripted expert can "
                    "solve it: use another policy."
                )
            return fence(problem.gold)
        if "draw" not in problem.meta:
            return fence(nothing(problem.meta["entry"]))
        key = problem.meta["level"], problem.split, problem.index, problem.meta["draw"]
        original = complete(*self._draft(*key))
        return fence(wrong_program(original, rng) if original else nothing(problem.meta["entry"]))

    def reference(self, problem: Problem) -> str | None:
        return problem.gold or None

    def samples(self) -> tuple[str, ...]:
        return (
            fence("def f(x):\n    return x + 3"),
            fence("def f(x):\n    return (x + 2) * 3"),
            fence("print(input())"),
            "def f(x):\n    return x * 2",
            "I am not sure.",
            "```python\ndef f(x",
        )
