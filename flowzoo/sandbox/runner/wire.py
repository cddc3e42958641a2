"""Frames between the host and the runner in a box; the one module that both sides import.

A frame is `length: u32, kind: u8` and a body of that length: `head length: u32`, the head as a
JSON object, then the blobs whose sizes are `head["blobs"]`. Nothing else ever crosses: no
pickle, no paths, no expected value.

| kind | direction | head | blobs |
|---|---|---|---|
| JOB | to the box | `id style entry tests stop limits` | source, then one per test |
| DATA | both ways | `id`; to the box also `count` | messages of a session, `count` of them |
| STOP | to the box | `id` | |
| READY | from the box | facts about the confinement | |
| CASE | from the box | `id index outcome code signal detail started cpu_s wall_s memory truncated` | output, stderr |
| DONE | from the box | `id clean` | |
| DELAYED | from the box | `id` | |
| BROKEN | from the box | `detail` | |

Styles: `stdin` (a blob per test: its stdin; a fresh fork each), `call` (a blob per test: the call,
`codec.encode((args, kwargs))`; one fork, another one after a crash), and the two halves of a check:
`serve` (the program) and `check` (blobs: setup, code, call), or `lockstep`, which is a `check` that
sends no call before the one in front of it has been answered, or `alone`, which has no other half
and whose code is run with stand-ins for the results.

The messages of a session are one blob: each a record `length: u32 little endian, Q, message`, as
processes write and read them, so that runners hand on what they get without taking it apart. They
begin with a byte for their kind:

| message | from | content |
|---|---|---|
| C, D | check | a call: the encoded tuple of arguments, or list of that and the keywords; D: one that is made for its effect, see `changes` |
| R, E, U | serve | what a call came to: the encoded value; encoded `(class name, message)` of an exception; T or F, the truth of a result that is no plain data, and the name of its type |
| A | serve | in front of an answer to D: a length and encoded changes of arguments, see `changes` |
| Z | host, to check | no more answers will come |
| ? | check | the last answer cannot be read |
| ~ | check | the test makes another call than the one that was foreseen and sent |

| outcome | meaning |
|---|---|
| exited | ended by itself, with `code`; under `call` and `serve`: instead of answering |
| signaled | killed by `signal` |
| returned | (call) the output is the encoded value; (check) the test ran to its end |
| raised | (call, serve, check) `detail` is `Class: message`; AssertionError for its subclasses |
| unplain | (call) what was returned is no plain data; `detail` names the type |
| cpu, wall, memory, output | a limit; a stdin or call test each has its own clocks, a session one, which stands still while it waits for its other half, and under `serve` each call one of CPU time |
| compile | the source does not compile |
| shot | the machine ran out of memory and killed it, not the program's own limit |
| setup | the process could not be confined, and the program did not start |

A program that does not compile, or under `call` does not run to its end, has the same outcome for
all its tests without being run again. After `clean: false` the box must be thrown away.

DELAYED says that the process in front waited for a processor, and that its clock on the wall was
stopped: the host has to wait longer, too.

STOP ends the job with that id, early: what runs is killed and DONE follows, without a CASE for
what had not ended; but under `serve` the program first ends its loading, and has its
CASE if that fails. A STOP (or DATA) whose job is over already is ignored.
"""  # noqa: E501 - rows of a table

from __future__ import annotations

import json
import struct
from collections.abc import Iterable

JOB, DATA, STOP = 1, 2, 3
READY, CASE, DONE, BROKEN, DELAYED = 16, 17, 18, 19, 20

CALL, EFFECT, RETURNED, RAISED, UNPLAIN = b"C", b"D", b"R", b"E", b"U"
CHANGED, NO_MORE, UNREADABLE, DEPARTED = b"A", b"Z", b"?", b"~"

# Seconds on the wall that a process is given beyond its limit for each CPU second that it used: a
# process that works needs no more than a share of a core to be told from one that waits.
WALL_PER_CPU = 16.0

HEADER = struct.Struct(">IB")
LENGTH = struct.Struct(">I")
LARGEST = 64 * 2**20  # most bytes in a body; a longer one is a broken stream


# Length of a record: its kind and its content. See `inside` for the kinds.
RECORD = struct.Struct("<I")
MESSAGE = b"Q"  # kind of a record that is a message of a session
_KIND, _CONTENT = RECORD.size, RECORD.size + 1


class FrameError(Exception):
    """The other side does not keep to the protocol."""


class Frame:
    """One message: kind, head and blobs."""

    __slots__ = ("blobs", "head", "kind")

    def __init__(self, kind: int, head: dict, blobs: list[bytes]) -> None:
        self.kind = kind
        self.head = head
        self.blobs = blobs

    def __repr__(self) -> str:
        return f"Frame({self.kind}, {self.head}, {[len(blob) for blob in self.blobs]})"


def pack(kind: int, head: dict, blobs: list[bytes] | tuple[bytes, ...] = ()) -> bytes:
    """The bytes of a frame."""
    text = json.dumps({**head, "blobs": [len(blob) for blob in blobs]}).encode("ascii")
    body = LENGTH.pack(len(text)) + text + b"".join(blobs)
    if len(body) > LARGEST:
        raise FrameError(f"a frame of {len(body)} bytes; at most {LARGEST} are allowed")
    return HEADER.pack(len(body), kind) + body


def unpack_body(kind: int, body: bytes | memoryview) -> Frame:
    """The frame of a body."""
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
    """The records of messages."""
    parts = []
    for message in messages:
        parts += RECORD.pack(1 + len(message)), MESSAGE, message
    return b"".join(parts)


def find_messages(data: bytes | bytearray, size: int) -> list[tuple[int, int]]:
    """Start and end of the messages in the first `size` bytes of `data`, which are records."""
    # It ends before one that is no message, or not whole.
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
    """Changes of arguments in front of an answer, and the answer; both empty if it is broken."""
    if message[:1] != CHANGED:
        return b"", message
    start = 1 + LENGTH.size
    if len(message) < start:
        return b"", b""
    end = start + LENGTH.unpack_from(message, 1)[0]
    return message[start:end], message[end:]


class FrameDecoder:
    """Cuts a byte stream into frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Frame]:
        """Take `data`; returns the frames that are complete now."""
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
