"""The runner, driven over its frames without the host's side of the sandbox."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from processes import wait_for

from flowzoo.sandbox.runner import codec, wire
from flowzoo.sandbox.runner.wire import BROKEN, CASE, DATA, DONE, JOB, READY, STOP, Frame
from flowzoo.sandbox.tier import probe
from tests.sandbox.judging import children, looping
from tests.tables import read_tables

TABLES = read_tables(__file__)

RUNNER = Path(wire.__file__).parent
LIMITS = {
    "cpu_s": 60.0, "wall_s": 300.0, "memory_mb": 256, "output_bytes": 65_536, "files_mb": 16,
    "threads": 32,
}  # fmt: skip
FIRST_TIER_ONLY = True
NOBODY = 65_534
TIER = probe()
# Another user can start it even where this interpreter lies in somebody's home.
SYSTEM_PYTHON = "/usr/bin/python3"
# Before a command: it is root of a user namespace that has no other user.
ROOTLESS = ("unshare", "--map-root-user")

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="boxes are made of Linux")


class Driver:
    """The host's side of one box, synchronous and as small as it can be."""

    def __init__(
        self, mode: str, python: str = sys.executable, user: int | None = None,
        within: Sequence[str] = (), **options: Any,
    ) -> None:  # fmt: skip
        command = [*within, python, "-I", "-S", "-B", str(RUNNER), mode]
        command += [json.dumps(options)] if options else []
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/", bufsize=0,
            env={"SECRET": "of the caller"}, user=user, group=user,
            extra_groups=[] if user else None,
        )  # fmt: skip
        self.frames: list[Frame] = []
        self.unpacker = wire.FrameDecoder()
        self.count = 0
        self.ready = self.get()

    def get(self) -> Frame:
        while not self.frames:
            data = os.read(self.process.stdout.fileno(), 1 << 20)  # type: ignore[union-attr]
            if not data:
                raise EOFError(f"the box ended with {self.process.wait(60)}")
            # A machine that is busy, which is no test's subject here, is told of at any time.
            self.frames += [f for f in self.unpacker.feed(data) if f.kind != wire.DELAYED]
        return self.frames.pop(0)

    def send(self, kind: int, head: dict, blobs: list[bytes] | None = None) -> None:
        self.process.stdin.write(wire.pack(kind, head, blobs or []))  # type: ignore[union-attr]

    def start(
        self, style: str, blobs: list[bytes], entry: str | None = None, stop: bool = False,
        **limits: float,
    ) -> int:  # fmt: skip
        self.count += 1
        head = {"id": self.count, "style": style, "entry": entry, "tests": len(blobs) - 1}
        self.send(JOB, {**head, "stop": stop, "limits": {**LIMITS, **limits}}, blobs)
        return self.count

    def job(self, style: str, blobs: list[bytes], clean: bool = True, **rest: Any) -> list[Frame]:
        """The CASE frames of a job."""
        number = self.start(style, blobs, **rest)
        cases = []
        while (frame := self.get()).kind == CASE:
            assert frame.head["id"] == number
            cases.append(frame)
        assert frame.kind == DONE, frame
        assert frame.head["clean"] == clean
        return cases

    def run(self, source: str, stdin: str = "", **limits: float) -> Frame:
        """The only case of a program that reads `stdin`."""
        (case,) = self.job("stdin", [source.encode(), stdin.encode()], **limits)
        return case

    def calls(self, source: str, entry: str, *args: tuple, **rest: Any) -> list[Frame]:
        blobs = [codec.encode((arguments, {})) for arguments in args]
        return self.job("call", [source.encode(), *blobs], entry=entry, **rest)

    def close(self) -> int:
        self.process.stdin.close()  # type: ignore[union-attr]
        try:
            return self.process.wait(60)
        finally:
            self.process.kill()
            self.process.stdout.close()  # type: ignore[union-attr]


def outcomes(cases: list[Frame]) -> list[str]:
    return [case.head["outcome"] for case in cases]


