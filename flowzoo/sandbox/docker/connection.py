"""The host's end of a container: one connection that carries its stdin, stdout and stderr."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable

from flowzoo.sandbox.backends import READ_BYTES, STDERR_BYTES

_STREAM = struct.Struct(">BxxxI")  # which stream, bytes that follow
_STDOUT = 1


class Demultiplexer:
    """Takes the engine's stream apart: each piece is stdout or stderr, behind a header."""

    def __init__(self) -> None:
        self.stderr = bytearray()
        self._buffer = bytearray()

    def feed(self, data: bytes) -> bytes:
        """Take `data`; returns what is stdout in it, keeps the end of stderr."""
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
        self,
        container: str,
        connection: socket.socket,
        remove: Callable[[str], Awaitable[None]],
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
        """Describe the end; the engine removes a container that ended, with its status."""
        lines = bytes(self._streams.stderr).decode("utf-8", "replace").split("\n")
        text = " | ".join(line.strip() for line in lines if line.strip())
        ended = f"its container {self.container[:12]} ended, or the engine did"
        return f"{ended}: {text[-600:]}" if text else ended

    def forget(self) -> None:
        """Close the copy; the last process to close it ends the container."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
