"""Runs the cells of a matrix in worker processes; a killed matrix goes on where it stopped.

Every run is a process `flowzoo train --config DIR/cell.toml` of its own with one CPU thread (or
what `threads` says), so runs neither share a crash nor slow one another down by oversubscription.
Where it can be, it is a fork of a process that has imported torch (see `forks`). A
finished run is never repeated; a half-finished one goes on from its last checkpoint. A run that
fails leaves its `log.txt`; the others go on, and the matrix says at its end what failed.

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
WORTH_FORKING = 2
"""Runs from which on a process that imports for all of them saves time."""
GRACE_S = 10.0
"""How long a worker that was asked to end may take before it is killed."""


def training_jobs(matrix: Matrix, out: Path) -> list[TrainingJob]:
    """All runs of a matrix below `out`, finished ones marked.

    Raises:
        UsageError: a run there was made with other settings.
    """
    runs: list[TrainingJob] = []
    for seed in matrix.seeds:  # seed by seed: all cells have something to show early
        made = [TrainingJob(cell, cell.run(seed, out)) for cell in matrix.cells]
        for run in made:
            run.sources = [other for other in made if run.cell.judges(other.cell)]
            _recognise(run)
        runs += made
    return runs


def control_jobs(runs: Sequence[TrainingJob]) -> list[ControlJob]:
    """Every control's evaluations at the inference of the runs it is compared with."""
    known = set(runs)
    found = [ControlJob(run, other) for run in runs for other in run.sources if other in known]
    for vote in found:
        # The control compares what it finds with both runs, and repeats what is out of date.
        done = not vote.waits() and vote.result.exists()
        vote.state = "finished" if done else "waiting"
    return found


def execute(
    jobs: Sequence[MatrixJob], workers: int, on_poll: Callable[[], None] = lambda: None
) -> None:
    """Run what is not finished, `workers` at a time; `on_poll` is called a few times a second.

    Jobs start in their order, once what they wait for is finished. However it ends (Ctrl-C too),
    no worker is left behind.

    Raises:
        UsageError: fewer than one worker.
    """
    if workers < 1:
        raise UsageError(f"`jobs` must be at least 1, got {workers}")
    forking = [job for job in jobs if job.forks and job.state == "waiting"]
    server = RunServer(os.environ) if len(forking) >= WORTH_FORKING else None
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


def _recognise(run: TrainingJob) -> None:
    """Take up what an earlier process began.

    Raises:
        UsageError: a run of other settings.
    """
    path = run.folder / "cell.toml"
    if path.exists():
        # The folder itself may have moved, or be named from elsewhere; and what both leave open is
        # what the run began with, by the defaults of its time.
        begun = _begun(run.folder)
        found = replace(load_config(str(path)), out=run.config.out).settled(begun)
        known = replace(found, token_budget=0) if run.cell.control else found
        if known != run.config.settled(begun) or (run.cell.control and not found.token_budget):
            raise UsageError(
                f"{run.folder} holds a run of other settings: choose another --out for this "
                "matrix, or remove that folder"
            )
        run.config = found
    try:
        if run.result.exists() and run.summary():
            run.state = "finished"
    except DataError:
        run.state = "waiting"  # its process mends the summary, or says what is damaged


def _begun(folder: Path) -> Mapping[str, Any]:
    """The settings that the run in `folder` has; none where it has not begun or is damaged, which
    its own process says.
    """
    try:
        earlier = earlier_run(folder)
    except DataError:
        return {}
    return {} if earlier is None else earlier.settings


def _stop(jobs: Sequence[MatrixJob]) -> None:
    """End workers; what they have saved stays."""
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