def text(case: Frame) -> str:
    return case.blobs[0].decode()


def has_users() -> bool:
    """True if this user can have user namespaces."""
    command = [*ROOTLESS, "true"]
    return bool(shutil.which(command[0])) and not subprocess.run(command, check=False).returncode


AS_NOBODY: dict[str, Any] = {"python": SYSTEM_PYTHON, "user": NOBODY}
KINDS: dict[str, dict[str, Any]] = {
    "namespaces": {}, "landlock": {}, "unsafe": {}, "namespaces-nobody": AS_NOBODY,
    "namespaces-rootless": {"within": ROOTLESS}, "landlock-nobody": AS_NOBODY,
}  # fmt: skip


def make(kind: str) -> Driver:
    mode, options = kind.partition("-")[0], KINDS[kind]
    able = mode == "unsafe" or TIER.checks[mode].ok
    if options is AS_NOBODY:
        able &= os.geteuid() == 0 and os.path.exists(SYSTEM_PYTHON)
    if not able or ("within" in options and not has_users()):
        pytest.skip(f"this machine or user cannot have {kind} boxes")
    driver = Driver(mode, **options)
    if driver.ready.kind != READY and kind == "namespaces-nobody":
        pytest.skip(f"no user namespaces: {driver.ready.head['detail']}")
    assert driver.ready.kind == READY, driver.ready
    return driver


def one_box(request: pytest.FixtureRequest) -> Iterator[Driver]:
    driver = make(request.param)
    yield driver
    assert driver.close() == 0


box = pytest.fixture(one_box, scope="module", params=KINDS)
walled = pytest.fixture(
    one_box, scope="module", params=[kind for kind in KINDS if kind != "unsafe"]
)


@pytest.mark.parametrize("name", TABLES["honest"])
def test_box_runs_honest_programs(box, name):
    case = box.run(TABLES["honest"][name], "41\n")
    assert (case.head["outcome"], case.head["code"], text(case).strip()) == ("exited", 0, "42"), (
        case
    )
    assert case.blobs[1] == b""
    assert case.head["started"]
    assert case.head["memory"] > 2**20
    assert case.head["wall_s"] > 0


ENDS = TABLES["ends"] | {
    "parentheses": ("x=" + "(" * 5000 + ")" * 5000, "compile", 0),
    "minus": ("x=" + "-" * 200_000 + "1", "compile", 0),
}


@pytest.mark.parametrize("name", ENDS)
def test_box_tells_how_programs_end(box, name):
    source, outcome, code = ENDS[name]
    case = box.run(source, **{"cpu": {"cpu_s": 0.3}, "wall": {"wall_s": 1.0}}.get(outcome, {}))
    number = case.head["signal"] if outcome == "signaled" else case.head["code"]
    assert (case.head["outcome"], number) == (outcome, code), case
    assert case.head["memory"] < 400 * 2**20
    assert len(case.blobs[0]) <= LIMITS["output_bytes"]
    assert len(case.blobs[1]) <= 2048
    assert text(box.run("print(int(input()) + 1)", "41")) == "42\n"


def test_traceback_shows_the_program_only(box):
    case = box.run("def f():\n    raise KeyError('\u00e9')\nf()")
    lines = case.blobs[1].decode().splitlines()
    assert [line for line in lines if "File" in line] == [
        '  File "<program>", line 3, in <module>',
        '  File "<program>", line 2, in f',
    ]
    assert lines[-1] == "KeyError: 'é'"


def test_each_test_is_a_new_process_and_stop_ends_at_the_first_failure(box):
    source = b"import sys\nn = int(input())\nprint(n)\nsys.exit(n)"
    cases = box.job("stdin", [source, b"0", b"2", b"0"])
    assert [(case.head["index"], case.head["code"]) for case in cases] == [(0, 0), (1, 2), (2, 0)]
    assert len(box.job("stdin", [source, b"0", b"2", b"0"], stop=True)) == 2
    assert outcomes(box.job("stdin", [b"(", b"", b""])) == ["compile", "compile"]


