"""Boxes as containers of the Docker engine, with one connection each.

A container ends with its connection, and the engine removes it.
"""

import asyncio
import contextlib
import logging
import os
import platform
import socket
import struct
import subprocess
import sys
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from flowzoo.errors import UsageError, check_choice, unknown
from flowzoo.sandbox.backends import READ_BYTES, STDERR_BYTES, check_memory, describe_end
from flowzoo.sandbox.docker.container import FILES_MB, MEMORY_MB, THREADS, BoxUser, container_config
from flowzoo.sandbox.docker.engine import DockerError, connect, explain_errors, is_missing_image
from flowzoo.sandbox.docker.image import SandboxImage, ensure_image
from flowzoo.sandbox.program import Limits
from flowzoo.sandbox.tier import BACKENDS

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
    """Start time of process `pid` in the system's format; None if it does not exist."""
    try:
        if sys.platform == "linux":
            # The name may contain spaces and parentheses; the 20th field after it is the start
            # time.
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
    # With the start time, since process ids are reused. A container ends with its owner's
    # connection; the labels are for containers that remain after a crash of the engine or machine.
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
    """Remove the containers of dead owners on this machine; return their number."""
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
    """Kill and remove one container, and wait for its end."""
    from docker.errors import APIError, NotFound

    end = time.monotonic() + GONE_SECONDS
    pause = 0.01
    while True:
        # 409: the engine is already removing it, since containers are removed at their end.
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


STARTERS = 4  # most containers started or removed at the same time


T = TypeVar("T")

_log = logging.getLogger(__name__)


class DockerBackend:
    """Backend of containers; see `flowzoo.sandbox.backends.Backend`.

    A container's /tmp has a fixed size; a program's smaller `files_mb` bounds each of its files.

    Args:
        image: an image of the engine; None: an image of the running interpreter, built if missing.
        runtime: the engine's name for another runtime, e.g. `runsc` (gVisor).
        packages: packages in its boxes; a custom `image` must contain them.
        user: `root`: the runner is root with only three capabilities, and programs are another
            user; `nonroot`: runner and program are the same user, not root.
        parent: control group of the containers. None: the root group, so each container has the CPU
            share of a process (in the engine's group all containers together have this share);
            under the systemd driver, the engine's default.

    Raises:
        MissingExtraError: the Python module `docker` is not installed.
        DockerError: no engine, no permission, no such image, or an engine without limits.
    """

    tier = "docker"
    trust = BACKENDS["docker"].trust

    def __init__(
        self,
        image: str | None = None,
        runtime: str | None = None,
        user: BoxUser = "root",
        packages: tuple[str, ...] = (),
        parent: str | None = None,
    ) -> None:
        check_choice("box user", user, BoxUser)
        self._name, self._runtime = image, runtime
        self._user: BoxUser = user
        self._packages = packages
        self._client, self._info = connect()
        at_root = parent is None and self._info.get("CgroupDriver") == "cgroupfs"
        self._parent = "/" if at_root else parent
        try:
            if runtime is not None and runtime not in self._info.get("Runtimes", {}):
                raise unknown("Docker runtime", runtime, self._info.get("Runtimes", {}))
            with explain_errors("sweeping old containers"):
                swept = remove_orphans(self._client)
            if swept:
                _log.info("removed %d containers of dead owners", swept)
            self.image: SandboxImage = ensure_image(self._client, self._info, image, packages)
        except BaseException:
            self._client.close()
            raise
        self.nonce = uuid.uuid4().hex
        self._labels = owner_labels(self.nonce)
        self._threads = ThreadPoolExecutor(STARTERS, thread_name_prefix="flowzoo-docker")

    async def start(self) -> "DockerConnection":
        """Create, attach and start a container, in a thread; about 0.2 s."""
        work = self._submit(self._start)
        try:
            container, connection = await asyncio.shield(asyncio.wrap_future(work))
        except asyncio.CancelledError:
            work.add_done_callback(self._discard)
            raise
        return DockerConnection(container, connection, self.remove)

    def check(self, limits: Limits) -> None:
        """See `Backend`: a container's own limits exceed every program's."""
        check_memory(self.tier, limits)
        for name, most in (("memory_mb", MEMORY_MB), ("files_mb", FILES_MB), ("threads", THREADS)):
            if getattr(limits, name) > most:
                raise UsageError(
                    f"the docker tier allows a program at most {name}={most}, "
                    f"got {getattr(limits, name)}."
                )

    def describe(self) -> dict[str, Any]:
        """Engine, image, runtime and user."""
        return {
            "engine": self._info.get("ServerVersion", ""),
            "image": self.image.tag,
            "image_id": self.image.id,
            "runtime": self._runtime or self._info.get("DefaultRuntime", ""),
            "user": self._user,
        }

    def close(self) -> None:
        """Remove every container of this backend; a stopped engine has none."""
        self._threads.shutdown(wait=True, cancel_futures=True)
        try:
            with explain_errors("removing containers"):
                remove_all(self._client, self.nonce)
        except DockerError as error:
            _log.warning("containers may remain until the next start removes them: %s", error)
        self._client.close()

    def forget(self) -> None:
        """In a fork: close the copies of the owner's connections."""
        self._client.close()

    async def remove(self, container: str) -> None:
        """Kill and remove one container, in a thread."""
        with contextlib.suppress(DockerError):  # `close` reports remaining containers once
            await asyncio.wrap_future(self._submit(self._remove, container))

    def _submit(self, work: Callable[..., T], *args: object) -> Future[T]:
        # An ending interpreter starts no threads.
        try:
            return self._threads.submit(work, *args)
        except RuntimeError as error:
            raise DockerError(f"the Docker backend is closed ({error})") from error

    def _start(self) -> tuple[str, socket.socket]:
        with explain_errors("starting a container"):
            container = self._create()
            try:
                # Attached before the start, so no output is lost and stdin is connected.
                connection = self._attach(container)
                try:
                    self._client.api.start(container)
                except BaseException:
                    connection.close()
                    raise
            except BaseException:
                with contextlib.suppress(Exception):
                    remove(self._client, container)
                raise
            return container, connection

    def _create(self) -> str:
        # The image was removed: build it again.
        for last in (False, True):
            config = container_config(
                self.image.id, self._labels, self._user, self._runtime, self._packages, self._parent
            )
            try:
                return self._client.api.create_container_from_config(config)["Id"]
            except Exception as error:
                if last or not is_missing_image(error):
                    raise
                self.image = ensure_image(self._client, self._info, self._name, self._packages)
        raise AssertionError("unreachable")

    def _attach(self, container: str) -> socket.socket:
        params = {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}
        raw = self._client.api.attach_socket(container, params=params)
        inner = getattr(raw, "_sock", raw)
        if type(inner) is not socket.socket:
            raise DockerError(
                "the engine is connected over TLS or ssh, which the sandbox does not support: "
                "forward its socket (ssh -nNT -L /tmp/docker.sock:/var/run/docker.sock HOST) and "
                "set "
                "DOCKER_HOST=unix:///tmp/docker.sock."
            )
        connection = socket.socket(fileno=os.dup(inner.fileno()))
        raw.close()
        connection.setblocking(False)
        return connection

    def _remove(self, container: str) -> None:
        with explain_errors("removing a container"):
            remove(self._client, container)

    def _discard(self, work: Future[tuple[str, socket.socket]]) -> None:
        if work.cancelled() or work.exception() is not None:
            return
        container, connection = work.result()
        connection.close()
        with contextlib.suppress(DockerError):
            self._remove(container)


