"""A run whose folder is removed, or exchanged for another, while it writes."""

import shutil
from collections.abc import Callable
from typing import Any

import pytest

from flowzoo.baselines.run.directory import RunDirectory
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.errors import SaveError

WRITES: dict[str, Callable[[RunDirectory], Any]] = {
    "a step": lambda run: run.log({"step": 1}),
    "a checkpoint": lambda run: run.marks(),
    "transcripts": lambda run: run.save_transcripts("train", 1, []),
}


def opened(out: str) -> RunDirectory:
    run = RunDirectory(TrainConfig(steps=1, problems=2, samples=4, out=out), {}, {})
    run.begin(None)
    return run


@pytest.mark.parametrize("what", WRITES)
def test_nothing_is_written_into_the_folder_of_another_run(what, tmp_path):
    out = tmp_path / "run"
    first = opened(str(out))
    shutil.rmtree(out)
    second = opened(str(out))
    second.log({"step": 0})
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    with pytest.raises(SaveError, match="run was removed or exchanged while this process"):
        WRITES[what](first)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    WRITES[what](second)


@pytest.mark.parametrize("what", WRITES)
def test_a_removed_folder_is_told(what, tmp_path):
    run = opened(str(tmp_path / "run"))
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(SaveError, match="run was removed or exchanged while this process"):
        WRITES[what](run)
