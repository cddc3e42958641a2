"""Tasks by name, and `math`: problems right by an independent check, in disjoint splits."""

import ast
import math
import operator
import random
import re
from collections.abc import Callable
from fractions import Fraction

import pytest

from flowzoo.envs.script import GradeResult
from flowzoo.envs.tasks import SPLITS, TASKS, make_task, register_task, split_of
from flowzoo.envs.tasks.math import MathTask, generate
from flowzoo.envs.tasks.task import is_in
from flowzoo.errors import UsageError
from tests.tables import read_tables


def test_by_name_with_options():
    task = make_task("math", level="2-3", seed=4)
    assert task == MathTask(level="2-3", seed=4)
    assert make_task(task) is task
    assert make_task("math").problem(0).meta["level"] == 1


def test_unknown_names_and_options_list_the_valid_ones():
    with pytest.raises(UsageError, match="Did you mean 'math'"):
        make_task("maths")
    with pytest.raises(UsageError, match=r"Did you mean 'level'.*columns, copies, data"):
        make_task("math", levle=2)
    with pytest.raises(UsageError, match="with a Task instance"):
        make_task(MathTask(), level=2)
    with pytest.raises(UsageError, match="expected a name"):
        make_task(3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [(name, *row) for name, rows in read_tables(__file__).items() for row in rows],
)
def test_wrong_options_are_explained(name, options, message):
    with pytest.raises(UsageError, match=message):
        make_task(name, **options)


@pytest.mark.parametrize("level", [0, 6, "3-2", "1-9", "one", "", True, 1.5])
def test_unknown_levels(level):
    with pytest.raises(UsageError, match="'1-3'"):
        make_task("math", level=level)


def test_a_generated_problem_belongs_to_the_split_it_was_asked_from():
    for name in ("math", "search"):
        task = make_task(name)
        for split in SPLITS[:4]:
            texts = [task.problem(index, split).text for index in range(12)]
            assert {split_of(text) for text in texts} == {split}
        assert len({split_of(task.problem(index, "all").text) for index in range(48)}) > 1


def test_an_instance_is_in_its_own_split_and_in_all():
    for number in range(20):
        results = [split for split in SPLITS if is_in(split, f"instance {number}")]
        assert sorted(results) == sorted([split_of(f"instance {number}"), "all"])


def test_registration(monkeypatch):
    monkeypatch.setitem(TASKS, "sums", "flowzoo.envs.tasks.math:MathTask")
    assert isinstance(make_task("sums"), MathTask)
    with pytest.raises(UsageError, match="registered already"):
        register_task("math", "elsewhere:Task")
    with pytest.raises(UsageError, match="module:class"):
        register_task("other", "elsewhere.Task")
    assert "other" not in TASKS


def test_reading_and_grading():
    task = make_task("math")
    problem = task.problem(0)
    assert task.size("train") is None
    assert task.prompt(problem) == f"{problem.text}\nPut the final answer in \\boxed{{}}."
    assert task.answer("The answer is 7.") is None
    assert task.answer_lenient("The answer is 7.") == "7"
    assert task.classes(problem, ["7", None, "8", "7.0"]) == (0, -1, 1, 0)
    graded = task.grade_batch([problem] * 3, [problem.gold, "x", None])
    assert graded == [
        GradeResult(1.0, "equal"),
        GradeResult(0.0, "different"),
        GradeResult(0.0, "no_answer"),
    ]


@pytest.mark.parametrize("name", ["math", "code"])
def test_samples_are_of_every_kind(name):
    task = make_task(name)
    kinds = {(task.answer(s) is None, task.answer_lenient(s) is None) for s in task.samples()}
    assert kinds == {(False, False), (True, False), (True, True)}


def test_seed_and_index_are_checked():
    with pytest.raises(UsageError, match="seed"):
        make_task("math", seed="1")
    with pytest.raises(UsageError, match="index -1"):
        make_task("math").problem(-1)
    with pytest.raises(UsageError, match="validation"):
        make_task("math").problem(0, "vali")


LEVELS = (1, 2, 3, 4, 5)
OPERATORS: dict[type, Callable] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def value(node: ast.AST) -> Fraction:
    """Arithmetic on rationals, from the syntax tree."""
    if isinstance(node, ast.Expression):
        return value(node.body)
    if isinstance(node, ast.Constant):
        return Fraction(str(node.value))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -value(node.operand)
    assert isinstance(node, ast.BinOp)
    return OPERATORS[type(node.op)](value(node.left), value(node.right))


def compute(expression: str) -> Fraction:
    return value(ast.parse(expression, mode="eval"))


