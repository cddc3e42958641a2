"""Runs the cells of a matrix in worker processes; a killed matrix goes on where it stopped.

Every run is a process `flowzoo train --config DIR/cell.toml` of its own with one CPU thread (or
what `threads` says), so runs neither share a crash nor slow one another down by oversubscription. A
finished run is never repeated; a half-finished one goes on from its last checkpoint. A run that
fails leaves its `log.txt`; the others go on, and the matrix says at its end what failed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from flowzoo.baselines.config import TrainConfig
from flowzoo.baselines.config_file import load_config
from flowzoo.baselines.matrix import Cell, Matrix, cell_text
from flowzoo.errors import UsageError
from flowzoo.files import replace_text

POLL_S = 0.5
GRACE_S = 10.0
"""How long a worker that was asked to end may take before it is killed."""


@dataclass(slots=True)
class Run:
    """One run of one cell."""

    cell: Cell
    config: TrainConfig
    state: str = "waiting"
    """waiting, running, finished or failed."""
    process: subprocess.Popen[bytes] | None = None
    _seen: int = field(default=0)
    _last: dict[str, Any] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        """Its run directory."""
        return Path(self.config.out)

    def summary(self) -> dict[str, Any]:
        """What the finished run wrote."""
        return json.loads((self.folder / "summary.json").read_text(encoding="utf-8"))

    def newest(self) -> dict[str, Any]:
        """The newest row of metrics, with the newest held-out accuracy in it; {} before any."""
        path = self.folder / "metrics.jsonl"
        if not path.is_file():
            return self._last
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size < self._seen:
                self._seen = 0
            file.seek(self._seen)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._seen += len(line)
                row = json.loads(line)
                row.pop("eval/scores", None)
                self._last = self._last | row
        return self._last


def plan(matrix: Matrix, out: Path) -> list[Run]:
    """All runs of a matrix below `out`, finished ones marked.

    Raises:
        UsageError: a run there was made with other settings.
    """
    runs: list[Run] = []
    for seed in matrix.seeds:  # seed by seed: all cells have something to show early
        for cell in matrix.cells:
            run = Run(cell, cell.run(seed, out))
            path = run.folder / "cell.toml"
            # The folder itself may have moved, or be named from elsewhere.
            if path.exists() and replace(load_config(str(path)), out=run.config.out) != run.config:
                raise UsageError(
                    f"{run.folder} holds a run of other settings: choose another --out for this "
                    "matrix, or remove that folder"
                )
            if (run.folder / "summary.json").exists():
                run.state = "finished"
            runs.append(run)
    return runs


def execute(
    runs: Sequence[Run], jobs: int, on_poll: Callable[[Sequence[Run]], None] = lambda runs: None
) -> None:
    """Run what is not finished, `jobs` at a time; `on_poll` sees the runs a few times a second.

    However it ends (Ctrl-C too), no worker is left behind.

    Raises:
        UsageError: fewer than one job.
    """
    if jobs < 1:
        raise UsageError(f"`jobs` must be at least 1, got {jobs}")
    waiting = _queue(runs)
    try:
        while True:
            busy = [run for run in runs if run.state == "running"]
            for run in busy:
                _collect(run)
            while sum(run.state == "running" for run in runs) < jobs:
                following = next(waiting, None)
                if following is None:
                    break
                _start(following)
            on_poll(runs)
            if not any(run.state == "running" for run in runs):
                return
            time.sleep(POLL_S)
    finally:
        _stop([run for run in runs if run.state == "running"])


def _queue(runs: Sequence[Run]) -> Iterator[Run]:
    return (run for run in runs if run.state == "waiting")


def _start(run: Run) -> None:
    run.folder.mkdir(parents=True, exist_ok=True)
    path = run.folder / "cell.toml"
    replace_text(path, cell_text(run.config))
    threads = str(run.config.threads or 1)
    words = [sys.executable, "-m", "flowzoo.cli", "train", "--config", str(path), "--json"]
    with (run.folder / "log.txt").open("ab") as log:
        run.process = subprocess.Popen(
            words,
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads},
            preexec_fn=_end_with(os.getpid()),
        )
    run.state = "running"


def _end_with(parent: int) -> Callable[[], None]:
    """What a worker does before it starts: see that it is killed if the matrix is (on Linux).

    Else a matrix that was killed and started again would find its runs still being trained.
    """
    if not sys.platform.startswith("linux"):
        return lambda: None
    from flowzoo.sandbox.runner import linux

    def ask() -> None:
        linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before we asked
            os._exit(1)

    return ask


def _collect(run: Run) -> None:
    """Note how a worker ended, if it did."""
    if run.process is None or run.process.poll() is None:
        return
    done = run.process.returncode == 0 and (run.folder / "summary.json").exists()
    run.state = "finished" if done else "failed"


def _stop(runs: Sequence[Run]) -> None:
    """End workers; their checkpoints stay."""
    for run in runs:
        if run.process is not None and run.process.poll() is None:
            run.process.send_signal(signal.SIGINT)
    deadline = time.monotonic() + GRACE_S
    for run in runs:
        if run.process is None:
            continue
        try:
            run.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            run.process.kill()
            run.process.wait()
        run.state = "waiting"
