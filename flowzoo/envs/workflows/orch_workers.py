r"""# Orchestrator-workers

An orchestrator names strategies without solving the problem, workers solve it with one strategy
each, and a synthesizer writes the final answer from their solutions.

| | |
|---|---|
| Creation | `orch_workers_v0.env(task="math")`, `orch_workers_v0.env(task="code")` |
| Agents | `orchestrator_0`, `worker_0` … `worker_2`, `synthesizer_0` |
| Observation | `{"messages": [...]}`: the problem; workers: also their strategy; synthesizer: all strategies and solutions |
| Action | orchestrator: lines `STRATEGY k: …`, in any case, with bullets or bold, or a numbered list of strategies; workers and synthesizer: a reply with the answer in `\boxed{}`, or with a program in a ```` ```python ```` block |
| Reward | 1 to every call if the synthesizer's answer is right, else 0 (`credit="team"`) |
| End | after 3 to `max_workers` + 2 calls; workers without a strategy are not asked |

## Arguments
| name | default | meaning |
|---|---|---|
| `max_workers` | 3 | most strategies in use |
| `split` | `"strategies"` | `"subtasks"` (Anthropic's original pattern): lines `SUBTASK k: …`, each worker does only its part; role scores of workers and orchestrator are then unknown |
| `mode` | `"parallel"` | `"sequential"`: one worker after another, each with the solutions of its predecessors |
| `preset` | `"strict"` | without a readable line the orchestrator abstains and all workers run without a strategy; `"paper"` (arXiv 2605.24202): else a numbered list, else lines over 10 characters, else the whole text; `"published"` (its public code): the same with labels anywhere, and texts of several lines, sorted by number |

In `env(...)` the argument `split` is called `split_by`, since `split` is the task's split.

Facts in `info` at the end: `workers`, `any_correct`, `all_correct`, `contested`, `recovered`
(contested, with a right final answer), `abstained`.

## Version history
* v0: first version.
"""  # noqa: E501 - rows of tables

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar, Literal

from flowzoo.envs.readers import published, read_plan
from flowzoo.envs.script import Ask, Grade, Message, Outcome, Reply, RoleScore, Script
from flowzoo.envs.settings import check_whole
from flowzoo.envs.tasks.task import Problem
from flowzoo.envs.text import visible
from flowzoo.envs.workflow import LATER, Workflow
from flowzoo.errors import check_choice

SplitBy = Literal["strategies", "subtasks"]
Mode = Literal["parallel", "sequential"]
WORDS = {"strategies": "STRATEGY", "subtasks": "SUBTASK"}
# Strategies of the scripted orchestrator, by the task's kind.
IDEAS: dict[str, tuple[str, ...]] = {
    "math": (
        "go step by step",
        "do the multiplication first",
        "split the numbers into tens and ones",
        "solve it and check the result",
    ),
    "code": (
        "write one expression",
        "use a variable for every step",
        "start from the examples",
        "think of the edge cases first",
    ),
}


def read_parts(text: str, word: str, most: int) -> tuple[str, ...] | None:
    """Read the lines `WORD k: text`, at most `most`, or None (the published labels)."""
    parts = re.findall(rf"(?m)^[ \t]*{word}[ \t]+[0-9]+[ \t]*:[ \t]*(\S.*?)[ \t]*$", visible(text))
    return tuple(parts[:most]) or None


def read_loosely(text: str, word: str, most: int) -> tuple[str, ...] | None:
    """The published cascade: labeled lines, numbered list, lines over 10 characters, all text."""
    reply = visible(text)
    numbered = re.findall(r"(?m)^[ \t]*[0-9]+[.)][ \t]*(\S.*?)[ \t]*$", reply)
    lines = [line.strip() for line in reply.splitlines() if len(line.strip()) > 10]
    whole = [reply] if reply else []
    parts = read_parts(text, word, most) or tuple((numbered or lines or whole)[:most])
    return parts or None


PlanReader = Callable[..., tuple[str, ...] | None]
READERS: Mapping[str, tuple[PlanReader, PlanReader]] = {
    "strict": (read_plan, read_loosely),
    "paper": (read_parts, read_loosely),
    "published": (published.read_plan, published.read_plan),
}
"""Readers of a plan by preset, strict and lenient."""


