r"""# Single

The control: one generator, one call, with the prompt, reward and budget accounting of the compared
workflow.

For a fair comparison with a workflow of several calls, use `flowzoo eval single --like DIR`, with the
folder of the workflow's evaluation. It makes as many calls as the workflow (or uses as many tokens,
with `--match tokens`) and takes a majority vote.

| | |
|---|---|
| Creation | `single_v0.env(task="math")`, `single_v0.env(task="code")` |
| Agents | `generator_0` |
| Observation | `{"messages": [...]}`: the problem |
| Action | a reply with the answer in `\boxed{}`, or with a program in a ```` ```python ```` block |
| Reward | 1 if the answer is right, else 0 |
| End | after one call, or at most `test_rounds` |

## Arguments
`preset`: `strict` reads only boxed answers, fenced programs and replies that are just a program;
`paper` also reads the task's fallbacks; `published` reads as the public code of arXiv 2605.24202,
the last box or the last closed block and nothing else. `test_rounds` (code): see
`voting_v0`. All arguments of `Workflow` (`credit`, `format_penalty` …) and of the task (`level`,
`data` …) are accepted.

## Version history
* v0: first version.
"""  # noqa: E501 - rows of tables

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from flowzoo.envs.script import Ask, Grade, Outcome, Reply, Script
from flowzoo.envs.tasks.task import Problem
from flowzoo.envs.workflows.tested import TestedWorkflow


@dataclass(frozen=True)
class Single(TestedWorkflow):
    """One generator answers."""

    name: ClassVar[str] = "single_v0"
    roles: ClassVar[Mapping[str, int]] = {"generator": 1}
    presets: ClassVar[tuple[str, ...]] = ("strict", "paper", "published")
    kinds: ClassVar[tuple[str, ...]] = ("math", "code", "search", "actions")
    own_kinds: ClassVar[bool] = True

    def attempt(self, problem: Problem, prompt: str) -> Script:
        reply = yield Ask("generator_0", prompt, *self.answer_readers)
        answer = self.read(reply)
        grade = yield Grade(answer, of=reply)
        return Outcome(answer, grade.score, {"status": grade.status})

    def world(self, replies: Sequence[Reply]) -> str | None:
        return self.read(replies[-1]) if replies else None
