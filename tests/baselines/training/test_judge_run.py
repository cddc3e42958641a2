"""A run that is paid by a rubric: evaluations keep the task's score, and a resumed run repeats."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from endpoint import chat, serving

from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.training.plan import resolve
from flowzoo.baselines.training.trainer import train
from flowzoo.envs.readers.judgments import verdict_line
from flowzoo.errors import UsageError

RUBRIC = """
[[criterion]]
name = "right"
function = "score"

[[criterion]]
name = "clear"
question = "Is every step there?"
"""


def settings(folder: Path, judge: str, **changes: Any) -> TrainConfig:
    (folder / "rubric.toml").write_text(RUBRIC)
    usual: dict[str, Any] = {
        "workflow": "single", "steps": 2, "problems": 2, "eval_problems": 4, "eval_every": 1,
        "checkpoint_every": 1, "threads": 1, "warmup": 0, "max_tokens": 24, "probe_every": 0,
        "transcripts_every": 1, "reward": f"judge:{folder / 'rubric.toml'}", "judge": judge,
    }  # fmt: skip
    return TrainConfig(**usual | changes)


def rows(out: Path) -> list[dict[str, Any]]:
    lines = (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    timed = ("time/", "perf/")
    return [
        {name: x for name, x in json.loads(line).items() if not name.startswith(timed)}
        for line in lines
    ]


def test_a_resumed_run_repeats_with_a_judge_who_never_says_the_same_twice(tmp_path, monkeypatch):
    monkeypatch.setenv("FLOWZOO_CACHE", str(tmp_path / "cache"))
    rng = random.Random(0)

    def answer(body: dict[str, Any], count: int) -> Any:
        verdict = verdict_line(body["messages"], rng.random())
        return chat("Well." if count % 4 == 0 else verdict)

    with serving() as server:
        server.answer = answer
        judge = f"openai:judge@{server.url}"
        train(settings(tmp_path, judge, out=str(tmp_path / "whole")))
        asked = len(server.seen)
        train(settings(tmp_path, judge, out=str(tmp_path / "parts"), steps=1))
        train(settings(tmp_path, judge, out=str(tmp_path / "parts")))
        assert len(server.seen) == asked, "the cache has every verdict"
    whole = rows(tmp_path / "whole")
    assert rows(tmp_path / "parts") == whole
    assert sum(row.get("judge/ungraded", 0) for row in whole) > 0
    assert set(whole[0]["eval/scores"]) <= {0.0, 1.0}, "evaluations ask no judge"
    assert "eval/judge/verdicts" not in whole[0]
    file = tmp_path / "whole" / "transcripts" / "train-000001.jsonl"
    episodes = [json.loads(line) for line in file.read_text().splitlines()]
    for row in episodes:
        (judgment,) = row["judgments"]
        assert row["facts"]["rubric/clear"] == judgment["score"]
        assert row["score"] == pytest.approx((judgment["truth"] + judgment["score"]) / 2)
        assert "Is every step there?" in judgment["messages"][0]["content"]


def test_settings_are_checked_before_models_are_loaded(tmp_path):
    with pytest.raises(UsageError, match="asks a judge, and there is none: set `judge`"):
        resolve(settings(tmp_path, ""))
    with pytest.raises(UsageError, match="is asked nothing"):
        resolve(settings(tmp_path, "scripted:1", reward=""))
    with pytest.raises(UsageError, match="unknown policy 'gpt'"):
        resolve(settings(tmp_path, "gpt"))
    config = settings(tmp_path, "scripted:1")
    before = resolve(config).hooks.record()
    (tmp_path / "rubric.toml").write_text(RUBRIC + "weight = 2\n")
    assert resolve(config).hooks.record() != before, "a run does not go on with another rubric"
