"""Making tasks by name, and the task interface of `math`."""

import pytest

from flowzoo.envs.script import GradeResult
from flowzoo.envs.tasks import SPLITS, TASKS, make_task, register_task, split_of
from flowzoo.envs.tasks.math import MathTask
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


def test_samples_are_of_every_kind():
    task = make_task("math")
    kinds = {(task.answer(s) is None, task.answer_lenient(s) is None) for s in task.samples()}
    assert kinds == {(False, False), (True, False), (True, True)}


def test_seed_and_index_are_checked():
    with pytest.raises(UsageError, match="seed"):
        make_task("math", seed="1")
    with pytest.raises(UsageError, match="index -1"):
        make_task("math").problem(-1)
    with pytest.raises(UsageError, match="validation"):
        make_task("math").problem(0, "vali")
