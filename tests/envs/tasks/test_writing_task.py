"""The writing task: problems, grading of pairs, files, options."""

import json

import pytest

from flowzoo.envs.tasks import make_task
from flowzoo.envs.tasks.writing import WritingTask, join_texts, split_texts
from flowzoo.errors import DataError, UsageError
from flowzoo.seeding import key_rng

SPLITS = ("pretrain", "train", "validation", "test")


@pytest.mark.parametrize("form", ["tldr", "expansion"])
def test_model_pairs_earn_most_and_poor_ones_little(form):
    task = WritingTask(form=form)
    rng = key_rng("writers")
    for index in range(60):
        problem = task.problem(index)
        good, poor = (
            [task.solve_for(problem, position, rng, right) for position in range(2)]
            for right in (True, False)
        )
        scores = [
            g.score for g in task.grade_batch([problem] * 2, [join_texts(*good), join_texts(*poor)])
        ]
        assert scores[0] > 0.55
        assert scores[1] < 0.25 * scores[0]


def test_parts_add_up_and_the_published_reward_ignores_the_source():
    grounded, published = WritingTask(), WritingTask(reward="published")
    problem = grounded.problem(0)
    pair = problem.meta["solution"]
    item, two = (
        grounded.grade_batch([problem], [pair])[0],
        published.grade_batch([problem], [pair])[0],
    )
    parts = dict(item.parts)
    levels = sum(parts[name] for name in ("lengths", "ratio", "unique", "style"))
    ground = min(parts["grounding_0"], parts["grounding_1"]) * parts["apart"]
    assert parts["reward"] == pytest.approx(levels * ground)
    assert item.score == pytest.approx(parts["reward"] / 3)
    assert "grounding_0" not in dict(two.parts)
    elsewhere = published.problem(1)
    assert published.grade_batch([elsewhere], [pair])[0] == two
    assert grounded.grade_batch([elsewhere], [pair])[0].score < item.score / 4


def test_only_the_published_reward_finds_so_in_some():
    first = "My cat ran off in Rome and a baker brought it home."
    second = (
        "My cat was lost in Rome for two days; some baker had fed it fish, and brought it home."
    )
    styles = {}
    for name in ("published", "grounded"):
        task = WritingTask(reward=name)
        grade = task.grade_batch([task.problem(0)], [join_texts(first, second)])[0]
        styles[name] = dict(grade.parts)["style"]
    assert styles["published"] == pytest.approx(styles["grounded"] + 0.4 * 0.4)


@pytest.mark.parametrize(
    "answer", [None, "", "x", "[]", '["a"]', '["a", 1]', "{}", "[" * 100_000, "null"]
)
def test_what_is_no_pair_is_no_answer(answer):
    task = WritingTask()
    grade = task.grade_batch([task.problem(0)], [answer])[0]
    assert (grade.score, grade.status) == (0.0, "none")
    assert split_texts(answer) is None


def test_pairs_survive_joining():
    pair = ('a\n"b"', "\ud800 ü")
    assert split_texts(join_texts(*pair)) == pair


def test_reading_replies():
    task = WritingTask()
    assert task.answer("<think>plan</think> A text. ") == "A text."
    assert task.answer("<think>plan") is None
    assert task.answer("  ") is None
    assert task.answer("x" * 8_001) is None
    assert task.classes(task.problem(0), ["a", None, "b", "a"]) == (0, -1, 1, 0)


def test_sources_from_a_file(tmp_path):
    path = tmp_path / "posts.jsonl"
    rows = [
        {"prompt": f"Post {n}. It tells of seals and their winter.", "other": f"O {n}"}
        for n in range(30)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = make_task("writing", data=str(path))
    assert sum(task.size(split) or 0 for split in SPLITS) == task.size("all") == 30
    problem = task.problem(2, "all")
    assert (problem.text, problem.gold) == (rows[2]["prompt"], "")
    assert problem.id == "writing/all/0/posts.jsonl:2"
    assert make_task("writing", data=str(path), column="other").problem(2, "all").text == "O 2"
    for position in range(2):
        assert task.solve_for(problem, position, key_rng("x"), True)
    with pytest.raises(UsageError, match="below 30"):
        task.problem(30, "all")
    with pytest.raises(DataError, match=r"line 1: expected a text in column missing"):
        make_task("writing", data=str(path), column="missing")
    path.write_text(path.read_text() + '{"prompt": " "}\n')
    with pytest.raises(DataError, match=r"line 31: expected a text in column post or prompt"):
        make_task("writing", data=str(path))
