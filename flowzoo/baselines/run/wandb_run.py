"""A run on Weights & Biases: the same numbers as in the TensorBoard files, and the settings.

The run's W&B id is made once and stays in the run directory (`wandb.json`), so a resumed run goes
on with the same W&B run. At every start the rows so far are sent again as far as W&B lacks them:
nothing that a killed process had not sent yet is missing, and with WANDB_MODE=offline, where
`wandb sync` of a later start replaces the earlier, each start's files hold the whole run. A step
that W&B has already and that is done again stays as it was first sent.

Sent are the numbers and the settings (URLs without user, password and query), and what W&B measures
of the machine; no console output, no code, no command line, no name of the git repository.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from flowzoo.baselines.run.public import named_run, public
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.errors import UsageError, missing_extra

try:  # names, for a bare folder `wandb` in the working directory passes for a module
    from wandb import Settings, init
    from wandb.errors import Error
except ImportError as error:
    raise missing_extra("wandb", "wandb", "`wandb`") from error


class WandbRun:
    """One process's hold on the W&B run of a run directory."""

    def __init__(
        self, root: Path, config: TrainConfig, before: Sequence[tuple[int, Mapping[str, float]]]
    ) -> None:
        """Start or resume the run, and send what W&B lacks of `before`, the steps so far.

        Raises:
            UsageError: W&B does not start, for want of a login for instance.
        """
        identity = named_run(root, "wandb.json", config.wandb)
        try:
            self._run = init(
                project=config.wandb,
                id=identity,
                name=root.resolve().name,
                dir=str(root),
                config=public(asdict(config)),
                allow_val_change=True,  # of `steps`, in a run that is continued
                resume="allow",
                reinit="create_new",
                settings=Settings(
                    console="off",
                    disable_git=True,
                    disable_job_creation=True,
                    quiet=True,
                    save_code=False,
                    x_disable_meta=True,
                ),
            )
        except Error as error:
            raise UsageError(
                f"W&B does not start: {error} With WANDB_MODE=offline in the environment it needs "
                "neither login nor network, and `wandb sync` sends the run later."
            ) from error
        for step, numbers in before:
            self.add(step, numbers)

    def add(self, step: int, numbers: Mapping[str, float]) -> None:
        """Send one step, unless an earlier process did."""
        if step >= self._run.starting_step:
            self._run.log(dict(numbers), step=step)

    def close(self) -> None:
        """Send what is left; the run counts as failed while an exception is being handled."""
        self._run.finish(exit_code=int(sys.exception() is not None))
