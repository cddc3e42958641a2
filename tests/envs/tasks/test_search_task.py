"""The search task: its world needs search, its questions have one answer, files and options."""

import json
import pickle
from collections import Counter

import pytest

from flowzoo.envs.tasks import make_task, split_of
from flowzoo.envs.tasks.search import (
    RELATIONS,
    SearchTask,
    question_text,
    read_fact,
    tagged_answer,
    world,
)
from flowzoo.errors import DataError, UsageError
from flowzoo.reward.text.qa import exact_match
from flowzoo.seeding import key_rng

SPLITS = ("pretrain", "train", "validation", "test")


def asked(task, split, count):
    return [task.problem(index, split) for index in range(count)]


def test_relations_are_drawn_anew_for_each_split_and_names_recur():
    first, second = (world(0, split, 1000) for split in ("train", "test"))
    assert first.entities == second.entities
    same = sum(first.facts[key] == second.facts[key] for key in first.facts)
    # By chance one fact in about 150 to 500 is the same.
    assert same < 0.02 * len(first.facts)


def test_every_fact_stands_in_the_passage_of_its_subject_alone():
    built = world(3, "train", 300)
    text = "\n".join(passage for _, passage in built.passages)
    for (subject, relation), target in built.facts.items():
        sentence = RELATIONS[relation].sentence.format(s=subject, o=target)
        assert text.count(sentence) == 1
        own_texts = dict(built.passages)[built.ids[subject]]
        assert sentence in own_texts
        assert read_fact(own_texts, subject, relation) == target


def test_the_gold_passages_lead_to_the_answer_and_the_question_does_not_name_it():
    task = SearchTask(passages=2000)
    texts = dict(world(0, "test", 2000).passages)
    for problem in asked(task, "test", 1000):
        here = problem.meta["start"]
        assert question_text(here, problem.meta["relations"]) == problem.text
        for relation, name in zip(problem.meta["relations"], problem.meta["gold_ids"], strict=True):
            here = read_fact(texts[name], here, relation)
            assert here is not None
        assert here == problem.gold
        assert problem.gold not in problem.text
    assert {len(p.meta["gold_ids"]) for p in asked(task, "test", 6)} == {1, 2, 3}


@pytest.mark.parametrize("passages", [200, 5000])
def test_an_answerer_that_cannot_search_scores_under_five_per_cent(passages):
    """Guessers that know the whole train split: by question, by start and relation, by prior."""
    task = SearchTask(passages=passages)
    expected = asked(task, "train", 4000)
    held = asked(task, "test", 2000)
    guessers = [
        lambda p: p.text,
        lambda p: (p.meta["start"], p.meta["relations"]),
        lambda p: (p.meta["start"], p.meta["relations"][-1]),
        lambda p: p.meta["start"],
        lambda p: p.meta["relations"][-1],
        lambda p: None,
    ]
    for key in guessers:
        seen: dict[object, Counter[str]] = {}
        for problem in expected:
            seen.setdefault(key(problem), Counter())[problem.gold] += 1
        best = {name: counts.most_common(1)[0][0] for name, counts in seen.items()}
        rate = sum(best.get(key(p)) == p.gold for p in held) / len(held)
        assert rate < 0.05


@pytest.mark.full
def test_the_best_possible_constant_guess_for_each_relation_is_worth_little():
    held = asked(SearchTask(), "test", 6000)
    counts: dict[str, Counter[str]] = {}
    for problem in held:
        counts.setdefault(problem.meta["relations"][-1], Counter())[problem.gold] += 1
    assert sum(max(c.values()) for c in counts.values()) / len(held) < 0.05


def test_reading_answers():
    assert tagged_answer("so <answer> Bal Sohak </answer>.") == "Bal Sohak"
    assert tagged_answer("<answer>a</answer> no, <answer>b</answer>") == "b"
    assert tagged_answer("<think><answer>a</answer></think> hm") is None
    assert tagged_answer("<answer>a</answer><think>") == "a"
    assert tagged_answer("<search>x <answer>a</answer></search>") is None
    assert tagged_answer("<search>x <answer>a</answer>") is None
    assert tagged_answer("<answer></answer>") is None
    assert tagged_answer("<answer>" + "x" * 600 + "</answer>") is None
    assert SearchTask().answer_lenient("It is clear.\nBal Sohak") == "Bal Sohak"
    assert SearchTask().answer_lenient("") is None


