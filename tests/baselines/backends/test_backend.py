"""Where the work of a run is done: shards, lines of work in threads, signals on every backend."""

import ast
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

import flowzoo
from flowzoo.agents.rollout.episodes import EpisodeJob
from flowzoo.baselines.backends.backend import LearnersLostError, Shard, cut_shards
from flowzoo.baselines.backends.ray.learners import run_concurrently
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.training.build import start_run
from flowzoo.baselines.training.trainer import Trainer
from flowzoo.envs import make_workflow
from flowzoo.errors import UsageError

PACKAGE = Path(flowzoo.__file__).parent
APART = {"torch.distributed", "ray"}
"""Modules that a single process does not import."""


def test_shards_are_cut_by_size_alone():
    task = make_workflow("single").task
    jobs = [EpisodeJob(task.problem(0, "train"), sample) for sample in range(5)]
    whole = cut_shards(jobs, 0)
    assert whole == [Shard(0, tuple(jobs))]
    assert [(one.number, len(one.jobs)) for one in cut_shards(jobs, 2)] == [(0, 2), (1, 2), (2, 1)]
    assert [job for one in cut_shards(jobs, 2) for job in one.jobs] == jobs
    assert cut_shards([], 2) == [Shard(0, ())]


def test_a_shard_is_a_batch_of_its_own(tmp_path):
    small = {
        "workflow": "single", "model": "pocket:xs", "problems": 2, "samples": 3, "steps": 1,
        "eval_problems": 2, "threads": 1, "max_tokens": 12,
    }  # fmt: skip
    batches = []
    for name, size in (("whole", 0), ("cut", 4)):
        trainer = Trainer(
            start_run(TrainConfig(**small, shard_jobs=size, out=str(tmp_path / name)))
        )
        played: list[int] = []
        sample = trainer.run.draws.sampler

        def watched(*given, sample=sample, played=played):
            found = sample(*given)
            before = found.sample
            found.sample = lambda jobs: played.append(len(list(jobs))) or before(jobs)
            return found

        trainer.run.draws.sampler = watched
        batches.append(trainer.run.batches.take(1).gathered.sampled)
        assert played == ([6] if not size else [4, 2])
        trainer.close()
    whole, cut = batches
    assert [row.output_ids for row in whole.rows] == [row.output_ids for row in cut.rows]
    assert [one.episode for one in whole.records] == [one.episode for one in cut.records]
    assert not torch.distributed.is_initialized()


def imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def at_start(path: Path) -> Iterator[str]:
    """Imports of a module when it is imported, without those for types."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, (ast.Import, ast.ImportFrom, ast.Try, ast.With)):
            yield from imports(node)


def test_one_process_imports_neither_ray_nor_torch_distributed():
    starts = {
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): set(at_start(path))
        for path in PACKAGE.rglob("*.py")
    }
    apart = {
        name
        for name, found in starts.items()
        if any(one == kind or one.startswith(f"{kind}.") for one in found for kind in APART)
    }
    reached, new = (
        set[str](),
        {"flowzoo.baselines.training.trainer", "flowzoo.baselines.backends.backend"},
    )
    while new:
        reached |= new
        new = {one for name in new for one in starts.get(name, ())} - reached
    assert len(reached) > 100, "looked in the wrong place"
    assert not reached & apart


SOON = 20.0
"""Seconds within which everything here happens, or a test fails."""


def unused() -> None:
    raise AssertionError("nothing has to be stopped")


def test_lines_work_at_the_same_time_and_each_in_order():
    meeting, seen = threading.Barrier(2), []

    def meet(name):
        def work():
            meeting.wait(SOON)
            seen.append(name)
            return name.upper()

        return work

    def last():
        seen.append("b2")
        return "B2"

    found = run_concurrently([{"b": meet("b"), "b2": last}, {"a": meet("a")}], unused)
    assert list(found.items()) == [("b", "B"), ("b2", "B2"), ("a", "A")]
    assert seen.index("b") < seen.index("b2")


def test_the_first_error_ends_all_and_is_the_one_that_is_raised():
    begun, stopped, raised = threading.Event(), threading.Event(), []

    def fails():
        assert begun.wait(SOON)
        raise UsageError("the cause")

    def waits():
        begun.set()
        assert stopped.wait(SOON), "nobody has stopped it"
        raised.append(True)
        raise LearnersLostError("what came of it")

    with pytest.raises(UsageError, match="the cause"):
        run_concurrently([{"a": waits, "a2": unused}, {"b": fails, "b2": unused}], stopped.set)
    assert raised, "all have ended before the error is seen"


def test_whoever_is_interrupted_stops_the_others():
    stopped, seen = threading.Event(), []

    main = threading.main_thread().ident or 0

    def main_waits():
        frame: Any = sys._current_frames()[main]
        while frame and frame.f_code.co_name != "result":
            frame = frame.f_back
        return frame is not None

    def waits():
        deadline = time.monotonic() + SOON
        while not main_waits() and time.monotonic() < deadline:
            time.sleep(0.01)
        signal.pthread_kill(main, signal.SIGINT)
        seen.append(stopped.wait(SOON))

    # Where a shell has started the tests in the background, the signal is ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            run_concurrently([{"a": waits}, {"b": lambda: None}], stopped.set)
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen == [True]


def test_one_line_needs_no_thread():
    here = threading.current_thread()
    found = run_concurrently(
        [{"a": threading.current_thread, "b": threading.current_thread}], unused
    )
    assert found == {"a": here, "b": here}
    assert run_concurrently([], unused) == {}

    def fails():
        raise UsageError("no others")

    with pytest.raises(UsageError, match="no others"):
        run_concurrently([{"a": fails, "b": unused}], unused)


HERE = Path(__file__).parent
RAY = ("--backend=ray", "--rollout-workers=1")
RANKS = ("--backend=torchrun", "--ranks=2")


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "status", "moment", "words"),
    [
        ("SIGTERM", 143, "sampled", ()),
        ("SIGINT", 130, "quiet", ()),
        ("SIGTERM", 143, "sampled", RANKS),
        ("SIGINT", 130, "quiet", RANKS),
        pytest.param("SIGTERM", 143, "sampled", RAY, marks=pytest.mark.xdist_group("ray")),
    ],
)
def test_a_signal_makes_a_checkpoint_from_which_the_run_has_the_same_bits(
    tmp_path, monkeypatch, name, status, moment, words
):
    program = [str(HERE / "stopped.py"), str(tmp_path), name, moment, *words]
    if words == RAY:
        if find_spec("ray") is None:
            pytest.skip("needs flowzoo[scale]")
        monkeypatch.syspath_prepend(HERE / "ray")
        from ray_cluster import run_apart

        run_apart(program, 3000)
    else:
        subprocess.run([sys.executable, *program], check=True, timeout=3000)
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["status"] == status, found["said"]
    lines = [line for line in found["said"].splitlines() if line]
    assert f"{name}: the run ends with a checkpoint, after this step or in 3 s" in found["said"]
    if moment == "sampled":
        assert lines[-1].startswith("interrupted: step 2 of 4 was done; "), found["said"]
        assert "has a checkpoint of step 2, from which the same command resumes" in lines[-1]
    assert found["kept"][0] == "step-00000000"
    assert len(found["kept"]) == 2, "one more than the run itself would have made"
    assert "Traceback" not in found["said"]
    assert found["ends"] == [0, 0]
    assert (found["steps"], found["files"]) == (5, 1)
    assert found["rows"]
    assert found["weights"]
