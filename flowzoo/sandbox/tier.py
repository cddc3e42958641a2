"""Which isolation this machine offers: docker, namespaces, landlock or none.

Nothing is started, changed or written: the engine is pinged, namespaces are tried in a child that
exits at once, Landlock and seccomp are asked for their presence. `choose` says which tier the
sandbox takes under `auto`: the first of the three that works, and none rather than an unsafe one.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
import socket
import subprocess
import sys
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from flowzoo.errors import check_choice, errno_of, need_module
from flowzoo.extras import installed, remedy

TierName = Literal["docker", "namespaces", "landlock", "none"]

SandboxName = Literal["auto", "docker", "namespaces", "landlock", "unsafe"]
"""What a user may ask for: `auto` is the best tier that works here, never `unsafe`."""

TRUST: dict[str, str] = {
    "docker": "docker: a container without network, capabilities or writable disk",
    "namespaces": "namespaces: own mount, process, network and IPC namespaces, seccomp; the "
    "kernel is shared and no container engine stands between",
    "landlock": "landlock: no file writes, sockets or forks (Landlock, seccomp); processes and "
    "limits of the machine are shared",
    "unsafe": "unsafe: limits of time and memory only; a program can read, write and reach "
    "whatever this user can",
    "none": "none: this machine cannot confine programs, so untrusted code is not run",
}
"""What each tier protects, in one line: printed by `flowzoo doctor` and kept in run records."""

USUAL_HOST = "unix:///var/run/docker.sock"
PING_TIMEOUT = 2
"""Seconds the container engine has for its answer; a running one needs milliseconds."""

_LANDLOCK_CREATE_RULESET = 444  # the same number on every architecture Python 3.11 runs on
_LANDLOCK_VERSION_FLAG = 1

# Runs in a child of its own: unshare cannot be undone. With NEWUSER the process is root in a user
# namespace of its own. The mount is part of the test because Ubuntu 24.04 grants an unprivileged
# user the namespaces and then refuses every operation inside them.
_NAMESPACE_TEST = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
NEWNS, NEWCGROUP, NEWUTS, NEWIPC = 0x20000, 0x2000000, 0x4000000, 0x8000000
NEWUSER, NEWPID, NEWNET = 0x10000000, 0x20000000, 0x40000000
REC, PRIVATE = 0x4000, 0x40000
flags = NEWNS | NEWCGROUP | NEWUTS | NEWIPC | NEWPID | NEWNET
def need(call, result):
    if result != 0:
        print(call + ": " + os.strerror(ctypes.get_errno()))
        sys.exit(1)
need("unshare", libc.unshare(ctypes.c_int(flags | (NEWUSER if sys.argv[1] == "user" else 0))))
need("mount private", libc.mount(b"none", b"/", None, ctypes.c_ulong(REC | PRIVATE), None))
need("mount tmpfs", libc.mount(b"tmpfs", b"/tmp", b"tmpfs", ctypes.c_ulong(0), None))
"""


@dataclass(frozen=True, slots=True)
class TierCheck:
    """Whether one thing works, and in a few words why or why not."""

    ok: bool
    detail: str


@dataclass(frozen=True, slots=True)
class Tier:
    """What the probe found."""

    name: TierName
    """The tier that `auto` takes."""
    docker: TierCheck
    namespaces: TierCheck
    landlock_abi: int
    """Version of the kernel's Landlock interface; 0 where there is none."""
    seccomp: bool
    """The kernel accepts seccomp filters."""

    @property
    def trust(self) -> str:
        """One line about how far a program run under this tier is confined."""
        return TRUST[self.name]


def choose(docker: bool, namespaces: bool, landlock_abi: int, seccomp: bool) -> TierName:
    """The best tier that works; the two without a container engine need seccomp besides."""
    if docker:
        return "docker"
    if namespaces and seccomp:
        return "namespaces"
    if landlock_abi >= 1 and seccomp:
        return "landlock"
    return "none"


def probe() -> Tier:
    """Look at this machine; takes a few hundredths of a second when no engine hangs. Never raises.

    Off Linux only docker is looked for: the other tiers are kernel interfaces of Linux.
    """
    docker = probe_docker()
    if platform.system() != "Linux":
        absent = TierCheck(False, f"needs Linux, this is {platform.system()}")
        return Tier(choose(docker.ok, False, 0, False), docker, absent, 0, False)
    namespaces = probe_namespaces()
    abi, seccomp = landlock_abi(), has_seccomp()
    return Tier(choose(docker.ok, namespaces.ok, abi, seccomp), docker, namespaces, abi, seccomp)


