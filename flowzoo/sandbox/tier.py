"""Sandbox backends, and checks of their availability.

Installed packages add to `BACKENDS` by entry points of the group `flowzoo.sandboxes`.
"""

import contextlib
import errno
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from flowzoo.errors import UsageError, errno_of, need_module, unknown
from flowzoo.extras import is_installed, remedy
from flowzoo.functions import load_named
from flowzoo.permission import PERMISSION
from flowzoo.plugins import SANDBOX_GROUP, plugin_named, plugins
from flowzoo.sandbox.runner.linux import landlock_abi

SandboxName = str  # name of a backend, or `auto`: the best available one, never `unsafe`
AUTO = "auto"
NO_SANDBOX = "none: this machine cannot confine programs, so untrusted code is not run"

USUAL_HOST = "unix:///var/run/docker.sock"
PING_TIMEOUT = 2  # seconds to wait for the container engine; a running one needs milliseconds

# Runs in a child process: unshare cannot be undone. With NEWUSER the process is root in a user
# namespace. The mount is part of the test because Ubuntu 24.04 grants an unprivileged user the
# namespaces but denies every operation inside them.
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
    """Result of the check of a backend, with a short reason."""

    ok: bool
    detail: str


class Limitation(NamedTuple):
    """An attack that a backend cannot stop; its probes do not count as broken promises."""

    text: str
    names: frozenset[str] = frozenset()
    """Names of its probes."""
    categories: frozenset[str] = frozenset()
    """Categories of its probes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendSpec:
    """Static facts about a sandbox backend."""

    name: str
    trust: str
    """Description of the protection in one line, for `flowzoo doctor` and run records."""
    target: str
    """`module:Class` of a `flowzoo.sandbox.backends.Backend`, called with `arguments`, the options
    of the sandbox and `packages`."""
    check: Callable[[], TierCheck]
    """Check that the backend works on this machine; starts nothing and never raises."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    auto: bool = False
    """True if `auto` may select it."""
    confines: bool = True
    """False if harmful probes must not be run on it."""
    options: bool = False
    """True if it accepts options."""
    module: str = ""
    """Optional module that the backend needs."""
    remedy: str = ""
    """Remedy if it does not work."""
    limitations: tuple[Limitation, ...] = ()

    def promises(self, name: str, category: str) -> bool:
        """True if the backend promises to stop this probe."""
        return not any(
            name in limit.names or category in limit.categories for limit in self.limitations
        )


@dataclass(frozen=True, slots=True)
class Tier:
    """Available backends of this machine."""

    name: str
    """Backend that `auto` selects, or `none`."""
    checks: Mapping[str, TierCheck]
    """Result by backend, in the order of preference."""

    @property
    def trust(self) -> str:
        """Description of the isolation under `auto` in one line."""
        return BACKENDS[self.name].trust if self.name in BACKENDS else NO_SANDBOX


def probe() -> Tier:
    """Check the backends of `auto`; it takes a few hundredths of a second."""
    checks = {name: spec.check() for name, spec in BACKENDS.items() if spec.auto}
    return Tier(next((name for name, check in checks.items() if check.ok), "none"), checks)


def backend_names() -> list[str]:
    """Valid backend names, including names from installed packages."""
    return [AUTO, *BACKENDS, *(plugin.name for plugin in plugins(SANDBOX_GROUP))]


def backend_spec(name: str) -> BackendSpec:
    """Return the facts about a backend of flowzoo or an installed package.

    Raises:
        UsageError: no backend has this name, or a package's entry point is not a backend.
    """
    if name in BACKENDS:
        return BACKENDS[name]
    plugin = plugin_named(SANDBOX_GROUP, name)
    if plugin is None:
        raise unknown("sandbox backend", name, backend_names())
    setting = f"sandbox backend {plugin.name} of {plugin.package}:"
    spec, _ = load_named(setting, plugin.target, "SPEC", permitted=True)
    if not isinstance(spec, BackendSpec) or spec.name != name:
        raise UsageError(
            f"{setting} {plugin.target} must be a BackendSpec with the name {name!r}, got {spec!r}"
        )
    return spec


