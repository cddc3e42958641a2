r"""The task `math`: problems with one final answer, generated or from a file.

| | |
|---|---|
| Creation | `make_task("math", level=2)`, `make_task("math", data="test.jsonl")` |
| Problems | endless in five levels (`math_levels`), or the rows of a file (`files`) |
| Prompt | the statement, then `Put the final answer in \boxed{}.` |
| Answer | strict: last balanced box; lenient: `####`, answer phrase, last number |
| Score | 1 if equal to the reference by `score_batch` and not copied from the problem, else 0 |

Version history: v0, first release.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, ClassVar, Literal, cast

from flowzoo.envs.script import Graded
from flowzoo.envs.settings import check_seed, plain_integers
from flowzoo.envs.tasks.data import DataTask, check_either
from flowzoo.envs.tasks.math.files import MathLayout, MathRow, math_rows
from flowzoo.envs.tasks.math.levels import LEVELS, StepMistake, generate
from flowzoo.envs.tasks.math.worked import WORKED
from flowzoo.envs.tasks.rows import Columns, DataSource, data_source, read_columns
from flowzoo.envs.tasks.task import Problem, is_in, read_levels
from flowzoo.errors import check_choice
from flowzoo.reward import MathOptions, equivalence_classes, extract, score_batch
from flowzoo.sandbox.tier import SandboxName, check_sandbox
from flowzoo.seeding import key_rng

CopiesRule = Literal["refused", "paid"]
INSTRUCTION = "Put the final answer in \\boxed{}."
_LONGEST_SHOWN = 600
_SHORT_SOLUTION = 1000
"""Characters that 95 % of the worked solutions have at most where short replies do."""
_AS_GIVEN = MathOptions(read="answer")
_NUMBER = re.compile(r"\d+", re.ASCII)
_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{((?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*)\}")
_DELTAS = (-10, -3, -2, -1, 1, 2, 3, 10)


def is_right(answer: str, gold: str) -> bool:
    """Whether the extracted `answer` is graded equal to `gold`."""
    return score_batch([answer], [gold], _AS_GIVEN).scores[0] == 1.0


def wrong_answer(gold: str, rng: random.Random) -> str:
    """A plausible answer that is graded different from `gold`: one of its numbers is off."""
    spans = [match.span() for match in _NUMBER.finditer(gold)]
    for _ in range(16):
        if spans:
            start, end = rng.choice(spans)
            number = max(0, int(gold[start:end]) + rng.choice(_DELTAS))
            answer = f"{gold[:start]}{number}{gold[end:]}"
        else:
            answer = str(rng.randint(2, 99))
        if not is_right(answer, gold) and extract(f"\\boxed{{{answer}}}") == answer:
            return answer
    return "17" if not is_right("17", gold) else "18"


@dataclass(frozen=True)
class MathTask(DataTask[MathRow]):
    """Mathematics problems with one final answer.

    A problem's `meta` has `solution`, and `level` (generated) or `source` and `row`, its line.

    Immutable and cheap to pickle: a task on a file travels as path and content digest, and is
    read again where it arrives.

    Raises:
        UsageError: bad `level`, `layout` or `columns`; `data` is no file and no dataset id;
            `level` together with `data`.
        DataError: a broken file, with the line.
    """

    name: ClassVar[str] = "math"
    kind: ClassVar[str] = "math"
    instruction: ClassVar[str] = INSTRUCTION

    level: int | str | None = None
    """Difficulty of generated problems: 1 to 5, or a range such as "1-3", whose levels take turns.
    Default 1. Not for files."""
    data: str | None = None
    """A JSON Lines or Parquet file, or a folder or Hugging Face id, as
    `org/name:config@split#commit`; default: generated problems."""
    layout: MathLayout = "auto"
    """Layout of `data`: gsm8k, math, dapo, or auto to tell by its columns."""
    columns: Mapping[str, str] | Columns | str = ()
    """Column names of `data` where they differ from the layout's: keys text, answer, solution."""
    seed: int = 0
    """Seed of the generator. Files: only part of the problems' ids."""
    copies: CopiesRule = "refused"
    """Whether an answer that is equal to the reference, but only a formula copied from the problem
    with its operations still to be done, is refused (status `copied`) or paid."""
    sandbox: SandboxName = "auto"  # pyrefly: ignore[bad-override]
    """Isolation of the programs that a workflow has run: the best this machine has, or this one."""
    digest: str = field(default="", repr=False)
    """Digest that the content of `data` must have; default: taken when the task is made."""

    def __post_init__(self) -> None:
        """Check the options and, for a file, read it."""
        object.__setattr__(self, "columns", read_columns(self.columns))
        plain_integers(self)
        check_seed(self.seed)
        check_choice("copies", self.copies, CopiesRule)
        check_sandbox(self.sandbox)
        check_either(self, "level")
        if self.data is None:
            object.__setattr__(self, "level", 1 if self.level is None else self.level)
            read_levels(self.level or 0, LEVELS)
            return
        object.__setattr__(self, "data", str(self.data))
        object.__setattr__(self, "digest", self._source().digest)

    @property
    def reply_tokens(self) -> int:
        """128 for the arithmetic of level 1, 256 for other levels; of files 512 where their worked
        solutions are short, as those of GSM8K, else 1024, as for MATH.
        """
        if self.data is None:
            return 128 if max(read_levels(self.level or 1, LEVELS)) == 1 else 256
        lengths = sorted(len(row.solution) for row in self._source().splits["all"])
        usual = lengths[len(lengths) * 95 // 100]
        return 512 if lengths[0] > 0 and usual <= _SHORT_SOLUTION else 1024

    def _source(self) -> DataSource[MathRow]:
        columns = cast(Columns, self.columns)
        return data_source(str(self.data), math_rows, self.layout, columns, self.digest)

    def _of_row(self, row: MathRow, index: int, split: str, where: dict[str, Any]) -> Problem:
        meta = {**where, "solution": row.solution}
        return Problem(self.name, split, self.seed, index, row.text, row.gold, meta)

    def _generated(self, index: int, split: str) -> Problem:
        """Draw until the text belongs to `split`: the item stays a function of its key alone."""
        assert self.level is not None
        levels = read_levels(self.level, LEVELS)
        level = levels[index % len(levels)]
        for draw in count():
            made = generate(level, self._rng(level, split, index, draw))
            if is_in(split, made.text):
                meta = {
                    "source": f"level-{self.level}",
                    "level": level,
                    "solution": made.solution,
                    "draw": draw,
                }
                return Problem(self.name, split, self.seed, index, made.text, made.gold, meta)
        raise AssertionError("unreachable")

    def _rng(self, level: int, split: str, index: int, draw: int) -> random.Random:
        return key_rng("task", self.name, level, split, self.seed, index, draw)

    def example(self, number: int) -> Problem:
        """A generated problem of the split `pretrain`; for files one of `worked`."""
        if self.data is None:
            return self.problem(number, "pretrain")
        text, gold, solution = WORKED[number % len(WORKED)]
        meta = {"source": "worked", "solution": solution}
        return Problem(self.name, "pretrain", self.seed, number, text, gold, meta)

    def prompt(self, problem: Problem) -> str:
        """The statement and how to write the answer."""
        return f"{problem.text}\n{self.instruction}"

    def answer(self, text: str) -> str | None:
        """Content of the last balanced box, or None."""
        return extract(text, "strict")

    def answer_lenient(self, text: str) -> str | None:
        """The box, else what follows `####`, else an answer phrase, else the last number."""
        return extract(text, "lenient")

    def grade_batch(
        self, problems: Sequence[Problem], answers: Sequence[str | None]
    ) -> list[Graded]:
        """1.0 for an answer equal to the reference, else 0.0, with the status of `score_batch`.

        An answer that is only a formula of the problem's text has the status `copied`.
        """
        golds = [problem.gold for problem in problems]
        texts = [problem.text for problem in problems] if self.copies == "refused" else None
        result = score_batch(answers, golds, _AS_GIVEN, texts)
        return [Graded(*pair) for pair in zip(result.scores, result.statuses, strict=True)]

    def classes(self, problem: Problem, answers: Sequence[str | None]) -> tuple[int, ...]:
        """Classes of equal answers, whatever the problem; -1 for None."""
        return equivalence_classes(answers)

    def solve(self, problem: Problem, rng: random.Random, right: bool) -> str:
        r"""A worked solution that ends in `\boxed{...}`; if not `right`, a step went wrong."""
        if "draw" in problem.meta:
            return problem.meta["solution"] if right else self._mistaken(problem, rng)
        final = problem.gold if right else wrong_answer(problem.gold, rng)
        solution = _unboxed(problem.meta.get("solution", ""))
        conclusion = f"The answer is \\boxed{{{final}}}."
        if not solution or len(solution) > _LONGEST_SHOWN:
            return conclusion
        head, found, foot = solution.rpartition(problem.gold)
        return f"{head}{final if found else ''}{foot}\n{conclusion}"

    def _mistaken(self, problem: Problem, rng: random.Random) -> str:
        """The solution with one wrong step that changes the final answer."""
        level, draw = problem.meta["level"], problem.meta["draw"]
        key = (level, problem.split, problem.index, draw)
        steps = generate(level, self._rng(*key)).steps
        for _ in range(16):
            mistake = StepMistake(rng.randrange(steps), rng.choice(_DELTAS))
            wrong = generate(level, self._rng(*key), mistake)
            if not is_right(wrong.gold, problem.gold):
                return wrong.solution
        return f"\\boxed{{{wrong_answer(problem.gold, rng)}}}"

    def samples(self) -> tuple[str, ...]:
        """Short replies: boxed and unboxed, right for some small problems, and unreadable."""
        return (
            "\\boxed{7}",
            "3*4=12. 12+5=17. \\boxed{17}",
            "The answer is 42.",
            "so x=\\frac{1}{2}. \\boxed{\\frac{1}{2}}",
            "I am not sure.",
            "\\boxed{",
        )


def _unboxed(solution: str) -> str:
    r"""`solution` with every simple `\boxed{x}` replaced by `x`; empty if a box is left over."""
    plain = _BOX.sub(r"\1", solution)
    return "" if extract(plain) is not None else plain
