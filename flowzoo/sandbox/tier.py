"""Sandbox backends, and which of them this machine can run.

Installed packages add to `BACKENDS` by entry points of the group `flowzoo.sandboxes`.
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
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from flowzoo.errors import UsageError, errno_of, need_module, unknown
from flowzoo.extras import is_installed, remedy
from flowzoo.functions import load_named
from flowzoo.plugins import SANDBOX_GROUP, plugin_named, plugins

SandboxName = str  # name of a backend, or `auto`: the best one that works here, never `unsafe`
AUTO = "auto"
NO_SANDBOX = "none: this machine cannot confine programs, so untrusted code is not run"

USUAL_HOST = "unix:///var/run/docker.sock"
PING_TIMEOUT = 2  # seconds to wait for the container engine; a running one needs milliseconds

_LANDLOCK_CREATE_RULESET = 444  # the same number on every architecture Python 3.11 runs on
_LANDLOCK_VERSION_FLAG = 1

# Runs in a child process: unshare cannot be undone. With NEWUSER the process is root in a user
# namespace. The mount is part of the test because Ubuntu 24.04 grants an unprivileged
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
    """Result of checking one backend, with the reason in a few words."""

    ok: bool
    detail: str


class Limitation(NamedTuple):
    """An attack that a backend cannot stop; a probe that shows it is no broken promise."""

    text: str
    names: frozenset[str] = frozenset()
    """Probes that show it."""
    categories: frozenset[str] = frozenset()
    """Categories of probes that show it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendSpec:
    """Facts about a sandbox backend that are known before it starts a box."""

    name: str
    trust: str
    """One line about what it protects: printed by `flowzoo doctor` and kept in run records."""
    target: str
    """`module:Class` of a `flowzoo.sandbox.backends.Backend`, called with `arguments`, the options
    of the sandbox and `packages`."""
    check: Callable[[], TierCheck]
    """Check whether the backend works on this machine; starts nothing and never raises."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    auto: bool = False
    """True if `auto` may take it."""
    confines: bool = True
    """False if harmful probes must not run on it."""
    options: bool = False
    """True if it takes options."""
    module: str = ""
    """Optional module that it needs."""
    remedy: str = ""
    """Advice if it does not work."""
    limitations: tuple[Limitation, ...] = ()

    def promises(self, name: str, category: str) -> bool:
        """True if the backend promises to stop the probe of this name and category."""
        return not any(
            name in limit.names or category in limit.categories for limit in self.limitations
        )


@dataclass(frozen=True, slots=True)
class Tier:
    """Backends that work on this machine."""

    name: str
    """Backend that `auto` takes, or `none`."""
    checks: Mapping[str, TierCheck]
    """Result by backend, in the order of preference."""

    @property
    def trust(self) -> str:
        """One line about how far programs are confined under `auto`."""
        return BACKENDS[self.name].trust if self.name in BACKENDS else NO_SANDBOX


def probe() -> Tier:
    """Check the backends that `auto` may take; takes a few hundredths of a second."""
    checks = {name: spec.check() for name, spec in BACKENDS.items() if spec.auto}
    return Tier(next((name for name, check in checks.items() if check.ok), "none"), checks)


def backend_names() -> list[str]:
    """Names that a sandbox accepts, with the backends of installed packages."""
    return [AUTO, *BACKENDS, *(plugin.name for plugin in plugins(SANDBOX_GROUP))]


def backend_spec(name: str) -> BackendSpec:
    """Return the facts about a backend, of flowzoo or of an installed package.

    Raises:
        UsageError: no backend has this name, or a package offers something else under it.
    """
    if name in BACKENDS:
        return BACKENDS[name]
    plugin = plugin_named(SANDBOX_GROUP, name)
    if plugin is None:
        raise unknown("sandbox backend", name, backend_names())
    setting = f"sandbox backend {plugin.name} of {plugin.package}:"
    spec, _ = load_named(setting, plugin.target, "SPEC")
    if not isinstance(spec, BackendSpec) or spec.name != name:
        raise UsageError(
            f"{setting} {plugin.target} must be a BackendSpec with the name {name!r}, got {spec!r}"
        )
    return spec


def check_sandbox(name: SandboxName) -> None:
    """Check the name of a sandbox backend, and that its module is installed.

    Raises:
        UsageError: no backend has this name.
        MissingExtraError: its Python module is not installed.
    """
    spec = None if name == AUTO else backend_spec(name)
    if spec is not None and spec.module:
        need_module(spec.module, f"the {name} sandbox")


def _check_namespaces_tier() -> TierCheck:
    return _on_linux(lambda: probe_namespaces() if has_seccomp() else _NO_SECCOMP)


def _check_landlock_tier() -> TierCheck:
    def check() -> TierCheck:
        abi = landlock_abi()
        if not abi:
            return TierCheck(False, "the kernel offers no Landlock")
        return TierCheck(True, f"ABI {abi}") if has_seccomp() else _NO_SECCOMP

    return _on_linux(check)


def _check_unsafe() -> TierCheck:
    return TierCheck(os.name == "posix", f"limits only, on {os.name}")


_NO_SECCOMP = TierCheck(False, "the kernel offers no seccomp filters")


def _on_linux(check: Callable[[], TierCheck]) -> TierCheck:
    if platform.system() != "Linux":
        return TierCheck(False, f"needs Linux, this is {platform.system()}")
    return check()


# Here, since the tier looks for an engine in which the Docker rooms start boxes.
def engine_host() -> str:
    """Address of the Docker engine: `DOCKER_HOST`, or the usual socket."""
    return os.environ.get("DOCKER_HOST") or USUAL_HOST


def probe_docker() -> TierCheck:
    """Ping the engine that `DOCKER_HOST` names (default: the usual socket). Never raises.

    An engine that answers is not enough: the sandbox drives it through the Python module `docker`.
    """
    if not is_installed("docker"):
        check = ping_engine(engine_host())
        if not check.ok:
            return check
        missing = f"the module `docker` is missing: {remedy('docker')}"
        return TierCheck(False, f"{check.detail}, but {missing}")
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

    Root tries without a user namespace first, then with one; other users only with one.
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
    """Version of the kernel's Landlock interface; 0 if it is absent or disabled."""
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
    """True if the kernel accepts seccomp filters (since Linux 5.9, `status` has the line)."""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as status:
            return any(line.startswith("Seccomp_filters:") for line in status)
    except OSError:
        return False


