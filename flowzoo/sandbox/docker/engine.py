"""Verified connection to the Docker engine, and its errors."""

import errno
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from flowzoo.errors import FlowzooError, errno_of, error_chain, need_module
from flowzoo.sandbox.backends import BoxError
from flowzoo.sandbox.tier import engine_host

TIMEOUT = 60  # seconds for one request; creating a container on a busy engine can take several

# Required features in `docker info`: without them a container enforces no limits.
_LIMITS = {
    "MemoryLimit": "limit memory",
    "PidsLimit": "limit processes",
    "CpuCfsQuota": "limit CPU",
}
_SCHEMES = ("unix", "tcp", "http", "https", "npipe")
_OTHER = "or take another sandbox (`namespaces`, `landlock`)"


class DockerError(BoxError):
    """The engine lacks a feature that the sandbox needs; the message names the remedy."""


def connect() -> tuple[Any, Mapping[str, Any]]:
    """Connect to the engine at `DOCKER_HOST`; return the client and `docker info`."""
    need_module("docker", "the Docker sandbox")
    import docker

    _check_host(engine_host())
    with explain_errors("connecting to the engine"):
        client = docker.from_env(timeout=TIMEOUT)
        try:
            info = client.info()
        except BaseException:
            client.close()
            raise
    problem = unfit(info)
    if problem:
        client.close()
        raise DockerError(problem)
    return client, info


def _check_host(host: str) -> None:
    scheme, _, rest = host.partition("://")
    if scheme == "ssh":
        raise DockerError(
            f"DOCKER_HOST={host!r}: the sandbox does not support ssh; forward the engine's socket "
            "(ssh -nNT -L /tmp/docker.sock:/var/run/docker.sock HOST) and set "
            "DOCKER_HOST=unix:///tmp/docker.sock."
        )
    if scheme not in _SCHEMES or not rest:
        raise DockerError(f"DOCKER_HOST={host!r}: expected unix://PATH or tcp://HOST:PORT.")


def unfit(info: Mapping[str, Any]) -> str:
    """Reason why an engine with this `docker info` cannot confine programs; empty if it can."""
    where = f"the Docker engine at {engine_host()}"
    if info.get("OSType", "linux") != "linux":
        return f"{where} runs {info['OSType']} containers; switch it to Linux containers."
    missing = [lack for name, lack in _LIMITS.items() if not info.get(name)]
    if missing:
        return (
            f"{where} cannot {', '.join(missing)}. A rootless engine needs cgroup v2 with the "
            f"controllers cpu, memory and pids delegated to its user; otherwise use an engine "
            f"of root, {_OTHER}."
        )
    security = info.get("SecurityOptions") or ()
    if not any(option.startswith("name=seccomp") for option in security):
        return f"{where} has no seccomp; use an engine on a kernel with seccomp, {_OTHER}."
    return ""


@contextmanager
def explain_errors(doing: str) -> Iterator[None]:
    """Convert errors of the client while `doing` something to `DockerError` with a remedy."""
    try:
        yield
    except FlowzooError:
        raise
    except Exception as error:  # the client lets errors of requests, urllib3 and ssh through
        raise DockerError(explain(error, doing)) from error


def explain(error: BaseException, doing: str) -> str:
    """Describe an error of the engine and its remedy in one line."""
    # Only the engine's message of a refused request; the client prepends the whole URL.
    text = " ".join(str(getattr(error, "explanation", None) or error).split())
    summary, low = text[:300] or type(error).__name__, text.lower()
    code = errno_of(error)
    host = engine_host()
    path = _path_in(error)
    if path and code != errno.ENOSPC:  # a file of this machine, not the engine's socket
        reason = os.strerror(code or errno.EIO)
        return (
            f"{path} cannot be used while {doing} ({reason}): give this user access to it (TMPDIR "
            "names the folder of temporary files)."
        )
    if code == errno.EACCES:
        return (
            f"no permission on the Docker engine at {host}: add yourself to the group `docker` "
            "(sudo usermod -aG docker $USER, then log in again) or use a rootless engine, "
            f"{_OTHER}."
        )
    if code in {errno.ENOENT, errno.ECONNREFUSED, errno.EHOSTUNREACH} or "timed out" in low:
        reason = os.strerror(code or errno.ETIMEDOUT)
        return (
            f"no Docker engine answers at {host} while {doing} ({reason}): start it (sudo "
            f"systemctl start docker, or Docker Desktop), set DOCKER_HOST, {_OTHER}."
        )
    if "no space left" in low or "enospc" in low or code == errno.ENOSPC:
        return f"the disk is full while {doing} ({summary}): free space, e.g. docker image prune."
    if "invalid reference format" in low:
        return (
            f"invalid image name while {doing} ({summary}): expected NAME or NAME:TAG, in "
            "lower case."
        )
    if "unknown or invalid runtime" in low or "unknown runtime" in low:
        return f"unknown runtime ({summary}): install it or leave it out."
    if _is_broken(error):
        return f"the Docker engine at {host} disappeared while {doing} ({summary}): start it again."
    return f"the Docker engine at {host} failed while {doing}: {summary}"


def _path_in(error: BaseException) -> str:
    # Path of the file that an error is about; errors of sockets have none.
    paths = (item.filename for item in error_chain(error) if isinstance(item, OSError))
    return next((path for path in paths if path and isinstance(path, str)), "")


def is_missing_image(error: BaseException) -> bool:
    """True if the engine reports a missing image."""
    from docker.errors import ImageNotFound, NotFound

    return isinstance(error, ImageNotFound) or (
        isinstance(error, NotFound) and "no such image" in str(error).lower()
    )


def _is_broken(error: BaseException) -> bool:
    broken = {errno.EPIPE, errno.ECONNRESET, errno.EBADF}
    return errno_of(error) in broken or any(
        type(item).__name__ in {"RemoteDisconnected", "ProtocolError"}
        for item in error_chain(error)
    )
