"""Running the cells of a matrix in worker processes; a killed matrix resumes.

Every run is a separate process `flowzoo train --config DIR/cell.toml` with one CPU thread (or
`threads`), so runs neither share a crash nor slow one another down by oversubscription. If its
engine allows it, it is a fork of a process that has imported torch (see `forks`). A finished run is
never repeated; an unfinished one resumes from its last checkpoint. A run that fails leaves its
`log.txt`; the others continue, and the matrix reports at its end which failed.

A control starts when the runs that it is compared with are finished. Then it is evaluated once for
each of them with majority votes at equal inference; see `flowzoo.baselines.matrix.controls`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from flowzoo.baselines.matrix.file import Matrix
from flowzoo.baselines.matrix.forks import RunServer
from flowzoo.baselines.matrix.jobs import ControlJob, MatrixJob, TrainingJob
from flowzoo.baselines.run.history import earlier_run
from flowzoo.baselines.settings.file import load_config
from flowzoo.errors import DataError, UsageError

POLL_S = 0.5
MIN_FORKED_RUNS = 2
"""Number of runs from which on one process that imports for all of them saves time."""
GRACE_S = 10.0
"""Seconds between the interrupt and the kill of a worker."""


def training_jobs(matrix: Matrix, out: Path) -> list[TrainingJob]:
    """All runs of a matrix below `out`, finished ones marked.

    Raises:
        UsageError: a run there has other settings.
    """
    runs: list[TrainingJob] = []
    for seed in matrix.seeds:  # seed by seed: every cell has a result early
        jobs = [TrainingJob(cell, cell.run(seed, out)) for cell in matrix.cells]
        for run in jobs:
            run.sources = [other for other in jobs if run.cell.is_control_of(other.cell)]
            _adopt(run)
        runs += jobs
    return runs


def control_jobs(runs: Sequence[TrainingJob]) -> list[ControlJob]:
    """Evaluations of every control at the inference of the runs that it is compared with."""
    chosen = set(runs)
    votes = [ControlJob(run, other) for run in runs for other in run.sources if other in chosen]
    for vote in votes:
        # The evaluation itself repeats a result that is out of date.
        done = not vote.waits() and vote.result.exists()
        vote.state = "finished" if done else "waiting"
    return votes


def execute(
    jobs: Sequence[MatrixJob], workers: int, on_poll: Callable[[], None] = lambda: None
) -> None:
    """Run unfinished jobs, `workers` at a time; `on_poll` is called a few times a second.

    Jobs start in order, once the runs that they wait for are finished. No worker outlives the call,
    Ctrl-C included.

    Raises:
        UsageError: fewer than one worker.
    """
    if workers < 1:
        raise UsageError(f"`jobs` must be at least 1, got {workers}")
    forking = [job for job in jobs if job.forks and job.state == "waiting"]
    server = RunServer(os.environ) if len(forking) >= MIN_FORKED_RUNS else None
    try:
        while True:
            for job in jobs:
                if job.state == "running":
                    job.collect()
            busy = sum(job.state == "running" for job in jobs)
            ready = [job for job in jobs if job.state == "waiting" and not job.waits()]
            for job in ready[: workers - busy]:
                job.start(server if job.forks else None)
            on_poll()
            if not any(job.state == "running" for job in jobs):
                return
            time.sleep(POLL_S)
    finally:
        _stop([job for job in jobs if job.state == "running"])
        if server is not None:
            server.close()


def _adopt(run: TrainingJob) -> None:
    """Adopt settings and state of a run that an earlier process began.

    Raises:
        UsageError: the run has other settings.
    """
    path = run.folder / "cell.toml"
    if path.exists():
        # The folder may have moved, so its path is not compared. Settings that both leave open keep
        # the values that the run began with.
        begun = _begun(run.folder)
        saved = replace(load_config(str(path)), out=run.config.out).settled(begun)
        comparable = replace(saved, token_budget=0) if run.cell.control else saved
        differs = comparable != run.config.settled(begun)
        if differs or (run.cell.control and not saved.token_budget):
            raise UsageError(
                f"{run.folder} holds a run of other settings: choose another --out for this "
                "matrix, or remove that folder"
            )
        run.config = saved
    try:
        if run.result.exists() and run.summary():
            run.state = "finished"
    except DataError:
        run.state = "waiting"  # its process repairs the summary, or reports the damage


def _begun(folder: Path) -> Mapping[str, Any]:
    """Settings of the run in `folder`; empty if it has not begun or is damaged.

    Its own process reports the damage.
    """
    try:
        earlier = earlier_run(folder)
    except DataError:
        return {}
    return {} if earlier is None else earlier.settings


def _stop(jobs: Sequence[MatrixJob]) -> None:
    """Interrupt all workers, and kill any that does not end; saved files stay."""
    for job in jobs:
        if job.process is not None and job.process.poll() is None:
            job.process.send_signal(signal.SIGINT)
    deadline = time.monotonic() + GRACE_S
    for job in jobs:
        if job.process is None:
            continue
        try:
            job.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            job.process.kill()
            job.process.wait()
        job.state = "waiting"
