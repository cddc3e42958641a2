"""A process that kills the remaining agent programs when its owner ends."""

from __future__ import annotations

import logging
import secrets
import subprocess
import sys

_log = logging.getLogger("flowzoo")
_PROGRAM = """
import os, signal, sys, time
mark, groups = os.fsencode(sys.argv[1]), set()
def kill(stop, target):
    try:
        stop(target, signal.SIGKILL)
    except OSError:
        pass
for line in sys.stdin:
    (groups.add if line[0] == "+" else groups.discard)(int(line[1:]))
for group in groups:
    kill(os.killpg, group)
# Programs that were being started have no group here yet: on Linux their environment names them.
for _ in range(20 if os.path.isdir("/proc/self") else 0):
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                marked = mark in file.read().split(b"\\0")
        except OSError:
            continue
        if marked:
            kill(os.kill, int(name))
    time.sleep(0.05)
"""


class ProgramGuard:
    """Kills groups of processes when this process ends, by a signal or without one.

    Its standard input closes with this process, so SIGKILL is detected too.
    """

    def __init__(self) -> None:
        self.mark = "FLOWZOO_DOOR", secrets.token_hex(16)
        """Name and value in the environment of the programs."""
        self._groups: set[int] = set()
        self._start()

    def _start(self) -> None:
        # In a separate session, so signals to this process's group do not reach it.
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _PROGRAM, "=".join(self.mark)],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def watch(self, group: int) -> None:
        """Kill `group` when this process ends."""
        self._groups.add(group)
        self._tell(f"+{group}\n")

    def forget(self, group: int) -> None:
        """Stop watching `group`, which has ended."""
        self._groups.discard(group)
        self._tell(f"-{group}\n")

    def _tell(self, lines: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(lines.encode())
        except BrokenPipeError:  # it was killed, for example when memory ran out
            self._process.wait()
            try:
                self._start()
            except OSError as error:
                warning = "if this process is killed, its agent programs keep running: %s"
                _log.warning(warning, error)
                return
            self._tell("".join(f"+{group}\n" for group in self._groups))
