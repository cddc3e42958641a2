"""Problems from files, tables and data sets of the hub: layouts, splits, broken data.

The hub itself is never asked: a program that is told to stay offline reads a cache that `datasets`
wrote, under the names that it gives to what it downloaded.
"""

import csv
import gzip
import json
import logging
import os
import pickle
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flowzoo.commands.problems import ProblemOptions, build_workflow
from flowzoo.envs.tasks import SPLITS, make_task, rows, split_of
from flowzoo.envs.tasks import rows as task_files
from flowzoo.envs.tasks.math import MathTask, wrong_answer
from flowzoo.envs.tasks.rows import Published, published_rows, read_published
from flowzoo.errors import DataError, MissingExtraError, UsageError
from tests.envs.playing import write_rows as write
from tests.tables import read_tables, shared_file

GSM = {"question": "2+3?", "answer": "It is <<2+3=5>>5.\n#### 5"}


def rows_of(path: object, **options: Any) -> list[tuple[str, str, int]]:
    """Text, gold and line of every problem of a file of mathematics."""
    task = MathTask(data=str(path), **options)
    problems = [task.problem(index, "all") for index in range(task.size("all") or 0)]
    return [(item.text, item.gold, item.meta["row"]) for item in problems]


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
    path = write(tmp_path / "m.jsonl", *rows)
    assert [gold for _, gold, _ in rows_of(path)] == ["\\frac{1}{2}", "7.0", "12"]
    task = MathTask(data=path)
    wrong = task.solve(task.problem(1, "all"), random.Random(0), False)
    assert wrong.count("\\boxed") == 1


def test_dapo_layout(tmp_path):
    wrapped = (
        "Solve the following math problem step by step. The last line of your response should be "
        "of the form Answer: $Answer (without quotes).\n\nWhat is 6*7?\n\n"
        'Remember to put your answer on its own line after "Answer:".'
    )
    chat = {
        "prompt": [{"role": "user", "content": wrapped}],
        "reward_model": {"ground_truth": "42"},
    }
    path = write(tmp_path / "d.jsonl", chat, {"prompt": "What is 6*8?", "answer": "48"})
    assert rows_of(path) == [("What is 6*7?", "42", 1), ("What is 6*8?", "48", 2)]


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


def test_a_line_separator_inside_a_string_ends_no_line(tmp_path):
    row = json.dumps({"problem": "a\u2028b", "answer": "1"}, ensure_ascii=False)
    assert rows_of(write(tmp_path / "u.jsonl", row)) == [("a\u2028b", "1", 1)]


def test_wrong_options(tmp_path):
    path = write(tmp_path / "a.jsonl", GSM)
    for message, options in {
        "gsm8k": {"data": path, "layout": "gsm8"},
        "give only one of the two": {"data": path, "level": 2},
        "give data as well": {"layout": "gsm8k"},
    }.items():
        with pytest.raises(UsageError, match=message):
            MathTask(**options)
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


