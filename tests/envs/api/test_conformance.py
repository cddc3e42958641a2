"""The conformance checks pass on every workflow, and find what is wrong."""

import itertools
import re
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest

from flowzoo.envs import (
    Ask,
    Episode,
    EpisodeRecord,
    Grade,
    GradeResult,
    Outcome,
    Problem,
    Run,
    Workflow,
    WorkflowEnv,
)
from flowzoo.envs import testing as suite
from flowzoo.envs.api.registry import make_workflow
from flowzoo.envs.api.solo import SoloEnv
from flowzoo.envs.tasks import SPLITS, make_task
from flowzoo.envs.tasks.code.task import CodeTask
from flowzoo.envs.tasks.math import MathTask
from flowzoo.envs.tasks.search import SearchTask
from flowzoo.envs.testing import check_task, check_workflow, slow_replies, workflow_checks
from flowzoo.envs.testing.slow_replies import time_limit
from flowzoo.envs.workflows.single import Single

VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("voting_v0", {"aggregate": "majority", "n_votes": 5}),
    ("voting_v0", {"credit": "mix", "format_penalty": 0.5}),
    ("eval_opt_v0", {"max_rounds": 1}),
    ("eval_opt_v0", {"credit": "local", "level": "1-5"}),
    ("orch_workers_v0", {"split_by": "subtasks", "max_workers": 2}),
    ("single_v0", {"task": "search", "passages": 300}),
    ("search_team_v0", {"credit": "local", "passages": 300, "level": 2, "max_turns": 2}),
    ("writing_pair_v0", {"form": "expansion", "credit": "mix"}),
    ("writing_pair_v0", {"reward": "published", "format_penalty": 0.5}),
    ("reasoner_tool_v0", {"credit": "team", "max_turns": 1}),
    ("coder_tester_v0", {"level": 3, "max_turns": 2}),
    ("code_pair_v0", {"level": 2, "credit": "mix", "feedback": "plain"}),
    ("voting_v0", {"credit": "rubric", "preset": "published"}),
    ("eval_opt_v0", {"history": "own", "preset": "published"}),
    ("eval_opt_v0", {"verdicts": "tags", "preset": "dr_mas", "format_penalty": 0.1}),
    ("eval_opt_v0", {"verdicts": "tags", "history": "shared"}),
    ("orch_workers_v0", {"mode": "sequential"}),
]


ON_CODE: list[tuple[str, dict[str, Any]]] = [
    ("voting_v0", {"aggregate": "majority"}),
    ("eval_opt_v0", {"tools": "tests"}),
    ("single_v0", {"reward": "fraction", "credit": "local", "level": 3}),
    ("single_v0", {"test_rounds": 2}),
    ("voting_v0", {"test_rounds": 2, "credit": "rubric"}),
    ("eval_opt_v0", {"test_rounds": 2, "history": "own", "preset": "published"}),
]


@pytest.mark.usual(3)
@pytest.mark.parametrize(
    ("name", "options"),
    [
        # Others of their workflows are in `test_pairs`.
        pytest.param(*row, marks=[] if number < 5 else pytest.mark.full)
        for number, row in enumerate(VARIANTS)
    ] + [
        pytest.param(name, {"task": "code", **options},
                     marks=[pytest.mark.full, pytest.mark.xdist_group("pairs-code")])
        for name, options in ON_CODE
    ],
)  # fmt: skip
def test_variants_conform(name, options):
    suite.check_workflow(make_workflow(name, **options))


SEARCH = SearchTask(passages=300)
STATE: dict[str, Any] = {"count": itertools.count(), "said": ""}


class Bad(Workflow):
    """Two writers in a phase, then a judge who is told something and answers."""

    name: ClassVar[str] = "bad_v0"
    roles: ClassVar[Mapping[str, int]] = {"writer": 2, "judge": 1}

    def draft(self, problem: Problem) -> Any:
        read = self.task.answer
        return [Ask(f"writer_{slot}", self.task.prompt(problem), read) for slot in range(2)]

    def told(self, problem: Problem, drafts: Any) -> Any:
        return ""

    def play(self, problem):
        drafts = yield self.draft(problem)
        question = f"{problem.text} {self.told(problem, drafts)}"
        final = yield Ask("judge_0", question, self.task.answer)
        return Outcome(final.strict)


