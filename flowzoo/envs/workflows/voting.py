r"""# Voting

Several generators answer the same problem independently; an aggregator selects one of their answers
and never writes a new one.

| | |
|---|---|
| Creation | `voting_v0.env(task="math")`, `voting_v0.env(task="code")` |
| Agents | `generator_0` … `generator_2`, `aggregator_0` |
| Observation | `{"messages": [...]}`: the problem; for the aggregator also all candidates in slot order |
| Action | generators: a reply with the answer in `\boxed{}` (code: a program in a ```` ```python ```` block); aggregator: the candidate's number in `\boxed{}`, or the candidate in plain words (`Candidate 3 is right.`) |
| Reward | 1 to every call if the chosen candidate is right, else 0 (`credit="team"`) |
| End | after `n_votes` + 1 calls, in each of at most `test_rounds` rounds |

## Arguments
| name | default | meaning |
|---|---|---|
| `n_votes` | 3 | generators asked in parallel |
| `aggregate` | `"llm"` | `"majority"` counts votes over equivalent answers (code: the same on the public inputs) instead (no aggregator agent); ties go to the class of the lowest slot |
| `preset` | `"strict"` | an unreadable choice abstains, and the episode scores 0; `"paper"` (arXiv 2605.24202): else any lone digit in range, else candidate 1; `"published"` (its public code): the first box with a number, else the first lone digit, else candidate 1 |
| `credit` | `"team"` | `"rubric"` (second version of that code): see below |
| `test_rounds` | none | most rounds (code): a chosen program that fails public tests starts the next one, in which the first three failures come before the generators' prompt |

`credit="rubric"` pays a generator 0.5 if it is right and 0.5 if the choice is, and takes 1 if it is
readable and wrong; it pays the aggregator 1 for a right choice and −1 for another one, but 0 if no
generator is right. Every generator then has its own trajectory. `history="own"` of `eval_opt_v0` is
the other form of that version. Between rounds that code runs all tests, so that the grade decides
who is asked again; here only the public tests are run.

Facts in `info` at the end, of the last round: `any_correct`, `all_correct`, `contested` (some but
not all candidates are right), `recovered` (contested, with a right choice), `chosen` (index, or
-1), `abstained`; with `test_rounds` also `test_rounds`, the number of rounds.

## Version history
* v0: first version.
"""  # noqa: E501 - rows of tables

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

from flowzoo.envs.readers import published, read_choice
from flowzoo.envs.script import (
    Ask,
    EquivalenceClasses,
    Grade,
    GradeResult,
    Message,
    Outcome,
    Reply,
    RoleScore,
    Script,
)
from flowzoo.envs.settings import check_whole
from flowzoo.envs.tasks.task import Problem
from flowzoo.envs.text import boxed_number, lone_number, without_box
from flowzoo.envs.workflow import RubricCall
from flowzoo.envs.workflows.tested import TestedWorkflow
from flowzoo.errors import check_choice

Aggregate = Literal["llm", "majority"]
ChoiceReader = Callable[..., int | None]
READERS: Mapping[str, tuple[ChoiceReader, ChoiceReader]] = {
    "strict": (read_choice, lone_number),
    "paper": (boxed_number, lone_number),
    "published": (published.read_choice, published.read_choice),
}
"""Readers of a choice by preset, strict and lenient."""


def majority(classes: Sequence[int]) -> int | None:
    """Index of the first answer of the largest class, or None; -1 (no answer) does not vote."""
    votes = [number for number in classes if number >= 0]
    if not votes:
        return None
    # max() keeps the first maximum, and classes are numbered by first appearance: lowest slot wins.
    return classes.index(max(sorted(set(votes)), key=votes.count))


def vote_facts(grades: Sequence[GradeResult], chosen: int | None) -> dict[str, object]:
    """Grades of the candidates and the choice."""
    right = [grade.score >= 1.0 for grade in grades]
    some, every = any(right), all(right)
    contested = some and not every
    return {
        "any_correct": some,
        "all_correct": every,
        "contested": contested,
        "recovered": contested and chosen is not None and right[chosen],
        "chosen": -1 if chosen is None else chosen,
        "abstained": chosen is None,
    }


