"""Running the cells of a matrix in worker processes; a killed matrix resumes."""

import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from flowzoo.baselines.matrix.file import Matrix
from flowzoo.baselines.matrix.jobs import ControlJob, MatrixJob, TrainingJob
from flowzoo.baselines.run.directory import Earlier, earlier_run
from flowzoo.baselines.settings.file import load_config
from flowzoo.baselines.settings.layers import without_models
from flowzoo.errors import DataError, UsageError

POLL_S = 0.5
MIN_FORKED_RUNS = 2
"""Number of runs from which on one process that imports for all of them saves time."""
SAVED_S = 40.0  # seconds for a worker's last checkpoint, after those to end its step


def training_jobs(matrix: Matrix, out: Path) -> list[TrainingJob]:
    """All runs of a matrix below `out`, finished ones marked."""
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
        if not vote.waits() and vote.result.exists():  # it repeats a result that is out of date
            vote.state = "finished"
    return votes


def check_models(runs: Sequence[TrainingJob]) -> None:
    """Refuse models that are other ones than begun runs have, if others are to be compared."""
    if all(run.state == "finished" for run in runs):
        return
    checked: set[tuple[str, str]] = set()
    for run in runs:
        earlier = _earlier(run.folder)
        for model in earlier.models.values() if earlier else ():
            if (model.location, model.digest) not in checked:
                checked.add((model.location, model.digest))
                model.check(f"the run in {run.folder}")


def execute(
    jobs: Sequence[MatrixJob], workers: int, on_poll: Callable[[], None] = lambda: None
) -> None:
    """Run unfinished jobs, `workers` at a time; `on_poll` is called a few times a second."""
    # Jobs start in order, once the runs that they wait for are finished: a control after the runs
    # that it is compared with. No worker outlives the call, Ctrl-C included.
    if workers < 1:
        raise UsageError(f"`jobs` must be at least 1, got {workers}")
    forking = sum(job.forks and job.state == "waiting" for job in jobs) >= MIN_FORKED_RUNS
    try:
        while True:
            for job in jobs:
                if job.state == "running":
                    job.collect()
            busy = sum(job.state == "running" for job in jobs)
            ready = [job for job in jobs if job.state == "waiting" and not job.waits()]
            for job in ready[: workers - busy]:
                job.start(fork=forking and job.forks)
            on_poll()
            if not any(job.state == "running" for job in jobs):
                return
            time.sleep(POLL_S)
    finally:
        _stop([job for job in jobs if job.state == "running"])


def _adopt(run: TrainingJob) -> None:
    path = run.folder / "cell.toml"
    if path.exists():
        # The folder may have moved, so its path is not compared. Settings that both leave open keep
        # the values that the run began with.
        earlier = _earlier(run.folder)
        begun = {} if earlier is None else earlier.settings
        saved = without_models(replace(load_config(str(path)), out=run.config.out), begun)
        comparable = replace(saved, token_budget=0) if run.cell.control else saved
        differs = comparable != without_models(run.config, begun)
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


def _earlier(folder: Path) -> Earlier | None:
    # Its own process reports a damaged folder.
    try:
        return earlier_run(folder)
    except DataError:
        return None


def _stop(jobs: Sequence[MatrixJob]) -> None:
    # Saved files stay, so an interrupted run resumes.
    for job in jobs:
        if job.process is not None and job.process.poll() is None:
            job.process.send_signal(signal.SIGINT)
    within = SAVED_S + max((job.stop_within for job in jobs), default=0.0)
    deadline = time.monotonic() + within
    for job in jobs:
        if job.process is None:
            continue
        try:
            job.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            job.process.kill()
            job.process.wait()
        job.state = "waiting"
