"""A task of somebody's own: words are to be written backwards."""

import random
import re
from dataclasses import dataclass
from itertools import count
from typing import ClassVar

from flowzoo.envs import GradeResult, Problem, Task
from flowzoo.envs.settings import check_seed, check_whole
from flowzoo.envs.tasks.task import check_split, is_in, number_by_first
from flowzoo.seeding import key_rng

_ANSWER = re.compile(r"<word>([a-z]+)</word>")


@dataclass(frozen=True)
class ReversalTask(Task):
    """Words of `length` letters, to be reversed."""

    name: ClassVar[str] = "reversal"
    kind: ClassVar[str] = "word"
    home: ClassVar[str] = "relay_v0"

    length: int = 4
    seed: int = 0

    def __post_init__(self):
        """Check the options."""
        check_whole("length", self.length, 2, 20)
        check_seed(self.seed)

    def size(self, split):
        """Endless."""
        check_split(split)

    def problem(self, index, split="train"):
        """The first word of this number that belongs to the split."""
        self.check_index(index, split)
        for number in count():
            rng = key_rng(self.name, self.length, self.seed, split, index, number)
            word = "".join(rng.choices("abcdefghij", k=self.length))
            if is_in(split, word):
                return Problem(self.name, split, self.seed, index, word, word[::-1])

    def prompt(self, problem):
        """The word and how to answer."""
        return f"Write backwards, as <word>...</word>: {problem.text}"

    def answer(self, text):
        """Content of the last tag."""
        results = _ANSWER.findall(text)
        return results[-1] if results else None

    def answer_lenient(self, text):
        """The same."""
        return self.answer(text)

    def grade_batch(self, problems, answers):
        """1 for the reversed word."""
        return [
            GradeResult(float(answer == problem.gold), "graded")
            for problem, answer in zip(problems, answers, strict=True)
        ]

    def classes(self, problem, answers):
        """Equal words."""
        return number_by_first(answers)

    def solve(self, problem, rng: random.Random, right):
        """The word backwards, or with one letter more."""
        return f"<word>{problem.gold if right else problem.gold + rng.choice('xyz')}</word>"

    def samples(self):
        """A word, and no word."""
        return ("<word>abba</word>", "I cannot.")
