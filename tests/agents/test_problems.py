"""Held-out sets and the training stream."""

from collections import Counter

import pytest

from flowzoo.agents.problems import distinct_problems, indices_from
from flowzoo.envs.tasks import make_task
from flowzoo.errors import UsageError


def test_held_out_problems_are_distinct_and_begin_at_the_first():
    task = make_task("math")
    problems = distinct_problems(task, "validation", 500)
    assert len({problem.text for problem in problems}) == 500
    assert problems[0] == task.problem(0, "validation")


def test_all_of_a_generator_is_refused():
    with pytest.raises(UsageError, match="has no end"):
        distinct_problems(make_task("math"), "validation", None)


def test_more_than_there_are_is_refused(tmp_path):
    path = tmp_path / "two.jsonl"
    path.write_text('{"question": "1+1?", "answer": "#### 2"}\n' * 2)
    task = make_task("math", data=str(path))
    assert len(distinct_problems(task, "all", None)) == 2
    with pytest.raises(UsageError, match="only 1 distinct"):
        distinct_problems(task, "all", 2)


def test_the_counted_problems_of_a_generator_are_all_that_it_draws():
    task = make_task("math", level="1")
    size = task.distinct("test")
    assert size is not None
    assert len(distinct_problems(task, "test", size)) == size
    with pytest.raises(UsageError, match=f"has only {size} distinct problems from index 3 on"):
        distinct_problems(task, "test", size + 1, start=3)
    assert make_task("math", level="1-2").distinct("test") is None


def test_a_finite_stream_covers_every_problem_once_an_epoch_in_new_orders():
    indices = indices_from(10, seed=3, first=0, count=40)
    for start in (0, 10, 20, 30):
        assert Counter(indices[start : start + 10]) == Counter(range(10))
    assert indices[:10] != indices[10:20]
    assert indices[:10] != indices_from(10, seed=4, first=0, count=10)
    assert indices[4:12] == indices_from(10, seed=3, first=4, count=8)


def test_an_endless_stream_is_a_function_of_seed_and_position():
    first = indices_from(None, seed=0, first=0, count=32)
    assert first == indices_from(None, seed=0, first=0, count=32)
    assert not set(first) & set(indices_from(None, seed=0, first=32, count=32))
    assert not set(first) & set(indices_from(None, seed=1, first=0, count=32))
