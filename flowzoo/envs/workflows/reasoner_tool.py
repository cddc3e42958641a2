r"""# Reasoner and tool

A reasoner solves a problem, a tool writes a program for it; both answer at the same time, turn by
turn, until they agree. Source: AT-GRPO (mathematics workflow).

| | |
|---|---|
| Creation | `reasoner_tool_v0.env(task="math")` |
| Agents | `reasoner_0`, `tool_0` |
| Observation | `{"messages": [...]}`: the problem; from the second turn also the board, a short list of all earlier answers |
| Action | reasoner: a reply with the answer in `\boxed{}`; tool: a program in a `python` block that prints the answer |
| Reward | 1 if the reasoner's last answer is right, and per call 0.2 form + 0.8 own answer right (`credit="mix"`) |
| End | when both answers are equivalent, or after `max_turns` turns |

## Arguments
| name | default | meaning |
|---|---|---|
| `max_turns` | 4 | turns, of two calls each |
| `cpu_s` | 20.0 | most CPU seconds of a program |
| `credit` | `"mix"` | alpha * team + local, as published |
| `preset` | `"strict"` | `"paper"` also reads the task's fallbacks, and programs without a closed block |

Only agreement ends the episode; grades are not used. The tool's answer is the last line that its
program prints. Its form is 1/2 for a program that ran and 1/2 for a printed answer (local: 0.1 ran
+ 0.1 parsed + 0.8 right).

Facts in `info` at the end: `turns`, `agreed`, `agreed_wrongly`, `ran` (programs that ran), `parsed`
(answers printed), `tool_right` (of the last turn).

## Version history
* v0: first version.
"""  # noqa: E501 - rows of tables

import random
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from flowzoo.envs.script import (
    Ask,
    EquivalenceClasses,
    Grade,
    InterimScore,
    Message,
    Outcome,
    RoleScore,
    Run,
    RunResult,
    Script,
)
from flowzoo.envs.settings import check_whole
from flowzoo.envs.tasks.task import Problem
from flowzoo.envs.workflow import Credit, CreditRule, Workflow
from flowzoo.reward.code.score import extract_code
from flowzoo.sandbox.program import Limits

SHORT = 80  # characters of an answer that the board shows
LONGEST = 500  # most characters of a printed line that is an answer
SUM = re.compile(r"Compute ([-+*() 0-9]{1,200})\.")


def printed_answer(ran: RunResult | None) -> str | None:
    """The last nonblank line of a program's output, if it ended without an error."""
    if ran is None or ran.status != "AC":
        return None
    lines = [line.strip() for line in ran.output.splitlines() if line.strip()]
    return lines[-1] if lines and len(lines[-1]) <= LONGEST else None


def short(answer: str | None) -> str:
    if answer is None:
        return "no answer"
    line = " ".join(answer.split())
    return line if len(line) <= SHORT else f"{line[:SHORT]} …"


@dataclass(frozen=True)
class ReasonerTool(Workflow):
    """Reasoning and a program, until both agree."""

    name: ClassVar[str] = "reasoner_tool_v0"
    roles: ClassVar[Mapping[str, int]] = {"reasoner": 1, "tool": 1}
    presets: ClassVar[tuple[str, ...]] = ("strict", "paper")
    kinds: ClassVar[tuple[str, ...]] = ("math",)
    runs_programs: ClassVar[bool] = True
    prompts: ClassVar[Mapping[str, str]] = {
        "tool": "{problem}\nWrite a Python program that prints the final answer, in a ```python "
        "block.",
        "board": "{prompt}\n\nAnswers so far:\n{rows}",
        "row": "Turn {turn}: reasoner {reasoner}; tool {tool}",
    }

    credit: Credit | CreditRule = "mix"
    max_turns: int = 4
    cpu_s: float = 20.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("max_turns", self.max_turns, 1)
        Limits(cpu_s=self.cpu_s)

    def play(self, problem: Problem) -> Script:
        task, counts, rows = self.task, Counter[str](), list[str]()
        limits = Limits(cpu_s=self.cpu_s)
        read_program = partial(extract_code, reading="lenient")
        request = self.prompts["tool"].format(problem=problem.text)
        turn = 0
        while True:
            turn += 1
            thought, tool = yield [
                Ask("reasoner_0", self.shown(task.prompt(problem), rows), task.answer,
                    task.answer_lenient),
                Ask("tool_0", self.shown(request, rows), extract_code,
                    read_program),
            ]  # fmt: skip
            answer, program = self.read(thought), self.read(tool)
            ran = None if program is None else (yield Run(program, limits=limits))
            printed = printed_answer(ran)
            classes = yield EquivalenceClasses((answer, printed))
            reasoned, other = yield [Grade(answer, of=thought), Grade(printed)]
            ends = {"ran": ran is not None and ran.status == "AC", "parsed": printed is not None}
            yield RoleScore(tool, other.score, form=sum(ends.values()) / 2)
            yield InterimScore(reasoned.score)
            counts.update(name for name, held in ends.items() if held)
            row = {"turn": turn, "reasoner": short(answer), "tool": short(printed)}
            rows.append(self.prompts["row"].format(**row))
            agreed = classes[0] >= 0 and classes[0] == classes[1]
            if agreed or turn == self.max_turns:
                break
        facts = {
            "turns": turn,
            "agreed": agreed,
            "agreed_wrongly": agreed and reasoned.score < 1.0,
            "ran": counts["ran"],
            "parsed": counts["parsed"],
            "tool_right": other.score >= 1.0,
        }
        return Outcome(answer, reasoned.score, facts)

    def shown(self, prompt: str, rows: list[str]) -> str:
        """A prompt with the board, if it is not empty."""
        if not rows:
            return prompt
        return self.prompts["board"].format(prompt=prompt, rows="\n".join(rows))

    def expert(
        self, role: str, messages: list[Message], problem: Problem, rng: random.Random, right: bool
    ) -> str:
        """The reasoner solves; the tool's program computes a sum, or prints the answer."""
        solution = self.task.solve(problem, rng, right)
        if role == "reasoner":
            return solution
        computed = SUM.fullmatch(problem.text) if right else None
        value = computed[1] if computed else repr(self.task.answer(solution))
        return f"```python\nprint({value})\n```"

    def samples(self) -> tuple[str, ...]:
        return (
            *self.task.samples(),
            "```python\nprint(3 * 4 + 5)\n```",
            "```python\nprint(7)\n```",
            "```python\nprint(1 / 0)\n```",
            "```python\nx = 7\n```",
        )
