"""A Ray cluster on this machine, and what befalls it.

It runs in a network namespace of its own where there can be one: Ray asks the host for an address
that leads outside, and where that does not lead back nothing connects.
"""

from __future__ import annotations

import fcntl
import importlib
import os
import random
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import ray_warm

NODE: dict[str, Any] = {
    "num_cpus": 1, "object_store_memory": 100 * 2**20, "setup_worker_path": ray_warm.__file__,
    "include_dashboard": False, "include_log_monitor": False, "no_monitor": True,
}  # fmt: skip
"""A node, whose workers are forks of this program."""
HEAVY = ("flowzoo.baselines.training.trainer", "jsonschema", "requests")
"""What this program has imported before it is forked."""
_APART = "FLOWZOO_APART"
_RAY = {
    "RAY_USAGE_STATS_ENABLED": "0", "RAY_DISABLE_MEMORY_MONITOR": "1",
    "RAY_enable_worker_prestart": "0", "RAY_prestart_worker_first_driver": "0",
    "RAY_worker_niceness": "0",
}  # fmt: skip
"""No usage report, no process that is not asked for, and workers as important as other programs."""


def apart() -> list[str]:
    """What gives a command a network namespace of its own; nothing where that cannot be had.

    Root needs no user namespace for that, in which some things are refused to it.
    """
    ways = (["unshare", "-n"], ["unshare", "-rn"]) if shutil.which("unshare") else ()
    for way in ways:
        if not subprocess.run([*way, "true"], stderr=subprocess.DEVNULL, check=False).returncode:
            return way
    return []


def run_apart(
    words: Sequence[str], seconds: float | None = None, **given: Any
) -> subprocess.CompletedProcess[str]:
    """Run a Python program apart from other clusters; modules of this folder can be imported."""
    scratch = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # names of sockets must be short
    there = [str(Path(__file__).parent), str(Path(words[0]).parent), *filter(None, sys.path)]
    variables = {
        **os.environ, **_RAY, _APART: "1", "RAY_TMPDIR": scratch,
        "PYTHONPATH": os.pathsep.join(there),
    }  # fmt: skip
    try:
        return subprocess.run(
            [*apart(), sys.executable, *words], env=variables, text=True, timeout=seconds,
            check=False, **given,
        )  # fmt: skip
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def raise_loopback() -> None:
    """A new network namespace has `lo`, and it is down."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        flags = struct.unpack("16sh", fcntl.ioctl(any_socket, 0x8913, b"lo".ljust(18, b"\0")))[1]
        if not flags & 1:
            fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh", b"lo", flags | 1))


def warm_up() -> int:
    """Import what is heavy and serve workers; the number of the process that does, to be killed."""
    for name in HEAVY:
        importlib.import_module(name)
    return ray_warm.serve(f"{os.environ['RAY_TMPDIR']}/warm")


def start_cluster(*nodes: dict[str, Any]) -> Any:
    """A cluster of these nodes; a raylet has 30 seconds to start, whatever else is running."""
    utils: Any = importlib.import_module("ray._private.utils")
    cluster_utils: Any = importlib.import_module("ray.cluster_utils")
    # As without the dashboard's packages: each node's agent of it takes 6 CPU seconds to start.
    utils.get_dashboard_dependency_error = lambda: ImportError("not wanted")
    for attempt in range(3):
        cluster = cluster_utils.Cluster()
        try:
            cluster.nodes = [cluster.add_node(**node) for node in nodes]
            return cluster
        except Exception:
            cluster.shutdown()
            if attempt == 2:
                raise
    raise AssertionError("unreachable")


@contextmanager
def cluster_of(*nodes: dict[str, Any]) -> Iterator[Any]:
    """A cluster while the block runs."""
    server = warm_up()
    cluster = start_cluster(*nodes)
    try:
        yield cluster
    finally:
        cluster.shutdown()
        os.kill(server, signal.SIGKILL)


class Found(NamedTuple):
    """An actor's process."""

    pid: int
    doing: str
    """The method that it runs, or nothing."""


def workers_now(kind: str = "RolloutWorker") -> list[Found]:
    """The processes of this namespace that are rollout workers now, or actors of another class."""
    mine = os.stat("/proc/self/ns/net").st_ino
    found: list[Found] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            here = os.stat(path.with_name("ns") / "net").st_ino == mine
            title = path.read_bytes().partition(b"\0")[0].decode(errors="replace").strip()
        except OSError:
            continue
        if here and title.startswith(f"ray::{kind}"):
            found.append(Found(int(path.parent.name), title.partition(".")[2]))
    return sorted(found)


@contextmanager
def meanwhile(work: Callable[[threading.Event], None]) -> Iterator[None]:
    """Do `work` in a thread while the block runs; it is told when that ends."""
    over = threading.Event()
    thread = threading.Thread(target=work, args=(over,))
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


class Killer:
    """Kills workers at random moments."""

    def __init__(self, times: int, seed: int = 0, within: float = 1.5) -> None:
        """`times` of them, each at most `within` seconds after the one before."""
        self._left, self._within, self._rng = times, within, random.Random(seed)
        self.done: list[Found] = []

    def __call__(self, over: threading.Event) -> None:
        """Kill, until nothing is left to be done or it is over."""
        while self._left and not over.wait(self._rng.uniform(0, self._within)):
            there = workers_now()
            if there:
                one = self._rng.choice(there)
                os.kill(one.pid, signal.SIGKILL)
                self._left -= 1
                self.done.append(one)
