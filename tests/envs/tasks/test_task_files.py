"""Problems from files: layouts, real data, broken data, pickling."""

import json
import pickle
import random

import pytest

from flowzoo.envs.tasks import SPLITS, make_task, split_of
from flowzoo.envs.tasks import rows as task_files
from flowzoo.envs.tasks.math import MathTask, wrong_answer
from flowzoo.errors import DataError, MissingExtraError, UsageError
from tests.envs.playing import write_rows as write
from tests.tables import read_tables, shared_file

GSM = {"question": "2+3?", "answer": "It is <<2+3=5>>5.\n#### 5"}


@pytest.mark.parametrize(("name", "size"), [("gsm8k/test", 1_319), ("math500/test", 500)])
def test_real_files_load_and_grade(name, size):
    task = make_task("math", data=str(shared_file(f"{name}.jsonl")))
    assert task.size("all") == size
    problems = [task.problem(i, "all") for i in range(size)]
    assert [p.meta["row"] for p in problems] == list(range(1, size + 1))
    for right in (True, False):
        replies = [task.solve(p, random.Random(p.index), right) for p in problems]
        for read in (task.answer, task.answer_lenient):
            graded = task.grade_batch(problems, [read(reply) for reply in replies])
            assert sum(g.score for g in graded) == size * right
    texts = [[task.problem(i, s).text for i in range(task.size(s) or 0)] for s in SPLITS[:4]]
    assert sum(map(len, texts)) == size
    assert len(set().union(*map(set, texts))) == len({p.text for p in problems})


def test_gsm8k_layout(tmp_path):
    path = write(tmp_path / "a.jsonl", GSM, {"question": "Cost?", "answer": "x\n#### 1,234"})
    task = MathTask(data=path)
    problem = task.problem(0, "all")
    assert (problem.text, problem.gold) == ("2+3?", "5")
    assert problem.meta == {"source": "a.jsonl", "row": 1, "solution": "It is 5."}
    assert problem.id == "math/all/0/a.jsonl:0"
    assert task.problem(1, "all").gold == "1,234"
    assert task.solve(problem, random.Random(0), True) == "It is 5.\nThe answer is \\boxed{5}."
    assert "5" not in task.prompt(problem)
    split = split_of("2+3?")
    own_texts = [task.problem(i, split).text for i in range(task.size(split) or 0)]
    assert "2+3?" in own_texts


def test_math_layout_takes_the_last_box_where_there_is_no_answer(tmp_path):
    rows = (
        {"problem": "A", "solution": "\\boxed{1}, no: \\boxed{\\frac{1}{2}}"},
        {"problem": "B", "solution": "so \\boxed{7}", "answer": "7.0"},
        {"problem": "C", "answer": 12},
    )
    task = MathTask(data=write(tmp_path / "m.jsonl", *rows))
    assert [task.problem(i, "all").gold for i in range(3)] == ["\\frac{1}{2}", "7.0", "12"]
    wrong = task.solve(task.problem(1, "all"), random.Random(0), False)
    assert wrong.count("\\boxed") == 1


def test_dapo_layout(tmp_path):
    wrapped = (
        "Solve the following math problem step by step. The last line of your response should be "
        "of the form Answer: $Answer (without quotes).\n\nWhat is 6*7?\n\n"
        'Remember to put your answer on its own line after "Answer:".'
    )
    rows = (
        {
            "prompt": [{"role": "user", "content": wrapped}],
            "reward_model": {"ground_truth": "42", "style": "rule"},
        },
        {"prompt": "What is 6*8?", "answer": "48"},
    )
    task = MathTask(data=write(tmp_path / "d.jsonl", *rows))
    problems = [task.problem(i, "all") for i in range(2)]
    assert [(p.text, p.gold) for p in problems] == [("What is 6*7?", "42"), ("What is 6*8?", "48")]


def test_gpqa_layout(tmp_path):
    rows = [
        {"Question": f"Which is {n}?", "Correct Answer": f"{n}", "Incorrect Answer 1": "x"}
        | {"Incorrect Answer 2": "y\n", "Incorrect Answer 3": "z"}
        for n in range(6)
    ]
    task = MathTask(data=write(tmp_path / "g.jsonl", *rows))
    for n in range(6):
        problem = task.problem(n, "all")
        choices = [f"{n}", "x", "y\n", "z"]
        random.Random(n).shuffle(choices)  # as the public code of arXiv 2605.24202 does
        lines = [f"{letter}) {choice}" for letter, choice in zip("ABCD", choices, strict=True)]
        assert problem.text == "\n".join([f"Which is {n}?\n", *lines]).strip()
        assert problem.gold == "ABCD"[choices.index(f"{n}")]
        assert [task.grade_batch([problem], [gold])[0].score for gold in "ABCD"].count(1.0) == 1
    broken = write(tmp_path / "b.jsonl", {"Question": "Which?", "Correct Answer": "7"})
    with pytest.raises(DataError, match="layout gpqa needs all of"):
        MathTask(data=broken)


