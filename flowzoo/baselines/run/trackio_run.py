"""A run in Trackio: the same numbers as in the TensorBoard files, and the settings.

Trackio writes a database on this machine (TRACKIO_DIR), or sends to a Space of the hub or another
server (TRACKIO_SPACE_ID, TRACKIO_SERVER_URL); `trackio show` opens the board. A resumed run
goes on under its name, which stays in the run directory (`trackio.json`). At every start the rows
so far are sent as far as Trackio lacks them; a step that it has already and that is done again
stays as it was first sent. Settings are sent without users, passwords and queries of URLs.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from flowzoo.baselines.run.public import named_run, public
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.errors import UsageError, missing_extra

try:  # a name, for a bare folder `trackio` in the working directory passes for a module
    from trackio import init
except ImportError as error:
    raise missing_extra("trackio", "trackio", "`trackio`") from error


class TrackioRun:
    """One process's hold on the Trackio run of a run directory."""

    def __init__(
        self, root: Path, config: TrainConfig, before: Sequence[tuple[int, Mapping[str, float]]]
    ) -> None:
        """Start or resume the run, and send what Trackio lacks of `before`, the steps so far.

        Raises:
            UsageError: Trackio does not start, for want of a login for instance.
        """
        name = named_run(root, "trackio.json", config.trackio)
        try:
            with contextlib.redirect_stdout(sys.stderr):  # it greets; stdout is the command's
                self._run = init(
                    project=config.trackio,
                    name=name,
                    config=public(asdict(config)),
                    resume="allow",
                    embed=False,
                    auto_log_gpu=False,
                    auto_log_cpu=False,
                )
        except (ValueError, OSError, RuntimeError) as error:
            raise UsageError(
                f"Trackio does not start: {error} Without TRACKIO_SPACE_ID and TRACKIO_SERVER_URL "
                "in the environment it needs neither login nor network."
            ) from error
        self._first = self._run._next_step
        """First step that Trackio does not have; there is no public attribute for it."""
        for step, numbers in before:
            self.add(step, numbers)

    def add(self, step: int, numbers: Mapping[str, float]) -> None:
        """Send one step, unless an earlier process did."""
        if step >= self._first:
            self._run.log(dict(numbers), step=step)

    def close(self) -> None:
        """Send what is left."""
        with contextlib.redirect_stdout(sys.stderr):
            self._run.finish()
