"""A pocket model in the making, saved now and then, so that a killed command goes on.

Everything random is drawn before the first step, so weights, the optimizers' states and the number
of steps are all there is to save.
"""

from __future__ import annotations

import io
import os
import pickle
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flowzoo.errors import UsageError, missing_extra
from flowzoo.files import write_synced, writing

try:
    import torch
except ImportError as error:
    raise missing_extra(error.name or "torch", "train", "making a pocket model") from error

FILE = "unfinished.pt"


class Unfinished:
    """The saved state of one making, and the time that it has taken in all its processes.

    Args:
        folder: folder of the model.
        command: the command that makes it; another one's state is refused.
        every: seconds between two saves.
    """

    def __init__(self, folder: Path, command: str, every: float) -> None:
        self.path = folder / FILE
        self.step = 0
        """Steps done."""
        self._command, self._every = command, every
        self._before = (0.0, 0.0)
        self._start = (time.perf_counter(), time.process_time())
        self._saved = self._start[0]

    def spent(self) -> tuple[float, float]:
        """Seconds and CPU seconds of this process, and of those before to their last save."""
        now = (time.perf_counter(), time.process_time())
        wall, cpu = (
            before + here - start
            for before, here, start in zip(self._before, now, self._start, strict=True)
        )
        return wall, cpu

    def load(self, model: Any, optimizers: Sequence[torch.optim.Optimizer]) -> int:
        """Bring model and optimizers to the saved state; returns the steps done, 0 without one.

        Raises:
            UsageError: the state is of another command, or damaged.
        """
        if not self.path.is_file():
            return 0
        remedy = f"remove {self.path}, or choose another --out"
        try:
            state = torch.load(self.path, map_location=model.device, weights_only=True)
            command = state["command"]
        except (OSError, RuntimeError, EOFError, KeyError, pickle.UnpicklingError) as error:
            raise UsageError(f"the unfinished model there cannot be read: {remedy}") from error
        if command != self._command:
            raise UsageError(f"an unfinished model of `{command}` is there: {remedy}")
        model.load_state_dict(state["model"])
        for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self._before, self.step = tuple(state["spent"]), state["step"]
        return self.step

    def save(self, model: Any, optimizers: Sequence[torch.optim.Optimizer], step: int) -> None:
        """Note that `step` steps are done, and save if it is time.

        Raises:
            SaveError: it could not be written.
        """
        self.step = step
        if time.perf_counter() - self._saved < self._every:
            return
        state = {
            "command": self._command,
            "step": step,
            "spent": list(self.spent()),
            "model": model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in optimizers],
        }
        buffer, partial = io.BytesIO(), self.path.with_suffix(".partial")
        torch.save(state, buffer)
        with writing(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_synced(partial, buffer.getvalue())
            os.replace(partial, self.path)
        self._saved = time.perf_counter()

    def remove(self) -> None:
        """The model is made: its unfinished state is of no more use."""
        self.path.unlink(missing_ok=True)
