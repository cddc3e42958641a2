"""Base class of tasks: problems by index, prompts, answer parsing, batch grading."""

from __future__ import annotations

import os
import random
import re
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar, get_args

from flowzoo.envs.script import GradeResult, Run, RunCase, RunResult, SearchResult
from flowzoo.errors import FlowzooError, TaskError, UsageError, unknown
from flowzoo.functions import call_contained
from flowzoo.reward.code.score import code_sandbox, judge_again, trouble_of
from flowzoo.reward.unknown import unknown_status
from flowzoo.sandbox.program import Limits, Program, StdinTest, Test, Verdict
from flowzoo.sandbox.tier import SandboxName
from flowzoo.seeding import key_int, key_rng

if TYPE_CHECKING:
    from flowzoo.envs.tasks.golds import GoldSurvey

T = TypeVar("T")
SHOWN = 4096
"""Most characters of an output in the log of an episode."""


def job_of(run: Run) -> tuple[Program, tuple[Test, ...]]:
    """The program and tests of a run; without tests, a test that only runs it."""
    if run.tests:
        return Program(run.source, run.entry), run.tests
    return Program(run.source), (StdinTest(run.stdin, ""),)


def outcome_of(run: Run, verdict: Verdict) -> RunResult:
    """A verdict without measurements, which vary between runs."""
    # Without tests no output can be wrong.
    if verdict.status == "SE":
        return RunResult(unknown_status(trouble_of(verdict)), ())
    cases = tuple(
        RunCase(
            "AC" if case.status == "WA" and not run.tests else case.status,
            case.stdout[:SHOWN],
            case.detail[:SHOWN],
        )
        for case in verdict.cases
    )
    status = next((case.status for case in cases if case.status != "AC"), "AC")
    return RunResult(status if cases else verdict.status, cases)


def run_programs(
    runs: Sequence[Run],
    sandbox: SandboxName = "auto",
    limits: Limits | None = None,
    packages: str = "",
) -> list[RunResult]:
    """Run programs and return their results, unknown if the sandbox failed in every attempt."""
    if not runs:
        return []
    common = limits or Limits()
    programs, tests = zip(*map(job_of, runs), strict=True)
    each = [run.limits or common for run in runs]
    verdicts = judge_again(code_sandbox(sandbox, packages), programs, tests, each)
    return [outcome_of(run, verdict) for run, verdict in zip(runs, verdicts, strict=True)]


Split = Literal["pretrain", "train", "validation", "test", "all"]
"""`all` contains every instance of all splits, to evaluate on a whole file."""
SPLITS: tuple[str, ...] = get_args(Split)

KINDS = ("math", "code", "search", "actions", "writing")
"""Answer kinds of flowzoo's own tasks: a short answer, a program, a short answer to look up, moves
in a world, two texts. A custom task has one of these kinds or a new one."""

Scene = Sequence[Sequence[tuple[str, str]]]
"""A drawn world: rows of tiles, each a short text and its `rich` style."""

_ENDS = {"pretrain": 40, "train": 80, "validation": 90, "test": 100}