def test_state_does_not_reach_the_next_program(box):
    box.run(
        "import json, os, sys\njson.dumps = None\nos.environ['A'] = 'b'\nsys.setrecursionlimit(99)"
    )
    probe = "import json, os, sys\nprint(json.dumps(1), 'A' in os.environ, sys.getrecursionlimit())"
    assert text(box.run(probe)).split() == ["1", "False", "1000"]
    first, second = (text(box.run("import random; print(random.random())")) for _ in range(2))
    assert first != second
    assert text(box.run("print(hash('a'))")) == text(box.run("print(hash('a'))"))


def test_files_are_private_to_each_test(box):
    if not box.ready.head["files"]:
        case = box.run("open('/tmp/file-of-nobody', 'w')")
        assert b"PermissionError" in case.blobs[1]
        return
    source = b"""import os
print(os.listdir('.'))
open('a', 'w').write('x')
os.makedirs('b/c')
os.chmod('b', 0)"""
    cases = box.job("stdin", [source, b"", b""])
    assert [text(case) for case in cases] == ["[]\n", "[]\n"], cases
    fill = "f = open('a', 'ab')\nwhile 1: f.write(bytes(2**20))"
    case = box.run(fill, files_mb=3)
    assert case.blobs[1].strip().splitlines()[-1].startswith(b"OSError: ["), case
    assert text(box.run("import os; print(os.listdir('.'))")) == "[]\n"


def test_calls_answer_in_order_and_go_on_after_a_crash(box):
    source = """
import os
count = 0
def f(n):
    global count
    count += 1
    if n == 1: raise KeyError('k"')
    if n == 2: return iter([])
    if n == 3: os._exit(0)
    if n == 4: return bytearray(10**10)
    if n == 5: return 'x' * 10**6
    if n == 6: return [float('nan'), (1, {2}), count]
    print('noise' * 10**6)
    return n
"""
    cases = box.calls(source, "f", *((n,) for n in range(7)))
    assert outcomes(cases) == [
        "returned", "raised", "unplain", "exited", "memory", "output", "returned",
    ]  # fmt: skip
    assert cases[1].head["detail"] == "KeyError: 'k\"'"
    assert cases[2].head["detail"] == "list_iterator"
    assert repr(codec.decode(cases[6].blobs[0])) == "[nan, (1, {2}), 3]"
    assert all(case.head["memory"] > 2**20 for case in cases)
    assert outcomes(box.calls(source, "f", (0,), (1,), (0,), stop=True)) == ["returned", "raised"]


@pytest.mark.parametrize(("source", "outcome", "detail"), TABLES["unloaded"])
def test_calls_of_a_program_that_cannot_be_loaded_are_not_tried_again(box, source, outcome, detail):
    # Each process that loads it says something else.
    source = f"import os\nos.write(2, os.urandom(8).hex().encode())\n{source}"
    limits = {"cpu_s": 0.3} if outcome == "cpu" else {}
    cases = box.calls(source, "f", (1,), (2,), (3,), **limits)
    assert outcomes(cases) == 3 * [outcome]
    assert cases[2].head["detail"].startswith(detail)
    assert len({case.blobs[1] for case in cases}) == 1
    assert len(cases[0].blobs[1]) >= 16 or outcome == "compile"


FORGED = """
import os, struct
def f(n):
    for fd in range(3, 200):
        for kind in b'RLXFCSQ':
            try: os.write(fd, struct.pack('<I', {size}) + bytes([kind]) + b'T' * 40)
            except OSError: pass
    return n
"""


@pytest.mark.parametrize("size", [0, 1, 3, 41, 2**31, 2**32 - 1])
def test_forged_records_hurt_only_the_program(box, size):
    cases = box.calls(FORGED.replace("{size}", str(size)), "f", (5,), (6,), cpu_s=0.5, wall_s=2)
    assert len(cases) == 2
    assert text(box.run("print(1)")) == "1\n"


