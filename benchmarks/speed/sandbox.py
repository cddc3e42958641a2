"""Programs through the sandbox, beside `fork+exec`, `docker exec` and `docker run`.

All run the same trivial program with fresh state for each run and as many in flight, in turns, so
that a busy machine slows all of them. The peers: `fork+exec` starts `python -I -S` without any
isolation; `docker exec` starts it in a warm container and `docker run --rm` in a new one, as
commands; `exec API` and `run API` do the same through the engine's API, without a client program,
and the latter without waiting for the container's removal. All containers are locked down like the
sandbox's own; an exec'ed program finds what the one before it left in /tmp. CPU time does
not see what a Docker engine does: read the wall time.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.harness.record import Row
from benchmarks.harness.timing import Contender, Workload, race
from flowzoo.provenance import usable_cores
from flowzoo.sandbox.docker.boxes import owner_labels, remove_all
from flowzoo.sandbox.docker.container import USER_ID, container_config, profile_text
from flowzoo.sandbox.docker.engine import connect
from flowzoo.sandbox.docker.image import ensure_image
from flowzoo.sandbox.docker.rootfs import ENTRYPOINT
from flowzoo.sandbox.program import Program, StdinTest
from flowzoo.sandbox.sandbox import Sandbox
from flowzoo.sandbox.tier import probe

SOURCE = "print(int(input()) + 1)"
TEST = StdinTest("41\n", "42\n")
OUTPUT = b"42\n"
ALONE = ["-I", "-S", "-c", SOURCE]
PROGRAMS, EXECUTED, CONTAINERS = 400, 24, 8
"""Programs of a round: of a sandbox, of Docker's exec, and of its run."""


def usable_tiers() -> list[str]:
    """The tiers that work here, strongest first."""
    return [name for name, check in probe().checks.items() if check.ok]


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


class DockerPeers:
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


def in_flight(method: Callable[[], None], count: int, workers: int) -> Callable[[], int]:
    """Work: so many programs, `workers` at a time."""

    def work() -> int:
        with ThreadPoolExecutor(workers) as threads:
            for done in [threads.submit(method) for _ in range(count)]:
                done.result()
        return count

    return work


def pooled(sandbox: Sandbox, count: int) -> int:
    """Programs of one batch."""
    verdicts = sandbox.run_sync([Program(SOURCE)] * count, [[TEST]] * count)
    if any(verdict.status != "AC" for verdict in verdicts):
        raise RuntimeError(f"{sandbox.tier}: {Counter(verdict.status for verdict in verdicts)}")
    return count


def measure(workload: Workload) -> Iterator[Row]:
    """Throughput of everything in turns."""
    workers = 2 * usable_cores()
    tiers, programs = usable_tiers(), workload.scaled(PROGRAMS, 8)
    peers: dict[str, tuple[Callable[[], None], int]] = {"fork+exec": (exec_process, programs // 4)}
    absent = {
        name: "not usable on this machine"
        for name in ("docker", "namespaces", "landlock")
        if name not in tiers
    }
    with contextlib.ExitStack() as stack:
        pools = {name: stack.enter_context(Sandbox(name, workers=workers)) for name in tiers}  # type: ignore[arg-type]
        if "docker" in tiers:
            engine = stack.enter_context(contextlib.closing(DockerPeers()))
            executed, made = workload.scaled(EXECUTED, 2), workload.scaled(CONTAINERS, 1)
            peers |= {"exec API": (engine.exec, executed), "run API": (engine.run, made)}
            if shutil.which("docker"):
                peers |= {
                    "docker exec": (engine.exec_command, executed),
                    "docker run": (engine.run_command, made),
                }
            else:
                absent |= dict.fromkeys(("docker exec", "docker run"), "no command `docker` here")
        for pool in pools.values():
            pooled(pool, 4 * workers)
        contenders = [
            *(
                Contender(name, in_flight(method, max(1, count), workers))
                for name, (method, count) in peers.items()
            ),
            *(
                Contender(f"sandbox, {name}", lambda pool=pool: pooled(pool, programs))
                for name, pool in pools.items()
            ),
        ]
        yield {
            "case": f"trivial programs, {workers} in flight", "unit": "program", "absent": absent,
            **race(contenders, workload.rounds, tree=True),
        }  # fmt: skip