def split_of(instance: str) -> str:
    """The split of `instance` (canonical text of a problem), by its hash: 40/40/10/10 %."""
    # By hash, not by seed: splits are disjoint even with few instances.
    bucket = key_int("split", instance) % 100
    return next(name for name, end in _ENDS.items() if bucket < end)


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem. `gold`, `meta["solution"]` and `meta["hidden"]` never enter a prompt."""

    task: str
    split: str
    seed: int
    index: int
    text: str
    gold: str
    meta: Mapping[str, Any] = field(default_factory=dict)
    """Source, level and, if known, a worked solution; `hidden`: grading tests."""

    @property
    def id(self) -> str:
        """Unique name: `task/split/seed/index`, or `task/split/seed/source:index`."""
        source = self.meta.get("source")
        position = f"{self.index}" if source is None else f"{source}:{self.index}"
        return f"{self.task}/{self.split}/{self.seed}/{position}"

    def rng(self) -> random.Random:
        """A fresh generator, equal in every replay: the only randomness allowed in a script."""
        return key_rng("script", self.task, self.split, self.seed, self.index)


class Task(ABC):
    """Base of all tasks. Instances are immutable, picklable and shared by all episodes."""

    name: ClassVar[str]
    kind: ClassVar[str]
    """Answer kind; a workflow lists the kinds it understands."""
    sandbox: SandboxName = "auto"
    """Isolation of programs: the best one of this machine, or the named one."""
    runs_programs: ClassVar[bool] = False
    """True if grading runs an answer as a program."""
    instruction: ClassVar[str] = ""
    """Instruction of all prompts for the form of the answer, if it is one fixed text; see
    `instructed`."""
    home: ClassVar[str] = "single_v0"
    """Default workflow for this task."""

    reference_score: ClassVar[float] = 1.0
    """Lowest score of a reference answer."""

    @property
    def reply_tokens(self) -> int:
        """Tokens that a chain-of-thought model needs for nearly all problems.

        Default of `--max-tokens` for models larger than the pocket models.
        """
        return 512

    @abstractmethod
    def size(self, split: str) -> int | None:
        """Number of problems in `split`, or None for an endless generator."""

    def distinct(self, split: str) -> int | None:
        """Number of different texts in a generated `split`; None if it is not known."""
        return None

    def check_index(self, index: int, split: str) -> int | None:
        """Return `size(split)` after checking that the split has a problem `index`.

        Raises:
            UsageError: unknown split, or an index outside it.
        """
        size = self.size(split)
        if index < 0 or (size is not None and index >= size):
            limit = "" if size is None else f" and below {size}, the size of split {split!r}"
            raise UsageError(f"problem index {index}: expected at least 0{limit}.")
        return size

    @abstractmethod
    def problem(self, index: int, split: str = "train") -> Problem:
        """Problem `index` of `split`.

        Raises:
            UsageError: unknown split, or an index outside it.
        """

    def question(self, text: str) -> Problem:
        """Make a problem from a free question, which has no reference answer and cannot be graded.

        Raises:
            UsageError: a problem of this task is more than a text.
        """
        index, meta = key_int("question", text), {"source": "question"}
        return Problem(self.name, "validation", 0, index, text, "", meta)

    def example(self, number: int) -> Problem:
        """Problem `number` for worked examples, not used in training or evaluation.

        Raises:
            UsageError: there are none, for example if problems are the rows of a file.
        """
        if self.size("pretrain") is not None:
            raise UsageError(
                f"task {self.name!r} on a file has no problems for worked examples: leave out "
                "examples, or give them as chats by role."
            )
        return self.problem(number, "pretrain")

    def instructed(self, text: str) -> str:
        """The question `text` before the instruction, or in its place if that has {problem}."""
        if "{problem}" in self.instruction:
            return self.instruction.replace("{problem}", text)
        return f"{text}\n{self.instruction}" if self.instruction else text

    def prompt(self, problem: Problem) -> str:
        """The question for a solver, with the answer format; default: see `instructed`."""
        return self.instructed(problem.text)

    @abstractmethod
    def answer(self, text: str) -> str | None:
        """Parse the answer of a reply strictly, or None. Never raises."""

    @abstractmethod
    def answer_lenient(self, text: str) -> str | None:
        """Parse the answer of a reply leniently, or None. Never raises."""

    def answer_published(self, text: str) -> str | None:
        """Parse the answer of a reply as the preset `published` does, or None. Never raises.

        Default: strictly, for tasks that the public code does not have.
        """
        return self.answer(text)

    @abstractmethod
    def grade_batch(
        self, problems: Sequence[Problem], answers: Sequence[str | None]
    ) -> list[GradeResult]:
        """Grade `answers[i]` against `problems[i].gold`. Never raises on model text."""

    @abstractmethod
    def classes(self, problem: Problem, answers: Sequence[str | None]) -> tuple[int, ...]:
        """Equivalence classes of answers to `problem`, by first appearance; -1 for None."""

    def classes_batch(
        self, problems: Sequence[Problem], groups: Sequence[Sequence[str | None]]
    ) -> list[tuple[int, ...]]:
        """`classes` of `groups[i]`, answers to `problems[i]`; override it if batches are faster."""
        return [self.classes(*pair) for pair in zip(problems, groups, strict=True)]

    def run_batch(self, runs: Sequence[Run]) -> list[RunResult]:
        """Results of programs run in the sandbox, in one batch.

        Raises:
            UsageError: this machine cannot confine programs as `sandbox` demands.
        """
        return run_programs(runs, self.sandbox)

    def trial(self, problem: Problem, answer: str) -> Run:
        """The run of an answer on the public tests of its problem, for tasks about programs.

        Raises:
            UsageError: the answers of this task are not programs.
        """
        raise UsageError(
            f"the answers of task {self.name!r} are not programs and cannot be run on tests"
        )

    def grading(self) -> Mapping[str, Any]:
        """Settings of the grader, as plain values for a run's record.

        A task that runs programs names its isolation under `sandbox`.

        Raises:
            UsageError: this machine lacks what grading needs.
        """
        return {}

    def search_batch(
        self, problems: Sequence[Problem], queries: Sequence[str], k: int
    ) -> list[SearchResult]:
        """The `k` best passages for `queries[i]`, asked for `problems[i]`.

        Raises:
            UsageError: this task has no retriever.
            RetrieverError: the retriever failed.
        """
        raise UsageError(
            f"task {self.name!r} has no retriever: a workflow that searches needs a task "
            'with one, such as task="search"'
        )

    @abstractmethod
    def solve(self, problem: Problem, rng: random.Random, right: bool) -> str:
        """A scripted expert's reply: a worked solution that is right, or plausibly wrong."""

    def reference(self, problem: Problem) -> str | None:
        """The best known answer, in the format of `answer`; None without one.

        It scores at least `reference_score`. Default: the answer of the expert's right reply.
        """
        return self.answer(self.solve(problem, problem.rng(), True))

    def golds(self) -> GoldSurvey | None:
        """Sorts of the reference answers and the remarkable ones; None if nothing is known."""
        return None

    @abstractmethod
    def samples(self) -> tuple[str, ...]:
        """Short plausible replies for `Prose.sample()`, so that random play reaches rewards."""

    def scene(self, problem: Problem, answer: str | None = None) -> Scene | None:
        """Drawing of the world after `answer`; None for tasks without a world."""
        return None


