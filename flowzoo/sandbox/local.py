"""Boxes as child processes."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from typing import Any

from flowzoo.sandbox.backends import (
    ENVIRONMENT,
    FLAGS,
    READ_BYTES,
    RUNNER,
    STDERR_BYTES,
    BoxError,
    LocalTier,
    check_memory,
    describe_end,
)
from flowzoo.sandbox.program import Limits, package_folders
from flowzoo.sandbox.tier import backend_spec

EXIT_STATUS_SECONDS = 0.3  # seconds to wait for the exit status of a box whose stream has ended
FOLDER_SECONDS = 2.0  # seconds to try to remove the files of a box
END_SECONDS = 10.0  # seconds for a killed process to disappear, usually milliseconds


class LocalBackend:
    """Boxes as local processes that confine themselves."""

    def __init__(self, tier: LocalTier, packages: tuple[str, ...] = ()) -> None:
        if sys.platform != "linux":
            raise BoxError(f"the {tier} tier needs Linux, this is {sys.platform}: use docker")
        self.tier: str = tier
        self.trust = backend_spec(tier).trust
        folders = [str(folder) for folder in package_folders(packages)]
        # Options of the runner.
        self.box_options: dict[str, Any] = {"packages": folders} if folders else {}

    async def start(self) -> "ProcessConnection":
        """Start the runner by exec, never by a fork of this process, which may use a GPU."""
        folder = tempfile.mkdtemp(prefix="flowzoo-") if self.tier == "unsafe" else None
        options = self.box_options | ({"folder": folder} if folder else {})
        command = [sys.executable, *FLAGS, str(RUNNER), self.tier]
        try:
            return ProcessConnection([*command, json.dumps(options)], folder)
        except OSError as error:
            remove_folder(folder)
            raise BoxError(
                f"no process for a {self.tier} box could be started: {error}. Free processes, "
                "descriptors or memory, or use fewer workers"
            ) from error

    def check(self, limits: Limits) -> None:
        """Reject less memory than the interpreter itself needs."""
        check_memory(self.tier, limits)

    def describe(self) -> dict[str, Any]:
        """The interpreter of the programs."""
        return {"python": ".".join(map(str, sys.version_info[:3]))}

    def close(self) -> None:
        """No-op: killed processes leave nothing behind."""

    def forget(self) -> None:
        """No-op."""


def remove_folder(folder: str | None) -> None:
    """Remove the files of killed programs, which may still write."""
    end = time.monotonic() + FOLDER_SECONDS
    while folder is not None and os.path.exists(folder):
        shutil.rmtree(folder, ignore_errors=True)
        if time.monotonic() > end:
            return


class ProcessConnection:
    """A box as a child process, with a socket pair as its stdin and stdout."""

    def __init__(self, command: list[str], folder: str | None = None) -> None:
        self._folder = folder
        self._loop = asyncio.get_running_loop()
        self._stderr = bytearray()
        near, far = socket.socketpair()
        read_end, write_end = os.pipe()
        try:
            self.process = subprocess.Popen(
                command,
                stdin=far.fileno(),
                stdout=far.fileno(),
                stderr=write_end,
                env=ENVIRONMENT,
                cwd="/",
                close_fds=True,
                start_new_session=True,  # not interrupted by Ctrl-C in the terminal
            )
        except BaseException:
            near.close()
            os.close(read_end)
            raise
        finally:
            far.close()
            os.close(write_end)
        near.setblocking(False)
        os.set_blocking(read_end, False)
        self._socket: socket.socket | None = near
        self._stderr_fd = read_end
        self._loop.add_reader(read_end, self._read_stderr)

    @property
    def pid(self) -> int:
        """Process id of the box."""
        return self.process.pid

    async def read(self) -> bytes:
        """Return the next bytes from the box, or b"" at its end."""
        if self._socket is None:
            return b""
        try:
            data = await self._loop.sock_recv(self._socket, READ_BYTES)
        except OSError:
            data = b""
        end = time.monotonic() + EXIT_STATUS_SECONDS
        while not data and self._status() is None and time.monotonic() < end:
            await asyncio.sleep(0.01)  # its stream has ended, so its status follows soon
        return data

    async def write(self, data: bytes) -> None:
        """Send bytes to the box."""
        if self._socket is None:
            raise BrokenPipeError("the box was killed")
        await self._loop.sock_sendall(self._socket, data)

    async def kill(self) -> None:
        """Kill the process and its group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if self.process.returncode is None:
                os.killpg(self.process.pid, signal.SIGKILL)
        end = time.monotonic() + END_SECONDS
        pause = 0.001
        while self.process.poll() is None and time.monotonic() < end:
            await asyncio.sleep(pause)
            pause = min(2 * pause, 0.05)
        remove_folder(self._folder)
        self._read_stderr()
        for fd in (self._stderr_fd, self._socket):
            if fd != -1 and fd is not None:
                self._loop.remove_reader(fd)
                self._loop.remove_writer(fd)
        self.forget()

    def exit_summary(self) -> str:
        """Describe the end of the process in one line."""
        status = self._status()
        if status is None:
            ended = "its process is still running"
        elif status < 0:
            ended = f"its process was killed by signal {-status}"
        else:
            ended = f"its process ended with status {status}"
        return describe_end(ended, self._stderr)

    def forget(self) -> None:
        """Close the descriptors."""
        if self._stderr_fd >= 0:
            os.close(self._stderr_fd)
            self._stderr_fd = -1
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _status(self) -> int | None:
        # It is not reaped: while it is a zombie, its group can be killed by id.
        if self.process.returncode is not None:
            return self.process.returncode
        look = os.WEXITED | os.WNOWAIT | os.WNOHANG
        end = os.waitid(os.P_PID, self.process.pid, look)
        if end is None:
            return None
        return end.si_status if end.si_code == os.CLD_EXITED else -end.si_status

    def _read_stderr(self) -> None:
        if self._stderr_fd < 0:
            return
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._stderr_fd, 65_536):
                self._stderr += data
                del self._stderr[:-STDERR_BYTES]
            self._loop.remove_reader(self._stderr_fd)
