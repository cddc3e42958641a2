"""Frames between the host and the runner; the only module that both sides import."""

import json
import struct
from collections.abc import Iterable
from typing import NamedTuple

# A frame is `length: u32, kind: u8` and a body of that length: `head length: u32`, the head as a
# JSON object, then the blobs whose sizes are `head["blobs"]`. Nothing else is exchanged: no
# pickles, paths or expected values.
#
# | kind | direction | head | blobs |
# |---|---|---|---|
# | JOB | to the box | `id style entry tests stop limits` | source, then one per test |
# | DATA | both ways | `id`; to the box also `count` | messages of a session, `count` of them |
# | STOP | to the box | `id` | |
# | READY | from the box | facts about the confinement | |
# | CASE | from the box | `id index outcome code signal detail started cpu_s wall_s memory` | two |
# | DONE | from the box | `id clean`; after `clean: false` the box must be discarded | |
# | DELAYED | from the box | `id`: its process waited for a processor, so the host waits longer | |
# | BROKEN | from the box | `detail` | |
#
# Styles: `stdin` (a blob per test: its stdin; a fresh fork each), `call` (a blob per test:
# `codec.encode((args, kwargs))`; one fork, another one after a crash), and the halves of a check:
# `serve` (the program) and `check` (blobs: setup, code, call), `lockstep` (a `check` that sends no
# call before the last one was answered) or `alone` (its code runs with stand-ins for the results).
# A program that does not compile, or under `call` does not load, has the same outcome for all its
# tests. STOP kills the running process, and DONE follows without a CASE for unfinished tests; but
# under `serve` the program first finishes loading. STOP or DATA of an ended job is ignored.
JOB, DATA, STOP = 1, 2, 3
READY, CASE, DONE, BROKEN, DELAYED = 16, 17, 18, 19, 20

# Messages of a session: records `length: u32 little endian, Q, message` in the format of the
# processes, so runners forward them unchanged. Each starts with a byte for its kind. From the test:
# C a call, the encoded tuple of arguments or list of that and the keywords, or a request for items
# (see `answers`); D a call for its effect (see `changes`); ? the last answer cannot be read; ~ the
# test makes a call other than the predicted one. From the program: R the encoded value, E encoded
# `(class name, message)`; A before an answer to D: a length and encoded changes of arguments. Z,
# from the host to the test: no more answers follow.
CALL, EFFECT, RETURNED, RAISED = b"C", b"D", b"R", b"E"
CHANGED, NO_MORE, UNREADABLE, DEPARTED = b"A", b"Z", b"?", b"~"

# Additional wall-clock seconds of a process per used CPU second, which distinguishes a running
# process with a share of a core from a waiting one.
WALL_PER_CPU = 16.0

HEADER = struct.Struct(">IB")
LENGTH = struct.Struct(">I")
LARGEST = 64 * 2**20  # most bytes of a body; a longer one means a broken stream


# Length of a record: kind and content. See `inside` for the kinds.
RECORD = struct.Struct("<I")
MESSAGE = b"Q"  # kind of a record that is a message of a session
_KIND, _CONTENT = RECORD.size, RECORD.size + 1


class FrameError(Exception):
    """The other side violated the protocol."""


class Frame(NamedTuple):
    """One message: kind, head and blobs."""

    kind: int
    head: dict
    blobs: list[bytes]

    def __repr__(self) -> str:
        return f"Frame({self.kind}, {self.head}, {[len(blob) for blob in self.blobs]})"


def pack(kind: int, head: dict, blobs: list[bytes] | tuple[bytes, ...] = ()) -> bytes:
    """Encode a frame."""
    text = json.dumps({**head, "blobs": [len(blob) for blob in blobs]}).encode("ascii")
    body = LENGTH.pack(len(text)) + text + b"".join(blobs)
    if len(body) > LARGEST:
        raise FrameError(f"a frame of {len(body)} bytes; at most {LARGEST} are allowed")
    return HEADER.pack(len(body), kind) + body


def unpack_body(kind: int, body: bytes | memoryview) -> Frame:
    """Decode the body of a frame."""
    try:
        (size,) = LENGTH.unpack_from(body)
        head = json.loads(bytes(body[4 : 4 + size]))
        sizes = head.pop("blobs")
        offset, blobs = 4 + size, []
        for count in sizes:
            if type(count) is not int or count < 0:
                raise FrameError(f"a blob of size {count!r}")
            blobs.append(bytes(body[offset : offset + count]))
            offset += count
    except (struct.error, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FrameError(f"unreadable body: {type(error).__name__}") from error
    if offset != len(body):
        raise FrameError(f"a body of {len(body)} bytes with {offset} bytes of content")
    return Frame(kind, head, blobs)


def pack_messages(messages: Iterable[bytes]) -> bytes:
    """Encode messages as records."""
    parts = []
    for message in messages:
        parts += RECORD.pack(1 + len(message)), MESSAGE, message
    return b"".join(parts)


def find_messages(data: bytes | bytearray, size: int) -> list[tuple[int, int]]:
    """Start and end of the messages in the first `size` bytes of `data`, which contain records."""
    # It ends before a record that is not a message or is incomplete.
    places, offset = [], 0
    kind, read_length = MESSAGE[0], RECORD.unpack_from
    while offset + _CONTENT <= size and data[offset + _KIND] == kind:
        end = offset + RECORD.size + read_length(data, offset)[0]
        if not offset + _CONTENT <= end <= size:
            break
        places.append((offset + _CONTENT, end))
        offset = end
    return places


def split_changes(message: bytes) -> tuple[bytes, bytes]:
    """Split changes of arguments and the answer; both are empty for invalid data."""
    if message[:1] != CHANGED:
        return b"", message
    start = 1 + LENGTH.size
    if len(message) < start:
        return b"", b""
    end = start + LENGTH.unpack_from(message, 1)[0]
    return message[start:end], message[end:]


class FrameDecoder:
    """Splits a byte stream into frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Frame]:
        """Add `data`; return the frames that it completes."""
        buffer = self._buffer
        buffer += data
        frames, offset = [], 0
        while len(buffer) - offset >= HEADER.size:
            length, kind = HEADER.unpack_from(buffer, offset)
            if length > LARGEST:
                raise FrameError(f"a frame of {length} bytes; at most {LARGEST} are allowed")
            end = offset + HEADER.size + length
            if len(buffer) < end:
                break
            frames.append(unpack_body(kind, bytes(buffer[offset + HEADER.size : end])))
            offset = end
        del buffer[:offset]
        return frames