def at(side: str, x: int) -> Fraction:
    """A side of an equation at `x`: `12x` and `5(x+3)` are products."""
    starred = re.sub(r"(\d)([x(])", r"\1*\2", side)
    return compute(starred.replace("x^2", "x*x").replace("x", f"({x})"))


def check(text: str, gold: str) -> bool:
    """True if `gold` answers the statement, decided without the generator's own arithmetic."""
    if text.startswith("Compute"):
        expression = re.match(r"Compute ([^ ]+?)\.( |$)", text)
        assert expression is not None
        latex = re.sub(r"\\frac\{(\d+)\}\{(\d+)\}", r"\1/\2", gold)
        return compute(expression[1]) == Fraction(latex)
    answer = int(gold)
    numbers = [int(n) for n in re.findall(r"-?\d+", text)]
    if text.startswith("Solve"):
        left, right = text.removeprefix("Solve ").removesuffix(" for x.").split("=")
        return at(left, answer) == at(right, answer) and at(left, answer + 1) != at(
            right, answer + 1
        )
    if text.startswith("Find the larger root"):
        left = text.removeprefix("Find the larger root of ").removesuffix("=0.")
        roots = [x for x in range(-100, 101) if at(left, x) == 0]
        return answer == max(roots)
    if text.startswith("Given"):
        a, b, first, second = (int(n) for n in re.findall(r"(?<!x)-?\d+", text))
        pairs = ((x, x - second) for x in range(-200, 200))
        return [x + y for x, y in pairs if a * x + b * y == first] == [answer]
    if "common divisor" in text:
        return answer == math.gcd(*numbers)
    if "common multiple" in text:
        return answer == math.lcm(*numbers)
    if "remainder" in text:
        return answer == pow(*numbers)
    assert "divisors" in text
    return answer == sum(numbers[0] % d == 0 for d in range(1, numbers[0] + 1))


@pytest.mark.parametrize("level", LEVELS)
def test_golds_are_right(level):
    task = MathTask(level=level)
    problems = [task.problem(i, "train") for i in range(400)]
    assert [p.text for p in problems if not check(p.text, p.gold)] == []
    assert not check(problems[0].text, str(10**6 + 1))


@pytest.mark.parametrize("level", LEVELS)
def test_solutions_grade_as_they_should(level):
    task = MathTask(level=level)
    problems = [task.problem(i, "validation") for i in range(300)]
    for right in (True, False):
        replies = [task.solve(p, random.Random(p.index), right) for p in problems]
        answers = [task.answer(reply) for reply in replies]
        assert None not in answers
        grades = {(grade.score, grade.status) for grade in task.grade_batch(problems, answers)}
        assert grades == {(float(right), "equal" if right else "different")}


def test_steps_of_right_solutions_are_true():
    for level in (1, 2):
        for idx in range(300):
            problem = MathTask(level=level).problem(idx)
            *steps, box = problem.meta["solution"].split(" ")
            assert box == f"\\boxed{{{problem.gold}}}"
            for step in steps:
                left, right = step.removesuffix(".").split("=")
                assert compute(left) == int(right), step


def test_a_mistake_keeps_the_statement_and_carries_its_error_on():
    right = generate(1, random.Random(5))
    wrong = generate(1, random.Random(5), mistake=0, delta=1)
    assert wrong.text == right.text
    assert wrong.steps == right.steps == right.solution.count("=")
    assert wrong.gold != right.gold
    *steps, _ = wrong.solution.split(" ")
    ok = [compute(s.split("=")[0]) == int(s.rstrip(".").split("=")[1]) for s in steps]
    assert ok == [False] + [True] * (len(steps) - 1)


def test_level_1_is_large_and_small_numbered():
    task = MathTask(level=1)
    texts = {task.problem(i, "all").text for i in range(30_000)}
    assert len(texts) >= 12_000  # of about 15,000
    held_out = [task.problem(i, "validation") for i in range(800)]
    assert len({p.text for p in held_out}) >= 500
    assert max(len(p.gold) for p in held_out) <= 4
    assert max(len(p.text) for p in held_out) <= 24


def test_levels_of_a_range_take_turns():
    task = MathTask(level="2-4")
    assert [task.problem(i).meta["level"] for i in range(4)] == [2, 3, 4, 2]
    assert task.problem(1).text == MathTask(level=3).problem(1).text


def test_splits_are_disjoint_over_seeds_and_levels():
    texts: dict[str, set[str]] = {split: set() for split in SPLITS if split != "all"}
    for split, seen in texts.items():
        for seed in range(3):
            for level in LEVELS:
                task = MathTask(level=level, seed=seed)
                seen.update(task.problem(i, split).text for i in range(200))
    assert all(len(seen) > 2_000 for seen in texts.values())
    assert sum(map(len, texts.values())) == len(set().union(*texts.values()))
