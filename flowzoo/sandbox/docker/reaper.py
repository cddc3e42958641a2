"""Owners of containers, and removal of those whose owner died."""

from __future__ import annotations

import contextlib
import os
import platform
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flowzoo.sandbox.docker.engine import DockerError

MACHINE, OWNER, NONCE = "flowzoo.machine", "flowzoo.owner", "flowzoo.nonce"
GONE_SECONDS = 15.0  # seconds for a killed container to disappear; about 0.1 s is usual


def machine_id() -> str:
    """Scope of process ids: this boot of this machine, in this process namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return f"{platform.node()} {sys.platform}"


def process_start_time(pid: int) -> str | None:
    """When process `pid` started, in the system's own words; None if there is no such process."""
    try:
        if sys.platform == "linux":
            # The name may hold spaces and parentheses; the 20th field after it is the start time.
            fields = (
                Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
            )
            return None if fields[0] in "ZX" else fields[19]
        command = ["ps", "-o", "lstart=", "-p", str(pid)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
        return " ".join(done.stdout.split()) or None
    except (OSError, subprocess.SubprocessError, IndexError):
        return None


def owner_labels(nonce: str) -> dict[str, str]:
    """Labels of a container that this process owns."""
    # With the time of its start: process ids are used again. A container also ends with its owner's
    # connection; these labels are for what an interrupted engine or machine leaves.
    return {
        MACHINE: machine_id(),
        OWNER: f"{os.getpid()} {process_start_time(os.getpid())}",
        NONCE: nonce,
    }


def is_orphan(labels: Mapping[str, str]) -> bool:
    """True if the owner of a container is dead; False if it is on another machine."""
    if labels.get(MACHINE) != machine_id():
        return False
    pid, _, born = labels.get(OWNER, "").partition(" ")
    return not pid.isdigit() or process_start_time(int(pid)) != born


def remove_orphans(client: Any) -> int:
    """Remove the containers of dead owners on this machine; returns how many there were."""
    containers = client.api.containers(all=True, filters={"label": f"{MACHINE}={machine_id()}"})
    orphans = [row["Id"] for row in containers if is_orphan(row.get("Labels") or {})]
    for container in orphans:
        remove(client, container)
    return len(orphans)


def remove_all(client: Any, nonce: str) -> None:
    """Remove every container of one backend."""
    containers = client.api.containers(all=True, filters={"label": f"{NONCE}={nonce}"})
    for row in containers:
        remove(client, row["Id"])


def remove(client: Any, container: str) -> None:
    """Kill and remove one container; returns when it is gone."""
    from docker.errors import APIError, NotFound

    end = time.monotonic() + GONE_SECONDS
    pause = 0.01
    while True:
        # 409: the engine is at it already, since containers are removed when they end.
        with contextlib.suppress(APIError):
            client.api.remove_container(container, force=True, v=True)
        try:
            client.api.inspect_container(container)
        except NotFound:
            return
        if time.monotonic() > end:
            short = container[:12]
            raise DockerError(f"the container {short} was not removed: docker rm -f {short}")
        time.sleep(pause)
        pause = min(2 * pause, 0.5)
