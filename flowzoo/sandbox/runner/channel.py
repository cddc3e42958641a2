"""The runner's end of the stream to the host, and buffers for a program's bytes.

The bytes may be many and are written to files and pipes directly; only heads become objects.
"""

import json
import os
from collections.abc import Iterator

from wire import HEADER, LARGEST, LENGTH, FrameError

BLOCK, _READ = 1 << 18, 1 << 16


class ByteBuffer:
    """A contiguous buffer with a capacity."""

    def __init__(self) -> None:
        self.bytes = bytearray()
        self.size = 0  # number of bytes filled

    def ensure(self, capacity: int) -> None:
        """Ensure a total capacity of `capacity` bytes and keep the content."""
        if len(self.bytes) < capacity:
            self.bytes += bytes(capacity - len(self.bytes))

    def read_from(self, fd: int, most: int) -> int:
        """Append one read of at most `most` bytes; return 0 at the end of the file."""
        with memoryview(self.bytes) as view:
            count = os.readv(fd, [view[self.size : self.size + most]])
        self.size += count
        return count

    def append(self, data: bytes | memoryview) -> None:
        """Append `data`, which must fit."""
        self.bytes[self.size : self.size + len(data)] = data
        self.size += len(data)

    def view(self, start: int, end: int) -> memoryview:
        """View of a part; release it before the next `ensure`."""
        return memoryview(self.bytes)[start:end]

    def drop(self, count: int) -> None:
        """Remove `count` bytes from the front."""
        with memoryview(self.bytes) as view:
            view[: self.size - count] = view[count : self.size]
        self.size -= count


def make_file() -> int:
    """Create a file in memory; an unnamed one on disk if Python was built without such files."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("job", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    import tempfile  # imports a dozen modules

    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def write_all(fd: int, parts: list[bytes | memoryview]) -> None:
    """Write all of `parts`, in order."""
    views = [memoryview(part) for part in parts if len(part)]
    while views:
        count = os.writev(fd, views[:64])
        while views and count >= len(views[0]):
            count -= len(views.pop(0))
        if count:
            views[0] = views[0][count:]


class HostChannel:
    """Frames from and to the host."""

    def __init__(self, source: int, target: int) -> None:
        self.source = source
        self.target = target
        self._read = b""
        self._place = 0  # offset of the next frame in the buffer

    @property
    def waiting(self) -> bool:
        """True if a part of the next frame has been read."""
        return self._place < len(self._read)

    def close(self) -> None:
        """Close the stream in a process that does not communicate with the host."""
        os.close(self.source)
        os.close(self.target)

    def next_frame(self) -> tuple[int, dict, list[int]] | None:
        """Read kind, head and blob sizes of the next frame; its blobs remain to be read."""
        # Returns None at the end of the stream.
        if not self._have(HEADER.size + LENGTH.size):
            return None
        length, kind = HEADER.unpack_from(self._read, self._place)
        (size,) = LENGTH.unpack_from(self._read, self._place + HEADER.size)
        if length > LARGEST or size > min(length - LENGTH.size, BLOCK):
            raise FrameError(f"a frame of {length} bytes with a head of {size}")
        self._place += HEADER.size + LENGTH.size
        try:
            head = json.loads(self._take(size))
            sizes = head.pop("blobs")
        except (ValueError, KeyError, AttributeError) as error:
            raise FrameError(f"unreadable head: {type(error).__name__}") from error
        if sum(sizes) != length - LENGTH.size - size:
            raise FrameError("blobs that do not fill the frame")
        return kind, head, sizes

    def read_blob(self, size: int) -> Iterator[bytes]:
        """Yield the next `size` bytes in parts."""
        while size:
            part = self._take(min(size, BLOCK))
            size -= len(part)
            yield part

    def send(
        self,
        kind: int,
        head: dict,
        blobs: list[memoryview] | None = None,
        detail: bytes | memoryview = b"",
    ) -> None:
        """Send a frame; `detail` is the content of a JSON string, for the field `detail`."""
        blobs = blobs or []
        sizes = [len(blob) for blob in blobs]
        text = json.dumps({**head, "blobs": sizes, "detail": ""}).encode("ascii")
        size = len(text) + len(detail)
        start = HEADER.pack(LENGTH.size + size + sum(sizes), kind) + LENGTH.pack(size)
        write_all(self.target, [start + text[:-2], detail, text[-2:], *blobs])

    def _take(self, size: int) -> bytes:
        if not self._have(size):
            raise FrameError("the stream ended within a frame")
        start = self._place
        self._place += size
        return self._read[start : self._place]

    def _have(self, size: int) -> bool:
        while len(self._read) - self._place < size:
            part = os.read(self.source, _READ)
            if not part:
                if not self.waiting:
                    return False
                raise FrameError("the stream ended within a frame")
            self._read = self._read[self._place :] + part
            self._place = 0
        return True
