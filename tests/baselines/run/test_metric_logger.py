"""Boards: the numbers of a run as files of TensorBoard and of W&B, offline, and in Trackio."""

import json
import math
import os
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flowzoo.baselines.run.metric_logger import WANDB, MetricLogger, ServiceRun, scalars
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.settings.preflight import need_modules
from flowzoo.baselines.training.trainer import train
from flowzoo.errors import MissingExtraError, UsageError

SMALL: dict[str, Any] = {
    "workflow": "single", "steps": 2, "problems": 1, "samples": 2, "eval_problems": 2,
    "eval_every": 2, "checkpoint_every": 1, "threads": 1, "max_tokens": 8,
}  # fmt: skip
BLOCK, HEADER, FILE_HEADER = 32768, 7, 7


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """W&B offline, with its caches out of the way."""
    pytest.importorskip("wandb", reason="the W&B board needs flowzoo[wandb]")
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("WANDB_MODE", "offline")
    for name in ("CACHE", "CONFIG", "DATA"):
        monkeypatch.setenv(f"WANDB_{name}_DIR", str(tmp_path / f"wandb-{name}"))


def records(path: Path) -> Iterator[Any]:
    """The records of a .wandb file: chunks in blocks of 32 KiB, as LevelDB writes its logs."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, place, whole = path.read_bytes(), FILE_HEADER, b""
    while place + HEADER <= len(data):
        left = BLOCK - place % BLOCK
        if left < HEADER:
            place += left
            continue
        _, size, kind = struct.unpack("<IHB", data[place : place + HEADER])
        if place + HEADER + size > len(data):
            return  # it is still being written
        whole += data[place + HEADER : place + HEADER + size]
        place += HEADER + size
        if kind in (1, 4):  # whole, or the last part
            record = Record()
            record.ParseFromString(whole)
            yield record
            whole = b""


def starts(root: Path) -> list[Path]:
    """The files of W&B, one for each start of the run, oldest first; all are complete.

    W&B's own process writes them, and goes on after the run's `finish` has returned.
    """
    found = sorted(root.glob("wandb/offline-run-*/run-*.wandb"), key=lambda p: p.parent.name)
    deadline = time.monotonic() + 120
    for path in found:
        while not any(r.WhichOneof("record_type") == "exit" for r in records(path)):
            assert time.monotonic() < deadline, f"{path} is not complete"
            time.sleep(0.05)
    return found


def history(path: Path) -> dict[int, dict[str, Any]]:
    """Step -> the numbers logged, without those that W&B adds."""
    found: dict[int, dict[str, Any]] = {}
    for record in records(path):
        if record.WhichOneof("record_type") == "history":
            row = {
                "/".join(item.nested_key) or item.key: json.loads(item.value_json)
                for item in record.history.item
            }
            step = int(row["_step"])
            assert step not in found
            found[step] = {name: value for name, value in row.items() if name[0] != "_"}
    return found


def one(path: Path, kind: str) -> Any:
    """The record of `kind` that a file has one of."""
    (found,) = [getattr(r, kind) for r in records(path) if r.WhichOneof("record_type") == kind]
    return found


def tensorboard(root: Path) -> dict[str, dict[int, float]]:
    """Metric -> step -> value, as TensorBoard reads them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(root / "tensorboard"))
    read.Reload()
    return {
        name: {event.step: event.value for event in read.Scalars(name)}
        for name in read.Tags()["scalars"]
    }


def test_only_finite_numbers_are_shown():
    row = {
        "step": 3, "a": 1, "b": 0.5, "flag": True, "nan": math.nan, "far": math.inf, "text": "x",
        "eval/scores": [1.0], "gram/a": {"products": [[1.0]]}, "none": None,
    }  # fmt: skip
    assert scalars(row) == {"a": 1, "b": 0.5}