@dataclass(frozen=True)
class OrchWorkers(Workflow):
    """Plan, work in parallel, synthesize."""

    name: ClassVar[str] = "orch_workers_v0"
    roles: ClassVar[Mapping[str, int]] = {"orchestrator": 1, "worker": 3, "synthesizer": 1}
    presets: ClassVar[tuple[str, ...]] = ("strict", "paper", "published")
    kinds: ClassVar[tuple[str, ...]] = ("math", "code")
    prompts: ClassVar[Mapping[str, str]] = {
        "strategies": "{problem}\n\nDo not solve this. Name 1 to {most} strategies for solving it, "
        "one per line, each written as STRATEGY k: text",
        "subtasks": "{problem}\n\nDo not solve this. Split it into 1 to {most} parts, "
        "one per line, each written as SUBTASK k: text",
        "strategy": "{prompt}\n\nStrategy: {part}",
        "subtask": "{problem}\n\nDo only this part: {part}\nPut its result in \\boxed{{}}.",
        "subtask/code": "{problem}\n\nDo only this part: {part}\n"
        "Put its code in a ```python block.",
        "synthesize": "{prompt}\n\n{solutions}\n\nWrite the final answer.",
        "synthesize/code": "{prompt}\n\n{solutions}\n\nWrite the final program.",
        "solution": "{title}:\n{text}",
    }
    full_prompts: ClassVar[Mapping[str, str]] = {
        "strategy": "Use this strategy: {part}\n\n{prompt}",
        "synthesize": "{prompt}\n\n{solutions}\n\nCompare the solutions and solve the problem. Put "
        "the final answer in \\boxed{{}}.",
        "synthesize/code": "{prompt}\n\n{solutions}\n\nCompare the programs and write the final "
        "one in a ```python block.",
    }

    max_workers: int = 3
    split_by: SplitBy = "strategies"
    mode: Mode = field(default="parallel", metadata=LATER)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("max_workers", self.max_workers, 1)
        check_choice("split_by", self.split_by, SplitBy)
        check_choice("mode", self.mode, Mode)

    def role_counts(self) -> Mapping[str, int]:
        return {"orchestrator": 1, "worker": self.max_workers, "synthesizer": 1}

    @property
    def ideas(self) -> tuple[str, ...]:
        return IDEAS.get(self.task.kind, IDEAS["math"])

    def play(self, problem: Problem) -> Script:
        word, most, readers = WORDS[self.split_by], self.max_workers, self.answer_readers
        strict, lenient = (partial(read, word=word, most=most) for read in READERS[self.preset])
        proposal = self.prompts[self.split_by].format(problem=problem.text, most=most)
        plan = yield Ask("orchestrator_0", proposal, strict, lenient)
        read = self.read(plan)
        parts = read or ("",) * most
        slots = range(len(parts))
        works: list[Reply] = []
        for phase in [slots] if self.mode == "parallel" else [[slot] for slot in slots]:
            earlier = self.solutions(parts, works)
            works += yield [
                Ask(f"worker_{slot}", self.order(problem, parts[slot], earlier), *readers)
                for slot in phase
            ]
        right: list[bool] = []
        if self.split_by == "strategies":
            grades = yield [Grade(self.read(work), of=work) for work in works]
            right = [grade.score >= 1.0 for grade in grades]
            yield RoleScore(plan, 0.0 if read is None else sum(right) / len(right))
        digest = self.wording("synthesize").format(
            prompt=self.task.prompt(problem), solutions=self.solutions(parts, works)
        )
        final = yield Ask("synthesizer_0", digest, *readers)
        answer = self.read(final)
        grade = yield Grade(answer, of=final)
        contested = any(right) and not all(right)
        facts = {"workers": len(works), "abstained": read is None}
        if right:
            facts |= {
                "any_correct": any(right),
                "all_correct": all(right),
                "contested": contested,
                "recovered": contested and grade.score >= 1.0,
            }
        return Outcome(answer, grade.score, facts)

    def order(self, problem: Problem, part: str, earlier: str) -> str:
        """A worker's prompt after the work of earlier ones; without a strategy, the problem."""
        prompt, text = self.task.prompt(problem), problem.text
        if earlier:
            prompt, text = f"{prompt}\n\n{earlier}", f"{text}\n\n{earlier}"
        if not part:
            return prompt
        form = "strategy" if self.split_by == "strategies" else "subtask"
        return self.wording(form).format(prompt=prompt, problem=text, part=part)

    def solutions(self, parts: Sequence[str], works: Sequence[Reply]) -> str:
        """The solutions so far, with their strategies."""
        return "\n\n".join(
            self.prompts["solution"].format(
                title=f"Worker {number} ({part})" if part else f"Worker {number}",
                text=work.text.strip(),
            )
            for number, (part, work) in enumerate(zip(parts, works, strict=False), start=1)
        )

    def expert(
        self, role: str, messages: list[Message], problem: Problem, rng: random.Random, right: bool
    ) -> str:
        """The orchestrator names general ideas (wrongly: without labels); the others solve."""
        if role != "orchestrator":
            return self.task.solve(problem, rng, right)
        word = WORDS[self.split_by]
        ideas = rng.sample(self.ideas, k=min(rng.randint(1, 3), self.max_workers))
        if not right:
            return "just solve it"
        return "\n".join(f"{word} {n}: {idea}" for n, idea in enumerate(ideas, start=1))

    def samples(self) -> tuple[str, ...]:
        word = WORDS[self.split_by]
        return (*self.task.samples(), f"{word} 1: {self.ideas[0]}\n{word} 2: {self.ideas[1]}")
