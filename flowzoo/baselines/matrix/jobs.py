"""Jobs of a matrix: training runs, and evaluations of controls at equal inference."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Literal

from flowzoo.aliases import MetricRow
from flowzoo.baselines.matrix.cell import Cell, cell_text
from flowzoo.baselines.matrix.forks import Fork, end_with
from flowzoo.baselines.run.reading import RunData, like_path, read_run
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.files import read_json, replace_text
from flowzoo.permission import PERMISSION


def remaining_seconds(runs: "Sequence[TrainingJob]", workers: int) -> float | None:
    """Seconds until all runs are finished, with `workers` at a time; None: unknown yet."""
    whole = {run: seconds for run in runs if (seconds := run.whole_seconds()) is not None}
    if not whole:
        return None
    left: list[float] = []
    for run in runs:
        if run.state in ("finished", "failed"):
            continue
        kind = (run.config.workflow, run.config.model)
        same = [whole[other] for other in whole if other.cell.name == run.cell.name]
        near = [
            whole[other] for other in whole if (other.config.workflow, other.config.model) == kind
        ]
        seconds = whole[run] if run in whole else fmean(same or near or whole.values())
        left.append(seconds * (1 - run.done_part()))
    return max(max(left), sum(left) / workers) if left else 0.0


def as_time(seconds: float) -> str:
    """A duration for people."""
    minutes = round(seconds / 60)
    if minutes < 1:
        return "less than a minute"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


JobState = Literal["waiting", "running", "finished", "failed"]


@dataclass(kw_only=True, eq=False)
class MatrixJob:
    """One process and the file that it writes when it finishes."""

    state: JobState = "waiting"
    process: subprocess.Popen[bytes] | Fork | None = None
    title: str = field(init=False)
    """Name of the job in messages."""
    result: Path = field(init=False)
    """File whose presence marks the job as finished."""
    log: Path = field(init=False)
    """File of its output."""
    threads: int = field(init=False, default=1)
    """Number of CPU threads of its process."""

    def waits(self) -> "list[TrainingJob]":
        """Runs that must finish before it can start."""
        return []

    def arguments(self) -> list[str]:
        """Module and arguments of its process; writes the files that it reads."""
        raise NotImplementedError

    def start(self, *, fork: bool = False) -> None:
        """Start its process, as a `Fork` if asked to."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        threads = str(self.threads)
        environment = {**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
        if fork:
            self.process = Fork(self.arguments(), self.log, environment)
        else:
            with self.log.open("ab") as log:
                self.process = subprocess.Popen(
                    [sys.executable, "-m", *self.arguments()],
                    stdout=log,
                    stderr=log,
                    stdin=subprocess.DEVNULL,
                    env=environment,
                    start_new_session=True,  # Ctrl-C would reach it from the terminal, and again
                    preexec_fn=end_with(os.getpid()),
                )
        self.state = "running"

    @property
    def forks(self) -> bool:
        """True if its process may be a fork of one that has imported torch.

        An engine that starts threads and processes cannot be forked.
        """
        return False

    @property
    def stop_within(self) -> float:
        """Seconds that a signal leaves its process before it saves."""
        return 0.0

    def collect(self) -> None:
        """Update the state if its process has ended."""
        if self.process is None or self.process.poll() is None:
            return
        done = self.process.returncode == 0 and self.result.exists()
        self.state = "finished" if done else "failed"


@dataclass(eq=False)
class TrainingJob(MatrixJob):
    """The run of one cell under one seed."""

    cell: Cell
    config: TrainConfig  # settings; a control has no `token_budget` before it starts
    sources: "list[TrainingJob]" = field(default_factory=list)
    """Runs of the same seed that set the token budget of a control."""
    _seen: int = field(default=0)
    _last: MetricRow = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folder = Path(self.config.out)
        self.title = f"{self.cell.name} seed {self.config.seed}"
        self.result, self.log = self.folder / "summary.json", self.folder / "log.txt"
        self.threads = self.config.threads or 1

    def waits(self) -> "list[TrainingJob]":
        """Unfinished runs that set the token budget; none if the control has begun."""
        if not self.cell.control or self.config.token_budget:
            return []
        return [run for run in self.sources if run.state != "finished"]

    def arguments(self) -> list[str]:
        """`flowzoo train` with `cell.toml`, which gets a control's token budget now."""
        if self.cell.control and not self.config.token_budget:
            most = max(run.summary()["training_tokens"] for run in self.sources)
            self.config = replace(self.config, token_budget=most)
        path = self.folder / "cell.toml"
        replace_text(path, cell_text(self.config))
        PERMISSION.note_own(path)
        return ["flowzoo.cli", "train", "--config", str(path), "--json", *PERMISSION.arguments]

    @property
    def forks(self) -> bool:
        """True for engines that sample with the learner's module."""
        return not self.config.engine_traits.own_weights

    @property
    def stop_within(self) -> float:
        """As its settings say."""
        return self.config.stop_within

    def summary(self) -> MetricRow:
        """Summary of the finished run."""
        return read_json(self.result)

    def data(self) -> RunData:
        """Data of the run so far, named by its cell and folder."""
        return read_run(self.folder, f"{self.cell.name}/{self.folder.name}")

    def done_part(self) -> float:
        """Share of the run that is done, by its steps or its tokens."""
        if self.state == "finished":
            return 1.0
        row, config = self.newest(), self.config
        parts = [row.get("step", 0) / config.steps]
        if config.token_budget:
            parts.append(row.get("tokens/total", 0) / config.token_budget)
        return min(1.0, max(parts))

    def whole_seconds(self) -> float | None:
        """Seconds of the whole run, by its part so far; None before its first step."""
        row = self.newest()
        return row["time/total"] / self.done_part() if row.get("step", 0) > 0 else None

    def newest(self) -> MetricRow:
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
                try:
                    row = dict(json.loads(line))
                except (ValueError, TypeError):
                    continue  # the run itself reports a damaged file
                row.pop("eval/scores", None)
                self._last = self._last | row
        return self._last


@dataclass(eq=False)
class ControlJob(MatrixJob):
    """A finished control, evaluated with as many votes as a finished workflow has calls."""

    control: TrainingJob
    workflow: TrainingJob

    def __post_init__(self) -> None:
        self.title = f"votes of {self.control.title} for {self.workflow.title}"
        self.result = like_path(self.control.folder, self.workflow.folder)
        self.log = self.result.with_suffix(".log")

    def waits(self) -> list[TrainingJob]:
        """Unfinished runs among the two."""
        return [run for run in (self.control, self.workflow) if run.state != "finished"]

    def arguments(self) -> list[str]:
        """Module and arguments of the evaluation."""
        runs = [f"--run={self.control.folder}", f"--like={self.workflow.folder}"]
        return ["flowzoo.baselines.matrix.controls", *runs, *PERMISSION.arguments]