class ShowsGold(Bad):
    def told(self, problem, drafts):
        return f"Hint: {problem.gold}"


class ShowsGoldLate(Bad):
    """Only to who could not be read before."""

    def told(self, problem, drafts):
        return problem.gold if all(draft.strict is None for draft in drafts) else ""


class ShowsSolution(Bad):
    def told(self, problem, drafts):
        return problem.meta["solution"]


class ShowsHiddenTests(Bad):
    def told(self, problem, drafts):
        return " ".join(repr(test) for test in problem.meta.get("hidden", ()))


class LengthOfGold(Bad):
    """Never shows it, but what is asked depends on it."""

    def told(self, problem, drafts):
        return sum(draft.text < problem.gold for draft in drafts) + sum(problem.gold.encode())


class SearchesGold(Bad):
    """The query depends on the passages that are needed."""

    def told(self, problem, drafts):
        return sum(map(ord, problem.meta["gold_ids"][0]))


class Counts(Bad):
    def told(self, problem, drafts):
        return f"call {next(STATE['count'])}"


class Remembers(Bad):
    """Shows what was said last, in whichever episode."""

    def told(self, problem, drafts):
        before, STATE["said"] = STATE["said"], drafts[0].text
        return before


class StopsWhenRight(Bad):
    def play(self, problem):
        drafts = yield self.draft(problem)
        grade = yield Grade(drafts[0].strict)
        if grade.score == 1.0:
            return Outcome(drafts[0].strict, grade.score)
        final = yield Ask("judge_0", problem.text, self.task.answer)
        return Outcome(final.strict)


class PicksTheRightOne(Bad):
    """Asks the same whatever the grades, but answers by them."""

    def play(self, problem):
        drafts = yield self.draft(problem)
        grades = yield [Grade(draft.strict) for draft in drafts]
        yield Ask("judge_0", problem.text)
        best = max(range(2), key=lambda slot: grades[slot].score)
        return Outcome(drafts[best].strict, grades[best].score)


class StopsOnHiddenTests(Bad):
    """Grades nothing, and runs the hidden tests to know when to stop."""

    def play(self, problem):
        drafts = yield self.draft(problem)
        source = drafts[0].strict or "x"
        ran = yield Run(source, problem.meta["hidden"], problem.meta["entry"])
        if ran.status != "AC":
            yield Ask("judge_0", problem.text)
        return Outcome(score=0.0)


class RaisesOnLongNumbers(Bad):
    """`int` refuses more than 4,300 digits."""

    def play(self, problem):
        def number(text: str) -> int | None:
            digits = re.search(r"\d+", text)
            return int(digits[0]) if digits else None

        yield self.draft(problem)
        final = yield Ask("judge_0", problem.text, number)
        return Outcome(None if final.strict is None else str(final.strict))


class RaisesOnSilence(Bad):
    """Only when one role alone says nothing."""

    def play(self, problem):
        drafts = yield self.draft(problem)
        final = yield Ask("judge_0", problem.text)
        if drafts[0].text and not final.text:
            raise ValueError("the judge said nothing")
        return Outcome(score=0.0)


class Uneven(Bad):
    """Rewards that differ each time they are computed."""

    def play(self, problem):
        yield self.draft(problem)
        return Outcome(score=1.0)


class TwoAtATime(Bad):
    """Says that everybody acts in every phase."""

    simultaneous: ClassVar[bool] = True

    def play(self, problem):
        yield self.draft(problem)
        return Outcome(score=1.0)


class MixedUp(MathTask):
    """Right alone, and the grades in the wrong order in a batch."""

    def grade_batch(self, problems, answers):
        return super().grade_batch(problems, answers)[::-1]


class OneProblem(MathTask):
    def problem(self, index: int, split: str = "train") -> Problem:
        return super().problem(0, split)


PAID = EpisodeRecord("", "", "", "", "", "", 1.0, None, True, {}, {"a": 1.0})

