"""Processes of a matrix as forks: each its own, killed alone, and ended with the matrix."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from flowzoo.baselines.matrix import forks
from flowzoo.baselines.matrix.forks import RunServer

SAID = """
import os, sys, time
print(os.getpid(), sys.argv, os.environ.get("COLOUR"), __name__)
assert sys.argv[1] != "fail", "as asked"
if sys.argv[1] == "wait":
    print("waits", flush=True)
    time.sleep(600)
sys.exit(int(sys.argv[1]))
"""
STARTS = """
import os, sys, pathlib
from flowzoo.baselines.matrix.forks import RunServer
server = RunServer(os.environ)
fork = server.start(["said", "wait"], pathlib.Path(sys.argv[1]), os.environ)
print(fork.pid, flush=True)
fork.wait()
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Where the module `said` is found, and nothing is imported ahead."""
    (tmp_path / "said.py").write_text(SAID)
    # The server of these tests is not to import torch, which `test_matrix.py` has it do.
    for name in ("torch", "transformers", "numba"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('not here')")
    path = os.pathsep.join([str(tmp_path), str(Path(forks.__file__).parents[3])])
    return {**os.environ, "PYTHONPATH": path}


@pytest.fixture
def server(environment: dict[str, str]) -> Iterator[RunServer]:
    found = RunServer(environment)
    yield found
    found.close()


def ended(pid: int) -> bool:
    """Whether a process has ended, waiting for it up to a minute."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


def wait_for(log: Path, text: str) -> None:
    deadline = time.monotonic() + 60
    while text not in (log.read_text() if log.exists() else ""):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_fork_is_as_after_python_m(
    server: RunServer, environment: dict[str, str], tmp_path: Path
) -> None:
    log = tmp_path / "log.txt"
    log.write_text("before\n")
    one = server.start(["said", "0"], log, {**environment, "COLOUR": "red"})
    two = server.start(["said", "7"], tmp_path / "two.txt", environment)
    three = server.start(["said", "fail"], tmp_path / "three.txt", environment)
    four = server.start(["nothing.there"], tmp_path / "four.txt", environment)
    assert [one.wait(60), two.wait(60), three.wait(60), four.wait(60)] == [0, 7, 1, 1]
    first, line = log.read_text().splitlines()
    assert first == "before"
    assert line.startswith(f"{one.pid} [")
    assert line.endswith("'0'] red __main__")
    assert "None __main__" in (tmp_path / "two.txt").read_text()
    assert "AssertionError: as asked" in (tmp_path / "three.txt").read_text()
    assert "No module named 'nothing'" in (tmp_path / "four.txt").read_text()
    assert one.poll() == 0
    one.kill()  # what has ended is let alone, whoever has its number now


def test_one_is_interrupted_or_killed_and_the_others_go_on(
    server: RunServer, environment: dict[str, str], tmp_path: Path
) -> None:
    three = [server.start(["said", "wait"], tmp_path / f"{n}.txt", environment) for n in range(3)]
    for number in range(3):
        wait_for(tmp_path / f"{number}.txt", "waits")
    three[0].send_signal(signal.SIGINT)
    assert three[0].wait(60) == 1
    assert "KeyboardInterrupt" in (tmp_path / "0.txt").read_text()
    three[1].kill()
    assert three[1].wait(60) == -signal.SIGKILL
    assert three[2].poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        three[2].wait(0.2)
    if sys.platform.startswith("linux"):
        server.close()
        assert ended(three[2].pid)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="PR_SET_PDEATHSIG is Linux's")
def test_a_server_whose_matrix_ended_meanwhile_ends_without_a_word(
    environment: dict[str, str], tmp_path: Path
) -> None:
    mine, theirs = socket.socketpair()
    job = {"arguments": ["said", "0"], "log": str(tmp_path / "0.txt"), "environment": environment}
    mine.sendall((json.dumps(job) + "\n").encode())
    mine.close()  # as Ctrl-C does while the server still imports
    words = [sys.executable, "-m", forks.__name__, str(theirs.fileno())]
    done = subprocess.run(
        words, env=environment, pass_fds=[theirs.fileno()], capture_output=True, text=True
    )
    theirs.close()
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.full
def test_forks_end_with_a_matrix_that_is_killed(
    environment: dict[str, str], tmp_path: Path
) -> None:
    words = [sys.executable, "-c", STARTS, str(tmp_path / "log.txt")]
    with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True) as matrix:
        assert matrix.stdout is not None
        pid = int(matrix.stdout.readline())
        wait_for(tmp_path / "log.txt", "waits")
        matrix.kill()
    assert ended(pid)