def test_tensorboard_hides_what_a_killed_process_wrote_after_its_checkpoint(tmp_path):
    config = TrainConfig(out=str(tmp_path))
    rows = [{"step": step, "a/b": float(step), "list": [1]} for step in range(4)]
    killed = MetricLogger(tmp_path, config, -1, [])
    for row in rows:
        killed.add(row)
    killed.close()
    second = int(time.time())  # which is in a file's name, and TensorBoard reads them by name
    while int(time.time()) == second:
        time.sleep(0.02)
    resumed = MetricLogger(tmp_path, config, 1, rows[:2])
    resumed.add({"step": 2, "a/b": 20.0})
    resumed.close()
    assert tensorboard(tmp_path) == {"a/b": {0: 0.0, 1: 1.0, 2: 20.0}}
    assert not (tmp_path / "wandb").exists()


@pytest.mark.full
def test_wandb_gets_every_number_and_the_settings(tmp_path, offline):
    root = tmp_path / "my run"
    train(TrainConfig(**SMALL, wandb="zoo", out=str(root)))
    (path,) = starts(root)
    logged = [json.loads(line) for line in (root / "metrics.jsonl").read_text().splitlines()]
    assert any(isinstance(value, list) for row in logged for value in row.values())
    assert history(path) == {row["step"]: scalars(row) for row in logged}
    run = one(path, "run")
    config = {item.key: json.loads(item.value_json) for item in run.config.update}
    settings = json.loads((root / "run.json").read_text())["settings"]
    assert {name: config[name] for name in settings} == settings
    assert (run.project, run.display_name) == ("zoo", "my run")
    assert json.loads((root / "wandb.json").read_text()) == {"zoo": run.run_id}
    assert one(path, "exit").exit_code == 0
    assert not {r.WhichOneof("record_type") for r in records(path)} & {"output", "output_raw"}


def test_a_resumed_run_is_the_same_on_wandb_and_whole_in_its_last_start(tmp_path, offline):
    for steps in (1, 2):
        train(TrainConfig(**{**SMALL, "steps": steps}, wandb="zoo", out=str(tmp_path)))
    first, last = starts(tmp_path)
    assert one(first, "run").run_id == one(last, "run").run_id
    assert list(history(first)) == [0, 1]
    assert list(history(last)) == [0, 1, 2]
    assert history(last)[1] == history(first)[1]


@pytest.mark.full
def test_a_run_that_breaks_counts_as_failed(tmp_path, offline):
    def stop(row):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(TrainConfig(**SMALL, wandb="zoo", out=str(tmp_path)), stop)
    (path,) = starts(tmp_path)
    assert one(path, "exit").exit_code == 1
    assert list(history(path)) == [0]


def test_no_credentials_leave_with_the_settings(tmp_path, offline, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["train", "--endpoint=http://me:hunter2@host"])
    config = TrainConfig(
        wandb="zoo",
        engine="openai",
        endpoint=("a=https://me:hun@ter2@host:80/v1?key=hunter2#x",),
        options=("n=3", "url=http://hunter2@h/x"),
        out=str(tmp_path),
    )
    board = MetricLogger(tmp_path, config, -1, [])
    board.add({"step": 0, "a": 1.0})
    board.close()
    (path,) = starts(tmp_path)
    sent = {i.key: json.loads(i.value_json) for i in one(path, "run").config.update}
    assert sent["endpoint"] == ["a=https://host:80/v1"]
    assert sent["options"] == ["n=3", "url=http://h/x"]
    everything = [file for file in (tmp_path / "wandb").rglob("*") if file.is_file()]
    assert not [file for file in everything if b"ter2" in file.read_bytes()]


def test_two_runs_of_one_process_do_not_disturb_each_other(tmp_path, offline):
    roots = [tmp_path / name for name in "ab"]
    for root in roots:
        root.mkdir()
    boards = [MetricLogger(root, TrainConfig(wandb="zoo", out=str(root)), -1, []) for root in roots]
    for place, board in enumerate(boards):
        board.add({"step": 0, "place": place})
    for board in boards:
        board.close()
    found = [starts(root)[0] for root in roots]
    assert [history(path)[0]["place"] for path in found] == [0, 1]
    assert len({one(path, "run").run_id for path in found}) == 2


