r"""# Tool and planner

A tool writes a program that prints a list of actions, the program runs in the sandbox, and a
planner sees program, output and list and chooses the actions. Only the planner's actions change the
world; the next turn starts from the resulting state.

| | |
|---|---|
| Creation | `tool_planner_v0.env(task="plan_path")`; also `sokoban`, `sudoku` |
| Agents | `tool_0`, `planner_0` |
| Observation | `{"messages": [...]}`: the current world; planner: also the tool's program of the same turn, its output and the list in it |
| Action | tool: a program in a `python` block; planner: a JSON list of actions |
| Reward | the task's score of the final state to every call (`credit="team"`) |
| End | when the world is solved, deadlocked or out of moves, or after `max_turns` turns |

## Arguments
| name | default | meaning |
|---|---|---|
| `max_turns` | 4 | turns, of two calls each |
| `cpu_s` | 5.0 | most CPU seconds of a program |
| `preset` | `"strict"` | an unreadable plan has no effect; `"paper"` (AT-GRPO) also reads letters and words, and programs without a closed block |

Role scores: planner, the score of the state after its actions; tool, the score of the state after
its own list, with form 1/2 for a program that ran and 1/2 for a readable list (local reward: 0.1
ran + 0.1 parsed + 0.8 score). With `credit="mix"` this is the published sum α · team + local.

Facts in `info` at the end: `turns`, `end` (`solved`, `deadlock`, `cap`, or `turns` if they ran
out), `solved`, `ran` (programs that ran), `parsed` (lists read), `agreed` (turns in which the
planner used the tool's list).

## Version history
* v0: first version.
"""  # noqa: E501 - rows of tables

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, NamedTuple

from flowzoo.envs.script import (
    Ask,
    Grade,
    InterimScore,
    Message,
    Outcome,
    Reply,
    RoleScore,
    Run,
    RunResult,
    Script,
    ScriptPart,
)
from flowzoo.envs.settings import check_whole
from flowzoo.envs.tasks.games.game import START, Game
from flowzoo.envs.tasks.task import Problem, Task
from flowzoo.envs.workflow import Workflow
from flowzoo.reward.code.score import extract_code
from flowzoo.sandbox.program import Limits

SHOWN = 1_500  # most characters of a program and of its output in the planner's prompt


class ToolProposal(NamedTuple):
    """A proposal of the tool."""

    tool: Reply
    program: str
    ran: RunResult | None  # None if there was no program
    actions: str | None  # the list in the program's output, canonical

    @property
    def has_run(self) -> bool:
        return self.ran is not None and self.ran.status == "AC"

    @property
    def has_list(self) -> bool:
        return self.actions is not None


def shorten(text: str, most: int = SHOWN) -> str:
    """`text`, its middle left out if it is longer than `most` characters."""
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]}\n[{len(text) - 2 * half} characters left out]\n{text[-half:]}"


def report(ran: RunResult | None) -> str:
    """Description of a program's end; None: there was no program."""
    if ran is None:
        return "No program was written."
    if ran.status == "AC":
        return "The program ran."
    detail = ran.cases[0].detail if ran.cases else ""
    return f"The program failed ({ran.status}{': ' if detail else ''}{shorten(detail, 200)})."


