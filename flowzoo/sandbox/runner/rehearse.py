"""Warming up: imports, and a rehearsal of what each copy of the zygote does.

A copy pays for each page that it writes to. Much of that is what the interpreter notes down when it
sees code, names and types for the first time: lookups, specialized instructions, encoders. Done
here, it is there in all copies. A fork copies an entry for every page that the runner has, and an
import that is missing costs each program that needs it: `dataclasses`, `decimal`, `fractions` and
`datetime` would make all programs slower by 5 to 10 %, for the few that use them.
"""

from __future__ import annotations

import builtins
import contextlib
import importlib
import os
import sys
from collections.abc import Iterator

import inside
from channel import make_file
from task import pack_head, read_task

COMMON = (
    "abc", "bisect", "collections", "collections.abc", "copy", "enum", "functools", "heapq",
    "itertools", "json", "math", "operator", "random", "re", "string", "threading", "time", "types",
    "typing",
)  # fmt: skip

_SAMPLE = """
import sys
class Sample:
    def method(self, x: int = 1, *args, **kwargs) -> list:
        return [f"{i:3}" for i in range(x) if i % 2 == 0]
def loop(n):
    while n > 0:
        n -= 1
        try: assert {n: (n, -n)}[n][0] < 0
        except (AssertionError, KeyError) as error: continue
    return lambda x: x ** 2 // 3
loop(3)(4), Sample().method(3)
"""  # code that has the compiler and the interpreter touch what they set up at first use
_ROUNDS = 12  # the interpreter specializes code that it has seen eight times
_INPUT = b"41\n1 2 3\n4 5\n6\n"
_SOURCE = b"""
import sys
def solve(a, b):
    total = 0
    for x in a:
        if x % 2 and x not in b:
            total += x
    return total
n = int(input())
a = list(map(int, input().split()))
b = [int(x) for x in sys.stdin.readline().split()]
seen = {x: str(x) for x in a}
print(n + 1, solve(a, set(b)), sep="\\n")
print("\\n".join(sorted(seen.values())), f"{len(seen)}", sys.stdin.read().split())
sys.stdout.write("done\\n")
"""


def warm_up(own_modules: set[str]) -> list[str]:
    """Import, compile once, forget the runner's own modules; the module path of programs."""
    for name in COMMON:
        importlib.import_module(name)
    exec(compile(_SAMPLE, "<warm>", "exec"), {})
    path = sys.path[1:]
    for name in own_modules:
        sys.modules.pop(name, None)
    return path


def rehearse() -> None:
    """Do a few times what the process of a stdin program does, with nothing at stake."""
    job = make_file()
    os.write(job, pack_head("stdin", "", 0, (0, 0, 0), [len(_SOURCE), 0]) + _SOURCE)
    for _ in range(_ROUNDS):
        with streams_in_place(_INPUT, job):
            inside.open_streams()
            _play()
    os.close(job)


def _play() -> None:
    inside.wake_up()
    start, size = read_task(1).blobs[0]
    code = inside.compile_program(os.pread(inside.JOB, size, start))
    inside.say(b"C")
    if code is not None:
        exec(code, {"__name__": "__main__", "__builtins__": builtins})
    sys.stdout.flush()
    sys.stderr.flush()


@contextlib.contextmanager
def streams_in_place(text: bytes = b"", job: int = -1) -> Iterator[None]:
    """A file as 0, pipes as 1, 2 and 3 and the job as 4, as a program finds them; for a while."""
    saved = [os.dup(fd) for fd in range(inside.HEARS)]
    file, (reader, writer) = make_file(), os.pipe()
    os.write(file, text)
    os.lseek(file, 0, os.SEEK_SET)
    for number, fd in enumerate((file, writer, writer, writer, file if job < 0 else job)):
        os.dup2(fd, number)
    try:
        yield
    finally:
        for number, fd in enumerate(saved):
            os.dup2(fd, number, inheritable=number == 2)
        for fd in (*saved, file, reader, writer):
            os.close(fd)
