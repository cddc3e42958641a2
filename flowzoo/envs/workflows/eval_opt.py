r"""# Evaluator-optimizer

A generator answers, an evaluator judges the latest answer with a verdict and a critique, and the
generator writes a new attempt, until the evaluator accepts or no rounds are left.

| | |
|---|---|
| Creation | `eval_opt_v0.env(task="math")`, `eval_opt_v0.env(task="code", tools="tests")` |
| Agents | `generator_0`, `evaluator_0` |
| Observation | `{"messages": [...]}`: the problem; evaluator: also the latest answer; generator, later: its attempt and the critique |
| Action | generator: a reply with the answer in `\boxed{}`, or with a program in a ```` ```python ```` block; evaluator: a critique and `\boxed{Correct}` or `\boxed{Incorrect}`, or the verdict in plain words (`Incorrect. …`, `The program is right.`) |
| Reward | 1 to every call if the last answer is right, else 0 (`credit="team"`) |
| End | at an accepting verdict, or after `max_rounds` attempts, in each of `test_rounds` |

## Arguments
| name | default | meaning |
|---|---|---|
| `max_rounds` | 3 (code and `dr_mas`: 2) | most attempts of the generator |
| `tools` | `"none"` | `"tests"` (code): the evaluator sees the results of the public tests |
| `preset` | `"strict"` | see below |
| `history` | by preset | what an agent sees of earlier rounds: `"latest"` (`strict`, `dr_mas`), the latest answer and its review; `"shared"` (`paper`, `published`), one chat of both agents; `"own"`, the agent's own chat, whose user turns quote the other's answers or reviews (second version of that code) |
| `verdicts` | `"boxed"` | `"tags"`: `<verify>approve</verify>` or `<verify>reject</verify>` (public code of Dr. MAS) |
| `test_rounds` | none | most rounds (code): see `voting_v0` |

* `strict`: an unreadable verdict abstains (counted; the loop continues); the evaluator is not asked
  about the last attempt, since its verdict would have no effect: at most 5 calls with 3 rounds.
* `paper` (arXiv 2605.24202): the last attempt is also evaluated (at most 6 calls), verdicts are
  searched for in the whole text, and the chat keeps the turns of both roles as assistant turns.
* `published` (its public code): as `paper`, but only the first boxed verdict counts, without one
  the loop continues, and a new attempt is asked for another method (of `history="shared"`).
* `dr_mas` (the solver-verifier loop of Dr. MAS): strict flow with `max_rounds=2`; an unreadable
  verdict accepts.

Facts in `info` at the end: `rounds`, `first_correct`, `recovered` (wrong to right), `regressed`
(right to wrong), and the evaluator's counts `true_accept`, `false_accept`, `true_reject`,
`false_reject`, `abstained`.

## Version history
* v0: first version.
"""  # noqa: E501 - rows of tables

import random
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from flowzoo.envs.readers import published, read_verdict
from flowzoo.envs.readers.verdicts import VERDICTS, boxed_verdict, read_tags
from flowzoo.envs.script import (
    Ask,
    Grade,
    InterimScore,
    Message,
    Outcome,
    RoleScore,
    RunResult,
    Script,
)
from flowzoo.envs.settings import check_whole
from flowzoo.envs.tasks.task import Problem
from flowzoo.envs.workflow import LATER
from flowzoo.envs.workflows.tested import TestedWorkflow
from flowzoo.errors import UsageError, check_choice

Tools = Literal["none", "tests"]
History = Literal["latest", "shared", "own"]
Verdicts = Literal["boxed", "tags"]
MARKS: Mapping[str, tuple[str, str]] = {
    "boxed": ("\\boxed{Correct}", "\\boxed{Incorrect}"),
    "tags": ("<verify>approve</verify>", "<verify>reject</verify>"),
}
"""An accepting and a rejecting verdict, by form."""
ROUNDS = {"strict": 3, "paper": 3, "published": 3, "dr_mas": 2}
CODE_ROUNDS = 2


def search_verdict(text: str) -> bool | None:
    """The last verdict word anywhere in the text (a published fallback)."""
    text = text.lower()
    # The plain search is forty times faster, and most long texts contain no verdict word.
    matches = re.findall(r"\b(?:in)?correct\b", text) if "correct" in text else []
    return VERDICTS[matches[-1]] if matches else None


VerdictReader = Callable[[str], bool | None]
READERS: Mapping[str, tuple[VerdictReader, VerdictReader]] = {
    "strict": (read_verdict, search_verdict),
    "paper": (boxed_verdict, search_verdict),
    "published": (published.read_verdict, published.read_verdict),
    "dr_mas": (read_verdict, search_verdict),
}
"""Readers of a verdict by preset, strict and lenient."""


def count_verdict(verdict: bool | None, right: bool) -> str:
    """Name of the count of a verdict on an answer."""
    if verdict is None:
        return "abstained"
    return f"{'true' if verdict == right else 'false'}_{'accept' if verdict else 'reject'}"


