"""Programs per second through the sandbox, beside fork+exec, `docker exec` and `docker run`.

    python benchmarks/sandbox_speed.py                     # every backend this machine can run
    python benchmarks/sandbox_speed.py --backend docker --rounds 9
    python benchmarks/sandbox_speed.py --soak 10000        # 10,000 mixed programs, what they leave

All methods run the same trivial program with fresh state for each run and as many in flight, in
interleaved rounds of one process, so that a busy machine slows all of them. Ratios are taken within
a round. The peers: `fork+exec` starts `python -I -S` without any isolation; `docker exec` starts it
in a warm container and `docker run --rm` in a new one, as commands; `exec API` and `run API` do the
same through the engine's API, without a client program to start, and the latter without waiting for
the container's removal. All containers are locked down like the sandbox's own; an exec'ed program
finds what the one before it left in /tmp. Latencies are of one program at a time.
"""

from __future__ import annotations

import argparse
import gc
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flowzoo.provenance import usable_cores
from flowzoo.sandbox.docker.container import USER_ID, container_config
from flowzoo.sandbox.docker.engine import connect
from flowzoo.sandbox.docker.image import ensure_image
from flowzoo.sandbox.docker.reaper import NONCE, owner_labels, remove_all
from flowzoo.sandbox.docker.rootfs import ENTRYPOINT
from flowzoo.sandbox.docker.seccomp import profile_text
from flowzoo.sandbox.program import Limits, Program, StdinTest
from flowzoo.sandbox.sandbox import Sandbox
from flowzoo.sandbox.tier import probe

SOURCE = "print(int(input()) + 1)"
TEST = StdinTest("41\n", "42\n")
OUTPUT = b"42\n"
ALONE = ["-I", "-S", "-c", SOURCE]

Method = Callable[[], None]
"""Runs one program and checks its output."""


def exec_process() -> None:
    """A bare process, not confined at all."""
    done = subprocess.run([sys.executable, *ALONE], input=b"41\n", capture_output=True, check=True)
    if done.stdout != OUTPUT:
        raise RuntimeError(f"fork+exec printed {done.stdout!r}")


def talk_to(command: Sequence[str]) -> None:
    """One program by a command of Docker's client."""
    done = subprocess.run(["docker", *command], input=b"41\n", capture_output=True, check=False)
    if done.stdout != OUTPUT:
        raise RuntimeError(f"docker {command[0]} printed {done.stdout!r} and {done.stderr!r}")


def run_options(profile: Path) -> list[str]:
    """The sandbox's own confinement, as `docker run` takes it; `profile` is a file for seccomp."""
    host = container_config("", {})["HostConfig"]
    return [
        "--rm", "--interactive", "--network=none", "--read-only", "--cap-drop=ALL",
        *(f"--cap-add={name}" for name in host["CapAdd"]), "--security-opt=no-new-privileges:true",
        f"--security-opt=seccomp={profile}", f"--memory={host['Memory']}",
        f"--memory-swap={host['MemorySwap']}", f"--pids-limit={host['PidsLimit']}",
        f"--cpus={host['NanoCpus'] / 1e9}", "--ipc=none", "--log-driver=none",
        f"--tmpfs=/tmp:{host['Tmpfs']['/tmp']}", f"--oom-score-adj={host['OomScoreAdj']}",
        "--ulimit=core=0", "--user=0:0", f"--entrypoint={ENTRYPOINT[0]}",
    ]  # fmt: skip