def test_columns_are_mapped_by_name(tmp_path):
    path = write(tmp_path / "c.jsonl", {"query": "1+1?", "meta": {"final": "2"}})
    columns = {"text": "query", "answer": "meta.final"}
    task = MathTask(data=path, columns=columns)
    assert (task.problem(0, "all").text, task.problem(0, "all").gold) == ("1+1?", "2")
    assert hash(task) == hash(MathTask(data=path, columns=columns))
    with pytest.raises(UsageError, match="Did you mean 'answer'"):
        MathTask(data=path, columns={"text": "query", "anwser": "x"})


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        *read_tables(__file__)["broken"],
        ([{"problem": "x", "answer": "9" * 3_000}], "line 1: answer"),
    ],
)
def test_broken_files_name_the_line(tmp_path, rows, message):
    with pytest.raises(DataError, match=message):
        MathTask(data=write(tmp_path / "b.jsonl", *rows))


def test_bytes_that_are_no_text_name_the_line(tmp_path):
    path = tmp_path / "b.jsonl"
    path.write_bytes(json.dumps(GSM).encode() + b'\n{"question": "\xff"}\n')
    with pytest.raises(DataError, match="line 2"):
        MathTask(data=str(path))


def test_a_line_separator_inside_a_string_ends_no_line(tmp_path):
    row = json.dumps({"problem": "a\u2028b", "answer": "1"}, ensure_ascii=False)
    task = MathTask(data=write(tmp_path / "u.jsonl", row))
    assert task.problem(0, "all").text == "a\u2028b"


@pytest.mark.parametrize("data", ["no.jsonl", "dir/no.jsonl", "../a/b", "a b", "org/x/y", ""])
def test_what_is_no_file_and_no_id_is_an_error(data):
    with pytest.raises(UsageError, match=r"'org/name'|directory"):
        MathTask(data=data)


def test_wrong_options(tmp_path):
    path = write(tmp_path / "a.jsonl", GSM)
    with pytest.raises(UsageError, match="gsm8k"):
        MathTask(data=path, layout="gsm8")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="give only one of the two"):
        MathTask(data=path, level=2)
    with pytest.raises(UsageError, match="give data as well"):
        MathTask(layout="gsm8k")
    task = MathTask(data=path)
    with pytest.raises(UsageError, match="below 1"):
        task.problem(1, "all")
    with pytest.raises(UsageError, match="validation"):
        task.size("valid")


def test_pickle_is_small_and_notices_a_changed_file(tmp_path):
    rows = [{"problem": f"{i}+1?", "answer": str(i + 1)} for i in range(500)]
    path = write(tmp_path / "p.jsonl", *rows)
    task = MathTask(data=path)
    raw = pickle.dumps(task)
    assert len(raw) < 1_000
    copy = pickle.loads(raw)
    assert copy == task
    assert copy.problem(499, "all") == task.problem(499, "all")
    write(tmp_path / "p.jsonl", *rows[:-1])
    task_files.reload.cache_clear()
    with pytest.raises(DataError, match="has changed"):
        copy.problem(0, "all")
    assert MathTask(data=path).size("all") == 499


def test_parquet_and_dataset_rows_need_the_extra_or_load(tmp_path):
    path = tmp_path / "a.parquet"
    try:
        import pyarrow as arrow
        import pyarrow.parquet as parquet
    except ImportError:
        path.write_bytes(b"PAR1")
        with pytest.raises(MissingExtraError, match=r"flowzoo\[data\]"):
            MathTask(data=str(path))
        with pytest.raises(MissingExtraError, match=r"flowzoo\[data\]"):
            MathTask(data="org/name")
        return
    parquet.write_table(arrow.Table.from_pylist([GSM, {**GSM, "question": "3+2?"}]), path)
    task = MathTask(data=str(path))
    assert [task.problem(i, "all").text for i in range(2)] == ["2+3?", "3+2?"]
    path.write_bytes(b"no parquet")
    with pytest.raises(DataError, match="Parquet"):
        MathTask(data=str(path))


@pytest.mark.parametrize(
    "gold", ["5", "0", "1,234", "\\text{Evelyn}", "x", "17", "(3, \\frac{\\pi}{2})", "90^\\circ"]
)
def test_wrong_answers_are_wrong(gold):
    task = MathTask()
    answers = [wrong_answer(gold, random.Random(seed)) for seed in range(50)]
    assert task.classes(task.problem(0), [gold, *answers]).count(0) == 1
