"""Data with a source for every split."""

import json
import logging
import pickle
from pathlib import Path

import pytest

from flowzoo.envs.tasks import make_task
from flowzoo.errors import UsageError


def write_rows(path: Path, numbers: range) -> str:
    rows = ({"question": f"Compute {n}+1.", "answer": str(n + 1)} for n in numbers)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_every_split_has_its_source(tmp_path):
    train, held = (write_rows(tmp_path / name, n) for name, n in
                   (("a.jsonl", range(12)), ("b.jsonl", range(20, 25))))  # fmt: skip
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
    train, held = (write_rows(tmp_path / name, n) for name, n in
                   (("a.jsonl", range(12)), ("b.jsonl", range(9, 15))))  # fmt: skip
    with caplog.at_level(logging.WARNING):
        task = make_task("math", data=f"train={train},test={held}")
    assert (task.size("train"), task.size("test")) == (9, 6)
    assert "3 of 12 rows of split train are held out, too" in caplog.text


def test_a_split_named_twice_is_refused(tmp_path):
    rows = write_rows(tmp_path / "a.jsonl", range(3))
    with pytest.raises(UsageError, match="a split is named twice"):
        make_task("math", data=f"train={rows},train={rows}")


def test_another_file_takes_the_place_of_a_generator(tmp_path):
    rows = write_rows(tmp_path / "a.jsonl", range(3))
    for task in (make_task("math", level=3, grader="published"),
                 make_task("math", data=f"test={rows}", grader="published")):  # fmt: skip
        other = task.on(rows)
        assert (other.size("all"), other.grader) == (3, "published")
