"""A run on a file with a test that fails by itself: its episodes are counted, not trained on."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from flowzoo.baselines.report.health import health_findings
from flowzoo.baselines.run.reading import read_run
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.training.trainer import train
from flowzoo.envs import make_workflow
from flowzoo.errors import UsageError

BROKEN = "import os; os._exit(0); f()"
PROGRAM = "def f(x):\n    return 1"


def rows_in(folder: Path, split: str, test: str, count: int) -> list[dict[str, Any]]:
    """Rows with this test whose problems are of `split`, in words that the pocket model knows."""
    generated = make_workflow("single", "code", level=1).task
    rows = [
        {"text": generated.problem(index, "all").text, "code": PROGRAM, "test_list": [test]}
        for index in range(200)
    ]
    path = folder / "rows.json"
    path.write_text(json.dumps(rows))
    task = make_workflow("single", "code", data=str(path)).task
    return [rows[task.problem(index, split).meta["row"] - 1] for index in range(count)]


def code_file(folder: Path, tests: dict[str, list[str]]) -> str:
    """A file with a problem for each test of each split."""
    rows = [
        rows_in(folder, split, test, len(asserts))[number]
        for split, asserts in tests.items()
        for number, test in enumerate(asserts)
    ]
    path = folder / "m.json"
    path.write_text(json.dumps(rows))
    return str(path)


def settings(folder: Path, tests: dict[str, list[str]], **changes: Any) -> TrainConfig:
    usual: dict[str, Any] = {
        "workflow": "single", "task": "code", "steps": 2, "problems": 2, "samples": 4,
        "eval_problems": 3, "eval_every": 1, "eval_samples": 2, "threads": 1, "warmup": 0,
        "max_tokens": 40, "probe_every": 0, "transcripts_every": 1, "out": str(folder / "run"),
        "options": (f"data={code_file(folder, tests)}",),
    }  # fmt: skip
    return TrainConfig(**usual | changes)


def test_unknown_episodes_are_counted_and_not_trained_on(tmp_path, caplog):
    good = "assert f(1) is not None"
    tests = {"train": [good, BROKEN], "validation": [good, BROKEN, good]}
    with caplog.at_level(logging.WARNING, logger="flowzoo"):
        summary = train(settings(tmp_path, tests))
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    for row in rows[1:]:
        assert 0 < row["reward/unknown"] <= 4
        episodes = (tmp_path / "run" / "transcripts" / f"train-{row['step']:06}.jsonl").read_text()
        assert len(episodes.splitlines()) == 8 - row["reward/unknown"]
    for row in rows:
        assert row["eval/reward/unknown"] == 1
        known = [score for index, score in enumerate(row["eval/scores"]) if index != 1]
        assert len(known) == 2
        assert row["eval/reward/mean"] == pytest.approx(sum(row["eval/scores"]) / 3)
    assert summary["unknown"] == sum(row["reward/unknown"] for row in rows[1:])
    said = [record.getMessage() for record in caplog.records if record.name == "flowzoo"]
    assert len([text for text in said if "are unknown, so they are not trained on" in text]) == 1
    failures = (tmp_path / "run" / "failures.jsonl").read_text()
    assert "the test's own code failed" in failures
    titles = [finding.title for finding in health_findings(read_run(tmp_path / "run", "run"))]
    assert "Some verdicts are unknown" in titles


def test_a_run_of_unknown_verdicts_alone_stops(tmp_path):
    with pytest.raises(UsageError, match="verdicts on all 1 held-out problems are unknown"):
        train(settings(tmp_path, {"train": [BROKEN], "validation": [BROKEN]}, eval_problems=1))
