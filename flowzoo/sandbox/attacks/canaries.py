"""Canaries: things of the host that no program may touch, and their state afterwards."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from glob import glob
from pathlib import Path
from typing import Any, NamedTuple

from flowzoo.sandbox.attacks.probes import AttackProbe
from flowzoo.sandbox.program import CallTest, StdinTest, Test

# Files that probes would leave if they got out of a box.
LEFTOVER_FILES = tuple(
    f"{folder}/flowzoo-probe*" for folder in ("", "/tmp", "/var/tmp", "/dev/shm", "/run", ".")
)
RUNNER = "flowzoo/sandbox/runner"
SETTLED_S = 20.0  # seconds for orphaned runners to end on a busy machine


class ResourceCounts(NamedTuple):
    """Resources that the suite must not leave in use."""

    fds: int
    orphans: int  # processes of a runner whose parent is process 1
    leftovers: int  # files of probes outside of any box


def count_resources() -> ResourceCounts:
    """Count the resources in use now."""
    fds = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    return ResourceCounts(
        fds, _count_orphans(), sum(len(glob(pattern)) for pattern in LEFTOVER_FILES)
    )


def settled_resources(before: ResourceCounts, within: float = SETTLED_S) -> ResourceCounts:
    """Count resources once no more orphans are left than before, or after `within` seconds."""
    # An orphan of a moment ago, of this or another program, may not be dead yet.
    deadline = time.monotonic() + within
    while (counts := count_resources()).orphans > before.orphans and time.monotonic() < deadline:
        time.sleep(0.05)
    return counts


def _count_orphans() -> int:
    count = 0
    for entry in glob("/proc/[0-9]*"):
        with contextlib.suppress(OSError, IndexError):
            command = Path(entry, "cmdline").read_bytes()
            fields = Path(entry, "stat").read_text().rpartition(")")[2].split()
            count += RUNNER.encode() in command and fields[1] == "1" and fields[0] != "Z"
    return count


class Canaries:
    """A file with a secret, a process, a TCP port, two unix sockets, a secret in the environment.

    A context manager sets them up; `fill` writes them into a probe, `touched` lists changes.
    """

    def __init__(self) -> None:
        self.secret = "FLOWZOO-CANARY-" + secrets.token_hex(16)
        self._stack = contextlib.ExitStack()
        self._reported: set[str] = set()

    def __enter__(self) -> Canaries:
        with contextlib.ExitStack() as stack:
            folder = Path(tempfile.mkdtemp(prefix="flowzoo-canary-"))
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            folder.chmod(0o755)
            self.folder, self.file = folder, folder / "secret.txt"
            self.file.write_text(self.secret)
            command = [sys.executable, "-I", "-S", "-c", "import time; time.sleep(3600)"]
            self.process = stack.enter_context(subprocess.Popen(command))
            stack.callback(self.process.kill)
            abstract = f"flowzoo-canary-{secrets.token_hex(8)}"
            self.unix = folder / "engine.sock"
            self.listeners = [
                stack.enter_context(_listen(socket.AF_INET, ("127.0.0.1", 0))),
                stack.enter_context(_listen(socket.AF_UNIX, f"\0{abstract}")),
                stack.enter_context(_listen(socket.AF_UNIX, str(self.unix))),
            ]
            os.environ["FLOWZOO_CANARY"] = self.secret
            stack.callback(os.environ.pop, "FLOWZOO_CANARY", None)
            self._values = {
                "@SECRET@": self.secret,
                "@FILE@": str(self.file),
                "@FOLDER@": str(folder),
                "@PID@": str(self.process.pid),
                "@CALLER@": str(os.getpid()),
                "@PORT@": str(self.listeners[0].getsockname()[1]),
                "@ABSTRACT@": abstract,
                "@UNIX@": str(self.unix),
            }
            self._before = self._look()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def fill(self, probe: AttackProbe) -> AttackProbe:
        """Return the probe with these canaries in its source, and the secret in its tests."""
        tests = tuple(self._fill_test(test) for test in probe.tests)
        return replace(probe, source=self._put(probe.source), tests=tests)

    def _fill_test(self, test: Test) -> Test:
        # The secret as the expected value: a program that gets it has read the caller.
        if isinstance(test, StdinTest | CallTest) and isinstance(test.expected, str):
            return replace(test, expected=self._put(test.expected))
        return test

    def _put(self, text: str) -> str:
        for mark, value in self._values.items():
            text = text.replace(mark, value)
        return text

    def touched(self) -> list[str]:
        """Return the changes since the last call; empty if there are none."""
        now = self._look()
        changed = [name for name, value in now.items() if value != self._before[name]]
        fresh = [name for name in changed if name not in self._reported]
        self._reported.update(fresh)
        return fresh + [f"a connection to {listener}" for listener in self._visitors()]

    def _look(self) -> dict[str, Any]:
        pid = self.process.pid
        facts: dict[str, Any] = {
            "the file's text": _quiet(self.file.read_text),
            "the file's mode": _quiet(lambda: self.file.stat().st_mode),
            "the folder": _quiet(lambda: (sorted(os.listdir(self.folder)), self.folder.stat()[0])),
            "the process's life": self.process.poll(),
            "the process's priority": _quiet(lambda: os.getpriority(os.PRIO_PROCESS, pid)),
            "the caller's priority": os.getpriority(os.PRIO_PROCESS, 0),
            "the host's name": socket.gethostname(),
            "the caller's environment": os.environ.get("FLOWZOO_CANARY"),
            "files of probes on the host": sorted(name for p in LEFTOVER_FILES for name in glob(p)),
        }
        if sys.platform == "linux":
            facts["the process's affinity"] = _quiet(lambda: os.sched_getaffinity(pid))
            facts["the process's limits"] = _quiet(Path(f"/proc/{pid}/limits").read_text)
            facts["the process being stopped"] = _quiet(
                lambda: " T " in Path(f"/proc/{pid}/stat").read_text()
            )
        return facts

    def _visitors(self) -> list[str]:
        addresses = []
        for listener in self.listeners:
            with contextlib.suppress(BlockingIOError):
                while True:
                    listener.accept()[0].close()
                    addresses.append(str(listener.getsockname()))
        return addresses


def _listen(family: int, address: Any) -> socket.socket:
    listener = socket.socket(family)
    listener.bind(address)
    listener.listen(64)
    listener.setblocking(False)
    return listener


def _quiet(look: Any) -> Any:
    try:
        return look()
    except OSError as error:
        return type(error).__name__
