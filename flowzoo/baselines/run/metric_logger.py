"""Metrics of a run in TensorBoard event files, and on Weights & Biases or Trackio when asked."""

import contextlib
import importlib
import math
import re
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from flowzoo.aliases import MetricRow
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.errors import UsageError, missing_extra
from flowzoo.files import read_json, write_json, writing

try:
    from torch.utils.tensorboard import SummaryWriter
except ImportError as error:
    raise missing_extra("tensorboard", "train", "writing TensorBoard files") from error

_URL = re.compile(r"([a-z][a-z0-9+.-]*://)(?:[^/?#\s]*@)?([^?#\s]*)\S*", re.IGNORECASE)
_NOT_IN_IDS = re.compile(r"[^A-Za-z0-9_.-]+")


class Service(NamedTuple):
    """A service that metrics are sent to, with what differs between the services."""

    name: str
    """Setting with the project, module and extra."""
    title: str
    options: Callable[[Path, str], dict[str, Any]]
    """Further arguments of `init`, by the run directory and the id of the run."""
    first_step: str
    """Attribute of its run with the first step that it does not have."""
    remedy: str
    takes_exit_code: bool


WANDB = Service(
    "wandb",
    "W&B",
    lambda root, name: {
        "id": name,
        "name": root.resolve().name,
        "dir": str(root),
        "allow_val_change": True,  # of `steps`, in a run that is continued
        "reinit": "create_new",
        # No console output, no code, no command line, no name of the git repository.
        "settings": {
            "console": "off", "disable_git": True, "disable_job_creation": True, "quiet": True,
            "save_code": False, "x_disable_meta": True,
        },
    },
    "starting_step",
    "With WANDB_MODE=offline in the environment it needs neither login nor network, and "
    "`wandb sync` sends the run later.",
    takes_exit_code=True,
)  # fmt: skip
TRACKIO = Service(
    "trackio",
    "Trackio",
    lambda root, name: {
        "name": name, "embed": False, "auto_log_gpu": False, "auto_log_cpu": False
    },
    "_next_step",  # there is no public attribute for it
    "Without TRACKIO_SPACE_ID and TRACKIO_SERVER_URL in the environment it needs neither login "
    "nor network.",
    takes_exit_code=False,
)  # fmt: skip


class ServiceRun:
    """A run on W&B or Trackio: the numbers of the TensorBoard files, and the settings.

    Its id stays in the run directory, so a resumed run goes on under it. At every start the steps
    so far are sent as far as the service lacks them: what a killed process had not sent, and with
    WANDB_MODE=offline, where a later `wandb sync` replaces the earlier, the whole run. A step that
    the service has and that is done again stays as it was first sent.
    """

    def __init__(
        self,
        service: Service,
        root: Path,
        config: TrainConfig,
        before: Sequence[tuple[int, Mapping[str, float]]] = (),
    ) -> None:
        self._service, project = service, getattr(config, service.name)
        try:
            module = importlib.import_module(service.name)
            init = module.init  # a bare folder in the working directory passes for a module
        except (ImportError, AttributeError) as error:
            raise missing_extra(service.name, service.name, f"`{service.name}`") from error
        identity = stored_id(root, f"{service.name}.json", project)
        refusals = (ValueError, OSError, RuntimeError, getattr(module, "Error", RuntimeError))
        try:
            # Trackio prints a greeting, and stdout belongs to the command.
            with contextlib.redirect_stdout(sys.stderr):
                self._run = init(
                    project=project,
                    config=without_credentials(asdict(config)),
                    resume="allow",
                    **service.options(root, identity),
                )
        except refusals as error:
            raise UsageError(f"{service.title} does not start: {error} {service.remedy}") from error
        self._first: int = getattr(self._run, service.first_step)
        for step, numbers in before:
            self.add(step, numbers)

    def add(self, step: int, numbers: Mapping[str, float]) -> None:
        """Send one step, unless an earlier process did."""
        if step >= self._first:
            self._run.log(dict(numbers), step=step)

    def close(self) -> None:
        """Send what is left; on W&B the run counts as failed while an exception is handled."""
        failed = int(sys.exception() is not None)
        with contextlib.redirect_stdout(sys.stderr):
            self._run.finish(**({"exit_code": failed} if self._service.takes_exit_code else {}))


class MetricLogger:
    """Every finite number of a run's rows under its metric name, in all places it is sent to.

    `step` is the last step that is done, -1 in a new run; `history` has the rows up to it.
    """

    def __init__(
        self, root: Path, config: TrainConfig, step: int, history: Sequence[MetricRow]
    ) -> None:
        with writing(root / "tensorboard"):
            # Later events are of a killed process, whose steps are done again.
            self._tensorboard = SummaryWriter(str(root / "tensorboard"), purge_step=step + 1)
        before = [(int(row["step"]), scalars(row)) for row in history]
        self._services = [
            ServiceRun(service, root, config, before)
            for service in (WANDB, TRACKIO)
            if getattr(config, service.name)
        ]

    def add(self, row: MetricRow) -> None:
        """Log one row of metrics; steps come in rising order."""
        step, numbers = int(row["step"]), scalars(row)
        for name, value in numbers.items():
            self._tensorboard.add_scalar(name, value, step)
        for service in self._services:
            service.add(step, numbers)

    def close(self) -> None:
        """Flush and close all of them; inside the handling of an exception the run has failed."""
        self._tensorboard.close()
        for service in self._services:
            service.close()


def scalars(row: Mapping[str, object]) -> dict[str, float]:
    """Finite numbers of a row, without its step.

    Lists and dicts (scores of single items, Gram matrices) stay in metrics.jsonl alone.
    """
    return {
        name: value
        for name, value in row.items()
        if name != "step"
        and isinstance(value, (int, float))
        and not isinstance(value, bool)
        and math.isfinite(value)
    }


def without_credentials(value: object) -> Any:
    """Remove user, password, query and fragment from URLs in settings; tuples become lists."""
    if isinstance(value, str):
        return _URL.sub(r"\1\2", value)
    if isinstance(value, Mapping):
        return {str(name): without_credentials(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_credentials(inner) for inner in value]
    return value


def stored_id(root: Path, file: str, project: str) -> str:
    """Return the id of the run in `root` for a project; a new one is stored in `file`."""
    path = root / file
    ids: dict[str, str] = read_json(path) if path.exists() else {}
    if project not in ids:
        # With a random part: a new run in a deleted folder is another run.
        name = _NOT_IN_IDS.sub("-", root.resolve().name)[:50]
        ids[project] = f"{name}-{secrets.token_hex(4)}"
        write_json(path, ids)
    return ids[project]
