"""Commands under a keeper: how they end, and that nothing that they started is left."""

import os
import secrets
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from processes import commands_with, wait_for

from flowzoo.errors import UsageError
from flowzoo.sandbox import keeper
from flowzoo.sandbox.children import MEMORY, keeper_command

WAIT = "import time; time.sleep(600)"
CHILD = f"subprocess.Popen([sys.executable, '-S', '-c', '{WAIT}', TOKEN]"
DEAF = "[signal.signal(n, signal.SIG_IGN) for n in (1, 2, 3, 13, 15)]"
HOSTILE = {
    "child": f"{CHILD})",
    "session": f"{CHILD}, start_new_session=True)",
    "group": f"{CHILD}, process_group=0)",
    "empty environment": f"{CHILD}, env={{}}, start_new_session=True)",
    "daemon": "fork() or (os.setsid(), fork() and os._exit(0), sleep())",
    "orphan": "fork() or (fork() and os._exit(0), sleep())",
    "deaf": f"fork() or ({DEAF}, sleep())",
    "deaf daemon": f"fork() or (os.setsid(), {DEAF}, fork() and os._exit(0), sleep())",
    "no input": "fork() or (os.close(0), sleep())",
    "no streams": "fork() or (os.setsid(), os.closerange(0, 64), sleep())",
    "holds the output": "fork() or (os.setsid(), os.dup(1), sleep())",
    "busy": "fork() or (os.setsid(), [None for _ in iter(int, 1)])",
    "stopped": "fork() or os.kill(os.getpid(), signal.SIGSTOP)",
    "stopped daemon": "fork() or (os.setsid(), os.kill(os.getpid(), signal.SIGSTOP))",
    "chain": "fork() or (os.setsid(), [fork() and os._exit(0) for _ in range(20_000)])",
    "many": "[fork() or (os.setsid(), sleep()) for _ in range(30)]",
    "deep": "all(not fork() for _ in range(12)) and sleep()",
    "subreaper": "fork() or (prctl(36, 1), fork() or (fork() and os._exit(0), sleep()), sleep())",
    "no signal of death": "fork() or (prctl(1, 0), os.setsid(), sleep())",
    "another root": "fork() or (os.setsid(), os.chdir('/'), os.umask(0), sleep())",
    "namespace": "fork() or (libc.unshare(0x20000000), fork(), sleep())",
    "shell": "subprocess.Popen(f'(sleep 600; : {TOKEN}) &', shell=True, start_new_session=True)",
}  # fmt: skip
PREFIX = """
import ctypes, os, signal, subprocess, sys, time
TOKEN, fork, libc = sys.argv[1], os.fork, ctypes.CDLL(None)
prctl = lambda *numbers: libc.prctl(*numbers, 0, 0, 0)
sleep = lambda: time.sleep(600)
"""
MODES = ("namespace", "plain")


def line(mode: str, words: list[str], most: int = 0) -> list[str]:
    """The command line of a keeper, which in the mode `plain` is refused a namespace."""
    command = keeper_command(words, most)
    if mode == "plain":
        at = command.index(str(Path(keeper.__file__)))
        folder = str(Path(keeper.__file__).parent)
        start = f"import sys; sys.path.insert(0, {folder!r}); import keeper; keeper._NEWPID = 1; "
        command[at : at + 1] = ["-c", f"{start}keeper.main()"]
    return command


def program(source: str, token: str = "x") -> list[str]:
    return [sys.executable, "-S", "-c", PREFIX + source, token]