BAD: list[tuple[type[Workflow], dict[str, Any], Callable[..., Any], str]] = [
    (ShowsGold, {}, workflow_checks.check_gold_leaks, "judge_0 was shown the gold answer"),
    (ShowsGoldLate, {}, workflow_checks.check_gold_leaks, "judge_0 was shown the gold answer"),
    (ShowsSolution, {}, workflow_checks.check_gold_leaks, "judge_0 was shown the gold answer"),
    (LengthOfGold, {}, workflow_checks.check_gold_leaks, "a prompt depends on the gold answer"),
    (StopsWhenRight, {}, workflow_checks.check_truth_blindness, "depends on grades"),
    (PicksTheRightOne, {}, workflow_checks.check_truth_blindness, "depends on grades"),
    (
        RaisesOnLongNumbers,
        {},
        slow_replies.check_parsers,
        "the parser .*number of judge_0 raised ValueError",
    ),
    (RaisesOnSilence, {}, workflow_checks.check_hostile, "the judge said nothing"),
    (Counts, {}, workflow_checks.check_forks, "must not use clocks, globals"),
]


@pytest.mark.parametrize(("kind", "options", "check", "message"), BAD)
def test_the_right_check_catches_a_bad_workflow(kind, options, check, message):
    workflow = kind(task=MathTask(), **options)
    with pytest.raises(AssertionError, match=f"bad_v0, {check.__name__}: .*{message}"):
        suite.check_workflow(workflow)


@pytest.mark.parametrize(
    ("kind", "options", "check", "message"),
    [
        (
            ShowsHiddenTests,
            {"task": CodeTask()},
            workflow_checks.check_gold_leaks,
            "was shown the gold",
        ),
        (
            StopsOnHiddenTests,
            {"task": CodeTask()},
            workflow_checks.check_truth_blindness,
            "depends on grades",
        ),
        (SearchesGold, {"task": SEARCH}, workflow_checks.check_gold_leaks, "depends on the gold"),
        (TwoAtATime, {}, workflow_checks.check_api, "is declared as simultaneous"),
        (
            Single,
            {"task": MixedUp()},
            workflow_checks.check_isolation,
            "ends differently among others",
        ),
        (Counts, {}, workflow_checks.check_seeds, "two runs with equal seeds differ"),
        (Remembers, {}, workflow_checks.check_isolation, "judge_0 saw text of another episode"),
        (Uneven, {"task": OneProblem()}, workflow_checks.check_seeds, "different seeds are equal"),
        (
            Uneven,
            {"credit": lambda parts: float(next(STATE["count"]))},
            workflow_checks.check_seeds,
            "two runs with equal seeds differ",
        ),
    ],
)
def test_single_checks_catch_bad_workflows(kind, options, check, message):
    workflow = kind(**{"task": MathTask(), **options})
    with pytest.raises(Exception, match=message):
        check(workflow)


class SameEverywhere(MathTask):
    """The same problems in every split."""

    def problem(self, index: int, split: str = "train") -> Problem:
        self.check_index(index, split)
        return replace(super().problem(index, "train"), split=split)


class Salted(MathTask):
    """Problems that depend on the hash seed of the process."""

    def prompt(self, problem: Problem) -> str:
        return f"{problem.text} ({hash(problem.text)})"


def bad(**methods: Callable[..., Any]) -> type[MathTask]:
    return type("BadMath", (MathTask,), methods)


def locked(self: MathTask) -> Any:
    raise TypeError("it holds a lock")


def percent(self: MathTask, problems: Any, answers: Any) -> list[GradeResult]:
    grades = MathTask.grade_batch(self, problems, answers)
    return [GradeResult(100 * grade.score, grade.status) for grade in grades]


def anything(self: MathTask, index: int, split: str = "train") -> Problem:
    return MathTask.problem(self, abs(index), split if split in SPLITS else "train")


def grading(score: float) -> type[MathTask]:
    return bad(
        grade_batch=lambda task, problems, answers: [GradeResult(score, "ok")] * len(answers)
    )


