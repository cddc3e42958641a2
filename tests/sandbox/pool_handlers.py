"""Handlers for the tests of the pool, imported by name; a job is `word` or `word:rest`."""

import ctypes
import os
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from flowzoo.sandbox import pool


def setup() -> Callable[[bytes], bytes]:
    return handle


def setup_that_raises() -> Callable[[bytes], bytes]:
    raise LookupError("no grammar for this")


def setup_that_exits() -> Callable[[bytes], bytes]:
    os._exit(7)


def handle(job: bytes) -> bytes:
    word, _, rest = job.partition(b":")
    return HANDLERS[word](rest)


def hang(rest: bytes) -> bytes:
    while True:
        pass


def grow(rest: bytes) -> bytes:
    blocks = []
    while True:
        blocks.append(bytearray(2**24))


def wait(rest: bytes) -> bytes:
    """Create `rest`.waits, then wait for the file `rest`."""
    path = Path(os.fsdecode(rest))
    Path(f"{path}.waits").touch()
    while not path.exists():
        time.sleep(0.005)
    return rest


def fork(rest: bytes) -> bytes:
    """Write the id of a process that stays, then hang."""
    pid = os.fork()
    if pid:
        Path(os.fsdecode(rest)).write_text(str(pid))
    time.sleep(600)
    return b""


def print_noise(rest: bytes) -> bytes:
    for stream in (sys.stdout, sys.stderr):
        stream.write("noise")
        stream.flush()
    os.write(1, b"noise")
    return b""


def leave(error: BaseException) -> bytes:
    raise error


def send(pid: int, number: int) -> bytes:
    os.kill(pid, number)
    time.sleep(600)
    return b""


def deep(depth: int) -> bytes:
    return deep(depth + 1) + b"x"


def die_in_reply(rest: bytes) -> bytes:
    def write_half(fd: int, data: bytes) -> None:
        os.write(fd, data[: len(data) // 2])
        send(os.getpid(), signal.SIGKILL)

    pool._write = write_half
    return rest


class Unprintable(Exception):
    def __str__(self) -> str:
        raise ValueError("no")


HANDLERS: dict[bytes, Callable[[bytes], bytes]] = {
    b"echo": lambda rest: rest,
    b"sleep": lambda rest: time.sleep(float(rest)) or rest,
    b"parent": lambda rest: b"%d" % os.getppid(),
    b"hash": lambda rest: b"%d" % hash(rest.decode()),
    b"environment": lambda rest: " ".join(sorted(os.environ)).encode(),
    b"print": print_noise,
    b"wait": wait,
    b"hang": hang,
    b"regex": lambda rest: b"%d" % bool(re.match(r"(a+)+$", "a" * 40 + "b")),
    b"grow": grow,
    b"hog": lambda rest: bytes(2**40),
    b"abort": lambda rest: os.abort(),
    b"segv": lambda rest: ctypes.string_at(0),
    b"exit": lambda rest: os._exit(int(rest or b"0")),
    b"sys.exit": lambda rest: leave(SystemExit(0)),
    b"interrupt": lambda rest: leave(KeyboardInterrupt()),
    b"raise": lambda rest: leave(ValueError("the wrong kind of grin")),
    b"unprintable": lambda rest: leave(Unprintable()),
    b"recursion": lambda rest: deep(0),
    b"str": lambda rest: "text",  # type: ignore[dict-item,return-value]
    b"oversize": lambda rest: bytes(2**26 + 1),
    b"kill": lambda rest: send(os.getpid(), signal.SIGKILL),
    b"die": die_in_reply,
    b"stop": lambda rest: send(os.getpid(), signal.SIGSTOP),
    b"close": lambda rest: os.closerange(0, 64) or b"",
    b"fork": fork,
    b"worker": lambda rest: send(os.getppid(), signal.SIGKILL),
}