@dataclass(frozen=True)
class Voting(TestedWorkflow):
    """N generators in parallel, then a choice of one answer."""

    name: ClassVar[str] = "voting_v0"
    roles: ClassVar[Mapping[str, int]] = {"generator": 3, "aggregator": 1}
    presets: ClassVar[tuple[str, ...]] = ("strict", "paper", "published")
    kinds: ClassVar[tuple[str, ...]] = ("math", "code", "actions")
    own_kinds: ClassVar[bool] = True
    prompts: ClassVar[Mapping[str, str]] = {
        "ballot": "{problem}\n\n{candidates}\n\n"
        "Which candidate is right? Put its number in \\boxed{{}}.",
        "ballot/code": "{problem}\n\n{candidates}\n\n"
        "Which program is right? Put its number in \\boxed{{}}.",
        "candidate": "Candidate {number}:\n{text}",
    }
    full_prompts: ClassVar[Mapping[str, str]] = {
        "ballot": "{problem}\n\n{candidates}\n\nWhich candidate is right? Do not solve the problem "
        "again. Reply with one candidate and nothing else: \\boxed{{Candidate NUMBER}}.",
        "ballot/code": "{problem}\n\n{candidates}\n\nWhich program is right? Do not write it "
        "again. Reply with one candidate and nothing else: \\boxed{{Candidate NUMBER}}.",
    }

    n_votes: int = 3
    aggregate: Aggregate = "llm"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("n_votes", self.n_votes, 1)
        check_choice("aggregate", self.aggregate, Aggregate)

    def role_counts(self) -> Mapping[str, int]:
        return {"generator": self.n_votes} | ({"aggregator": 1} if self.aggregate == "llm" else {})

    def trajectory(self, agent: str) -> str:
        """The voters' own names, but for programs without the rubric, another class there."""
        is_one_role = self.task.kind == "code" and self.credit != "rubric"
        return super().trajectory(agent) if is_one_role else agent

    def rubric(self, calls: Sequence[RubricCall]) -> list[float]:
        some_right = any(call.is_right for call in calls if call.role == "generator")
        return [
            some_right * (1.0 if call.team_is_right else -1.0)
            if call.role == "aggregator"
            else 0.5 * call.is_right
            + 0.5 * call.team_is_right
            - float(call.readable and not call.is_right)
            for call in calls
        ]

    def attempt(self, problem: Problem, prompt: str) -> Script:
        readers = self.answer_readers
        drafts = yield [Ask(f"generator_{slot}", prompt, *readers) for slot in range(self.n_votes)]
        answers = list(map(self.read, drafts))
        grades = yield [
            Grade(answer, of=draft) for answer, draft in zip(answers, drafts, strict=True)
        ]
        if self.aggregate == "majority":
            chosen = majority((yield EquivalenceClasses(tuple(answers))))
        else:
            strict, lenient = (partial(read, count=self.n_votes) for read in READERS[self.preset])
            ballot = self.aggregator_prompt(problem, drafts)
            choice = yield Ask("aggregator_0", ballot, strict, lenient)
            number = self.read(choice)
            if number is None and self.follows_paper:
                number = 1
            chosen = None if number is None else number - 1
            yield RoleScore(choice, 0.0 if chosen is None else grades[chosen].score)
        answer = None if chosen is None else answers[chosen]
        score = 0.0 if chosen is None else grades[chosen].score
        return Outcome(answer, score, vote_facts(grades, chosen))

    def aggregator_prompt(self, problem: Problem, drafts: Sequence[Reply]) -> str:
        """The aggregator's prompt: the problem and all candidates in slot order."""
        candidate = self.prompts["candidate"]
        candidates = "\n\n".join(
            candidate.format(number=number, text=draft.text.strip())
            for number, draft in enumerate(drafts, start=1)
        )
        return self.wording("ballot").format(problem=problem.text, candidates=candidates)

    def expert(
        self, role: str, messages: list[Message], problem: Problem, rng: random.Random, right: bool
    ) -> str:
        """Generators solve; the aggregator solves the problem and picks a candidate."""
        if role != "aggregator":
            return self.task.solve(problem, rng, right)
        fitting = self._candidates(messages, problem, right)
        number = 1
        if fitting:
            number = fitting[0] if right else rng.choice(fitting)
        return f"{without_box(self.task.solve(problem, rng, right))} \\boxed{{{number}}}".lstrip()

    def example(
        self, role: str, messages: list[Message], problem: Problem, rng: random.Random
    ) -> str:
        """Only the aggregator's choice: after a solution, small models box its result."""
        if role != "aggregator":
            return self.task.solve(problem, rng, True)
        # With the noun: models continue bare numbers as a series, 1, 3, 4.
        right = self._candidates(messages, problem, True)
        return f"\\boxed{{Candidate {rng.choice(right or [1])}}}"

    def _candidates(self, messages: list[Message], problem: Problem, right: bool) -> list[int]:
        ballot = messages[-1]["content"].rpartition("\n\n")[0]  # without the question and its box
        parts = re.split(r"(?m)^Candidate [0-9]+:\n", ballot)[1 : self.n_votes + 1]
        answers = [self.task.answer(part) for part in parts]
        grades = self.task.grade_batch([problem] * len(answers), answers)
        return [i for i, grade in enumerate(grades, 1) if (grade.score >= 1.0) == right]

    def samples(self) -> tuple[str, ...]:
        return (*self.task.samples(), *(f"\\boxed{{{n}}}" for n in range(1, self.n_votes + 1)))
