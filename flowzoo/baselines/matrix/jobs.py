"""The processes of a matrix: training runs, and evaluations of controls at equal inference."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from flowzoo.baselines.matrix.cell import Cell, cell_text
from flowzoo.baselines.matrix.forks import Fork, RunServer, end_with
from flowzoo.baselines.run.reading import RunData, like_path, read_run
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.files import read_json, replace_text

JobState = Literal["waiting", "running", "finished", "failed"]


@dataclass(slots=True, kw_only=True, eq=False)
class MatrixJob:
    """One process and the file that it leaves when it has finished."""

    state: JobState = "waiting"
    process: subprocess.Popen[bytes] | Fork | None = None

    @property
    def title(self) -> str:
        """What people call it."""
        raise NotImplementedError

    @property
    def result(self) -> Path:
        """The file that says that it is finished."""
        raise NotImplementedError

    @property
    def log(self) -> Path:
        """Where what it prints goes."""
        raise NotImplementedError

    def waits(self) -> list[TrainingJob]:
        """The runs that have to be finished before it can start."""
        return []

    def words(self) -> list[str]:
        """The module and arguments of its process, for which what it reads is written."""
        raise NotImplementedError

    def threads(self) -> int:
        """CPU threads of its process."""
        return 1

    def start(self, server: RunServer | None = None) -> None:
        """Start its process, as a fork of the server's where there is one."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        threads = str(self.threads())
        environment = {**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
        if server is not None:
            self.process = server.start(self.words(), self.log, environment)
        else:
            with self.log.open("ab") as log:
                self.process = subprocess.Popen(
                    [sys.executable, "-m", *self.words()],
                    stdout=log,
                    stderr=log,
                    stdin=subprocess.DEVNULL,
                    env=environment,
                    preexec_fn=end_with(os.getpid()),
                )
        self.state = "running"

    @property
    def forks(self) -> bool:
        """Whether its process may be a fork of one that has imported torch: not with an engine
        that starts threads and processes of its own.
        """
        return False

    def collect(self) -> None:
        """Note how its process ended, if it did."""
        if self.process is None or self.process.poll() is None:
            return
        done = self.process.returncode == 0 and self.result.exists()
        self.state = "finished" if done else "failed"


@dataclass(slots=True, eq=False)
class TrainingJob(MatrixJob):
    """The run of one cell under one seed."""

    cell: Cell
    config: TrainConfig
    """A control's has no `token_budget` until that is known."""
    sources: list[TrainingJob] = field(default_factory=list)
    """Of a control: the runs of its seed that its token budget comes from."""
    _seen: int = field(default=0)
    _last: dict[str, Any] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """Cell and seed."""
        return f"{self.cell.name} seed {self.config.seed}"

    @property
    def folder(self) -> Path:
        """Its run directory."""
        return Path(self.config.out)

    @property
    def result(self) -> Path:
        """What a run writes at its end."""
        return self.folder / "summary.json"

    @property
    def log(self) -> Path:
        """Beside the metrics."""
        return self.folder / "log.txt"

    def waits(self) -> list[TrainingJob]:
        """A control waits for the runs whose tokens it will have, unless it has begun."""
        if not self.cell.control or self.config.token_budget:
            return []
        return [run for run in self.sources if run.state != "finished"]

    def words(self) -> list[str]:
        """`flowzoo train`; a control's token budget is settled now, in its `cell.toml`."""
        if self.cell.control and not self.config.token_budget:
            most = max(run.summary()["training_tokens"] for run in self.sources)
            self.config = replace(self.config, token_budget=most)
        path = self.folder / "cell.toml"
        replace_text(path, cell_text(self.config))
        return ["flowzoo.cli", "train", "--config", str(path), "--json"]

    def threads(self) -> int:
        """What the settings say, else one."""
        return self.config.threads or 1

    @property
    def forks(self) -> bool:
        """Where it samples with the learner's own module."""
        return self.config.engine == "transformers"

    def summary(self) -> dict[str, Any]:
        """What the finished run wrote."""
        return read_json(self.result)

    def data(self) -> RunData:
        """All that the run wrote so far, under the name of its cell and its own folder's."""
        return read_run(self.folder, f"{self.cell.name}/{self.folder.name}")

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
                try:
                    row = dict(json.loads(line))
                except (ValueError, TypeError):
                    continue  # the run itself says that it is damaged
                row.pop("eval/scores", None)
                self._last = self._last | row
        return self._last


@dataclass(slots=True, eq=False)
class ControlJob(MatrixJob):
    """A finished control, evaluated with as many votes as a finished workflow has calls."""

    control: TrainingJob
    workflow: TrainingJob

    @property
    def title(self) -> str:
        """Both runs."""
        return f"votes of {self.control.title} for {self.workflow.title}"

    @property
    def result(self) -> Path:
        """What `flowzoo.baselines.matrix.controls` writes into the control's folder."""
        return like_path(self.control.folder, self.workflow.folder)

    @property
    def log(self) -> Path:
        """Beside the result."""
        return self.result.with_suffix(".log")

    def waits(self) -> list[TrainingJob]:
        """Both runs."""
        return [run for run in (self.control, self.workflow) if run.state != "finished"]

    def words(self) -> list[str]:
        """The command that evaluates."""
        runs = [f"--run={self.control.folder}", f"--like={self.workflow.folder}"]
        return ["flowzoo.baselines.matrix.controls", *runs]
