"""A small run, finished and killed, and what must not be lost of a run, as fixtures."""

from __future__ import annotations

import json
import resource
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

SMALL: dict[str, Any] = {
    "workflow": "single", "model": "pocket:xs", "steps": 4, "problems": 2, "samples": 4,
    "max_tokens": 40, "truncated": "train", "eval_problems": 2, "eval_every": 2,
    "checkpoint_every": 2, "transcripts_every": 1, "threads": 1, "probe_every": 0,
}  # fmt: skip


class _Stopped(Exception):
    """Stands for a process that ends in the middle."""


@pytest.fixture(scope="session")
def small_run() -> Callable[..., Any]:
    """`small_run(root, **changes)`: the settings of the small run in `root`."""
    from flowzoo.baselines.settings.config import TrainConfig

    def make(root: Path, **changes: Any) -> Any:
        return TrainConfig(**{**SMALL, **changes, "out": str(root)})

    return make


@pytest.fixture(scope="session")
def small_words() -> Callable[..., list[str]]:
    """`small_words(root, **changes)`: the words of the command that trains it."""

    def make(root: Path, **changes: Any) -> list[str]:
        settings = SMALL | changes
        flags = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
        return ["train", SMALL["workflow"], *flags[1:], f"--out={root}"]

    return make


@pytest.fixture(scope="session")
def small_runs(tmp_path_factory: pytest.TempPathFactory, small_run: Callable[..., Any]) -> Path:
    """A folder with `finished` and `killed`, only to be copied.

    The latter has rows and transcripts of step 3, and the checkpoints of steps 0 and 2.
    """
    from flowzoo.baselines.training.trainer import train

    root = tmp_path_factory.mktemp("runs")
    train(small_run(root / "finished"))

    def stop(row: dict[str, Any]) -> None:
        if row["step"] == 3:
            raise _Stopped

    with pytest.raises(_Stopped):
        train(small_run(root / "killed"), stop)
    learned = json.loads((root / "finished/summary.json").read_text())["updates"]
    assert learned == 4, "no state of an optimizer could be damaged"
    return root


@pytest.fixture(scope="session")
def largest_file() -> Callable[[int], AbstractContextManager[None]]:
    """`with largest_file(size)`: inside, no file of this process may grow beyond `size` bytes."""

    @contextmanager
    def limit(size: int) -> Iterator[None]:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    return limit


@dataclass(frozen=True)
class Measured:
    """What a run directory holds that was measured, wherever in it that is."""

    lines: frozenset[bytes]
    """Lines of metrics, times and all."""
    transcripts: frozenset[tuple[int, int]]
    """What tells a file from one that was written anew with the same text."""

    def __or__(self, other: Measured) -> Measured:
        return Measured(self.lines | other.lines, self.transcripts | other.transcripts)

    def lost_in(self, root: Path) -> int:
        """How much of it `root` does not hold any more."""
        now = measured_in(root)
        return len(self.lines - now.lines) + len(self.transcripts - now.transcripts)


def measured_in(root: Path) -> Measured:
    """See `Measured`."""
    metrics = [
        path
        for path in root.rglob("metrics.jsonl")
        if path.is_file() and "checkpoints" not in path.relative_to(root).parts
    ]
    transcripts = [path.stat() for path in root.rglob("transcripts/*") if path.is_file()]
    return Measured(
        frozenset(line for path in metrics for line in path.read_bytes().splitlines()),
        frozenset((found.st_ino, found.st_mtime_ns) for found in transcripts),
    )


@pytest.fixture(scope="session")
def what_was_measured() -> Callable[[Path], Measured]:
    """`what_was_measured(root)`: see `Measured`."""
    return measured_in
