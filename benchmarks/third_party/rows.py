"""What a third-party library can do with our environments, as checks that are run.

A script per library lists its rows and hands them to `report`. A row that should work must run
through; one that cannot must fail with the error that is expected, so that the table is corrected
when a library learns it.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean as mean
from types import MappingProxyType
from typing import Any

from flowzoo.baselines.stats import mean_over_seeds

HERE = Path(__file__).resolve().parent
SEEDS, ENDS, LINES = 3, 100, 40
"""Runs of a script, episodes at each end of a run that are compared, and its most lines."""


@dataclass(frozen=True)
class Row:
    """A line of the table."""

    what: str
    """The class or function of the library, and on what."""
    check: Callable[[], Any]
    """Runs it; a text that it returns is the cell of the table."""
    using: str = ""
    """What makes it work beyond importing flowzoo."""
    error: str = ""
    """Pattern of the message with which it fails; empty for what works."""
    why: str = ""
    """Why it cannot, in words."""

    def run(self) -> tuple[str, str]:
        """Cell of the table, and what is wrong with this row; empty if nothing is."""
        works = f"works with {self.using}" if self.using else "works"
        try:
            found = self.check()
        except Exception as raised:
            said = f"{type(raised).__name__}: {raised}"
            if self.error and re.search(self.error, said, re.DOTALL):
                return f"cannot: {self.why}", ""
            return works, said + "\n" + "".join(traceback.format_exc(limit=-3))
        fault = f"works, and was to fail with {self.error!r}" if self.error else ""
        return found if isinstance(found, str) else works, fault


def tested(file: str) -> Row:
    """The row of a file of our own tests."""

    def check() -> None:
        words = ["-q", "-x", "-n", "0", "-p", "no:cacheprovider", f"tests/{file}"]
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *words],
            cwd=HERE.parents[1],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout[-2000:]

    return Row(f"tests/{file}", check)


def learned(script: str) -> Row:
    """The row of a script of this folder, whose `train(seed)` returns rewards of episodes in order.

    The reward has to rise: the 95 % interval over seeds of the last episodes' mean minus that of
    the first ones lies above 0.
    """
    module = importlib.import_module(script)
    link = f"[{script}.py](../benchmarks/third_party/{script}.py)"
    return Row(f"{str(module.__doc__).rstrip('.')}: {link}", lambda: rise(script, module.train))


def rise(script: str, train: Callable[[int], Sequence[float]]) -> str:
    """Train with several seeds; the means of the ends, the interval, lines and CPU seconds.

    Raises:
        AssertionError: the reward does not rise, or the script is too long.
    """
    lines = len((HERE / f"{script}.py").read_text(encoding="utf-8").splitlines())
    assert lines <= LINES, f"{script}.py has {lines} lines, more than {LINES}"
    began = time.process_time()
    runs = [train(seed) for seed in range(SEEDS)]
    seconds = (time.process_time() - began) / SEEDS
    firsts, lasts = [mean(run[:ENDS]) for run in runs], [mean(run[-ENDS:]) for run in runs]
    gains = [last - first for first, last in zip(firsts, lasts, strict=True)]
    _, low, high = mean_over_seeds(gains)
    ends = " to ".join(f"{end:+.2f}".replace("-", "−") for end in (low, high))
    found = f"{mean(firsts):.2f} to {mean(lasts):.2f} ({ends})"
    assert low > 0, f"the reward did not rise: {found}"
    return f"rises from {found}; {lines} lines, {seconds:.0f} s"


def report(
    library: str,
    packages: Sequence[str],
    rows: Iterable[Row],
    figures: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Run `rows` and print one line of JSON: library, versions, results, faults, figures.

    `figures` are measured by the rows. The process fails if a row is not as it says.
    """
    found = {row.what: row.run() for row in rows}
    faults = {what: fault for what, (_, fault) in found.items() if fault}
    versions = {name: importlib.metadata.version(name) for name in packages}
    lines = [(what, cell) for what, (cell, _) in found.items()]
    line = {"library": library, "versions": versions, "rows": lines, "faults": faults}
    print(json.dumps({**line, "figures": dict(figures)}), flush=True)
    sys.exit(bool(faults))


def example(page: str, word: str) -> dict[str, Any]:
    """Run the first block of Python in a page of docs that holds `word`; its names."""
    text = (HERE.parents[1] / "docs" / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    exec(next(block for block in blocks if word in block), names)
    return names


def play(env: Any, seed: int = 0) -> list[float]:
    """Random replies to the end of an AEC environment; the rewards that `last` paid."""
    env.reset(seed=seed)
    paid = []
    for agent in env.agent_iter():
        _, reward, terminated, truncated, _ = env.last()
        over = terminated or truncated
        paid += [reward] if over else []
        env.step(None if over else env.action_space(agent).sample())
    return paid


def play_parallel(env: Any, seed: int = 0) -> dict[str, float]:
    """The same for a parallel environment; the rewards of its last step."""
    env.reset(seed=seed)
    rewards: dict[str, float] = {}
    while env.agents:
        replies = {agent: env.action_space(agent).sample() for agent in env.agents}
        _, rewards, *_ = env.step(replies)
    return rewards