def run(mode: str, words: list[str], **options: int) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(line(mode, words, **options), capture_output=True, timeout=30)


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", HOSTILE)
def test_the_answer_of_a_hostile_command_is_taken_and_nothing_of_it_is_left(name, mode):
    token = secrets.token_hex(8)
    main = f"PID = os.getpid()\n{HOSTILE[name]}\nos.getpid() == PID and print(7, flush=True)"
    done = run(mode, program(main, token))
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, b"7", b"")
    assert commands_with(token) == []


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("end", ["told", "owner killed"])
def test_all_hostile_commands_end_when_it_is_told_and_with_its_owner(end, mode, tmp_path):
    token = secrets.token_hex(8)
    names = [name for name in HOSTILE if name != "deep"]
    parts = [f"if fork() == 0:\n    {HOSTILE[name]}\n    sleep()" for name in names]
    words = program("\n".join([*parts, "print(1, flush=True)", "sleep()"]), token)
    owner = (
        "import os, subprocess, sys; words = sys.argv[1:]; words[words.index('PARENT')] = "
        "str(os.getpid()); child = subprocess.Popen(words); print(child.pid, flush=True); "
        "child.wait()"
    )
    command = ["PARENT" if word == str(os.getpid()) else word for word in line(mode, words)]
    with subprocess.Popen(
        [sys.executable, "-c", owner, *command], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        assert process.stdout.readline() == b"1\n"
        wait_for(lambda: len(commands_with(token)) > 20)
        os.kill(child, signal.SIGTERM) if end == "told" else process.kill()
        wait_for(lambda: not commands_with(token))


ENDS = {"exit 3": 3, "kill -9 $$": -9, "kill -15 $$": -15, "kill -13 $$": -13, "kill -1 $$": -1}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("script", ENDS)
def test_a_keeper_ends_as_its_command(script, mode):
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup ignores it
    try:
        done = run(mode, ["sh", "-c", script])
    finally:
        signal.signal(signal.SIGHUP, before)
    assert (done.returncode, done.stdout, done.stderr) == (ENDS[script], b"", b"")


@pytest.mark.parametrize("mode", MODES)
def test_a_command_that_is_not_there_and_a_line_that_is_too_long(mode):
    done = run(mode, ["/nowhere/at/all"])
    assert done.returncode == 127
    assert done.stderr == b"/nowhere/at/all cannot be started: No such file or directory\n"
    done = run(mode, program("print('x' * 1000); print('y' * 1000)"), most=1000)
    assert (done.returncode, len(done.stdout)) == (0, 2002)
    done = run(mode, program("print('a'); sys.stdout.write('x' * 10**8)"), most=2**20)
    assert done.returncode == -9
    assert len(done.stdout) <= 2**20 + 2**17
    assert done.stderr == b"it wrote a line of more than 1,048,576 bytes\n"


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel bounds data")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["itself", "children", "a session", "a higher limit"])
def test_the_memory_of_each_process_is_bounded(kind, mode, monkeypatch):
    monkeypatch.setenv(MEMORY, str(2**28))
    lead = {
        "itself": "",
        "children": "[fork() and os._exit(os.waitstatus_to_exitcode(os.wait()[1])) for _ in 'ab']",
        "a session": "fork() and os._exit(os.waitstatus_to_exitcode(os.wait()[1])); os.setsid()",
        "a higher limit": "import resource as r; r.setrlimit(r.RLIMIT_DATA, (2**30, 2**30))",
    }[kind]
    done = run(
        mode, program(f"{lead}\nheld = [bytearray(2**24) for _ in range(40)]\nprint(len(held))")
    )
    assert done.stdout == b"" if os.geteuid() or kind != "a higher limit" else b"40\n"
    assert (done.returncode == 1) == (done.stdout == b"")
    assert run(mode, program("held = bytearray(2**26); print(7)")).stdout == b"7\n"


def test_a_bound_of_memory_that_is_no_number_is_refused(monkeypatch):
    for text in ("8GB", "-1", "1", "²", "9" * 40):
        monkeypatch.setenv(MEMORY, text)
        with pytest.raises(UsageError, match=r"FLOWZOO_COMMAND_MEMORY must be a number of bytes"):
            keeper_command(["true"])


@pytest.mark.parametrize("mode", MODES)
def test_of_endless_errors_a_part_is_passed_on_and_the_command_goes_on(mode):
    source = "[os.write(2, bytes(2**20)) for _ in range(30)]; print(7)"
    done = run(mode, program(source), most=2**16)
    assert (done.returncode, done.stdout) == (0, b"7\n")
    assert done.stderr == bytes(2**16) + b"\nits further errors are not shown\n"


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_command_in_a_namespace_sees_no_other_process():
    source = "print(sum(name.isdigit() for name in os.listdir('/proc')), os.getppid())"
    if run("namespace", program(source)).stdout.split()[1] != b"1":
        pytest.skip("this machine allows no namespaces")
    # Itself and the process that started it.
    assert run("namespace", program(source)).stdout.split() == [b"2", b"1"]