class Engine:
    """The ways in which Docker is commonly driven, one program each."""

    def __init__(self) -> None:
        self.client, info = connect()
        self.image = ensure_image(self.client, info)
        self.nonce = uuid.uuid4().hex
        self.warm = self._create(["-I", "-S", "-c", "import time; time.sleep(10**6)"])
        self.client.api.start(self.warm)
        self._folder = tempfile.TemporaryDirectory()
        profile = Path(self._folder.name) / "seccomp.json"
        profile.write_text(profile_text())
        self._options = run_options(profile)

    def run_command(self) -> None:
        """A container for the program, by the command."""
        talk_to(["run", *self._options, self.image.id, *ALONE])

    def exec_command(self) -> None:
        """A process in the warm container, by the command."""
        user = f"--user={USER_ID}:{USER_ID}"
        talk_to(["exec", "--interactive", user, self.warm, ENTRYPOINT[0], *ALONE])

    def run(self) -> None:
        """A container for the program."""
        container = self._create(ALONE)
        params = {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}
        raw = self.client.api.attach_socket(container, params=params)
        self.client.api.start(container)
        self._talk(raw, "run API")

    def exec(self) -> None:
        """A process in the warm container."""
        command = [ENTRYPOINT[0], *ALONE]
        user = f"{USER_ID}:{USER_ID}"
        made = self.client.api.exec_create(self.warm, command, stdin=True, user=user)
        self._talk(self.client.api.exec_start(made["Id"], socket=True), "exec API")

    def close(self) -> None:
        """Remove the containers."""
        self._folder.cleanup()
        remove_all(self.client, self.nonce)
        self.client.close()

    def _create(self, command: list[str]) -> str:
        config = container_config(self.image.id, owner_labels(self.nonce))
        config |= {"Entrypoint": ENTRYPOINT[:1], "Cmd": command}
        return self.client.api.create_container_from_config(config)["Id"]

    @staticmethod
    def _talk(raw: Any, name: str) -> None:
        """Send the input, read to the end; each piece of output stands behind eight bytes."""
        raw._sock.sendall(b"41\n")
        answer = b""
        while data := raw._sock.recv(4096):
            answer += data
        raw.close()
        if answer[8:] != OUTPUT:
            raise RuntimeError(f"{name} printed {answer!r}")


def throughput(method: Method, count: int, workers: int) -> float:
    """Programs per second with `workers` in flight."""
    start = time.perf_counter()
    with ThreadPoolExecutor(workers) as threads:
        for done in [threads.submit(method) for _ in range(count)]:
            done.result()
    return count / (time.perf_counter() - start)


def pool_throughput(sandbox: Sandbox, count: int) -> float:
    """Programs per second of one batch."""
    start = time.perf_counter()
    verdicts = sandbox.run_sync([Program(SOURCE)] * count, [[TEST]] * count)
    rate = count / (time.perf_counter() - start)
    if any(verdict.status != "AC" for verdict in verdicts):
        raise RuntimeError(f"{sandbox.tier}: {Counter(verdict.status for verdict in verdicts)}")
    return rate


def latencies(method: Method, count: int) -> list[float]:
    """Seconds of each program, one at a time."""
    taken = []
    for _ in range(count):
        start = time.perf_counter()
        method()
        taken.append(time.perf_counter() - start)
    return taken


def spread(values: Sequence[float], digits: int = 0) -> str:
    """Median with minimum and maximum."""
    low, mid, high = min(values), statistics.median(values), max(values)
    return f"{mid:,.{digits}f} (min {low:,.{digits}f}, max {high:,.{digits}f})"