_STREAM = struct.Struct(">BxxxI")  # stream, number of bytes
_STDOUT = 1


class Demultiplexer:
    """Splits the engine's stream, pieces of stdout or stderr with headers."""

    def __init__(self) -> None:
        self.stderr = bytearray()
        self._buffer = bytearray()

    def feed(self, data: bytes) -> bytes:
        """Process `data`: return its stdout, keep the end of stderr."""
        buffer = self._buffer
        buffer += data
        out, offset = bytearray(), 0
        while len(buffer) - offset >= _STREAM.size:
            stream, length = _STREAM.unpack_from(buffer, offset)
            end = offset + _STREAM.size + length
            if len(buffer) < end:
                break
            piece = buffer[offset + _STREAM.size : end]
            if stream == _STDOUT:
                out += piece
            else:
                self.stderr = (self.stderr + piece)[-STDERR_BYTES:]
            offset = end
        del buffer[:offset]
        return bytes(out)


class DockerConnection:
    """A running container; see `flowzoo.sandbox.backends.BoxConnection`."""

    def __init__(
        self, container: str, connection: socket.socket, remove: Callable[[str], Awaitable[None]]
    ) -> None:
        self._remove = remove
        self._loop = asyncio.get_running_loop()
        self._connection: socket.socket | None = connection
        self._streams = Demultiplexer()
        self.container = container

    async def read(self) -> bytes:
        """Return the next bytes from the box, or b"" at its end."""
        while self._connection is not None:
            try:
                data = await self._loop.sock_recv(self._connection, READ_BYTES)
            except OSError:
                return b""
            if not data:
                return b""
            if out := self._streams.feed(data):
                return out
        return b""

    async def write(self, data: bytes) -> None:
        """Send bytes to the box."""
        if self._connection is None:
            raise BrokenPipeError("the box was killed")
        await self._loop.sock_sendall(self._connection, data)

    async def kill(self) -> None:
        """Kill the box and wait for its end."""
        if self._connection is not None:
            self._loop.remove_reader(self._connection)
            self._loop.remove_writer(self._connection)
        self.forget()
        await self._remove(self.container)

    def exit_summary(self) -> str:
        """Describe the end; the engine removes an ended container with its status."""
        ended = f"its container {self.container[:12]} or the engine ended"
        return describe_end(ended, self._streams.stderr)

    def forget(self) -> None:
        """Close the copy; the last process to close it ends the container."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
