"""The self-check: probes run against a sandbox, each followed by an honest program."""

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from glob import glob
from pathlib import Path
from typing import Any, Final, NamedTuple

from flowzoo.sandbox.attacks.probes import ANSWER, PROBES, AttackProbe
from flowzoo.sandbox.program import CallTest, Limits, Program, StdinTest, Test, Verdict
from flowzoo.sandbox.sandbox import Sandbox
from flowzoo.sandbox.tier import backend_spec

# Files that probes leave on the host after an escape.
LEFTOVER_FILES = tuple(
    f"{folder}/flowzoo-probe*" for folder in ("", "/tmp", "/var/tmp", "/dev/shm", "/run", ".")
)
RUNNER = "flowzoo/sandbox/runner"
SETTLED_S = 20.0  # seconds for orphaned runners to end on a busy machine
HONEST: Final = Program("print(int(input()) + 1)")
HONEST_S: Final = 0.5  # most seconds for accepting an honest program after a probe
SLACK_S: Final = 3.0  # seconds that a verdict may take beyond the time limits of its runs
FDS_MORE: Final = 8  # most descriptors of a starting box


class ProbeResult(NamedTuple):
    """Result of one probe, or of one kind of resource."""

    name: str
    category: str
    expected: str
    got: str
    ok: bool
    promised: bool = True  # reason of the backend, see `BackendSpec.limitations`
    note: str = ""


def run_suite(sandbox: Sandbox, probes: Iterable[AttackProbe] = PROBES) -> Iterator[ProbeResult]:
    """Yield a result per probe, in order, and one per kind of resource.

    With one worker, the next program runs in the box of the probe.
    """
    spec = backend_spec(sandbox.tier)
    with Canaries() as canaries:
        before = count_resources()
        for _ in range(2):  # exclude the first start of a box from the timing
            _judge(sandbox, HONEST, ANSWER, Limits())
        for probe in probes:
            promised = spec.promises(probe.name, probe.category)
            if probe.harmful and not spec.confines:
                note = "would harm the machine or leave it"
                yield ProbeResult(probe.name, probe.category, "", "not run", False, False, note)
                continue
            yield _run_probe(sandbox, canaries, canaries.fill(probe), promised)
        yield from compare_resources(before, settled_resources(before), len(sandbox.box_pids()))


def _run_probe(
    sandbox: Sandbox, canaries: "Canaries", probe: AttackProbe, promised: bool
) -> ProbeResult:
    start = time.perf_counter()
    verdict = _judge(sandbox, Program(probe.source, probe.entry), probe.tests, probe.limits)
    seconds = time.perf_counter() - start
    start = time.perf_counter()
    after = _judge(sandbox, HONEST, ANSWER, Limits())
    honest_s = time.perf_counter() - start
    notes = []
    if verdict.status not in probe.allowed:
        notes.append(_describe(verdict))
    # A check has two sessions, and a program that breaks a box is tried on a second one.
    if seconds > 2 * probe.limits.wall * len(probe.tests) + SLACK_S:
        notes.append(f"the verdict took {seconds:.1f} s")
    if after.status != "AC":
        notes.append(f"the honest program after it: {_describe(after)}")
    elif honest_s > HONEST_S:
        notes.append(f"the honest program after it took {honest_s:.2f} s")
    notes += [f"touched: {name}" for name in canaries.touched()]
    expected, note = " ".join(sorted(probe.allowed)), "; ".join(notes)
    return ProbeResult(
        probe.name, probe.category, expected, verdict.status, not notes, promised, note
    )


def _judge(sandbox: Sandbox, program: Program, tests: Sequence[Test], limits: Limits) -> Verdict:
    return sandbox.run_sync([program], [tests], limits, on_error="verdict")[0]


def _describe(verdict: Verdict) -> str:
    for case in verdict.cases:
        if case.status == verdict.status:
            output = f"{case.stdout[:200]!r} {case.stderr[-200:]!r}"
            return f"{case.status} {case.detail} {output}"
    return verdict.status


def compare_resources(
    before: "ResourceCounts", after: "ResourceCounts", boxes: int
) -> list[ProbeResult]:
    """Compare the resources in use before and after the suite, with `boxes` running now."""
    spare = FDS_MORE * (boxes + 1)
    rows = (
        ("open descriptors of the caller", before.fds + spare, after.fds),
        ("orphaned processes of runners", before.orphans, after.orphans),
        ("files of probes on the host", before.leftovers, after.leftovers),
    )
    return [
        ProbeResult(name, "load", f"at most {most}", str(count), count <= most)
        for name, most, count in rows
    ]


class ResourceCounts(NamedTuple):
    """Resources that the suite must not leave in use."""

    fds: int
    orphans: int  # processes of a runner whose parent is process 1
    leftovers: int  # files of probes outside the boxes


def count_resources() -> ResourceCounts:
    """Count the resources in use now."""
    fds = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    return ResourceCounts(
        fds, _count_orphans(), sum(len(glob(pattern)) for pattern in LEFTOVER_FILES)
    )


def settled_resources(before: ResourceCounts, within: float = SETTLED_S) -> ResourceCounts:
    """Count resources when there are no additional orphans, or after `within` seconds."""
    # Recent orphans, of this or another program, may still be alive.
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

    Context manager; `fill` inserts them into a probe, `touched` lists changes.
    """

    def __init__(self) -> None:
        self.secret = "FLOWZOO-CANARY-" + secrets.token_hex(16)
        self._stack = contextlib.ExitStack()
        self._reported: set[str] = set()

    def __enter__(self) -> "Canaries":
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
        # The secret is the expected value: a program that returns it has read the caller's memory.
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
