"""Processes of a matrix as forks: each its own, killed alone, and ended with the matrix."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from processes import is_running, wait_for

from flowzoo.baselines.matrix import forks
from flowzoo.baselines.matrix.forks import Fork

ECHO = """
import os, sys, time
print(os.getpid(), sys.argv, os.environ.get("COLOR"), __name__)
assert sys.argv[1] != "fail", "as asked"
if sys.argv[1] == "wait":
    print("waits", flush=True)
    time.sleep(600)
sys.exit(int(sys.argv[1]))
"""
STARTS = """
import os, sys, pathlib
from flowzoo.baselines.matrix import forks
forks.PRELOADED = ()
fork = forks.Fork(["echo_arguments", "wait"], pathlib.Path(sys.argv[1]), os.environ)
print(fork.pid, flush=True)
fork.wait()
"""


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Variables with which the module `echo_arguments` is found."""
    (tmp_path / "echo_arguments.py").write_text(ECHO)
    monkeypatch.syspath_prepend(tmp_path)
    path = os.pathsep.join([str(tmp_path), str(Path(forks.__file__).parents[3])])
    return {**os.environ, "PYTHONPATH": path}


def test_a_fork_is_as_after_python_m(environment, tmp_path):
    log = tmp_path / "log.txt"
    log.write_text("before\n")
    one = Fork(["echo_arguments", "0"], log, {**environment, "COLOR": "red"})
    two = Fork(["echo_arguments", "7"], tmp_path / "two.txt", environment)
    three = Fork(["echo_arguments", "fail"], tmp_path / "three.txt", environment)
    four = Fork(["nothing.there"], tmp_path / "four.txt", environment)
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


def test_one_is_interrupted_or_killed_and_the_others_go_on(environment, tmp_path):
    logs = [tmp_path / f"{number}.txt" for number in range(3)]
    three = [Fork(["echo_arguments", "wait"], log, environment) for log in logs]
    for log in logs:
        wait_for(lambda log=log: log.exists() and "waits" in log.read_text())
    three[0].send_signal(signal.SIGINT)
    assert three[0].wait(60) == 1
    assert "KeyboardInterrupt" in (tmp_path / "0.txt").read_text()
    three[1].kill()
    assert three[1].wait(60) == -signal.SIGKILL
    assert three[2].poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        three[2].wait(0.2)
    three[2].kill()
    assert three[2].wait(60) == -signal.SIGKILL


@pytest.mark.full
def test_forks_end_with_a_matrix_that_is_killed(environment, tmp_path):
    log = tmp_path / "log.txt"
    words = [sys.executable, "-c", STARTS, str(log)]
    with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True) as matrix:
        pid = int(matrix.stdout.readline())
        wait_for(lambda: log.exists() and "waits" in log.read_text())
        matrix.kill()
    wait_for(lambda: not is_running(pid))
