"""The writing task and the writing pair: grading of pairs, files, role scores, experts."""

import json

import pytest

from flowzoo.envs import Episode, make_workflow
from flowzoo.envs.tasks import make_task
from flowzoo.envs.tasks.writing import WritingTask, join_texts, split_texts
from flowzoo.errors import DataError, UsageError
from flowzoo.seeding import key_rng
from tests.envs.playing import play_turns

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


def written(first, second, **options):
    workflow = make_workflow("writing_pair_v0", **options)
    replies = {"writer_1": second, "writer_0": first}
    return play_turns(workflow, workflow.task.problem(0), replies)


def model_pair(**options):
    task = make_workflow("writing_pair_v0", **options).task
    return split_texts(task.problem(0).meta["solution"])


@pytest.mark.parametrize("form", ["tldr", "expansion"])
def test_both_writers_are_paid_for_the_pair(form):
    done = written(*model_pair(form=form), form=form)
    assert done.score > 0.7
    assert done.returns == {"writer_0": done.score, "writer_1": done.score}
    assert done.facts["reward"] == pytest.approx(3 * done.score)
    assert [call.role_score for call in done.calls] == [
        done.facts["grounding_0"], done.facts["grounding_1"],
    ]  # fmt: skip
    assert done.calls[0].messages != done.calls[1].messages
    assert split_texts(done.answer) == model_pair(form=form)


def test_the_pair_earns_nothing_if_one_writes_nonsense_and_the_role_scores_say_who():
    first, _ = model_pair()
    done = written(first, "zorp blick fanta wug dax quill morb trask vinto plome " * 6)
    assert done.score == 0.0
    assert [call.role_score for call in done.calls] == [1.0, 0.0]


def test_an_empty_text_abstains():
    first, _ = model_pair()
    done = written(first, "<think>hm")
    assert done.score == 0.0
    assert [call.strict for call in done.calls] == [True, False]
    assert done.calls[1].role_score == 0.0


def test_under_the_published_reward_the_role_score_is_the_pairs():
    done = written(*model_pair(), reward="published")
    assert done.score > 0.7
    assert [call.role_score for call in done.calls] == [done.score] * 2


def test_the_expert_writes_the_text_that_its_instruction_asks_for():
    workflow = make_workflow("writing_pair_v0")
    problem = workflow.task.problem(0)
    episode, respond = Episode(workflow, problem), workflow.responder(problem)
    message = [respond("writer", turn.observe()) for turn in episode.waiting]
    assert tuple(message) == split_texts(problem.meta["solution"])
