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
A failure of the sandbox itself (SE) is retried and never scored: the episode ends without a score.

Two programs are equivalent (majority votes) if they behave equally on the *public* inputs; hidden
tests are not used. Equal programs for one problem are run once and get one verdict.

Version history: v0, first release.
"""

import logging
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, cast

from flowzoo.envs.readers.published import read_program
from flowzoo.envs.script import GradeResult, Run, RunResult
from flowzoo.envs.tasks.code.family import complete, nothing, wrong_program
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
from flowzoo.envs.tasks.code.problems import LEVELS, draw, level_of
from flowzoo.envs.tasks.rows import (
    Columns,
    DataSource,
    DataTask,
    RowPlace,
    Unusable,
    data_source,
)
from flowzoo.envs.tasks.task import Problem, is_in, number_by_first, read_levels, run_programs
from flowzoo.errors import UsageError, check_choice
from flowzoo.reward.code.score import Scoring, code_sandbox, extract_code, score_programs
from flowzoo.sandbox.program import Limits, Program, Test, check_packages
from flowzoo.sandbox.tier import SandboxName


def fence(source: str) -> str:
    """A program in a fenced block."""
    return f"```python\n{source}\n```"


def grading_tests(problem: Problem) -> tuple[Test, ...]:
    """The grading tests: the hidden ones, after the public ones if the layout says they grade."""
    public = problem.meta["public"] if problem.meta.get("public_grade") else ()
    return (*public, *problem.meta["hidden"])


def observed_outputs(ran: RunResult, entry: str | None) -> tuple[str, ...]:
    """Behavior of a program on each input: its output, or its status if it failed."""
    # Tests that are code have no output, only a status.
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


@dataclass(frozen=True)
class CodeTask(DataTask[CodeRow]):
    """Programming problems.

    Raises:
        UsageError: an invalid option, or options of files together with options of generated
            problems.
        DataError: a broken file, with the line.
    """

    name: ClassVar[str] = "code"
    kind: ClassVar[str] = "code"
    instruction: ClassVar[str] = INSTRUCTION
    runs_programs: ClassVar[bool] = True
    drawn_by: ClassVar[tuple[str, ...]] = ("level", "family")
    of_file: ClassVar[tuple[str, ...]] = (
        "layout", "columns", "digest", "failing", "skip_unusable", "check_references"
    )  # fmt: skip

    level: int | str | None = None
    """Difficulty of generated problems: 1 (default) to 3, or a range such as "1-3", cycled by
    index. Not for files."""
    family: str | None = None
    """A family of generated problems, of any level, e.g. "merge". Not for files."""
    layout: CodeLayout = "auto"
    """Layout of `data`: humaneval, mbpp, livecodebench, codecontests, apps, or auto to detect it
    from the columns."""
    columns: Mapping[str, str] | Columns | str = ()
    """Column names of `data` that differ from the layout's (keys `text`, `solution`, `tests`,
    `entry`); on a command line as `columns=text:ask,tests:checks`."""
    reward: Scoring = "all"
    """`all`: 1 if every hidden test passes, else 0. `fraction`: the share that passes."""
    sandbox: SandboxName = "auto"  # pyrefly: ignore[bad-override]
    """Isolation of the programs: the best of this machine, or the named one."""
    cpu_s: float = 2.0
    """CPU seconds of a program per test."""
    memory_mb: int = 256
    """Memory of a program."""
    wall_s: float | None = None
    """Wall-clock seconds per test; default: 4 * cpu_s + 1. See `Limits`."""
    total_s: float | None = 120.0
    """CPU seconds for all tests of a program together; none: no limit."""
    output_bytes: int | None = None
    """Most bytes that a program prints or returns; default: 65,536, or 24 MiB for a file whose
    tests are code, and at least twice the longest expected output of the file."""
    packages: str = ""
    """Packages that tests and programs may import: `numpy`, which must be installed here (for
    docker: `flowzoo sandbox build --with numpy`)."""
    skip_unusable: bool = False
    """Leave out rows of `data` that cannot be used, instead of listing them and stopping."""
    check_references: bool = False
    """Run every reference solution of `data` once; rows whose reference fails cannot be used."""
    failing: tuple[Unusable, ...] = field(default=(), repr=False)
    """Rows whose reference fails, or whose tests need other packages; found when the task is
    made."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("reward", self.reward, Scoring)
        check_packages(self.packages)
        self.limits()
        if self.data is None:
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
            failing += failing_references(usable, sandbox, self._fit_limits(usable))
        object.__setattr__(self, "failing", self.failing or failing)
        object.__setattr__(self, "output_bytes", self._fit_limits(self._source()).output_bytes)

    def _fit_limits(self, source: DataSource[CodeRow]) -> Limits:
        # Limits with room for the longest expected output; logged if it is unusual.
        longest, line = longest_output(source.splits["all"])
        if self.output_bytes is None:
            room = output_room(longest, source.splits["all"])
            if 2 * longest > LEAST_OUTPUT:
                _log.warning(
                    "%s: output_bytes is %d, since the longest expected output, in line %d, has %d",
                    source.name, room, line, longest,
                )  # fmt: skip
            return replace(self.limits(), output_bytes=room)
        if self.output_bytes < longest:
            raise UsageError(
                f"output_bytes={self.output_bytes} is less than the expected output of "
                f"{source.name}, line {line}, which has {longest} bytes"
            )
        return self.limits()

    def _check_generated(self) -> None:
        if self.family is not None:
            level = level_of(self.family)
            if self.level not in (None, level, str(level)):
                raise UsageError(f"family {self.family!r} is of level {level}, not {self.level!r}.")
            object.__setattr__(self, "level", level)
        object.__setattr__(self, "level", 1 if self.level is None else self.level)
        read_levels(cast("int | str", self.level), LEVELS)

    @property
    def reply_tokens(self) -> int:
        """512 for functions, 1024 for programs of a file that read standard input."""
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

    def _of_row(self, row: CodeRow, index: int, split: str, where: RowPlace) -> Problem:
        names = ("entry", "public", "hidden", "solution", "prelude", "public_grade")
        meta = {**where, **{name: getattr(row, name) for name in names}}
        return Problem(self.name, split, self.seed, index, row.text, row.solution, meta)

    def _draw_key(self, index: int) -> tuple[int | str, ...]:
        levels = read_levels(self.level or 1, LEVELS)
        return (levels[index % len(levels)],)

    def _draw(self, rng: random.Random, index: int, split: str, number: int) -> Problem | None:
        [level] = self._draw_key(index)
        family, draft = draw(int(level), rng, self.family)
        generated = complete(draft) if is_in(split, draft.statement) else None
        if generated is None:
            return None
        meta = {
            "source": self.family or f"level-{self.level}",
            "level": level,
            "family": family,
            "draw": number,
            "entry": generated.entry,
            "public": generated.public,
            "hidden": generated.hidden,
            "solution": generated.source,
        }
        text, source = generated.text, generated.source
        return Problem(self.name, split, self.seed, index, text, source, meta)

    def question(self, text: str) -> Problem:
        """A question without tests; its program may read standard input."""
        problem = super().question(text)
        meta = {**problem.meta, "entry": None, "public": (), "hidden": ()}
        return replace(problem, meta=meta)

    def example(self, number: int) -> Problem:
        """A generated problem of the split `pretrain`, also for tasks on files."""
        task = self if self.data is None else CodeTask(level="1-2", seed=self.seed)
        return task.problem(number, "pretrain")

    def answer(self, text: str) -> str | None:
        return extract_code(text, "strict")

    def answer_lenient(self, text: str) -> str | None:
        """Like `answer`; else an unclosed block, or the reply from its first line of code."""
        return extract_code(text, "lenient")

    def answer_published(self, text: str) -> str | None:
        return read_program(text)

    def grade_batch(
        self, problems: Sequence[Problem], answers: Sequence[str | None]
    ) -> list[GradeResult]:
        """Grade on the hidden tests; equal answers to one problem are run once.

        Raises:
            UsageError: the sandbox is not available on this machine.
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
        grades = {key: GradeResult(*score) for key, score in zip(distinct, scored, strict=True)}
        return [grades[key] for key in keys]

    def _program(self, problem: Problem, answer: str) -> Program:
        source = with_prelude(answer, problem.meta.get("prelude", ""))
        return Program(source, problem.meta["entry"])

    def trial(self, problem: Problem, answer: str) -> Run:
        program = self._program(problem, answer)
        return Run(program.source, problem.meta["public"], program.entry, limits=self.limits())

    def grading(self) -> Mapping[str, Any]:
        """Start and describe the sandbox."""
        return {"sandbox": code_sandbox(self.sandbox, self.packages).describe()}

    def run_batch(self, runs: Sequence[Run]) -> list[RunResult]:
        return run_programs(runs, self.sandbox, self.limits(), self.packages)

    def classes(self, problem: Problem, answers: Sequence[str | None]) -> tuple[int, ...]:
        return self.classes_batch([problem], [answers])[0]

    def classes_batch(
        self, problems: Sequence[Problem], groups: Sequence[Sequence[str | None]]
    ) -> list[tuple[int, ...]]:
        """`classes` of several groups in one batch; without public tests equal texts are equal."""
        pairs = list(zip(problems, groups, strict=True))
        jobs = {
            (problem.id, problem.text, answer): self.trial(problem, answer)
            for problem, answers in pairs
            for answer in answers
            if answer is not None and problem.meta["public"]
        }
        results = self.run_batch(list(jobs.values()))
        behavior = {
            key: observed_outputs(ran, run.entry)
            for (key, run), ran in zip(jobs.items(), results, strict=True)
        }

        def class_key(problem: Problem, answer: str | None) -> tuple[str, ...] | None:
            if answer is None:
                return None
            return behavior.get((problem.id, problem.text, answer), lines_of(answer))

        return [
            number_by_first(class_key(problem, answer) for answer in answers)
            for problem, answers in pairs
        ]

    def solve(self, problem: Problem, rng: random.Random, right: bool) -> str:
        """The reference program in a fence; if not `right`, a variant that fails hidden tests.

        For files the wrong program does nothing, since mistakes in unknown code can be verified
        only by running it.
        """
        if right:
            if not problem.gold:
                where = f"{problem.meta.get('source')}, line {problem.meta.get('row')}"
                raise UsageError(
                    f"{where}: the problem has no reference solution for the scripted expert: use "
                    "another policy."
                )
            return fence(problem.gold)
        if "draw" not in problem.meta:
            return fence(nothing(problem.meta["entry"]))
        level, number = problem.meta["level"], problem.meta["draw"]
        drawn = self._rng((level,), problem.index, problem.split, number)
        original = complete(draw(level, drawn, self.family)[1])
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
