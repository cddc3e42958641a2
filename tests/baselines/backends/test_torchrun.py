"""Runs of several ranks: the numbers of one process, and nothing lost where one is killed."""

import json
import runpy
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.settings.preflight import preflight
from flowzoo.baselines.training.trainer import train
from flowzoo.errors import UsageError

SMALL: dict[str, Any] = {
    "workflow": "voting", "model": "pocket:xs", "problems": 2, "samples": 4, "eval_problems": 4,
    "eval_every": 2, "checkpoint_every": 2, "transcripts_every": 1, "threads": 1,
    "shard_jobs": 2, "microbatch_tokens": 1000, "probe_every": 2, "max_tokens": 40,
    "eval_sets": (f"more={Path(__file__).with_name('more.jsonl')}",),
}  # fmt: skip
SILENT = Path(__file__).parent / "silent.py"
AGAIN = {"learn/update_kl/shared": 1e-9, "learn/update_ratio_max/shared": 1e-5}
"""Metrics that ranks measure in a forward pass of their own, with how far they may be away."""


def words_of(root: Path, **changes: Any) -> list[str]:
    """The command that trains small in `root`."""
    flags = {**SMALL, **changes, "out": root}
    del flags["workflow"]
    return ["flowzoo.cli", "train", "voting",
            *(f"--{name.replace('_', '-')}={value[0] if isinstance(value, tuple) else value}"
              for name, value in flags.items())]  # fmt: skip