def report(ran: RunResult | None, tested: bool = True) -> str:
    """Results of the public tests, for the evaluator; None: there was no program to run."""
    if ran is None:
        return "There is no program to run."
    lines = [f"The program passes {ran.passed} of {len(ran.cases)} public tests."]
    if not tested:
        lines = ["There are no public tests; the program was run without input."]
    for number, case in enumerate(ran.cases, start=1):
        if case.status != "AC":
            output = " ".join((case.output or case.detail).split())
            name = f"Test {number}" if tested else "The run"
            lines.append(f"{name}: {case.status}" + (f", {output:.200}" if output else ""))
    return "\n".join(lines)


def user(content: str) -> Message:
    return {"role": "user", "content": content}


def assistant(content: str) -> Message:
    return {"role": "assistant", "content": content}


@dataclass(frozen=True)
class EvalOpt(TestedWorkflow):
    """Generate, evaluate, improve."""

    name: ClassVar[str] = "eval_opt_v0"
    roles: ClassVar[Mapping[str, int]] = {"generator": 1, "evaluator": 1}
    presets: ClassVar[tuple[str, ...]] = ("strict", "paper", "published", "dr_mas")
    kinds: ClassVar[tuple[str, ...]] = ("math", "code")
    prompts: ClassVar[Mapping[str, str]] = {
        "evaluate": "{problem}\n\nAnswer:\n{attempt}\n\nCheck this answer. Say what is wrong "
        "without giving the solution, then put Correct or Incorrect in \\boxed{{}}.",
        "evaluate/code": "{problem}\n\nProgram:\n{attempt}\n\nCheck this program. Say what is "
        "wrong without giving the solution, then put Correct or Incorrect in \\boxed{{}}.",
        "evaluate_history": "Check the newest answer. Say what is wrong without giving the "
        "solution, then put Correct or Incorrect in \\boxed{}.",
        "evaluate_history/code": "Check the newest program. Say what is wrong without giving the "
        "solution, then put Correct or Incorrect in \\boxed{}.",
        "evaluate_tags": "{problem}\n\nAnswer:\n{attempt}\n\nCheck this answer. Say what is wrong "
        "without giving the solution, then write <verify>approve</verify> or "
        "<verify>reject</verify>.",
        "evaluate_tags/code": "{problem}\n\nProgram:\n{attempt}\n\nCheck this program. Say what "
        "is wrong without giving the solution, then write <verify>approve</verify> or "
        "<verify>reject</verify>.",
        "evaluate_history_tags": "Check the newest answer. Say what is wrong without giving the "
        "solution, then write <verify>approve</verify> or <verify>reject</verify>.",
        "evaluate_history_tags/code": "Check the newest program. Say what is wrong without giving "
        "the solution, then write <verify>approve</verify> or <verify>reject</verify>.",
        "improve": "Review:\n{critique}\n\n"
        "Answer the problem again. Put the final answer in \\boxed{{}}.",
        "improve/code": "Review:\n{critique}\n\n"
        "Write the program again. Put the code in a ```python block.",
        "improve_history": "Answer the problem again. Put the final answer in \\boxed{}.",
        "improve_history/code": "Write the program again. Put the code in a ```python block.",
        "improve_otherwise": "Answer the problem again with another method. Put the final answer "
        "in \\boxed{}.",
        "improve_otherwise/code": "Write the program again, in another way if its idea is wrong. "
        "Put the code in a ```python block.",
    }
    full_prompts: ClassVar[Mapping[str, str]] = {
        "evaluate": "{problem}\n\nAnswer:\n{attempt}\n\nIs this answer right? Do not solve the "
        "problem. Reply \\boxed{{Correct}} or \\boxed{{Incorrect}}, and if it is wrong say in one "
        "sentence where.",
        "evaluate/code": "{problem}\n\nProgram:\n{attempt}\n\nIs this program right? Do not write "
        "it again. Reply \\boxed{{Correct}} or \\boxed{{Incorrect}}, and if it is wrong say in one "
        "sentence where.",
        "improve": "Review:\n{critique}\n\nSolve the problem again, step by step. Put the final "
        "answer in \\boxed{{}}.",
    }

    max_rounds: int | None = None
    tools: Tools = "none"
    history: History | None = field(default=None, metadata=LATER)
    verdicts: Verdicts = field(default="boxed", metadata=LATER)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_rounds is not None:
            check_whole("max_rounds", self.max_rounds, 1)
        if self.tools is None:  # `none` on a command line
            object.__setattr__(self, "tools", "none")
        check_choice("tools", self.tools, Tools)
        check_choice("verdicts", self.verdicts, Verdicts)
        if self.history is not None:
            check_choice("history", self.history, History)
        if self.tools == "tests" and self.task.kind != "code":
            raise UsageError(
                f"tools='tests' runs programs, but the answers of task {self.task.name!r} are not "
                "programs. Use task='code', or tools='none'."
            )

    @property
    def rounds(self) -> int:
        """Most attempts of the generator, with the default resolved."""
        default = CODE_ROUNDS if self.task.kind == "code" else ROUNDS[self.preset]
        return self.max_rounds or default

    @property
    def kept(self) -> History:
        """The form of `history`, with the default resolved."""
        return self.history or ("shared" if self.follows_paper else "latest")

    def attempt(self, problem: Problem, prompt: str) -> Script:
        rounds, paper, task = self.rounds, self.follows_paper, self.task
        readers = (read_tags, read_tags) if self.verdicts == "tags" else READERS[self.preset]
        counts: Counter[str] = Counter()
        history = writer = [user(prompt)]
        checker, first, number = list[Message](), None, 0
        while True:
            number += 1
            attempt = yield Ask("generator_0", writer, *self.answer_readers)
            answer = self.read(attempt)
            grade = yield Grade(answer, of=attempt)
            yield InterimScore(grade.score)
            right = grade.score >= 1.0
            first = right if first is None else first
            history = [*history, assistant(attempt.text.strip())]
            if number == rounds and not paper:
                break
            checker = self.evaluation(problem, attempt.text, history, checker)
            if self.tools == "tests":
                run = None if answer is None else task.trial(problem, answer)
                ran = None if run is None else (yield run)
                remark = report(ran, tested=run is None or bool(run.tests))
                checker[-1]["content"] = f"{remark}\n\n{checker[-1]['content']}"
            review = yield Ask("evaluator_0", checker, *readers)
            verdict: bool | None = self.read(review)
            counts[count_verdict(verdict, right)] += 1
            yield RoleScore(review, float(verdict is not None and verdict == right))
            accepted = verdict or (verdict is None and self.preset == "dr_mas")
            if accepted or number == rounds:
                break
            history = [*history, assistant(review.text.strip())]
            checker = [*checker, assistant(review.text.strip())]
            writer = self.improvement(attempt.text, review.text, history, writer)
        facts = {
            "rounds": number,
            "first_correct": first,
            "recovered": right and not first,
            "regressed": first and not right,
        }
        names = ("true_accept", "false_accept", "true_reject", "false_reject", "abstained")
        return Outcome(answer, grade.score, facts | {name: counts[name] for name in names})

    def evaluation(
        self, problem: Problem, attempt: str, history: list[Message], chat: list[Message]
    ) -> list[Message]:
        """The evaluator's next messages, after `history` of both agents or its own `chat`."""
        form = "_tags" if self.verdicts == "tags" else ""
        if self.kept == "shared":
            return [*history, user(self.wording(f"evaluate_history{form}"))]
        text = self.wording(f"evaluate{form}")
        request = user(text.format(problem=problem.text, attempt=attempt.strip()))
        return [*(chat if self.kept == "own" else ()), request]

    def improvement(
        self, attempt: str, critique: str, history: list[Message], chat: list[Message]
    ) -> list[Message]:
        """The generator's messages for a second or later attempt, likewise."""
        if self.kept == "shared":
            purpose = "improve_otherwise" if self.preset == "published" else "improve_history"
            return [*history, user(self.wording(purpose))]
        return [
            *(chat if self.kept == "own" else chat[:1]),
            assistant(attempt.strip()),
            user(self.wording("improve").format(critique=critique.strip())),
        ]

    def expert(
        self, role: str, messages: list[Message], problem: Problem, rng: random.Random, right: bool
    ) -> str:
        """The generator solves; the evaluator names the first step that differs from its own."""
        solution = self.task.solve(problem, rng, right if role == "generator" else True)
        if role == "generator":
            return solution
        if self.kept == "shared":
            attempt = [m["content"] for m in messages if m["role"] == "assistant"][-1]
        else:
            mark = "\nProgram:\n" if self.task.kind == "code" else "\nAnswer:\n"
            attempt = messages[-1]["content"].partition(mark)[2].rpartition("\n\n")[0]
        grade = self.task.grade_batch([problem], [self.task.answer(attempt)])[0]
        accept = (grade.score >= 1.0) == right
        accepting, rejecting = MARKS[self.verdicts]
        if accept:
            return f"Every step holds. {accepting}"
        steps = "\n" if self.task.kind == "code" else ". "
        solution_steps = {step.strip() for step in solution.split(steps)}
        wrong = [
            step.strip().rstrip(".")
            for step in attempt.split(steps)
            if step.strip() not in solution_steps and "boxed" not in step
        ]
        remark = f"{wrong[0]} is wrong." if wrong else "The answer is wrong."
        return f"{remark} {rejecting}"

    def example(
        self, role: str, messages: list[Message], problem: Problem, rng: random.Random
    ) -> str:
        """The evaluator's verdict comes first: after a remark, small models solve the problem."""
        reply = self.expert(role, messages, problem, rng, True)
        accepting, rejecting = MARKS[self.verdicts]
        if role == "generator":
            return reply
        remark = reply.removesuffix(rejecting).rstrip()
        return f"{rejecting} {remark}" if reply.endswith(rejecting) else accepting

    def samples(self) -> tuple[str, ...]:
        accepting, rejecting = MARKS[self.verdicts]
        return (*self.task.samples(), accepting, f"A step is wrong. {rejecting}")
