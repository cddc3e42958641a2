"""A process that outlives its owner just long enough to kill the programs left behind."""

from __future__ import annotations

import subprocess
import sys

_PROGRAM = """
import os, signal, sys
groups = set()
for line in sys.stdin:
    (groups.add if line[0] == "+" else groups.discard)(int(line[1:]))
for group in groups:
    try:
        os.killpg(group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass
"""


class Guard:
    """Kills groups of processes when this process ends, by whatever signal.

    Its input ends with this process, so SIGKILL is noticed as well.
    """

    def __init__(self) -> None:
        # A session of its own: what is sent to this process's group does not reach it.
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def watch(self, group: int) -> None:
        """Kill `group` when this process ends."""
        self._tell(f"+{group}\n")

    def forget(self, group: int) -> None:
        """Leave `group` alone, which has ended."""
        self._tell(f"-{group}\n")

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode())
        self._process.stdin.flush()
