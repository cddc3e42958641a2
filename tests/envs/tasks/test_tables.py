"""Problems from CSV and TSV files, and from questions with plain answers."""

import csv
import gzip
import json
import random
from pathlib import Path
from typing import Any

import pytest

from flowzoo.commands.problems import ProblemOptions, build_workflow
from flowzoo.envs.tasks import make_task
from flowzoo.envs.tasks.math import MathTask
from flowzoo.errors import DataError
from tests.tables import read_tables

TEXT = 'question,answer\n"What is\n1+1, ""plainly""?",2\n\n3+4?,7\n'


def rows_of(path: Path, **options: Any) -> list[tuple[str, str, int]]:
    """Text, gold and line of every problem of a file of mathematics."""
    task = MathTask(data=str(path), **options)
    problems = [task.problem(index, "all") for index in range(task.size("all") or 0)]
    return [(item.text, item.gold, item.meta["row"]) for item in problems]


def test_a_question_with_a_plain_answer_is_a_problem(tmp_path):
    path = tmp_path / "plain.jsonl"
    rows = [{"question": "1+1?", "answer": "2"}, {"question": "Half of 1?", "answer": 0.5}]
    rows += [{"question": "2+2?", "solution": r"It is \boxed{4}."}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
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