def test_stop_ends_a_job_without_a_case(box):
    number = box.start("stdin", [b"while 1: pass", b""])
    wait_for(lambda: looping(box.process.pid))
    box.send(STOP, {"id": number})
    frame = box.get()  # a job that its limits ended would have a case first
    assert (frame.kind, frame.head["id"], frame.head["clean"]) == (DONE, number, True)
    box.send(STOP, {"id": number})  # too late: ignored, as is data
    box.send(DATA, {"id": number}, [b"x" * 10**6])
    assert text(box.run("print(1)")) == "1\n"


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the numbers are those of x86_64")
def test_walls_refuse_whatever_reaches_out(walled, tmp_path):
    canary = tmp_path / "canary"
    canary.write_text("seen")
    module = str(RUNNER / "wire.py")
    case = walled.run(TABLES["walls"].replace("CANARY", str(canary)).replace("RUNNER", module))
    lines = text(case).splitlines()
    assert lines[-1] == "end", case
    assert len(lines) == 68
    assert [line for line in lines[:-1] if not line.endswith(" refused")] == []


def test_walls_are_what_refuses(tmp_path):
    """The control: outside, most of these probes succeed."""
    program = tmp_path / "probe.py"
    harmless = TABLES["walls"].split("for name, function in {")[0] + (
        "tries('socket', socket.socket)\ntries('memfd', lambda: os.memfd_create('m'))\n"
        "tries('passwd', lambda: os.open('/etc/passwd', 0))\n"
        "tries('parent', lambda: os.kill(parent, 0))\n"
        "tries('limit', lambda: resource.prlimit(parent, resource.RLIMIT_CPU))\n"
    )
    program.write_text(harmless)
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, check=True)
    assert "refused" not in done.stdout


def test_programs_find_nothing_of_the_runner(box):
    source = """
import gc, os, sys
def is_open(fd):
    try: return bool(os.fstat(fd))
    except OSError: return False
print([fd for fd in range(256) if is_open(fd)])
print(sorted(os.environ))
own = {'job', 'server', 'linux', 'monitor', 'channel', 'start', 'calls', 'inside', 'zygote',
       'delays', 'changes', 'check', 'foresee', 'opening', 'codec', 'workspace', 'answers',
       'semaphores'}
print([name for name in sys.modules if name in own])
kinds = {type(o).__name__ for o in gc.get_objects()}
own = {'BoxServer', 'RunnerJob', 'ProcessMonitor', 'HostChannel', 'BoxContext', 'Zygote',
       'ConfinementPlan', 'ZygoteServer', 'Confinement', 'ProcessTask'}
print(kinds & own)
frame, names = sys._getframe(), set()
while frame := frame.f_back: names |= {type(v).__name__ for v in frame.f_locals.values()}
print(names & own)
print(sys.argv, __name__)
"""
    lines = text(box.run(source)).splitlines()
    assert lines == [
        "[0, 1, 2]", "['HOME', 'LANG', 'PATH']", "[]", "set()", "set()", "['program.py'] __main__",
    ]  # fmt: skip


def memory_of(pid: int) -> bytes:
    """All writable memory of a process."""
    parts = []
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb") as memory:
        for line in maps:
            span, rights = line.split()[:2]
            if rights.startswith("rw"):
                start, end = (int(part, 16) for part in span.split("-"))
                memory.seek(start)
                parts.append(memory.read(end - start))
    return b"".join(parts)


def runner_pid(driver: Driver) -> int:
    """The runner's process: the child of the one that was started, where that has one."""
    pid = driver.process.pid
    if driver.ready.head["pid"] != 1:
        return pid
    return children(pid)[0]