def far(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> dict[str, float]:
    """The numbers that differ, and by how much; everything else must be equal."""
    assert len(one) == len(other) > 0
    found: dict[str, float] = {}
    for left, right in zip(one, other, strict=True):
        assert left.keys() == right.keys()
        for name, value in left.items():
            if value != right[name]:
                assert isinstance(value, float), name
                found[name] = max(found.get(name, 0.0), abs(value - right[name]))
    return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of one process, only to be read."""
    root = tmp_path_factory.mktemp("local") / "run"
    train(TrainConfig(**SMALL, steps=4, out=str(root)))
    return root


@pytest.mark.full
def test_two_ranks_repeat_the_run_of_one_process(whole, tmp_path, repeated_rows, same_files, warm):
    """Bit for bit, rows and weights: two parts of a role's gradient have one sum only.

    The ranks are processes of their own that `flowzoo train` starts.
    """
    done = warm(words_of(tmp_path / "two", steps=4, backend="torchrun", ranks=2)).finish()
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("held-out accuracy") == 1, "one rank speaks"
    different = far(repeated_rows(tmp_path / "two"), repeated_rows(whole))
    assert {name: value for name, value in different.items() if value > AGAIN.get(name, 0)} == {}
    same_files(whole, tmp_path / "two", 4)


def two_ranks(words: list[str], warm: Any, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A command as torchrun would start it, in two warm forks."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for name, value in {"WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}.items():
        monkeypatch.setenv(name, str(value))
    ranks = []
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        monkeypatch.setenv("LOCAL_RANK", rank)
        ranks.append(warm(words))
    return ranks


LOSS = """
import os

def poisoned(logps, old_logps, advantages, mask):
    return logps * (float("nan") if os.environ["RANK"] == "1" else 1.0)
"""


def test_a_loss_that_is_not_finite_on_one_rank_stops_the_whole_run_on_all(
    tmp_path, warm, monkeypatch
):
    """With the rows saved, and nobody left waiting."""
    (tmp_path / "poison.py").write_text(LOSS, encoding="utf-8")
    root = tmp_path / "run"
    words = words_of(root, steps=1, backend="torchrun", eval_problems=1, probe_every=0,
                     loss=f"{tmp_path / 'poison.py'}:poisoned")  # fmt: skip
    first, second = two_ranks(words, warm, monkeypatch)
    done, other = first.finish(), second.finish()
    assert (done.returncode, other.returncode) == (2, 2), (done.stderr, other.stderr)
    assert "not finite" in done.stderr
    assert "error:" not in other.stderr, "one rank speaks"
    assert list(root.glob("nonfinite-*.jsonl")), "the rows are saved"


@pytest.mark.full
def test_a_rank_leaves_others_that_do_not_answer(tmp_path, fork_server):
    """Rank 1 is alive and silent, and something is on its way to it."""
    said = tmp_path / "said"
    ranks = [
        fork_server.Process(
            target=runpy.run_path,
            args=(str(SILENT), {"WORDS": (rank, str(tmp_path / "store"), str(said))}),
        )
        for rank in range(2)
    ]
    for one in ranks:
        one.start()
    try:
        ranks[0].join(900)
        assert ranks[1].is_alive()
    finally:
        for one in ranks:
            one.kill()
            one.join()
    assert ranks[0].exitcode == 0
    seconds, arrived = said.read_text().split()
    assert 1 <= float(seconds) < 100, "it would have waited"
    assert arrived == "False"


@pytest.mark.full
def test_a_rank_that_is_killed_in_a_save_loses_nothing(
    whole, tmp_path, repeated_rows, warm, hold_before, monkeypatch
):
    root = tmp_path / "killed"
    held = hold_before(root / "checkpoints" / "step-00000004")
    ranks = two_ranks(words_of(root, steps=4, backend="torchrun"), warm, monkeypatch)
    deadline = time.monotonic() + 900
    while not held.exists():
        assert all(one.process.is_alive() for one in ranks), ranks[0].err.read_text()
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)
    ranks[0].kill()
    assert ranks[1].finish().returncode != 0
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "FLOWZOO_TEST_HOLD", "FLOWZOO_TEST_HELD"):
        monkeypatch.delenv(name)
    assert sorted(path.name for path in (root / "checkpoints").glob("step-*"))[-1].endswith("02")
    train(TrainConfig(**SMALL, steps=4, out=str(root)))
    different = far(repeated_rows(root), repeated_rows(whole))
    assert {name: value for name, value in different.items() if value > 1e-5} == {}
    settings = json.loads((root / "run.json").read_text(encoding="utf-8"))["settings"]
    assert (settings["backend"], settings["shard_jobs"]) == ("local", 2)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"backend": "local", "ranks": 2}, "`ranks` is a setting of `backend` torchrun"),
        ({"backend": "local", "ranks": 0, "shard": "full"}, "this process learns alone"),
        ({"ranks": 0}, "give --ranks N"),
        ({"ranks": 3}, "3 ranks do not divide the 4 shards of a step .8 episodes, shard_jobs 2."),
        ({"shard_jobs": None}, "2 ranks do not divide the 1 shards"),
        ({"shard": "full"}, "samples with the learner's own module"),
        ({"engine": "vllm"}, "set placement=split"),
        ({"engine": "vllm", "placement": "split", "engine_devices": "4"}, "ranks here .2., got 4"),
        ({"engine": "openai", "endpoint": ("http://127.0.0.1:1",)}, "is one server"),
        ({"engine": "vllm", "placement": "split", "max_staleness": 1}, "leave it at 0"),
        ({"shard": "full", "engine": "vllm", "placement": "split", "optimizer": "adafactor"},
         "use adamw or sgd"),
        ({"shard": "full", "engine": "vllm", "placement": "split", "compile": True},
         "`compile` is for whole models"),
        ({"shard": "full", "engine": "vllm", "placement": "split", "weights": "bfloat16",
          "compute": "bfloat16"}, "keeps weights in float32"),
    ],
)  # fmt: skip
def test_what_ranks_cannot_do_is_refused_before_anything_is_started(changes, said):
    config = TrainConfig(**{**SMALL, "backend": "torchrun", "ranks": 2, **changes})
    with pytest.raises(UsageError, match=said):
        preflight(config)


def test_a_process_that_is_no_rank_is_told_how_to_start(tmp_path, monkeypatch):
    config = TrainConfig(**SMALL, backend="torchrun", ranks=2, out=str(tmp_path / "run"))
    with pytest.raises(UsageError, match="RANK is not set: start it with `flowzoo train"):
        train(config)
    assert not (tmp_path / "run").exists()
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(UsageError, match="torchrun has started 4 ranks, and `ranks` is 2"):
        preflight(config)