COUNTING = bad(prompt=lambda task, problem: f"{next(STATE['count'])} {problem.text}")
TELLING = bad(prompt=lambda task, problem: f"{problem.text} (it is {problem.gold})")
CLASSLESS = bad(classes=lambda task, problem, answers: tuple(range(len(answers))))
MISPLACED = bad(problem=lambda task, n, split="train": MathTask.problem(task, n + 1, split))
FRAGILE = bad(answer=lambda task, text: text.split("{")[1].split("}")[0])


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (MixedUp, "check_[a-z]+: .* in a batch, but .* alone"),
        (SameEverywhere, "check_splits: splits '[a-z]+' and '[a-z]+' share a problem"),
        (COUNTING, "check_prompts: the prompt depends on the gold answer"),
        (Salted, "check_copies: the prompt of problem 0 differs in another process"),
        (CLASSLESS, "check_classes: "),
        (MISPLACED, r"check_items: problem\(0, 'pretrain'\) has the id of problem 1"),
        (grading(1.0), "check_reference: a wrong reply of the expert to .*, .* scores 1.0"),
        (grading(0.0), "check_reference: the reference answer of .* scores 0.0"),
        (bad(grade_batch=percent), "check_[a-z]+: .*100.0"),
        (FRAGILE, r"check_readers: answer\(\) raised IndexError"),
        (TELLING, "check_prompts: the prompt shows the gold answer"),
        (bad(problem=anything), r"check_refusals: problem\(-1, 'train'\) must raise a UsageError"),
        (bad(__reduce__=locked), "check_copies: it cannot be pickled"),
    ],
)
def test_the_right_check_catches_a_bad_task(kind, message):
    with pytest.raises(AssertionError, match=f"task math, {message}"):
        suite.check_task(kind())


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("math", {"level": "1-5"}),
        ("code", {"level": "1-3"}),
        ("plan_path", {"side": 4, "density": 0.2}),
        ("sokoban", {"boxes": 2}),
        ("sudoku", {"side": 9}),
        ("search", {"passages": 300}),
        ("writing", {"form": "tldr"}),
        ("writing", {"form": "expansion"}),
    ],
)
def test_tasks_conform(name, options):
    suite.check_task(make_task(name, **options))


def test_a_workflow_of_a_function_is_told_where_to_stand():
    class Within(TwoAtATime):
        pass

    with pytest.raises(AssertionError, match=r"cannot be pickled .* at the top level of a module"):
        workflow_checks.check_forks(Within(task=MathTask()))


def test_the_checks_of_a_task_are_those_of_every_workflow_on_it():
    with pytest.raises(AssertionError, match="task math, check_splits: "):
        suite.check_workflow(Single(task=SameEverywhere()))


@pytest.mark.parametrize("late", [False, True])
def test_an_environment_that_leaks_a_mates_reply_is_caught(monkeypatch, late):
    """In the first phase, and in a later one (each has its own mates)."""

    class TwoRounds(Bad):
        def play(self, problem):
            yield self.draft(problem)
            final, _ = yield self.draft(problem)
            return Outcome(final.strict)

    def leaking(self: WorkflowEnv, agent: str) -> dict[str, Any]:
        turn = self._prompts[agent]
        output = self.episode._buffer if turn.phase >= late else {}
        return {"messages": [*turn.observe(), {"role": "user", "content": str(output)}]}

    workflow = TwoRounds(task=MathTask())
    workflow_checks.check_phase_leaks(workflow)
    monkeypatch.setattr(WorkflowEnv, "observe", leaking)
    with pytest.raises(AssertionError, match=f"in phase {int(late)}, an observation depends"):
        workflow_checks.check_phase_leaks(workflow)


def test_an_environment_whose_info_tells_of_mates_is_caught(monkeypatch):
    original = WorkflowEnv._commit

    def telling(self: WorkflowEnv, episode: Episode) -> None:
        original(self, episode)
        if not self.episode.done:
            self.infos[self.agent_selection]["said"] = dict(self.episode._buffer)

    monkeypatch.setattr(WorkflowEnv, "_commit", telling)
    with pytest.raises(AssertionError, match="in phase 0, an observation depends"):
        workflow_checks.check_phase_leaks(make_workflow("voting_v0"))


def test_a_small_file_is_enough_for_the_suite(tmp_path):
    rows = "".join(
        f'{{"question": "What is {n}+1?", "answer": "{n + 1}\\n#### {n + 1}"}}\n' for n in range(40)
    )
    (tmp_path / "few.jsonl").write_text(rows)
    suite.check_workflow(make_workflow("voting_v0", data=str(tmp_path / "few.jsonl")))


