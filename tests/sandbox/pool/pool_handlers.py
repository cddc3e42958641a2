"""Handlers for the tests of the pool, imported by name; a job is `word` or `word:rest`."""

from __future__ import annotations

import ctypes
import os
import signal
import struct
import sys
import time
from collections.abc import Callable

REPLY = struct.Struct("<QBdI")


def setup() -> Callable[[bytes], bytes]:
    return handle


def setup_that_raises() -> Callable[[bytes], bytes]:
    raise LookupError("no grammar for this")


def setup_that_exits() -> Callable[[bytes], bytes]:
    os._exit(7)


def setup_without_handler() -> int:
    return 3


def handle(job: bytes) -> bytes:
    word, _, rest = job.partition(b":")
    return WORDS[word](rest)


def write_everywhere(data: bytes) -> bytes:
    for fd in range(3, 64):
        try:
            os.write(fd, data)
        except OSError:
            continue
    return b"after the forgery"


def hang(rest: bytes) -> bytes:
    while True:
        pass


def grow(rest: bytes) -> bytes:
    kept = []
    while True:
        kept.append(bytearray(2**24))


def wait(rest: bytes) -> bytes:
    """Say with a file that this job runs, then wait for another one."""
    path = rest.decode()
    touch(rest + b".waits")
    while not os.path.exists(path):
        time.sleep(0.005)
    return rest


def touch(rest: bytes) -> bytes:
    os.close(os.open(rest, os.O_CREAT | os.O_WRONLY))
    return rest


def mark(rest: bytes) -> bytes:
    """Make the file a byte longer."""
    with open(rest, "ab") as file:
        file.write(b"x")
    return rest


def hold(rest: bytes) -> bytes:
    size, _, path = rest.partition(b":")
    held = bytearray(b"x") * int(size)
    wait(path)
    return b"%d" % len(held)


def fork_and_leave(rest: bytes) -> bytes:
    """Leave a process behind that holds the worker's stream open."""
    if os.fork() == 0:
        time.sleep(600)
    os._exit(0)


def fork_and_tell(rest: bytes) -> bytes:
    pid = os.fork()
    if pid == 0:
        time.sleep(600)
    return b"%d" % pid


def print_noise(rest: bytes) -> bytes:
    for stream in (sys.stdout, sys.stderr):
        stream.write("noise")
        stream.flush()
    return b""


def write_half(rest: bytes) -> bytes:
    write_everywhere(b"\x00" * 5)
    os._exit(0)


def leave(error: BaseException) -> bytes:
    raise error


def stop(pid: int, number: int) -> bytes:
    os.kill(pid, number)
    time.sleep(600)
    return b""


def deep(depth: int) -> bytes:
    return deep(depth + 1) + b"x"


class Unprintable(Exception):
    def __str__(self) -> str:
        raise ValueError("no")


WORDS: dict[bytes, Callable[[bytes], bytes]] = {
    b"echo": lambda rest: rest,
    b"size": lambda rest: b"%d" % len(rest),
    b"make": lambda rest: b"m" * int(rest),
    b"sleep": lambda rest: time.sleep(float(rest)) or rest,
    b"pid": lambda rest: b"%d" % os.getpid(),
    b"parent": lambda rest: b"%d" % os.getppid(),
    b"hash": lambda rest: b"%d" % hash(rest.decode()),
    b"environment": lambda rest: " ".join(sorted(os.environ)).encode(),
    b"print": print_noise,
    b"wait": wait,
    b"touch": touch,
    b"mark": mark,
    b"hang": hang,
    b"grow": grow,
    b"hold": hold,
    b"hog": lambda rest: bytes(2**40),
    b"regex": lambda rest: b"%d" % bool(__import__("re").match(r"(a+)+$", "a" * 40 + "b")),
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
    b"kill": lambda rest: stop(os.getpid(), signal.SIGKILL),
    b"stop": lambda rest: stop(os.getpid(), signal.SIGSTOP),
    b"close": lambda rest: os.closerange(0, 64) or b"",
    b"fork": fork_and_leave,
    b"child": fork_and_tell,
    b"garbage": lambda rest: write_everywhere(b"\xff" * 100),
    b"half": write_half,
    b"forged": lambda rest: write_everywhere(REPLY.pack(1, 1, 0.0, 4) + b"fake"),
    b"hello": lambda rest: write_everywhere(REPLY.pack(0, 0, 0.0, 4) + struct.pack("<I", 1)),
    b"long": lambda rest: write_everywhere(REPLY.pack(1, 1, 0.0, 2**32 - 1)),
    b"zygote": lambda rest: stop(os.getppid(), signal.SIGKILL),
}


def use_in_daemon(answers) -> None:
    """Body of a daemonic process: it may have no children made by multiprocessing."""
    from flowzoo.sandbox import WorkerPool

    with WorkerPool("pool_handlers:setup", workers=2, deadline=60) as pool:
        results = pool.submit_batch([b"hang"], deadline=0.3)
        results += pool.submit_batch([b"echo:from a daemon"])
    answers.put([(result.status, result.value) for result in results])
