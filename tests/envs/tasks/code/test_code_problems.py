"""Generated code problems: tests that tell programs apart, disjoint splits, the same everywhere."""

import ast
import random

import pytest

from flowzoo.envs.tasks.code.family import (
    HIDDEN,
    PUBLIC,
    CodeInstance,
    Draft,
    ProgramError,
    compiled,
    complete,
    count_changes,
    fails,
    nothing,
    outcome,
    variant,
    wrong_program,
)
from flowzoo.envs.tasks.code.problems import LEVELS, two_operations
from flowzoo.envs.tasks.code.task import CodeTask, fence
from flowzoo.sandbox.program import CallTest
from tests.tables import read_tables

PER_FAMILY = 14


FAMILIES = {name: draft for drafts in LEVELS.values() for name, draft in drafts.items()}


def build(draft: Draft, rng: random.Random) -> CodeInstance:
    """The first draft that makes a problem."""
    while True:
        built = complete(draft(rng))
        if built is not None:
            return built


# The instances are made once, where one process runs the tests of this file.
pytestmark = pytest.mark.xdist_group("code-problems")


@pytest.fixture(scope="module")
def instances() -> list[CodeInstance]:
    return [
        build(draft, random.Random(f"{name} {number}"))
        for name, draft in FAMILIES.items()
        for number in range(PER_FAMILY)
    ]


def test_every_instance_has_its_tests(instances):
    assert len({instance.text for instance in instances}) >= 300
    for instance in instances:
        assert (len(instance.public), len(instance.hidden)) == (PUBLIC, HIDDEN)
        assert len({repr(test.expected) for test in instance.hidden}) > 1
        inputs = [
            repr(test.args if isinstance(test, CallTest) else test.stdin)
            for test in (*instance.public, *instance.hidden)
        ]
        assert len(set(inputs)) == len(inputs)
        assert instance.source not in instance.text


@pytest.mark.full
@pytest.mark.parametrize(("numbers", "least"), [(range(3), 60), (range(3, PER_FAMILY), 240)])
def test_the_sandbox_agrees_references_pass_and_wrong_programs_fail(numbers, least):
    """More than 300 distinct problems; the wrong program of each is one plausible mistake away."""
    tasks = [CodeTask(family=name) for name in FAMILIES]
    of_task = [(task, number) for task in tasks for number in numbers]
    problems = [task.problem(number, "all") for task, number in of_task]
    assert len({problem.text for problem in problems}) >= least
    task = tasks[0]
    for problem in problems:  # the public tests are tests, too
        problem.meta["hidden"] = (*problem.meta["public"], *problem.meta["hidden"])  # type: ignore[index]
    right = task.grade_batch(problems, [problem.gold for problem in problems])
    assert [p.text for p, grade in zip(problems, right, strict=True) if grade.score < 1] == []
    wrong = [
        own_texts.answer(own_texts.solve(problem, random.Random(index), False))
        for index, ((own_texts, _), problem) in enumerate(zip(of_task, problems, strict=True))
    ]
    grades = task.grade_batch(problems, wrong)
    assert [p.text for p, grade in zip(problems, grades, strict=True) if grade.score > 0] == []
    statuses = [grade.status for grade in grades]
    assert statuses.count("WA") > 0.9 * len(statuses)


def test_wrong_programs_look_like_right_ones(instances):
    for instance in instances[::4]:
        wrong = wrong_program(instance, random.Random(1))
        assert fails(ast.parse(wrong), instance) != "no"
        assert wrong == ast.unparse(ast.parse(wrong)) != instance.source
        assert abs(len(wrong.splitlines()) - len(instance.source.splitlines())) <= 1


def test_every_variant_is_another_program(instances):
    for instance in instances[::PER_FAMILY]:
        sources = [
            ast.unparse(variant(instance.source, number))
            for number in range(count_changes(instance.source))
        ]
        assert len(sources) >= 3
        assert instance.source not in sources


@pytest.mark.parametrize("count", [30, pytest.param(120, marks=pytest.mark.full)])
def test_level_1_tests_tell_every_single_mistake(count):
    """A variant that passes the hidden tests computes the same on a far larger range."""
    rng = random.Random(count)
    for _ in range(count):
        instance = build(two_operations, rng)
        for number in range(count_changes(instance.source)):
            tree = variant(instance.source, number)
            if fails(tree, instance) == "no":
                wide = [CallTest((x,), None) for x in range(-100, 400)]
                assert _values(tree, wide) == _values(ast.parse(instance.source), wide)


def _values(tree: ast.Module, tests: list[CallTest]) -> list[object]:
    code = compiled(tree)
    return [outcome(code, "f", test.args) for test in tests]


@pytest.mark.full
def test_level_1_is_large_and_short():
    task = CodeTask(level=1)
    problems = [task.problem(number, "all") for number in range(2_000)]
    # 8,779 statements: 2,000 draws hit about 1,790 different ones.
    assert len({problem.text for problem in problems}) > 1_700
    assert max(len(problem.text.split()) for problem in problems) <= 24
    assert max(len(fence(problem.gold)) for problem in problems) <= 64
    arguments = {word.strip(",.:") for problem in problems for word in problem.text.split()}
    assert len({word for word in arguments if word.isalpha()}) <= 20


@pytest.mark.parametrize("entry", [None, "f", "Solution.f"])
def test_the_program_that_does_nothing_is_a_program(entry):
    assert ast.unparse(ast.parse(nothing(entry))) == nothing(entry)


TABLES = read_tables(__file__)


@pytest.mark.parametrize(
    ("source", "args", "value"),
    [
        *TABLES["values"],
        ("def f(x):\n    pass_by = x\n    if x > 3:\n        return 'big'", [1], None),
    ],
)
def test_values(source, args, value):
    assert outcome(compiled(source), "f", tuple(args)) == value


def test_arguments_are_copied():
    given = [[1], {"a": [2]}]
    source = "def f(x):\n    x[0].append(5)\n    x[1]['a'].append(6)\n    return x"
    assert outcome(compiled(source), "f", (given,)) == [[1, 5], {"a": [2, 6]}]
    assert given == [[1], {"a": [2]}]


def test_printing():
    source = "n = int(input())\nfor i in range(n):\n    print(i, input())\nprint()"
    assert outcome(compiled(source), None, "2\na b\nc\n") == "0 a b\n1 c\n\n"


@pytest.mark.parametrize("body", TABLES["stuck"])
def test_what_does_not_end_or_raises_is_stuck(body):
    with pytest.raises(ProgramError):
        outcome(compiled(f"def f(x):\n    {body}"), "f", (3,))


def test_input_that_is_missing_is_stuck():
    with pytest.raises(ProgramError):
        outcome(compiled("print(input() + input())"), None, "one line\n")