@pytest.mark.parametrize(("name", "module"), [("a.parquet", "pyarrow"), ("org/name", "datasets")])
def test_an_extra_that_is_missing_is_named(tmp_path, monkeypatch, name, module):
    monkeypatch.chdir(tmp_path)
    Path("a.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=r"flowzoo\[data\]"):
        MathTask(data=name)


def test_parquet_rows_load(tmp_path):
    path = tmp_path / "a.parquet"
    write_parquet(path, [GSM, {**GSM, "question": "3+2?"}])
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


def sums(path: Path, numbers: range) -> str:
    return write(path, *({"question": f"Compute {n}+1.", "answer": str(n + 1)} for n in numbers))


def test_every_split_has_its_source(tmp_path):
    train, held = sums(tmp_path / "a.jsonl", range(12)), sums(tmp_path / "b.jsonl", range(20, 25))
    task = make_task("math", data=f"train={train},validation={held}")
    sizes = [task.size(split) for split in ("pretrain", "train", "validation", "test", "all")]
    assert sizes == [0, 12, 5, 0, 17]
    problem = task.problem(2, "validation")
    assert (problem.text, problem.meta["source"], problem.meta["row"]) == (
        "Compute 22+1.", "b.jsonl", 3
    )  # fmt: skip
    assert pickle.loads(pickle.dumps(task)).problem(2, "validation") == problem
    other = make_task("math", data=f"train={held},validation={train}")
    assert other.digest != task.digest


def test_held_out_problems_stay_out_of_the_others(tmp_path, caplog):
    train, held = sums(tmp_path / "a.jsonl", range(12)), sums(tmp_path / "b.jsonl", range(9, 15))
    with caplog.at_level(logging.WARNING):
        task = make_task("math", data=f"train={train},test={held}")
    assert (task.size("train"), task.size("test")) == (9, 6)
    assert "3 of 12 rows of split train are held out, too" in caplog.text


def test_a_split_named_twice_is_refused(tmp_path):
    rows = sums(tmp_path / "a.jsonl", range(3))
    with pytest.raises(UsageError, match="a split is named twice"):
        make_task("math", data=f"train={rows},train={rows}")


def test_another_file_takes_the_place_of_a_generator(tmp_path):
    rows = sums(tmp_path / "a.jsonl", range(3))
    for task in (make_task("math", level=3, grader="published"),
                 make_task("math", data=f"test={rows}", grader="published")):  # fmt: skip
        other = task.on(rows)
        assert (other.size("all"), other.grader) == (3, "published")


TEXT = 'question,answer\n"What is\n1+1, ""plainly""?",2\n\n3+4?,7\n'


def test_a_question_with_a_plain_answer_is_a_problem(tmp_path):
    path = write(
        tmp_path / "plain.jsonl", {"question": "1+1?", "answer": "2"},
        {"question": "Half of 1?", "answer": 0.5},
        {"question": "2+2?", "solution": r"It is \boxed{4}."},
    )  # fmt: skip
    assert rows_of(path) == [("1+1?", "2", 1), ("Half of 1?", "0.5", 2), ("2+2?", "4", 3)]
    task = make_task("math", data=str(path))
    problem = task.problem(0, "all")
    for right in (True, False):
        reply = task.solve(problem, random.Random(0), right)
        assert task.grade_batch([problem], [task.answer(reply)])[0].score == right


def test_the_content_of_the_answer_decides_between_two_layouts(tmp_path):
    path = tmp_path / "gsm8k.csv"
    path.write_text('question,answer\n2+3?,"It is <<2+3=5>>5.\n#### 5"\n')
    assert rows_of(path) == [("2+3?", "5", 2)]
    assert MathTask(data=str(path)).problem(0, "all").meta["solution"] == "It is 5."
    with pytest.raises(DataError, match="line 2: column 'answer' has '####'"):
        MathTask(data=str(path), layout="plain")


@pytest.mark.parametrize("name", ["a.csv", "a.CSV", "a.csv.gz", "a.tsv"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_tables_are_read(tmp_path, name, mark, end):
    text = TEXT.replace("question,answer", "question\tanswer").replace(",2", "\t2")
    text = text.replace(",7", "\t7") if "tsv" in name else TEXT
    content = (mark + text.replace("\n", end)).encode()
    path = tmp_path / name
    path.write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    first = f'What is{end}1+1, "plainly"?'
    assert rows_of(path) == [(first, "2", 2), ("3+4?", "7", 5)]


def test_columns_of_a_table_are_mapped_from_the_command_line(tmp_path):
    path = tmp_path / "own.csv"
    path.write_text("ask,result,note\n1+1?,2,\n")
    arguments = ("columns=text:ask,answer:result",)
    workflow = build_workflow("single", ProblemOptions(data=str(path), options=arguments))
    assert workflow.task.problem(0, "all").gold == "2"
    with pytest.raises(DataError, match="--options columns=text:COLUMN,answer:COLUMN"):
        build_workflow("single", ProblemOptions(data=str(path)))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        *((content.encode(), message) for content, message in read_tables(__file__)["bad"]),
        (b"question,answer\n1,2\n\xff,2\n", "line 3: no UTF-8"),
    ],
)
def test_a_bad_table_names_line_and_column(tmp_path, content, message):
    path = tmp_path / "bad.csv"
    path.write_bytes(content)
    with pytest.raises(DataError, match=rf"bad\.csv.*{message}"):
        MathTask(data=str(path))


def test_a_cell_may_be_long_and_the_limit_of_others_stays(tmp_path):
    path, before = tmp_path / "long.csv", csv.field_size_limit()
    path.write_text(f"question,answer\n{'word ' * 100_000},2\n")
    assert len(rows_of(path)[0][0]) == 499_999
    assert csv.field_size_limit() == before


def write_table(path: Path, *rows: dict[str, str]) -> str:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    return str(path)


def test_every_task_with_files_takes_tables(tmp_path):
    code = make_task("code", data=write_table(tmp_path / "code.csv", {
        "text": "Write a function that doubles.", "code": "def double(x):\n    return 2 * x\n",
        "test_list": json.dumps(["assert double(2) == 4", "assert double(0) == 0"]),
    }))  # fmt: skip
    problem = code.problem(0, "all")
    assert (problem.meta["entry"], len(problem.meta["hidden"])) == ("double", 1)
    passages = write_table(tmp_path / "wiki.tsv.csv", {"id": "1", "title": "Rome", "text": "A."})
    prompts_ = {"question": "Where?", "golden_answers": '["Rome", "Roma"]', "gold_ids": '["1"]'}
    questions = write_table(tmp_path / "nq.csv", prompts_)
    search = make_task("search", data=questions, corpus=passages)
    grades = search.grade_batch([search.problem(0, "all")] * 2, ["Roma", '["Rome", "Roma"]'])
    assert [grade.score for grade in grades] == [1, 0]
    path = write_table(tmp_path / "boards.csv", {"puzzle": "10 04\n04 10\n21 43\n43 21"})
    options = ("columns=board:puzzle",)
    boards = build_workflow("tool_planner", ProblemOptions("sudoku", data=path, options=options))
    assert boards.task.size("all") == 1
    with pytest.raises(DataError, match="--options columns=board:COLUMN"):
        make_task("sudoku", data=path)


def write_parquet(path: Path, rows: list[dict[str, str]]) -> None:
    arrow, parquet = map(pytest.importorskip, ("pyarrow", "pyarrow.parquet"))
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(arrow.Table.from_pylist(rows), path)


COMMIT = "0123456789abcdef0123456789abcdef01234567"
CARD = """---
configs:
- config_name: main
  data_files:
  - {split: train, path: main/train-*.parquet}
  - {split: test, path: main/test-*.parquet}
- config_name: socratic
  data_files: socratic/train-*
---
"""


def gsm(*sums: tuple[int, int]) -> list[dict[str, str]]:
    return [{"question": f"{a}+{b}?", "answer": f"It is {a + b}.\n#### {a + b}"} for a, b in sums]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data set as `hf download --local-dir` leaves it: two configurations, shards, a card."""
    datasets = pytest.importorskip("datasets", reason="data sets need flowzoo[data]")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")  # locks lie there
    tables = {
        "main/train-00000-of-00002": gsm((1, 1), (1, 2)),
        "main/train-00001-of-00002": gsm((1, 3), (1, 4)),
        "main/test-00000-of-00001": gsm((2, 1)),
        "socratic/train-00000-of-00001": gsm((3, 1)),
    }
    for name, table in tables.items():
        write_parquet(tmp_path / "sums" / f"{name}.parquet", table)
    (tmp_path / "sums" / "README.md").write_text(CARD)
    return tmp_path / "sums"


def asked(data: str) -> list[tuple[int, str]]:
    return [(number, row["question"]) for number, row in published_rows(data)]


def test_a_folder_in_the_layout_of_the_hub(folder):
    train = [(1, "1+1?"), (2, "1+2?"), (3, "1+3?"), (4, "1+4?")]
    assert asked(f"{folder}:main@train") == train
    assert asked(f"{folder}:main@train[1:3]") == train[1:3]
    assert asked(f"{folder}:main@train[:1]") == train[:1]
    assert asked(f"{folder}:main@train[3:]") == train[3:]
    assert asked(f"{folder}:socratic") == [(1, "3+1?")]
    with pytest.raises(UsageError, match=r"several splits; choose one of: .*sums:main@train, "):
        asked(f"{folder}:main")
    with pytest.raises(DataError, match=r"main.*socratic"):
        asked(str(folder))
    with pytest.raises(DataError, match=r"Bad split: dev\. Available splits: .*train"):
        asked(f"{folder}:main@dev")
    (folder / "empty").mkdir()
    with pytest.raises(DataError, match="doesn't contain any data files"):
        asked(str(folder / "empty"))


def test_a_task_reads_it_and_sees_what_has_changed(folder):
    data = f"{folder}:main@train"
    task = make_task("math", data=data)
    assert [text for text, *_ in rows_of(data)] == ["1+1?", "1+2?", "1+3?", "1+4?"]
    assert make_task("math", data=f"{data}[0:4]").digest == task.digest
    shard = folder / "main" / "train-00001-of-00002.parquet"
    write_parquet(shard, gsm((1, 5)))
    assert make_task("math", data=data).size("all") == 3
    rows.reload.cache_clear()  # else a process trusts what it has read
    with pytest.raises(DataError, match="has changed"):
        make_task("math", data=data, digest=task.digest)
    shard.write_bytes(b"no parquet")
    with pytest.raises(DataError, match="could not be loaded"):
        make_task("math", data=data)


def test_a_line_names_place_configuration_split_rows_and_revision(folder):
    assert read_published("org/name") == Published("org/name")
    line = f"org/name:en@train[10:20]#{COMMIT}"
    assert read_published(line) == Published("org/name", "en", "train", 10, 20, COMMIT)
    assert read_published("org/na.me#refs/pr/1").revision == "refs/pr/1"
    strange = folder.parent / "a:b@c#d"
    folder.rename(strange)
    assert read_published(str(strange)) == Published(str(strange))
    for data, message in {
        f"{strange}#main": "a folder has no revisions; leave out #main",
        "org/name@train[5:5]": "no row is in the range from 5 to before 5",
        "org/name@train[:10%]": "nor a dataset id",
        "org/train.jsonl": "neither an existing file or folder",
        "": "neither an existing file or folder",
        "a b": "neither an existing file or folder",
        "gone": "neither an existing file or folder",
        "../etc/passwd": "neither an existing file or folder",
    }.items():
        with pytest.raises(UsageError, match=message):
            read_published(data)


OFFLINE = """
import json, logging, sys
logging.basicConfig(format="%(message)s", stream=sys.stdout)
import datasets
datasets.logging.set_verbosity_error()
from datasets.config import HF_DATASETS_CACHE
from datasets.packaged_modules.parquet.parquet import Parquet
from flowzoo.envs.tasks.rows import published_rows
from flowzoo.errors import DataError
where = f"{HF_DATASETS_CACHE}/org___sums/default/0.0.0/{sys.argv[1]}"
Parquet(dataset_name="sums", data_files=sys.argv[2]).download_and_prepare(where)
for data in json.loads(sys.argv[3]):
    try:
        print([row["question"] for _, row in published_rows(data)])
    except DataError as error:
        print(error)
"""
"""Puts a data set where `datasets` keeps what it downloaded as `org/sums`, and reads it."""


def test_offline_the_cache_is_read_and_a_pinned_commit_is_never_another(folder):
    other = COMMIT[::-1]
    revisions = [f"org/sums#{revision}" for revision in (COMMIT, other, "v1.0")]
    lines = [revisions[0], "org/sums@train[1:2]", *revisions[1:], "org/new"]
    file = str(folder / "main" / "train-00000-of-00002.parquet")
    run = subprocess.run(
        [sys.executable, "-c", OFFLINE, COMMIT, file, json.dumps(lines)],
        env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "home")},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    pinned, unpinned, part, wrong, tag, new = run.stdout.splitlines()
    assert pinned == "['1+1?', '1+2?']"
    assert unpinned.startswith(f"data org/sums@train[1:2] is commit {COMMIT}; org/sums@train[1:2]#")
    assert part == "['1+2?']"
    for text, revision in ((wrong, other), (tag, "v1.0")):
        assert f"the cached commit {COMMIT} may differ from {revision}" in text
    assert "Couldn't reach 'org/new' on the Hub (OfflineModeIsEnabled)" in new
    assert "run `hf download --repo-type dataset org/new --local-dir FOLDER`" in new