def test_grading_and_classes():
    task = SearchTask()
    problem = task.problem(0)
    right, wrong, none = task.grade_batch([problem] * 3, [f"the {problem.gold}!", "Nobody", None])
    assert (right.score, right.status, dict(right.parts)) == (1.0, "match", {"f1": 1.0})
    assert (wrong.score, wrong.status) == (0.0, "differs")
    assert (none.score, none.status) == (0.0, "none")
    assert task.classes(task.problem(0), ["The X", "x", None, "y"]) == (0, 0, -1, 1)


def test_the_expert_is_right_or_plausibly_wrong():
    task = SearchTask(passages=300)
    for index in range(100):
        problem = task.problem(index)
        for right in (True, False):
            text = task.solve(problem, key_rng("solve", index), right)
            assert exact_match(task.answer(text) or "", [problem.gold]) == right


@pytest.fixture
def files(tmp_path):
    rows = [
        {"question": f"Who owns house {n}?", "golden_answers": [f"Owner {n}", f"Mr {n}"]}
        for n in range(60)
    ]
    rows[0]["gold_ids"] = [0]
    passages = [{"id": n, "contents": f"House {n} belongs to Owner {n}."} for n in range(60)]
    passages[1] = {"id": 1, "title": "House 1", "text": "House 1 belongs to Mr 1."}
    paths = tmp_path / "questions.jsonl", tmp_path / "passages.jsonl"
    for path, part in zip(paths, (rows, passages), strict=True):
        path.write_text("".join(json.dumps(row) + "\n" for row in part))
    return tuple(map(str, paths))


def test_questions_and_passages_from_files(files):
    task = make_task("search", data=files[0], corpus=files[1])
    assert sum(task.size(split) or 0 for split in SPLITS) == task.size("all") == 60
    problem = task.problem(0, "all")
    assert (problem.gold, problem.meta["gold_ids"]) == ("Owner 0", ("0",))
    assert problem.id == "search/all/0/questions.jsonl:0"
    assert [g.score for g in task.grade_batch([problem] * 2, ["mr 0", "Owner 1"])] == [1.0, 0.0]
    thawed = pickle.loads(pickle.dumps(task))
    results = thawed.search_batch([problem, problem], ["owns house 5", "Mr 1"], 2)
    assert [part.passages[0].id for part in results] == ["5", "1"]
    with pytest.raises(UsageError, match="below 60"):
        task.problem(60, "all")


def test_a_file_that_changes_is_noticed(files):
    task = make_task("search", data=files[0], corpus=files[1])
    with open(files[1], "a") as file:
        file.write('{"id": 99, "contents": "more"}\n')
    with pytest.raises(DataError, match="content has changed"):
        SearchTask(data=files[0], corpus=files[1], digest=task.digest[:-1] + "x")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"question": " ", "answer": "x"}, "'question' is missing"),
        ({"question": "q", "answer": []}, "golden_answers, answers, answer"),
        ({"question": "q", "answer": ["the"]}, "a word in each"),
        ([1], "expected an object"),
    ],
)
def test_a_bad_row_names_its_line(files, row, message):
    with open(files[0], "a") as file:
        file.write(json.dumps(row) + "\n")
    with pytest.raises(DataError, match=rf"line 61: .*{message}"):
        make_task("search", data=files[0], corpus=files[1])


def test_problems_are_a_function_of_their_key_and_splits_are_disjoint():
    task = SearchTask(passages=400)
    texts = {split: {p.text for p in asked(task, split, 150)} for split in SPLITS}
    for split in SPLITS:
        assert all(split_of(text) == split for text in texts[split])
    assert task.problem(7, "test") == pickle.loads(pickle.dumps(task)).problem(7, "test")
    assert SearchTask(passages=400, seed=1).problem(7).text != task.problem(7).text