def test_a_project_that_wandb_refuses_is_named_with_the_reason(tmp_path, offline):
    with pytest.raises(UsageError, match=r"Invalid project name(?s:.*)WANDB_MODE=offline"):
        MetricLogger(tmp_path, TrainConfig(wandb="a/b", out=str(tmp_path)), -1, [])


@pytest.mark.parametrize("service", ["wandb", "trackio"])
def test_a_missing_extra_is_named_before_anything_is_loaded(service, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, service, None)
    config = TrainConfig(**SMALL, **{service: "zoo"}, out=str(tmp_path / "run"))
    plain = TrainConfig(**SMALL, out=str(tmp_path / "run"))
    need_modules(plain, [plain])
    with pytest.raises(MissingExtraError, match=rf"flowzoo\[{service}\]"):
        train(config)
    assert not (tmp_path / "run").exists()


@pytest.fixture(scope="module")
def trackio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Trackio with a database of its own; it reads where when it is imported."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("TRACKIO_")]:
            patch.delenv(name)
        patch.setenv("TRACKIO_DIR", str(tmp_path_factory.mktemp("trackio")))
        yield pytest.importorskip("trackio", reason="the Trackio board needs flowzoo[trackio]")


def in_trackio(root: Path, project: str) -> tuple[dict[int, dict[str, Any]], dict[str, Any]]:
    """Step -> the numbers of a run as its database has them, and its settings."""
    from trackio.sqlite_storage import SQLiteStorage

    name = json.loads((root / "trackio.json").read_text())[project]
    found: dict[int, dict[str, Any]] = {}
    for row in SQLiteStorage.get_logs(project, name):
        step = row["step"]
        assert step not in found
        found[step] = {key: value for key, value in row.items() if key not in ("step", "timestamp")}
    return found, SQLiteStorage.get_run_config(project, name) or {}


def test_trackio_has_every_number_once_in_a_run_that_is_resumed(tmp_path, trackio, capsys):
    config = TrainConfig(trackio="zoo", options=("url=http://hunter2@h/x",), out=str(tmp_path))
    rows: list[dict[str, Any]] = [{"step": n, "eval/b": n / 2, "list": [1]} for n in range(4)]
    killed = MetricLogger(tmp_path, config, -1, [])
    for row in rows[:3]:
        killed.add(row)
    killed.close()
    resumed = MetricLogger(tmp_path, config, 1, rows[:2])
    resumed.add({"step": 2, "eval/b": 7.0})  # done again: it stays as it was first sent
    resumed.add(rows[3])
    resumed.close()
    found, settings = in_trackio(tmp_path, "zoo")
    assert found == {row["step"]: scalars(row) for row in rows}
    assert settings["options"] == ["url=http://h/x"]
    assert capsys.readouterr().out == ""


def test_trackio_switched_on_late_gets_the_steps_so_far(tmp_path, trackio):
    config = TrainConfig(trackio="late", out=str(tmp_path))
    before = [{"step": step, "a": float(step)} for step in range(3)]
    board = MetricLogger(tmp_path, config, 2, before)
    board.add({"step": 3, "a": 3.0})
    board.close()
    assert in_trackio(tmp_path, "late")[0] == {step: {"a": float(step)} for step in range(4)}


def test_steps_that_wandb_has_already_are_not_sent_again(tmp_path, monkeypatch):
    import wandb

    sent: list[int] = []

    class Resumed:
        """A run that the server knows up to step 2; offline there is no server to know it."""

        starting_step = 3

        def log(self, numbers, step):
            sent.append(step)

    monkeypatch.setattr(wandb, "init", lambda **settings: Resumed())
    run = ServiceRun(WANDB, tmp_path, TrainConfig(wandb="zoo", out=str(tmp_path)))
    for step in range(2, 5):
        run.add(step, {"a": 1.0})
    assert sent == [3, 4]


@pytest.mark.full
def test_wandb_may_be_switched_on_for_the_rest_of_a_run(tmp_path, offline):
    for steps, project in ((1, ""), (2, "zoo")):
        train(TrainConfig(**{**SMALL, "steps": steps}, wandb=project, out=str(tmp_path)))
    (path,) = starts(tmp_path)
    assert list(history(path)) == [0, 1, 2]