def check_sandbox(name: SandboxName) -> None:
    """Refuse an unknown sandbox, and one whose Python module is not installed.

    Raises:
        UsageError: there is no such sandbox.
        MissingExtraError: the Docker sandbox without the extra `docker`.
    """
    check_choice("sandbox", name, SandboxName)
    if name == "docker":
        need_module("docker", "the Docker sandbox")


def engine_host() -> str:
    """Address of the engine: `DOCKER_HOST`, else the usual socket."""
    return os.environ.get("DOCKER_HOST") or USUAL_HOST


def probe_docker() -> TierCheck:
    """Ping the engine that `DOCKER_HOST` names (default: the usual socket). Never raises.

    An engine that answers is not enough: the sandbox drives it through the Python module `docker`.
    """
    if not installed("docker"):
        found = ping_engine(engine_host())
        if not found.ok:
            return found
        missing = f"the module `docker` is missing: {remedy('docker')}"
        return TierCheck(False, f"{found.detail}, but {missing}")
    import docker

    try:
        client = docker.from_env(timeout=PING_TIMEOUT)
        with contextlib.closing(client):
            client.ping()
            return TierCheck(
                True, f"engine {client.version().get('Version', 'of unknown version')}"
            )
    except Exception as error:  # the client lets errors of requests, urllib3 and ssh through
        code = errno_of(error)
        reason = _one_line(error) if code is None else os.strerror(code)
        return TierCheck(False, f"no engine at {engine_host()}: {reason}")


def ping_engine(host: str, timeout: float = PING_TIMEOUT) -> TierCheck:
    """`GET /_ping` over the unix or TCP socket of `host`, without the Python client."""
    url = urlsplit(host)
    import http.client  # with what it needs as long as all of the above

    if url.scheme not in {"unix", "tcp", "http"}:
        return TierCheck(False, f"{url.scheme or host}: needs `docker`: {remedy('docker')}")
    try:
        connection = http.client.HTTPConnection(
            url.hostname or "localhost", url.port or 2375, timeout=timeout
        )
        if url.scheme == "unix":
            connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connection.sock.settimeout(timeout)
            connection.sock.connect(url.path)
        with contextlib.closing(connection):
            connection.request("GET", "/_ping")
            answer = connection.getresponse()
            answer.read()
            return TierCheck(answer.status == 200, f"engine at {host} answered {answer.status}")
    except (OSError, ValueError, http.client.HTTPException) as error:
        return TierCheck(False, f"no engine at {host}: {_one_line(error)}")


def probe_namespaces() -> TierCheck:
    """Try new mount, process, network, IPC, host name and cgroup namespaces in a child process.

    Root tries without a user namespace first, and then, like everybody else, with one.
    """
    modes = ("root", "user") if os.geteuid() == 0 else ("user",)
    refusal = ""
    for mode in modes:
        command = [sys.executable, "-I", "-S", "-c", _NAMESPACE_TEST, mode]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
        except (OSError, subprocess.SubprocessError) as error:
            return TierCheck(False, _one_line(error))
        if done.returncode == 0:
            return TierCheck(True, "as root" if mode == "root" else "through a user namespace")
        refusal = done.stdout.strip() or f"the test ended with status {done.returncode}"
    return TierCheck(False, refusal)


def landlock_abi() -> int:
    """Version of the kernel's Landlock interface, 0 where it is absent or switched off."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    version = libc.syscall(
        ctypes.c_long(_LANDLOCK_CREATE_RULESET),
        None,
        ctypes.c_size_t(0),
        ctypes.c_uint32(_LANDLOCK_VERSION_FLAG),
    )
    return max(int(version), 0)


def has_seccomp() -> bool:
    """Whether the kernel takes seccomp filters (the line is there since Linux 5.9)."""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as status:
            return any(line.startswith("Seccomp_filters:") for line in status)
    except OSError:
        return False


def _one_line(error: BaseException) -> str:
    """The error as one short line; the bare name of the class where it says nothing."""
    if isinstance(error, OSError) and error.errno in errno.errorcode:
        return os.strerror(error.errno or 0)
    return " ".join(str(error).split())[:200] or type(error).__name__