def number_by_first(items: Iterable[Hashable | None]) -> tuple[int, ...]:
    """Equal items get equal numbers, from 0 in order of first appearance; -1 for None."""
    numbers: dict[Hashable, int] = {}
    return tuple(-1 if item is None else numbers.setdefault(item, len(numbers)) for item in items)


def read_levels(level: int | str, levels: Iterable[int]) -> tuple[int, ...]:
    """The levels (at most 9) that `level` names by 2, "2" or "1-3"."""
    levels_known = list(levels)
    digit = f"([1-{max(levels_known)}])"
    match = re.fullmatch(f"{digit}(?:-{digit})?", str(level).strip())
    chosen = range(int(match[1]), int(match[2] or match[1]) + 1) if match else range(0)
    if chosen and not isinstance(level, bool):
        return tuple(chosen)
    names = ", ".join(map(str, levels_known))
    raise UsageError(f"level {level!r}: expected one of {names}, or a range such as '1-3'.")


def is_in(split: str, instance: str) -> bool:
    """True if `instance` belongs to `split`, which may be `all`."""
    return split in ("all", split_of(instance))


def check_split(split: str, setting: str = "split") -> None:
    """Raise `UsageError` unless the split that a setting names is one of `SPLITS`."""
    if split not in SPLITS:
        raise unknown(setting, split, SPLITS)


def get_problem(task: Task, index: int, split: str = "train") -> Problem:
    """Problem `index` of `split`, with a type check.

    Raises:
        UsageError: unknown split, or an index outside it.
        TaskError: the task raised another error, or returned another type.
    """
    doing = f"problem({index}, {split!r})"
    problem = call_named(f"task {task.name!r}: {doing}", lambda: task.problem(index, split))
    if not isinstance(problem, Problem):
        raise TaskError(
            f"task {task.name!r}: problem() must return a flowzoo.envs.Problem, got "
            f"{type(problem).__name__}"
        )
    return problem


def get_size(task: Task, split: str) -> int | None:
    """`task.size(split)`, checked to be an integer of at least 0 or None."""
    size = call_named(f"task {task.name!r}: size({split!r})", lambda: task.size(split))
    if size is not None and (not isinstance(size, int) or size < 0):
        raise TaskError(
            f"task {task.name!r}: size({split!r}) must return a whole number or None (endless), "
            f"got {size!r}"
        )
    return size


def call_named(name: str, call: Callable[[], T]) -> T:
    """Call a user's code; its exceptions become a `TaskError` with its name and the last line."""
    try:
        return call_contained(call, name)
    except FlowzooError:
        raise
    except OSError as error:  # an OSError is a system error
        error.add_note(f"raised by {name}")
        raise
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        location = f" ({os.path.basename(frames[-1].filename)}, line {frames[-1].lineno})"
        message = " ".join(str(error).split())
        what = f"{type(error).__name__}: {message}" if message else type(error).__name__
        raise TaskError(f"{name} raised {what}{location}") from error