def percentile(values: Sequence[float], share: float) -> float:
    """The value that `share` of all do not exceed."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def measure(names: Sequence[str], rounds: int, workers: int) -> None:
    """Print the table of speeds, the ratios and the latencies."""
    pools = {name: Sandbox(name, workers=workers) for name in names}  # pyright: ignore
    engine = Engine() if "docker" in names else None
    peers: dict[str, tuple[Method, int]] = {"fork+exec": (exec_process, 100)}
    if engine is not None:
        peers |= {"exec API": (engine.exec, 24), "run API": (engine.run, 12)}
        if shutil.which("docker"):
            peers |= {"docker exec": (engine.exec_command, 24)}
            peers |= {"docker run": (engine.run_command, 12)}
        else:
            print("no `docker` command here: its peers are left out")
    rates: dict[str, list[float]] = {}
    try:
        for name, pool in pools.items():
            pool_throughput(pool, 4 * workers)
            print(f"{name:12s} {pool.trust}")
        for _ in range(rounds):
            for name, (method, count) in peers.items():
                rates.setdefault(name, []).append(throughput(method, count, workers))
            for name, pool in pools.items():
                rates.setdefault(name, []).append(pool_throughput(pool, 400))
        print(f"{rounds} rounds, {workers} in flight, {usable_cores()} cores")
        for name, values in rates.items():
            print(f"{name:24s} {spread(values)} programs/s")
        for name in pools:
            for peer in peers:
                ratios = [a / b for a, b in zip(rates[name], rates[peer], strict=True)]
                print(f"{f'{name} / {peer}':24s} {spread(ratios, 1)} times")
        for name, (method, count) in peers.items():
            print_latencies(name, latencies(method, count))
        for name, pool in pools.items():
            print_latencies(name, latencies(lambda pool=pool: _one(pool), 400))
    finally:
        for pool in pools.values():
            pool.close_sync()
        if engine is not None:
            engine.close()


def _one(pool: Sandbox) -> None:
    """One program of its own."""
    pool_throughput(pool, 1)


def print_latencies(name: str, taken: Sequence[float]) -> None:
    """One line."""
    mid, late = 1e3 * percentile(taken, 0.5), 1e3 * percentile(taken, 0.99)
    print(f"{name:24s} p50 {mid:.1f} ms, p99 {late:.1f} ms ({len(taken)} programs)")


# Source -> verdict, with a weight: most programs are honest, as they are in training.
MIXED: tuple[tuple[str, str, int], ...] = (
    (SOURCE, "AC", 60),
    ("n = int(input()); print(sum(range(n + 2)) - sum(range(n + 1)))", "AC", 20),
    ("print(int(input()) + 2)", "WA", 7),
    ("raise ValueError(input())", "RE", 4),
    ("print(", "CE", 3),
    ("import os; os._exit(7)", "RE", 2),
    ("print('x' * 10**6)", "OLE", 1),
    ("data = bytearray(10**10)", "MLE", 1),
    ("import os, threading, time\n"
     "for _ in range(8): threading.Thread(target=time.sleep, args=(9,)).start()\n"
     "os._exit(3)", "RE", 1),
    ("while True: pass", "TLE", 1),
)  # fmt: skip


def soak(name: str, count: int, workers: int) -> bool:
    """Run `count` mixed programs; print what was before, what is after; whether all is well."""
    kinds = [row for row in MIXED for _ in range(row[2])]
    limits = Limits(cpu_s=0.3, wall_s=3.0, memory_mb=128)
    ok = True
    with counted_containers(name) as containers:
        with Sandbox(name, workers=workers) as sandbox:  # pyright: ignore
            pool_throughput(sandbox, 4 * workers)
            before = (*load(), containers())
            print(f"{name}: {count} programs, {workers} boxes; {sandbox.trust}")
            print_load("before", before)
            start = time.perf_counter()
            for first in range(0, count, 1000):
                picked = [
                    kinds[i * 37 % len(kinds)] for i in range(first, min(first + 1000, count))
                ]
                programs = [Program(source) for source, _, _ in picked]
                verdicts = sandbox.run_sync(programs, [[TEST]] * len(picked), limits)
                wrong = Counter(
                    f"{row[1]} came as {verdict.status}"
                    for row, verdict in zip(picked, verdicts, strict=True)
                    if row[1] != verdict.status
                )
                if wrong:
                    ok = False
                    print(f"unexpected verdicts: {dict(wrong)}")
            rate = count / (time.perf_counter() - start)
            print_load("after", (*load(), containers()))
        print_load("closed", (*load(), containers()))
    print(f"{rate:,.0f} programs/s")
    return ok


@contextmanager
def counted_containers(name: str) -> Iterator[Callable[[], int]]:
    """What counts the engine's containers that carry the sandbox's labels."""
    if name != "docker":
        yield lambda: 0
        return
    client, _ = connect()
    try:
        yield lambda: len(client.api.containers(all=True, filters={"label": NONCE}))
    finally:
        client.close()


def load() -> tuple[int, int, float]:
    """Processes of the machine, descriptors of this process, its resident memory in MB."""
    gc.collect()
    processes = sum(entry.name.isdigit() for entry in Path("/proc").iterdir())
    descriptors = len(os.listdir("/proc/self/fd"))
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return processes, descriptors, pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def print_load(when: str, facts: tuple[int, int, float, int]) -> None:
    """One line."""
    processes, descriptors, memory, containers = facts
    print(
        f"  {when:7s} {processes} processes, {descriptors} descriptors, {memory:.0f} MB, "
        f"{containers} containers"
    )


def available() -> list[str]:
    """The backends that this machine can run, best first."""
    tier = probe()
    found = {
        "docker": tier.docker.ok,
        "namespaces": tier.namespaces.ok and tier.seccomp,
        "landlock": tier.landlock_abi >= 1 and tier.seccomp,
    }
    return [name for name, ok in found.items() if ok]


def main() -> int:
    """Measure or soak; the exit status is 1 if a soaked program got an unexpected verdict."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--backend", action="append", help="of the sandbox; may be repeated")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--workers", type=int, default=2 * usable_cores(), help="in flight")
    parser.add_argument("--soak", type=int, metavar="N", help="run N mixed programs instead")
    options = parser.parse_args()
    names = options.backend or available()
    if not options.soak:
        measure(names, options.rounds, options.workers)
        return 0
    return max(int(not soak(name, options.soak, options.workers)) for name in names)


if __name__ == "__main__":
    sys.exit(main())