def _one_line(error: BaseException) -> str:
    """Error as one short line, or the name of its class if it has no message."""
    if isinstance(error, OSError) and error.errno in errno.errorcode:
        return os.strerror(error.errno or 0)
    return " ".join(str(error).split())[:200] or type(error).__name__


_KERNEL = Limitation(
    "a hole in the kernel itself: programs share it with the host (docker: "
    'options={"runtime": "runsc"} puts another kernel in between)'
)
_TIMING = Limitation("programs can measure how busy the machine is")
_MEMORY = Limitation("memory is bounded per process and by watching, not by a separate cgroup")
_LOCAL = "flowzoo.sandbox.local:LocalBackend"

# Backends by name, the one that `auto` prefers first.
BACKENDS: dict[str, BackendSpec] = {
    spec.name: spec
    for spec in (
        BackendSpec(
            name="docker",
            trust="docker: a container without network, capabilities or writable disk",
            target="flowzoo.sandbox.docker.boxes:DockerBackend",
            check=lambda: probe_docker(),  # looked up when called, so that tests can replace it
            auto=True,
            options=True,
            module="docker",
            remedy="start the Docker engine, set DOCKER_HOST, or join the group `docker`",
            limitations=(_KERNEL, _TIMING),
        ),
        BackendSpec(
            name="namespaces",
            trust="namespaces: own mount, process, network and IPC namespaces, seccomp; the "
            "kernel is shared and no container engine stands between",
            target=_LOCAL,
            check=_check_namespaces_tier,
            arguments={"tier": "namespaces"},
            auto=True,
            remedy="run as root, or use Docker",
            limitations=(_KERNEL, _TIMING, _MEMORY),
        ),
        BackendSpec(
            name="landlock",
            trust="landlock: no file writes, sockets or forks (Landlock, seccomp); processes and "
            "limits of the machine are shared",
            target=_LOCAL,
            check=_check_landlock_tier,
            arguments={"tier": "landlock"},
            auto=True,
            remedy="Linux 5.13 or newer with Landlock among its security modules",
            limitations=(
                _KERNEL,
                _TIMING,
                _MEMORY,
                Limitation(
                    "Landlock does not hide the names, sizes and times of files from programs "
                    "that know their paths",
                    names=frozenset({"size of a file of the host"}),
                ),
            ),
        ),
        BackendSpec(
            name="unsafe",
            trust="unsafe: limits of time and memory only; a program can read, write and reach "
            "whatever this user can",
            target=_LOCAL,
            check=_check_unsafe,
            arguments={"tier": "unsafe"},
            confines=False,
            limitations=(
                Limitation(
                    "nothing stands between a program and the files, processes, network and "
                    "kernel that its user may reach; probes that would harm the machine are not "
                    "run",
                    categories=frozenset({"escape", "network", "signals", "state"}),
                ),
                Limitation(
                    "processes, files and memory outside the address space are not bounded",
                    names=frozenset(
                        {
                            "fork bomb",
                            "thread bomb",
                            "memory files outside the address space",
                            "pipes filled",
                            "fills /tmp",
                            "endless files",
                            "truncate to 1 TB",
                            "child that keeps stdout open",
                        }
                    ),
                ),
            ),
        ),
    )
}