def test_an_environment_that_overruns_its_budget_or_pays_for_it_is_caught(monkeypatch):
    class Twice(Bad):
        def play(self, problem):
            yield self.draft(problem)
            yield self.draft(problem)
            return Outcome(score=1.0)

    workflow = Twice(task=MathTask())
    workflow_checks.check_budget(workflow)
    opened = Episode._open_phase

    def unbounded(self, asks):
        limit, self.max_cycles = self.max_cycles, None
        opened(self, asks)
        self.max_cycles = limit

    with monkeypatch.context() as patch:
        patch.setattr(Episode, "_open_phase", unbounded)
        with pytest.raises(AssertionError, match="an agent was asked 2 times under max_cycles=1"):
            workflow_checks.check_budget(workflow)
    monkeypatch.setattr("flowzoo.envs.testing.workflow_checks.record", lambda episode: PAID)
    with pytest.raises(AssertionError, match=r"a truncated episode paid \{1\.0\}"):
        workflow_checks.check_budget(workflow)


def test_a_view_that_pays_something_else_is_caught(monkeypatch):
    step = SoloEnv.step

    def generous(self, action):
        obs, reward, *rest = step(self, action)
        return obs, reward + 1.0, *rest

    monkeypatch.setattr(SoloEnv, "step", generous)
    with pytest.raises(AssertionError, match=r"the view of generator paid .*, returns: "):
        workflow_checks.check_solo(make_workflow("single_v0"))


def test_a_finished_copy_that_forgets_who_has_left_is_caught(monkeypatch):
    fork = WorkflowEnv.fork

    def forgetful(self):
        twin = fork(self)
        twin.agent_selection = twin.possible_agents[0]
        return twin

    monkeypatch.setattr(WorkflowEnv, "fork", forgetful)
    with pytest.raises(AssertionError, match="a copy selects another agent"):
        workflow_checks.check_forks(make_workflow("voting_v0"))


PATTERNS = (
    r"(a+)+$",
    r"(\w+\s?)*$",
    r"\\boxed\{((?:[^{}]+|\{[^{}]*\})*)\}$",
    r"<answer>(\s*.*\s*)*</answer>",
    r"(\[(\s*\d+,?)+\]?)+$",
    r"Answer: ((\d+)+,?)+$",
    r"```python\n((.*\n)*)*```",
    r"So it is ([a-z]+)*\.",
    r"(#+)+$",
    r"([A-Z]+)+$",
    r"(So|S+o+)+$",
)


@dataclass(frozen=True)
class SlowTask(MathTask):
    """Reads answers with a pattern."""

    pattern: str = ""

    def answer(self, text: str) -> str | None:
        read = super().answer(text)
        return read if re.search(self.pattern, text) is None or read else None

    def solve(self, problem: Any, rng: Any, right: bool) -> str:
        return f"So it is x. {super().solve(problem, rng, right)}"


@dataclass(frozen=True)
class SlowWorkflow(Workflow):
    """Another parser in a later ask."""

    name: ClassVar[str] = "slow_v0"
    roles: ClassVar[Mapping[str, int]] = {"writer": 1, "judge": 1}
    asks: tuple[str, ...] = ("writer_0", "judge_0")

    def play(self, problem: Any) -> Any:
        yield Ask(self.asks[0], problem.text, self.task.answer)
        final = yield Ask(self.asks[1], problem.text, read_letters)
        return Outcome(final.strict)


def read_letters(text: str) -> str | None:
    """The letters of a reply."""
    match = re.match(r"(a+)+$", text)
    return match[0] if match else None


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow_replies, "LIMIT_S", 0.3)


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_task_whose_parser_never_ends_is_caught(pattern):
    with pytest.raises(AssertionError, match=r"check_readers: answer\(\), given .* of CPU time"):
        check_task(SlowTask(pattern=pattern))
    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0.0, 0.0)


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("asks", [("writer_0", "judge_0"), ("writer_0", "writer_0")])
def test_a_workflow_whose_parser_never_ends_is_caught(asks):
    message = f"slow_v0, check_parsers: the parser read_letters of {asks[1]}, given .* of CPU time"
    with pytest.raises(AssertionError, match=message):
        check_workflow(make_workflow(SlowWorkflow, asks=asks))


def test_a_parser_that_swallows_everything_is_caught():
    def stubborn() -> None:
        try:
            re.match(r"(a+)+$", "a" * 60 + "!")
        except BaseException:
            return

    message = r"^stubborn takes more than 0\.2 s of CPU time"
    with pytest.raises(AssertionError, match=message), time_limit("stubborn", 0.2):
        stubborn()


def test_time_that_others_take_does_not_count():
    with time_limit("sleeping", 0.2):
        time.sleep(0.5)