def usable_tier(grading: Mapping[str, Any]) -> str:
    """The sandbox backend of a run's record if it confines programs and works here; else `auto`."""
    # The run may come from another user: nothing that it wrote runs without confinement.
    spec = BACKENDS.get(str(grading.get("sandbox", {}).get("tier")))
    return spec.name if spec and spec.confines and spec.check().ok else AUTO


def check_sandbox(name: SandboxName) -> None:
    """Check the name of a sandbox backend, and that its module is installed.

    Raises:
        UsageError: no backend has this name, or it confines nothing and only a file names it.
        MissingExtraError: its Python module is not installed.
    """
    spec = None if name == AUTO else backend_spec(name)
    if spec is not None and not spec.confines:
        PERMISSION.check_value("sandbox", name, "programs of models would run with your rights")
    if spec is not None and spec.module:
        need_module(spec.module, f"the {name} sandbox")


def _check_namespaces_tier() -> TierCheck:
    return _on_linux(lambda: probe_namespaces() if has_seccomp() else _NO_SECCOMP)


def _check_landlock_tier() -> TierCheck:
    def check() -> TierCheck:
        abi = landlock_abi()
        if not abi:
            return TierCheck(False, "the kernel has no Landlock")
        return TierCheck(True, f"ABI {abi}") if has_seccomp() else _NO_SECCOMP

    return _on_linux(check)


def _check_unsafe() -> TierCheck:
    return TierCheck(os.name == "posix", f"limits only, on {os.name}")


_NO_SECCOMP = TierCheck(False, "the kernel has no seccomp filters")


def _on_linux(check: Callable[[], TierCheck]) -> TierCheck:
    if platform.system() != "Linux":
        return TierCheck(False, f"needs Linux, this is {platform.system()}")
    return check()


# Defined here, since the tier searches for the engine that the Docker modules use.
def engine_host() -> str:
    """Address of the Docker engine: `DOCKER_HOST`, or the usual socket."""
    return os.environ.get("DOCKER_HOST") or USUAL_HOST


def probe_docker() -> TierCheck:
    """Ping the engine at `DOCKER_HOST` (default: the usual socket). Never raises."""
    if not is_installed("docker"):
        return TierCheck(False, f"the module `docker` is missing: {remedy('docker')}")
    import docker

    try:
        client = docker.from_env(timeout=PING_TIMEOUT)
        with contextlib.closing(client):
            client.ping()
            return TierCheck(
                True, f"engine {client.version().get('Version', 'of unknown version')}"
            )
    except Exception as error:  # the client raises errors of requests, urllib3 and ssh unchanged
        code = errno_of(error)
        reason = _one_line(error) if code is None else os.strerror(code)
        return TierCheck(False, f"no engine at {engine_host()}: {reason}")


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


def has_seccomp() -> bool:
    """True if the kernel accepts seccomp filters (since Linux 5.9, `status` has the line)."""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as status:
            return any(line.startswith("Seccomp_filters:") for line in status)
    except OSError:
        return False


def _one_line(error: BaseException) -> str:
    """Format an error as one short line, or the name of its class without a message."""
    if isinstance(error, OSError) and error.errno in errno.errorcode:
        return os.strerror(error.errno or 0)
    return " ".join(str(error).split())[:200] or type(error).__name__


_KERNEL = Limitation(
    "a vulnerability of the kernel, which programs share with the host (docker: "
    'options={"runtime": "runsc"} uses another kernel)'
)
_TIMING = Limitation("programs can measure the machine's load")
_MEMORY = Limitation("memory is bounded per process and by monitoring, not by a separate cgroup")
_LOCAL = "flowzoo.sandbox.local:LocalBackend"

# Backends by name, in the order of `auto`.
BACKENDS: dict[str, BackendSpec] = {
    spec.name: spec
    for spec in (
        BackendSpec(
            name="docker",
            trust="docker: a container without network, capabilities or writable disk",
            target="flowzoo.sandbox.docker.boxes:DockerBackend",
            check=lambda: probe_docker(),  # looked up at the call, so tests can replace it
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
                    "programs have full access to the files, processes, network and kernel of "
                    "their user; probes that would harm the machine are not run",
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
