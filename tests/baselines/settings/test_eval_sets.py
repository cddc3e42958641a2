"""Evaluation sets: measured beside the held-out problems, without any effect on the run."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from flowzoo.baselines.report.accuracy import gain
from flowzoo.baselines.run.reading import read_run
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.training.build import start_run
from flowzoo.baselines.training.plan import resolve
from flowzoo.baselines.training.trainer import Trainer, train
from flowzoo.errors import UsageError

SMALL: dict[str, Any] = {
    "workflow": "single", "problems": 2, "samples": 4, "steps": 2, "eval_problems": 6,
    "threads": 1, "probe_every": 0, "eval_temperature": 0.0, "max_tokens": 40,
}  # fmt: skip


def write_rows(path: Path, numbers: range) -> str:
    rows = ({"question": f"Compute {n}*4+5.", "answer": str(4 * n + 5)} for n in numbers)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def make_config(root: Path, **changes: Any) -> TrainConfig:
    return TrainConfig(**{**SMALL, **changes, "out": str(root)})


def test_sets_change_nothing_else_and_are_measured_in_whole(tmp_path, repeated_rows):
    small, large = (write_rows(tmp_path / f"{n}.jsonl", range(2, 2 + n)) for n in (3, 7))
    train(make_config(tmp_path / "without"))
    sets = (f"small={small}", f"large={large}")
    summary = train(make_config(tmp_path / "with", eval_sets=sets))
    pairs = zip(*map(repeated_rows, (tmp_path / "without", tmp_path / "with")), strict=True)
    for without, measured in pairs:
        assert without == {
            name: value for name, value in measured.items() if not name.startswith("eval_sets/")
        }
        if "eval/scores" in measured:
            assert len(measured["eval_sets/small/scores"]) == 3
            assert len(measured["eval_sets/large/scores"]) == 7
    # As the held-out problems of a run on that file are.
    rows = write_rows(tmp_path / "rows.jsonl", range(12, 17))
    held_out = make_config(tmp_path / "alone", steps=1, eval_problems=7,
                        options=(f"data=train={rows},validation={large}",))  # fmt: skip
    first = Trainer(start_run(held_out))
    try:
        scores = first.evaluate(0)["eval/scores"]
    finally:
        first.close()
    measured = read_run(tmp_path / "with", "with").rows
    assert measured[0]["eval_sets/large/scores"] == scores
    item = summary["eval_sets"]["large"]
    assert item["accuracy_before"] == pytest.approx(sum(scores) / 7)
    found, alone = (
        gain(read_run(tmp_path / name, name), None).findings[0] for name in ("with", "without")
    )
    text = found.text
    assert found.title == alone.title
    assert "On the evaluation set small it went from " in text
    assert (tmp_path / "with" / "transcripts" / "set-large-000002.jsonl").is_file()


def test_problems_that_are_trained_on_are_counted(tmp_path, caplog):
    rows, other = (write_rows(tmp_path / f"{n}.jsonl", range(2, 2 + n)) for n in (8, 5))
    held_out = write_rows(tmp_path / "held_out.jsonl", range(20, 24))
    config = make_config(
        tmp_path / "run", steps=1, eval_problems=4, eval_sets=(f"other={other}",),
        options=(f"data=train={rows},validation={held_out}",),
    )  # fmt: skip
    with caplog.at_level(logging.WARNING, "flowzoo"):
        Trainer(start_run(config)).close()
    assert "evaluation set other: 5 of its 5 problems are in split train" in caplog.text


@pytest.mark.parametrize(
    ("sets", "changes", "said"),
    [
        (("some/file.jsonl",), {}, "`eval_sets` takes NAME=VALUE"),
        (("a b=x.jsonl",), {}, "names a set 'a b': expected a word"),
        (("a=missing.jsonl",), {}, "neither an existing file"),
        (("a=x.jsonl", "a=y.jsonl"), {}, "names name a twice"),
    ],
)
def test_sets_that_are_none_are_refused_before_any_model_is_loaded(tmp_path, sets, changes, said):
    with pytest.raises(UsageError, match=said):
        resolve(make_config(tmp_path, eval_sets=sets, **changes))
