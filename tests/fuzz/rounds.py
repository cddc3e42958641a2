"""Spoiled files and messages for all that reads them:

    python tests/fuzz/rounds.py [--minutes 60] [--targets run gguf ...] [--seed 0] [--http]

Each target gets an equal share of the time; with `--http` two more shares are requests to `serve`
and the door. It prints how many were tried and each fault once, and keeps its files in
`build/fuzz`; the seed is the number of the round.
"""

import argparse
import hashlib
import resource
import shutil
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fuzz.targets import TARGETS, Files, Target, folder_with
from hypothesis import HealthCheck, Phase, given, seed, settings

MEMORY = 2**31
"""Most bytes of address space that reading may add."""
KEPT = Path(__file__).resolve().parents[2] / "build" / "fuzz"


class SlowError(BaseException):
    """Reading took too long; no handler of errors takes it for one of its own."""


def late(*_: object) -> None:
    raise SlowError


@contextmanager
def bounded(seconds: float) -> Iterator[None]:
    """Bound the time and the memory of a block."""
    old = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY, old[1]))
    handler = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        resource.setrlimit(resource.RLIMIT_AS, old)


def check(target: Target, files: Files) -> None:
    """Read spoiled files within the bounds."""
    with folder_with(files) as folder, bounded(target.seconds):
        target.read(folder)


def fuzz(target: Target, examples: int, number: int, body: Any = check) -> None:
    """Check so many examples, after the right content; the first fault is raised."""
    with folder_with(target.content()) as folder:
        target.read(folder)  # which imports what it needs

    @seed(number)
    @settings(
        max_examples=examples, database=None, deadline=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck), report_multiple_bugs=False,
    )  # fmt: skip
    @given(target.spoil(target.content()))
    def run(files: Files) -> None:
        body(target, files)

    run()


class Faults:
    """The faults of a target, each kept once."""

    def __init__(self, name: str) -> None:
        self.name, self.counts, self.tried = name, Counter[str](), 0

    def note(self, target: Target, files: Files) -> None:
        self.tried += 1
        try:
            check(target, files)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            frames = traceback.extract_tb(error.__traceback__)
            ours = [frame for frame in frames if "/flowzoo/" in frame.filename] or list(frames)
            where = f"{Path(ours[-1].filename).name}:{ours[-1].lineno}"
            text = f"{type(error).__name__} at {where}: {' '.join(str(error).split())[:300]}"
            key = f"{type(error).__name__} at {where}"
            if not self.counts[key]:
                print(f"{self.name}: {text}", flush=True)
                self.keep(target, files, key, error)
            self.counts[key] += 1

    def keep(self, target: Target, files: Files, key: str, error: BaseException) -> None:
        """Write what differs from the right files."""
        folder = KEPT / f"{self.name}-{hashlib.sha256(key.encode()).hexdigest()[:8]}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        right = target.content()
        for path, data in files.items():
            if right.get(path) != data and len(data) < 2**20:
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                (folder / path).write_bytes(data)
        lines = traceback.format_exception(error)
        (folder / "traceback.txt").write_text("".join(lines), "utf-8", "replace")


def main() -> int:
    """Fuzz, and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--targets", nargs="+", default=list(TARGETS), choices=list(TARGETS))
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    failed, share = 0, 60 * given.minutes / len(given.targets)
    for name in given.targets:
        end, number, faults = time.monotonic() + share, given.seed, Faults(name)
        while time.monotonic() < end:
            fuzz(TARGETS[name], 50, number, faults.note)
            number += 1
        print(f"{name}: {faults.tried} tried, {dict(faults.counts) or 'no fault'}", flush=True)
        failed |= bool(faults.counts)
    return failed


if __name__ == "__main__":
    sys.exit(main())
