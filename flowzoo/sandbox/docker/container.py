"""Configuration of sandbox containers, without mounts of the host or logs."""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Literal

from flowzoo.sandbox.backends import ENVIRONMENT
from flowzoo.sandbox.runner.seccomp import ALLOWED, CHANGES, CONDITIONAL, MODES_AND_TIMES

BoxUser = Literal["root", "nonroot"]

PROCESSES = 64  # most processes and threads in a container, including the runner's
THREADS = PROCESSES - 8  # most threads of a program
MEMORY_MB = 1024  # memory of a container; the runner enforces the smaller limit of a program
RUNNER_MB = 64  # additional memory for the runner and the kernel
FILES_MB, FILES = 16, 1024  # megabytes and number of files in a container's /tmp
CORES = 1.0  # CPU limit of a container, regardless of threads
USER_ID = 10_001  # user of programs; under `nonroot` also of the runner

# The engine's list, and /dev/mqueue, a file system writable for every program.
_MASKED = [
    *("/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys"),
    *("/proc/latency_stats", "/proc/sched_debug", "/proc/scsi", "/proc/timer_list"),
    *("/proc/timer_stats", "/sys/devices/virtual/powercap", "/sys/firmware", "/dev/mqueue"),
]
_READ_ONLY = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"]
_MEGABYTE = 2**20
PACKAGE_FOLDER = "/packages"  # folder of an image with the packages that programs may import


def container_config(
    image: str,
    labels: Mapping[str, str],
    user: BoxUser = "root",
    runtime: str | None = None,
    packages: Sequence[str] = (),
    parent: str | None = None,
) -> dict[str, Any]:
    """The request to create a container, in the format of the engine's API."""
    is_root = user == "root"
    owner = 0 if is_root else USER_ID
    folders = [f"{PACKAGE_FOLDER}/{name}" for name in packages]
    options = [json.dumps({"packages": folders})] if folders else []
    return {
        "Image": image,
        "Cmd": ["docker" if is_root else "container-user", *options],
        "User": f"{owner}:{owner}",
        "Hostname": "box",
        "WorkingDir": "/",
        # PATH is the image's, which locates the entry point.
        "Env": [f"{name}={value}" for name, value in ENVIRONMENT.items() if name != "PATH"],
        "NetworkDisabled": True,
        "OpenStdin": True,
        "StdinOnce": True,
        "AttachStdin": True,
        "AttachStdout": True,
        "AttachStderr": True,
        "StopSignal": "SIGKILL",  # the engine does not wait for it at shutdown
        "Labels": dict(labels),
        "HostConfig": _host_config(is_root, runtime, parent),
    }


def _host_config(is_root: bool, runtime: str | None, parent: str | None) -> dict[str, Any]:
    memory = (MEMORY_MB + FILES_MB + RUNNER_MB) * _MEGABYTE
    config: dict[str, object] = {
        "NetworkMode": "none",
        "ReadonlyRootfs": True,
        "CapDrop": ["ALL"],
        "CapAdd": ["SETUID", "SETGID", "KILL"] if is_root else [],
        "SecurityOpt": ["no-new-privileges:true", f"seccomp={profile_text()}"],
        "Memory": memory,
        "MemorySwap": memory,
        "PidsLimit": PROCESSES,
        "NanoCpus": int(CORES * 1e9),
        "IpcMode": "none",
        "LogConfig": {"Type": "none"},
        "Tmpfs": {"/tmp": f"rw,noexec,nosuid,nodev,size={FILES_MB}m,nr_inodes={FILES},mode=1777"},
        "OomScoreAdj": 500,
        "Ulimits": [{"Name": "core", "Soft": 0, "Hard": 0}],
        "MaskedPaths": _MASKED,
        "ReadonlyPaths": _READ_ONLY,
        "AutoRemove": True,
    }
    if runtime is not None:
        config["Runtime"] = runtime
    if parent is not None:
        config["CgroupParent"] = parent
    return config


# System calls that a container may make: an allow-list, for the runner and its programs. The
# engine's default profile allows calls that reach beyond a container or outlive a program: AF_VSOCK
# (in no namespace), netlink, io_uring, System V and POSIX message queues, setting affinities.
# Everything that a CPython fork server does not need is denied here. The runner adds a second,
# stricter filter to every program, whose calls are all here; this one also allows it to fork,
# change its user and kill. socket() is denied, so nothing can bind or connect. Source for the
# format: https://docs.docker.com/engine/security/seccomp/
_NAMESPACE_FLAGS = 0x7E020000  # every CLONE_NEW* flag of clone(2) (time namespaces have none there)
_ENOSYS, _AF_UNIX = 38, 1
_WITH_RULES = {"clone", "clone3", "socketpair"}  # in `profile`
_OF_RUNNER = """
capget capset chown execve fchmodat2 fchown fchownat fork getpgid getpriority getsid
landlock_add_rule landlock_create_ruleset landlock_restrict_self lchown memfd_create openat2
pidfd_open pidfd_send_signal rt_sigqueueinfo rt_tgsigqueueinfo sched_get_priority_max
sched_get_priority_min sched_getparam sched_getscheduler seccomp setgid setgroups setpgid setregid
setresgid setresuid setreuid setsid setsockopt setuid signalfd signalfd4 tkill vfork
"""


def profile() -> dict[str, Any]:
    """The profile in the engine's format."""
    names = {*ALLOWED, *CHANGES, *MODES_AND_TIMES, *CONDITIONAL, *_OF_RUNNER.split()} - _WITH_RULES
    no_namespaces = {
        "index": 0,
        "value": _NAMESPACE_FLAGS,
        "valueTwo": 0,
        "op": "SCMP_CMP_MASKED_EQ",
    }
    only_unix = {"index": 0, "value": _AF_UNIX, "op": "SCMP_CMP_EQ"}
    return {
        "defaultAction": "SCMP_ACT_ERRNO",
        # Only the native architecture: calls with another one's numbers kill the process.
        "archMap": [
            {"architecture": name, "subArchitectures": []}
            for name in ("SCMP_ARCH_X86_64", "SCMP_ARCH_AARCH64")
        ],
        "syscalls": [
            {"names": sorted(names), "action": "SCMP_ACT_ALLOW"},
            {"names": ["clone"], "action": "SCMP_ACT_ALLOW", "args": [no_namespaces]},
            {"names": ["socketpair"], "action": "SCMP_ACT_ALLOW", "args": [only_unix]},
            # Filters cannot read its flags in memory; the C library falls back to clone.
            {"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": _ENOSYS},
        ],
    }


@cache
def profile_text() -> str:
    """The profile as text for the engine's API."""
    return json.dumps(profile(), separators=(",", ":"))