@pytest.mark.skipif(os.geteuid() != 0, reason="reads the memory of another process")
def test_no_job_reaches_the_memory_that_programs_are_copies_of(walled):
    secrets = [
        f"{word}-{os.urandom(8).hex()}" for word in ("source", "stdin", "out", "err", "raise")
    ]
    source, stdin, out, err, message = secrets
    half = {word: (word[:8], word[8:]) for word in (out, err, message)}
    program = (
        f"# {source}\nimport sys\nprint(''.join({half[out]!r}) * 50)\n"
        f"print(''.join({half[err]!r}) * 500, file=sys.stderr)\n"
        f"raise ValueError(''.join({half[message]!r}))"
    )
    case = walled.run(program, stdin * 100)
    assert out.encode() in case.blobs[0]
    assert message.encode() in case.blobs[1]
    call = f"def f(x):\n  '{source}'\n  raise ValueError(x)"
    (raised,) = walled.calls(call, "f", (stdin,))
    assert stdin in raised.head["detail"]
    (returned,) = walled.calls("def f(x): return [x] * 100", "f", (stdin,))
    assert stdin.encode() in returned.blobs[0]
    (zygote,) = children(runner_pid(walled))
    wait_for(lambda: children(zygote))
    (waiting,) = children(zygote)
    for pid in (zygote, waiting):
        held = memory_of(pid)
        assert len(held) > 2**20
        for secret in secrets:
            assert secret.encode() not in held, secret


def test_an_order_to_stop_never_hits_the_next_program(box):
    for round in range(40):
        number = box.start("stdin", [b"print(1)", b""])
        time.sleep(0.0003 * (round % 10))
        box.send(STOP, {"id": number})
        while box.get().kind != DONE:
            pass
        assert text(box.run("print(int(input()) + 1)", "41")) == "42\n"


@pytest.mark.parametrize("sizes", [(1, 3, 3, 1), (16, 1, 16)])
def test_programs_may_have_files_of_different_sizes(box, sizes):
    for size in sizes:
        case = box.run("print(open('a', 'w').write('x' * 100_000))", files_mb=size)
        allowed = box.ready.head["files"]
        assert text(case) == ("100000\n" if allowed else ""), case


@pytest.mark.skipif(os.geteuid() != 0, reason="starts boxes as other users")
@pytest.mark.parametrize("kind", ["namespaces", "landlock"])
def test_nothing_is_left_when_the_host_or_the_box_dies(kind):
    driver = make(kind)
    driver.start("stdin", [b"while 1: pass", b""], cpu_s=120)
    wait_for(lambda: looping(driver.process.pid))
    pid = runner_pid(driver)
    (zygote,) = children(pid)
    (program,) = children(zygote)
    driver.process.kill()
    driver.process.wait(60)
    left = [Path(f"/proc/{process}") for process in (pid, zygote, program)]
    wait_for(lambda: not any(path.exists() for path in left))


def test_end_of_the_stream_ends_a_busy_box():
    driver = make("unsafe")
    driver.start("stdin", [b"while 1: pass", b""], cpu_s=300)
    wait_for(lambda: looping(driver.process.pid))
    assert driver.close() in (0, 1)  # which waits a minute at most


@pytest.mark.parametrize(
    ("mode", "options", "message"),
    [
        ("docker", {}, "needs a separate container"),
        ("nowhere", {}, "unknown mode 'nowhere'"),
        ("unsafe", {"color": 1}, "unknown options"),
    ],
)
def test_runner_says_why_it_does_not_start(mode, options, message):
    driver = Driver(mode, **options)
    assert driver.ready.kind == BROKEN
    assert message in driver.ready.head["detail"]
    assert driver.close() == 1


@pytest.mark.skipif(not has_users(), reason="needs user namespaces")
def test_a_zygote_that_is_refused_something_is_said_before_the_box_is_ready():
    """Its user is none of the namespace's. On one core the runner mostly would speak first."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        for _ in range(8):
            driver = Driver("docker", within=[*ROOTLESS, "--pid", "--fork"])
            driver.close()
            assert driver.ready.kind == BROKEN
            assert "Operation not permitted" in driver.ready.head["detail"]
    finally:
        os.sched_setaffinity(0, cores)


def test_runner_refuses_a_broken_stream():
    driver = make("unsafe")
    driver.process.stdin.write(b"\xff" * 64)  # type: ignore[union-attr]
    assert driver.get().kind == BROKEN
    assert driver.close() == 1
