"""Configuration of sandbox containers.

No network, a read-only root, a small private /tmp, no capabilities but the three with which the
runner becomes another user and ends programs, no new privileges, the system calls of
`seccomp`, and limits of memory, swap, processes and CPU. Nothing of the host is mounted and
nothing is logged.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from flowzoo.sandbox.backends import ENVIRONMENT
from flowzoo.sandbox.docker.seccomp import profile_text

BoxUser = Literal["root", "nonroot"]

PROCESSES = 64  # processes and threads in a container, the runner's included
THREADS = PROCESSES - 8  # threads a program may ask for
MEMORY_MB = 1024  # memory of a container; the runner holds a program to its own, smaller limit
RUNNER_MB = 64  # beside the program: the runner and what the kernel keeps for both
FILES_MB, FILES = 16, 1024  # megabytes and number of files in a container's /tmp
CORES = 1.0  # CPU of a container, however many threads the program starts
USER_ID = 10_001  # whom programs run as; under `nonroot` the runner too

# The engine's own list, and /dev/mqueue: a file system that every program could write to.
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
    """The request to create a container, in the words of the engine's API."""
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
        # PATH is the image's own: by it the entry point is found.
        "Env": [f"{name}={value}" for name, value in ENVIRONMENT.items() if name != "PATH"],
        "NetworkDisabled": True,
        "OpenStdin": True,
        "StdinOnce": True,
        "AttachStdin": True,
        "AttachStdout": True,
        "AttachStderr": True,
        "StopSignal": "SIGKILL",  # an engine that shuts down need not wait for it
        "Labels": dict(labels),
        "HostConfig": _host_config(is_root, runtime, parent),
    }


def _host_config(is_root: bool, runtime: str | None, parent: str | None) -> dict[str, Any]:
    memory = (MEMORY_MB + FILES_MB + RUNNER_MB) * _MEGABYTE
    config: dict[str, Any] = {
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
