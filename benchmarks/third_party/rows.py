"""What a third-party library can do with our environments, as checks that are run.

A script per library lists its rows and hands them to `report`. A row that should work must run
through; one that cannot must fail with the error that is expected, so that the table is corrected
when a library learns it.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True)
class Row:
    """A line of the table."""

    what: str
    """The class or function of the library, and on what."""
    check: Callable[[], Any]
    using: str = ""
    """What makes it work beyond importing flowzoo."""
    error: str = ""
    """Pattern of the message with which it fails; empty for what works."""
    why: str = ""
    """Why it cannot, in words."""

    def run(self) -> str:
        """What is wrong with this row; empty if nothing is."""
        try:
            self.check()
        except Exception as raised:
            said = f"{type(raised).__name__}: {raised}"
            if self.error and re.search(self.error, said, re.DOTALL):
                return ""
            return said + "\n" + "".join(traceback.format_exc(limit=-3))
        return f"works, and was to fail with {self.error!r}" if self.error else ""

    @property
    def result(self) -> str:
        """The cell of the table."""
        if self.error:
            return f"cannot: {self.why}"
        return f"works with {self.using}" if self.using else "works"


def report(
    library: str,
    packages: Sequence[str],
    rows: Sequence[Row],
    figures: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Run `rows` and print one line of JSON: library, versions, results, faults, figures.

    `figures` are measured by the rows. The process fails if a row is not as it says.
    """
    faults = {row.what: fault for row in rows if (fault := row.run())}
    versions = {name: importlib.metadata.version(name) for name in packages}
    lines = [(row.what, row.result) for row in rows]
    line = {"library": library, "versions": versions, "rows": lines, "faults": faults}
    print(json.dumps({**line, "figures": dict(figures)}), flush=True)
    sys.exit(bool(faults))


def example(page: str, word: str) -> dict[str, Any]:
    """Run the first block of Python in a page of docs that holds `word`; its names."""
    text = (Path(__file__).resolve().parents[2] / "docs" / page).read_text(encoding="utf-8")
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
