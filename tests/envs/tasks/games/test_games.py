"""Every task with a world: oracle, splits, prompts, purity, hostile answers."""

import pickle
import random

import pytest

from flowzoo.envs.episode.effects import resolve
from flowzoo.envs.script import EquivalenceClasses
from flowzoo.envs.tasks import SPLITS, make_task, split_of
from flowzoo.envs.tasks.games.sokoban import bare
from flowzoo.envs.testing import HOSTILE
from flowzoo.errors import UsageError

GAMES = [
    ("plan_path", {}),
    ("plan_path", {"side": 4, "density": 0.2}),
    ("sokoban", {}),
    ("sokoban", {"boxes": 2}),
    ("sokoban", {"side": 5}),
    ("sudoku", {}),
    ("sudoku", {"side": 9}),
]
games = pytest.mark.parametrize(("name", "options"), GAMES)


@pytest.mark.usual(4)
@pytest.mark.parametrize(
    ("name", "options"),
    [("plan_path", {}), ("sokoban", {}), ("sokoban", {"boxes": 3}), ("sudoku", {})],
)
def test_the_oracle_solves_a_thousand_of_a_thousand(name, options):
    task = make_task(name, **options)
    problems = [task.problem(index) for index in range(1000)]
    answers = [task.answer(task.solve(problem, random.Random(0), True)) for problem in problems]
    golds = [problem.gold for problem in problems]
    for rewarded in (task, make_task(name, reward="shaped", **options)):
        grades = rewarded.grade_batch(problems * 2, answers + golds)
        assert {(grade.status, grade.score) for grade in grades} == {("solved", 1.0)}


@games
def test_a_wrong_expert_is_readable_and_fails(name, options):
    task = make_task(name, **options)
    problems = [task.problem(index, "validation") for index in range(100)]
    replies = [task.solve(problem, random.Random(i), False) for i, problem in enumerate(problems)]
    grades = task.grade_batch(problems, [task.answer(reply) for reply in replies])
    assert {grade.status for grade in grades} == {"unsolved"}
    assert len(set(replies)) > 10


def test_no_complete_grid_of_one_sudoku_split_solves_a_puzzle_of_another():
    task = make_task("sudoku")
    solved = {
        split: {
            task.state(problem, problem.gold)
            for problem in (task.problem(index, split) for index in range(400))
        }
        for split in ("pretrain", "train", "validation", "test")
    }
    grids = [grid for group in solved.values() for grid in group]
    assert len(grids) == len(set(grids))
    # Enough draws to have met (nearly) all of the 288 grids of 4 x 4.
    assert 250 < len(grids) <= 288
    for split, group in solved.items():
        assert {split_of(grid.replace(" ", "").replace("\n", "")) for grid in group} == {split}


def test_no_level_of_one_sokoban_split_is_met_in_another():
    task = make_task("sokoban", side=5)
    levels = {
        split: {bare(task.problem(index, split).meta["board"]) for index in range(100)}
        for split in ("pretrain", "train", "validation", "test")
    }
    assert sum(map(len, levels.values())) == len(set().union(*levels.values())) > 40


@games
def test_the_prompt_shows_the_state_and_never_the_solution(name, options):
    task = make_task(name, **options)
    for index in range(30):
        problem = task.problem(index)
        plan = task.solve(problem, random.Random(0), True)
        step = task.frames(None, plan)[0]
        before, after = task.prompt_at(problem, "[]"), task.prompt_at(problem, step)
        assert before == task.prompt(problem)
        assert problem.text in before
        assert before != after
        assert problem.gold not in before
        assert task.board_in(problem, before) == problem.meta["board"]
        assert task.board_in(problem, after) == task.state(problem, step)


@games
def test_actions_of_several_turns_are_one_list_after_the_other(name, options):
    task = make_task(name, reward="shaped", **options)
    for index in range(20):
        problem = task.problem(index)
        plan = task.solve(problem, random.Random(index), True)
        frames = task.frames(None, plan)
        assert frames[-1] == plan
        assert not task.ended(problem)
        assert task.ended(problem, plan) == "solved"
        half = frames[len(frames) // 2]
        rest = task.plan(problem, task.state(problem, half), random.Random(0), True)
        assert task.ended(problem, task.join(half, rest)) == "solved"
        assert task.solves(problem, task.state(problem, half), [rest, "[]"]) == [
            True,
            task.ended(problem, half) == "solved",
        ]


@games
@pytest.mark.parametrize("reward", ["sparse", "shaped"])
def test_hostile_answers_are_scored(name, options, reward):
    task = make_task(name, reward=reward, **options)
    problem = task.problem(0)
    texts = [*HOSTILE.values(), "[[0,0,99]]", "[[0,0,-1]]", "[[0,0,1.0]]", "[[true,0,1]]", "[null]"]
    assert {task.answer(text) for text in texts} == {None}
    answers = [None, "", "x", "[", '["X"]', "[[0]]", "[[0,0]]", "[[0,0,\u0663]]", "[[9,9,9]]"]
    grades = task.grade_batch([problem] * len(answers), answers)
    assert all(0 <= grade.score < 1 and grade.status in ("none", "unsolved") for grade in grades)
    assert grades[0] == (0.0, "none", ())


@games
def test_equal_lists_are_one_class(name, options):
    task = make_task(name, **options)
    effect = EquivalenceClasses(("[]", None, task.samples()[0], "[]"))
    assert resolve(task, [(task.problem(0), effect)]) == [(0, -1, 1, 0)]


def test_a_world_too_small_for_a_split_says_so():
    # One move cannot bring two boxes home.
    tiny = make_task("sokoban", side=5, boxes=2, longest=1)
    with pytest.raises(UsageError, match=r"no problem for split 'test' in .* draws"):
        tiny.problem(0, "test")


@games
def test_splits_are_disjoint_and_assigned_by_the_instance(name, options):
    task = make_task(name, **options)
    other = make_task(name, seed=1, **options)
    owned = {
        split: {game.problem(index, split).text for game in (task, other) for index in range(60)}
        for split in SPLITS
        if split != "all"
    }
    for split, texts in owned.items():
        assert len(texts) > 10
        for rest in owned:
            assert rest == split or not texts & owned[rest]


@games
def test_items_are_a_function_of_task_split_seed_and_index(name, options):
    task = make_task(name, **options)
    first = [task.problem(index) for index in (3, 0, 3)]
    twin = pickle.loads(pickle.dumps(make_task(name, **options)))
    assert first[0] == first[2] == twin.problem(3)
    assert first[0].text != first[1].text
    assert pickle.loads(pickle.dumps(first[0])) == first[0]