@dataclass(frozen=True)
class ToolPlanner(Workflow):
    """A program proposes actions and a planner decides, turn by turn."""

    name: ClassVar[str] = "tool_planner_v0"
    roles: ClassVar[Mapping[str, int]] = {"tool": 1, "planner": 1}
    presets: ClassVar[tuple[str, ...]] = ("strict", "paper")
    kinds: ClassVar[tuple[str, ...]] = ("actions",)
    runs_programs: ClassVar[bool] = True
    default_task: ClassVar[str] = "plan_path"
    task_class: ClassVar[type[Task]] = Game
    prompts: ClassVar[Mapping[str, str]] = {
        "tool": "{prompt}\n\nDo not write the list yourself: write a Python program that prints "
        "it, in a ```python block.",
        "planner": "{prompt}\n\nA program for this:\n```python\n{program}\n```\n{report}\n"
        "Output:\n{output}\nList in it: {actions}\n\nCheck it, then write your own list.",
        "planner_alone": "{prompt}\n\n{report}\n\nWrite your own list.",
    }

    task: Game
    max_turns: int = 4
    cpu_s: float = 5.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("max_turns", self.max_turns, 1)
        Limits(cpu_s=self.cpu_s)

    def play(self, problem: Problem) -> Script:
        game, counts = self.task, Counter[str]()
        done, turns, end = START, 0, ""
        while True:
            turns += 1
            prompt = game.prompt_at(problem, done)
            proposal = yield from self.propose(prompt, done)
            plan = yield Ask(
                "planner_0", self.planner_prompt(prompt, proposal), game.answer, game.answer_lenient
            )
            decided = self.read(plan)
            done = game.join(done, decided or START)
            grade = yield Grade(done, of=plan)
            yield InterimScore(grade.score)
            counts["ran"] += proposal.has_run
            counts["parsed"] += proposal.has_list
            counts["agreed"] += proposal.has_list and proposal.actions == decided
            end = game.ended(problem, done)
            if end or turns == self.max_turns:
                break
        facts = {
            "turns": turns,
            "end": end or "turns",
            "solved": grade.status == "solved",
            **{name: counts[name] for name in ("ran", "parsed", "agreed")},
        }
        return Outcome(done, grade.score, facts)

    def propose(self, prompt: str, done: str) -> ScriptPart[ToolProposal]:
        """The tool's part of a turn: ask for its program, run it and score its list."""
        tool = yield Ask(
            "tool_0",
            self.prompts["tool"].format(prompt=prompt),
            extract_code,
            partial(extract_code, reading="lenient"),
        )
        program = self.read(tool)
        proposal = ToolProposal(tool, "", None, None)
        if program is not None:
            ran = yield Run(program, limits=Limits(cpu_s=self.cpu_s))
            proposal = ToolProposal(tool, program, ran, self.task.answer(ran.output))
        tried = None if proposal.actions is None else self.task.join(done, proposal.actions)
        value = yield Grade(tried)
        yield RoleScore(tool, value.score, form=(proposal.has_run + proposal.has_list) / 2)
        return proposal

    def planner_prompt(self, prompt: str, proposal: ToolProposal) -> str:
        """Prompt of the planner: the current world, and the actions of this turn's tool."""
        if proposal.ran is None:
            return self.prompts["planner_alone"].format(prompt=prompt, report=report(None))
        return self.prompts["planner"].format(
            prompt=prompt,
            program=shorten(proposal.program),
            report=report(proposal.ran),
            output=shorten(proposal.ran.output.strip()) or "(nothing)",
            actions=proposal.actions or "none",
        )

    def expert(
        self, role: str, messages: list[Message], problem: Problem, rng: random.Random, right: bool
    ) -> str:
        """The tool prints a plan; the planner copies a solving list, or writes one."""
        game, prompt = self.task, messages[-1]["content"]
        board = game.board_in(problem, prompt)
        plan = game.plan(problem, board, rng, right)
        if role == "tool":
            return f"```python\nprint({plan!r})\n```"
        offered = prompt.rpartition("\nList in it: ")[2].partition("\n")[0]
        if game.is_canonical(offered) and game.solves(problem, board, [offered]) == [right]:
            return offered
        return plan

    def samples(self) -> tuple[str, ...]:
        plans = self.task.samples()[:2]
        programs = [f"```python\nprint({plan!r})\n```" for plan in plans]
        return (*self.task.samples(), *programs, "```python\nprint(1/0)\n```")

    def world(self, replies: Sequence[Reply]) -> str | None:
        plans = [self.read(reply) for reply in replies if reply.agent == "planner_0"]
        return self.task.join(START, *(plan for plan in plans if plan))
