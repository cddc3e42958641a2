"""Code in another process, and waiting for threads and processes."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path


def run_python(code: str, *args: str, **variables: str) -> str:
    """Standard output of code in a Python of its own; it must end with status 0."""
    command = [sys.executable, "-c", code, *args]
    environment = {**os.environ, **variables}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def wait_for(condition: Callable[[], object], seconds: float = 60.0) -> None:
    """Return as soon as the condition is true; fail if it is not after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)


def is_running(pid: int) -> bool:
    """True if there is such a process, and it is no zombie."""
    done = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True)
    return bool(done.stdout.strip()) and not done.stdout.strip().startswith("Z")


def commands_with(word: str) -> list[str]:
    """Command lines of the other processes that have a word."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = file.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:  # it has ended
            continue
        if word in line and file.parent.name != str(os.getpid()):
            found.append(line)
    return found
