"""What the parent, the zygote and the workers of a pool say to each other.

Three streams, all Unix socket pairs, no pickle anywhere:

    parent → zygote   orders (fork a worker on the descriptor that comes along; reap a dead one)
    zygote → parent   one line of JSON: ready, or why the set-up failed
    parent ↔ worker   jobs and replies: a fixed header, then bytes

A job carries an id that the reply must repeat; the ids of a worker start at a random number, so
that bytes a broken handler wrote on the pipe are not taken for a reply.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Literal, NamedTuple

from flowzoo.errors import FlowzooError

JobStatus = Literal["ok", "timeout", "crashed", "memory"]

JOB = struct.Struct("<QII")
"""id, bytes of the payload, seconds of CPU time the job may take."""

REPLY = struct.Struct("<QBdI")
"""id, kind, seconds the handler took, bytes of the value."""

ORDER = struct.Struct("<cxxxI")
"""kind, process id (0 with a fork)."""

FORK, REAP = b"F", b"R"

HELLO, DONE, RAISED, NO_MEMORY = range(4)
"""Kinds of a reply. HELLO (id 0) is the first of each worker; its value is the worker's pid."""

KINDS = frozenset((HELLO, DONE, RAISED, NO_MEMORY))
PID = struct.Struct("<I")

MAX_BYTES = 64 * 2**20
"""Longest payload and longest value, in bytes."""

MOST_SECONDS = 1e9
"""A reply that claims to have taken longer (or NaN, or less than nothing) is no reply."""


class PoolError(FlowzooError, RuntimeError):
    """The pool cannot run any job: its set-up fails, or its processes die before they start."""


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one job."""

    status: JobStatus
    """`ok`; `timeout`: killed at its deadline; `memory`: the handler met its memory limit;
    `crashed`: the handler raised, its process died, or what it wrote was no reply."""
    value: bytes = b""
    """What the handler returned; with `crashed`, the exception in words where there was one."""
    seconds: float = 0.0
    """Wall time: of the handler where it answered, else from the dispatch to the verdict."""


class WorkerReply(NamedTuple):
    """One reply as it stood on the stream; nothing but its form has been checked."""

    id: int
    kind: int
    seconds: float
    value: bytes


class ParsedReplies(NamedTuple):
    """What a buffer of the worker's stream holds."""

    replies: list[WorkerReply]
    used: int
    """Bytes that the replies took from the front of the buffer."""
    sound: bool
    """False where a header is impossible: what follows cannot be read."""


def split_replies(buffer: bytes | bytearray, longest: int = MAX_BYTES) -> ParsedReplies:
    """The complete replies at the front of `buffer`; a started one is left in place."""
    replies: list[WorkerReply] = []
    start, size = 0, len(buffer)
    while size - start >= REPLY.size:
        id_, kind, seconds, length = REPLY.unpack_from(buffer, start)
        if kind not in KINDS or length > longest or not 0 <= seconds < MOST_SECONDS:
            return ParsedReplies(replies, start, False)
        end = start + REPLY.size + length
        if end > size:
            break
        replies.append(WorkerReply(id_, kind, seconds, bytes(buffer[start + REPLY.size : end])))
        start = end
    return ParsedReplies(replies, start, True)
