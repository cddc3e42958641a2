"""# Writing pair

Two writers work on one source at the same time, without seeing each other's text, and are rewarded
for the pair: lengths, vocabularies and style must fit together. Source: MAGRPO (writing tasks).

| | |
|---|---|
| Creation | `writing_pair_v0.env(task="writing", form="tldr")`, `writing_pair_v0.parallel_env(...)` |
| Agents | `writer_0` (concise summary, or background), `writer_1` (detailed summary, or method) |
| Observation | `{"messages": [...]}`: the source and the agent's instruction |
| Action | the text |
| Reward | the reward of the pair over 3, in [0, 1], for both |
| End | after both have written |

## Arguments
The arguments of `Workflow` and of the task (`form`, `reward`, `data` …): see
`flowzoo.envs.tasks.writing`. A writer's role score is the grounding of its text (under the
published reward: the reward of the pair).

Facts in `info` at the end: `reward` in [0, 3] and its parts `lengths`, `ratio`, `unique`, `style`,
`grounding_0`, `grounding_1`, `apart`.

## Version history
* v0: first version.
"""  # noqa: E501 - rows of tables

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from flowzoo.envs.script import Ask, Grade, Message, Outcome, RoleScore, Script
from flowzoo.envs.tasks.task import Problem, Task
from flowzoo.envs.tasks.writing import INSTRUCTIONS, WritingTask, join_texts
from flowzoo.envs.workflow import Workflow


@dataclass(frozen=True)
class WritingPair(Workflow):
    """Two writers, one phase."""

    name: ClassVar[str] = "writing_pair_v0"
    roles: ClassVar[Mapping[str, int]] = {"writer": 2}
    kinds: ClassVar[tuple[str, ...]] = ("writing",)
    default_task: ClassVar[str] = "writing"
    simultaneous: ClassVar[bool] = True
    task_class: ClassVar[type[Task]] = WritingTask
    prompts: ClassVar[Mapping[str, str]] = {
        f"{form}_{index}": text
        for form, texts in INSTRUCTIONS.items()
        for index, text in enumerate(texts)
    }

    task: WritingTask

    @property
    def instructions(self) -> tuple[str, str]:
        """The texts that tell the two writers what to write."""
        form = self.task.form
        return self.prompts[f"{form}_0"], self.prompts[f"{form}_1"]

    def play(self, problem: Problem) -> Script:
        texts = yield [
            Ask(f"writer_{position}", f"{problem.text}\n\n{instruction}", self.task.answer)
            for position, instruction in enumerate(self.instructions)
        ]
        first, second = (reply.strict or "" for reply in texts)
        grade = yield Grade(join_texts(first, second))
        parts = dict(grade.parts)
        for position, reply in enumerate(texts):
            grounding = parts.get(f"grounding_{position}", grade.score)
            yield RoleScore(reply, 0.0 if reply.strict is None else grounding)
        return Outcome(join_texts(first, second), grade.score, parts)

    def expert(
        self, role: str, messages: list[Message], problem: Problem, rng: random.Random, right: bool
    ) -> str:
        """The text of the writer whose instruction ends the chat."""
        second = messages[-1]["content"].endswith(self.instructions[1])
        return self.task.solve_for(problem, int(second), rng, right)
