"""Format of a job for its process: a sealed file in memory, which the zygote never opens."""

import struct
from os import pread
from typing import NamedTuple

from inside import JOB

# Followed by the entry, the sizes of the blobs (8 bytes each), and the blobs: source and tests.
# Style, threads (-1: any number), bytes of memory, of a file, of output, blobs, entry's bytes.
HEAD = struct.Struct("<BiqqqII")
STYLES = ("stdin", "call", "serve", "check", "lockstep", "alone")
_FIRST_LOOK = 1024


class ProcessTask(NamedTuple):
    """Task of a process."""

    style: str
    entry: str
    # Offset and size in the job's file: the source, and the other blobs of the process.
    blobs: list[tuple[int, int]]
    most: int  # bytes of output allowed
    limits: tuple[int, int, int]  # see `confine.job_limits`


def pack_head(
    style: str, entry: str, most: int, limits: tuple[int, int, int], sizes: list[int]
) -> bytes:
    """Pack the head of the file, which precedes the blobs."""
    memory, files, threads = limits
    name = entry.encode("utf-8", "surrogatepass")
    head = HEAD.pack(STYLES.index(style), threads, memory, files, most, len(sizes), len(name))
    return head + name + struct.pack(f"<{len(sizes)}Q", *sizes)


def read_task(first: int) -> ProcessTask:
    """Read the task of this process; `first` is the blob of the first remaining test."""
    data = pread(JOB, _FIRST_LOOK, 0)
    number, threads, memory, files, most, count, length = HEAD.unpack_from(data)
    start = HEAD.size + length
    offset = start + 8 * count
    if offset > len(data):
        data = pread(JOB, offset, 0)
    style = STYLES[number]
    blobs = []
    for row, size in enumerate(struct.unpack_from(f"<{count}Q", data, start)):
        if not row or (row >= first and style != "stdin"):
            blobs.append((offset, size))
        offset += size
    entry = data[HEAD.size : start].decode("utf-8", "surrogatepass")
    return ProcessTask(style, entry, blobs, most, (memory, files, threads))
