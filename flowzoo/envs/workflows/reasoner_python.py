r"""# Reasoner with Python

An agent calls the tool `python` in its model's native format until it answers.

| | |
|---|---|
| Creation | `reasoner_python_v0.env(task="math")` |
| Agents | `reasoner_0` |
| Observation | `{"messages": [...], "tools": [...]}`: the problem, then earlier calls with their results; the tool `python` while calls are allowed |
| Action | one call of the tool, or a reply with the answer in `\boxed{}` |
| Reward | 1 if the answer is right, else 0 |
| End | at the first reply without a call, or after `max_runs` replies with a call and a last reply |

## Arguments
| name | default | meaning |
|---|---|---|
| `max_runs` | 3 | most replies with a tool call |
| `cpu_s` | 10.0 | most CPU seconds of a program |
| `preset` | `"strict"` | `"paper"` also reads the task's fallbacks |

The model's chat template must support tools. A call that cannot be read is an unreadable reply; the
next prompt states the reason.

Facts in `info` at the end: `runs` (programs), `ran` (programs that ended without an error),
`faults` (unreadable calls), `fault` (reason of the last one). The role score of a call is 1 if its
program ended without an error.

## Version history
* v0: first version.
"""  # noqa: E501 - rows of tables

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from flowzoo.envs.script import Ask, Grade, Message, Outcome, RoleScore, Run, RunResult, Script
from flowzoo.envs.settings import check_whole
from flowzoo.envs.tasks.task import Problem
from flowzoo.envs.text import visible
from flowzoo.envs.tools import Tool, call_text
from flowzoo.envs.workflow import Workflow
from flowzoo.envs.workflows.reasoner_tool import SUM
from flowzoo.sandbox.program import Limits

SHOWN = 1000
"""Characters of an output that the agent sees."""
PYTHON = Tool(
    "python",
    "Run a Python program. The result is what it prints.",
    {
        "type": "object",
        "properties": {"code": {"type": "string", "description": "The program."}},
        "required": ["code"],
    },
)


def shown(ran: RunResult) -> str:
    """Format a program's result for the agent."""
    case = ran.cases[0] if ran.cases else None
    output = visible(case.output.strip())[:SHOWN] if case else ""
    if ran.status == "AC":
        return output or "It printed nothing."
    reason = visible(case.detail)[:SHOWN] if case else ""
    return "\n".join(part for part in (output, f"Error {ran.status}: {reason}") if part)


@dataclass(frozen=True)
class ReasonerPython(Workflow):
    """Reasoning with programs, called as a tool."""

    name: ClassVar[str] = "reasoner_python_v0"
    roles: ClassVar[Mapping[str, int]] = {"reasoner": 1}
    presets: ClassVar[tuple[str, ...]] = ("strict", "paper")
    kinds: ClassVar[tuple[str, ...]] = ("math",)
    runs_programs: ClassVar[bool] = True
    tool_roles: ClassVar[tuple[str, ...]] = ("reasoner",)
    prompts: ClassVar[Mapping[str, str]] = {
        "request": "{prompt}\nYou may call the tool python first.",
        "fault": "Your call could not be read: {reason}. Call again, or answer.",
    }

    max_runs: int = 3
    cpu_s: float = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("max_runs", self.max_runs, 1)
        Limits(cpu_s=self.cpu_s)

    def play(self, problem: Problem) -> Script:
        task, limits = self.task, Limits(cpu_s=self.cpu_s)
        request = self.prompts["request"].format(prompt=task.prompt(problem))
        chat: list[Message] = [{"role": "user", "content": request}]
        runs = ran = faults = 0
        fault = ""
        while True:
            tools = (PYTHON,) if runs + faults < self.max_runs else ()
            reply = yield Ask("reasoner_0", chat, task.answer, task.answer_lenient, tools)
            if not (reply.tool_calls or reply.fault):
                break
            chat.append(reply.message())
            if reply.fault:
                faults, fault = faults + 1, reply.fault
                yield RoleScore(reply, 0.0)
                text = self.prompts["fault"].format(reason=visible(fault))
                chat.append({"role": "user", "content": text})
                continue
            call = reply.tool_calls[0]
            result = yield Run(call.arguments["code"], limits=limits)
            runs, ran = runs + 1, ran + (result.status == "AC")
            yield RoleScore(reply, float(result.status == "AC"))
            chat.append(call.result(shown(result)))
        answer = self.read(reply)
        grade = yield Grade(answer, of=reply)
        facts = {"runs": runs, "ran": ran, "faults": faults, "fault": fault}
        return Outcome(answer, grade.score, facts)

    def expert(
        self, role: str, messages: list[Message], problem: Problem, rng: random.Random, right: bool
    ) -> str:
        """A call that computes a sum, then the solution; a wrong expert makes no call."""
        computed = SUM.fullmatch(problem.text)
        if len(messages) > 1 or computed is None or not right:
            return self.task.solve(problem, rng, right)
        return python_call(f"print({computed[1]})")

    def example(
        self, role: str, messages: list[Message], problem: Problem, rng: random.Random
    ) -> str:
        """An answer; the model's template already shows how a tool is called."""
        return self.task.solve(problem, rng, True)

    def samples(self) -> tuple[str, ...]:
        return (
            *self.task.samples(),
            python_call("print(3 * 4 + 5)"),
            python_call("1 / 0"),
            call_text('{"name": "python", "arguments": {}}'),
        )


def python_call(code: str) -> str:
    """A reply that calls the tool `python`."""
    arguments = json.dumps({"code": code})
    return call_text(f'{{"name": "{PYTHON.name}", "arguments": {arguments}}}')
