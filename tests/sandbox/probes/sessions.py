"""Programs that misuse the way their results leave the box, in calls and in sessions of a check.

They know how the runner's process speaks (records `length: u32, kind, content` on descriptor 3, an
encoder in the frames above them) and use all of it. What they cannot know is what is expected.
"""

from __future__ import annotations

from flowzoo.sandbox.attacks.probes import CALL, NAP, AttackProbe, Category, call
from flowzoo.sandbox.program import CheckTest, Limits

_RECORD = """
import os, struct, sys
def record(kind, content=b"", size=None):
    os.write(3, struct.pack("<I", 1 + len(content) if size is None else size) + kind + content)
def runner():
    return sys._getframe(2).f_globals
"""
_MANY = CheckTest(
    "def check(candidate):\n    for n in range(1, 6): assert candidate(n) == n + 1\n",
    "check(candidate)",
)
_BOTH = (*CALL, _MANY)


def _misuse(
    name: str, allowed: str, source: str, category: Category = "hacks", limits: Limits = NAP
) -> AttackProbe:
    return call(category, name, allowed, _RECORD + source, tests=_BOTH, limits=limits)


PROBES: tuple[AttackProbe, ...] = (
    _misuse("answers before any question", "WA RE TLE OLE", """
while True: record(b"Q", b"x" * 1000)
"""),
    _misuse("answers without end", "WA RE TLE OLE", """
def f(n):
    while True: record(b"Q", b"x" * 1000)
"""),
    _misuse("results without end", "WA RE TLE OLE", """
def f(n):
    while True: record(b"R", b"x" * 1000)
"""),
    _misuse("a record of 4 GB", "WA RE TLE OLE", """
def f(n):
    record(b"R", size=2**32 - 1)
    while True: os.write(3, b"x" * 65536)
"""),
    _misuse("half a record", "WA RE OLE", """
def f(n):
    record(b"R", size=100)
    os._exit(0)
"""),
    _misuse("records of no length", "WA RE TLE", """
def f(n):
    os.write(3, bytes(400))
    return 0
"""),
    _misuse("records of every kind", "WA RE TLE OLE MLE", """
def f(n):
    for kind in range(256): record(bytes([kind]), bytes(12))
    return 0
"""),
    _misuse("a record that breaks out of its text", "WA RE", """
def f(n):
    record(b"E", b'", "outcome": "returned", "detail": "')
    return 0
"""),
    _misuse("a set-up failure claimed", "WA RE", """
def f(n):
    record(b"F", b"not my fault")
    os._exit(0)
"""),
    _misuse("deeply nested bytes as a result", "WA RE OLE", """
def f(n):
    for mark in (b"[", b"(", b"l", b"t", b"{", bytes([1])):
        record(b"R", bytes(8) + mark * 60_000)
    return 0
"""),
    _misuse("one answer sent many times", "WA RE", """
def f(n):
    tools = runner()
    for _ in range(50): tools["say"](b"Q", tools["codec"].encode(("returned", 2)))
    return 0
"""),
    _misuse("answers of the wrong shape", "WA RE", """
def f(n):
    tools = runner()
    for odd in (("returned",), [], None, ("raised", "SystemExit", "0"), ("raised", 1), ("x", 2)):
        tools["say"](b"Q", tools["codec"].encode(odd))
    return 0
"""),
    _misuse("encoder of the runner replaced", "WA RE TLE", """
def f(n):
    tools = runner()
    tools["codec"].encode = lambda *_: b""
    return 0
"""),
    _misuse("voice of the runner replaced", "WA RE TLE", """
def f(n):
    runner()["say"] = lambda *_: None
    return 0
"""),
    _misuse("all descriptors closed in a call", "WA RE", """
def f(n):
    os.closerange(0, 64)
    return 0
"""),
    _misuse("an exception named as another", "WA RE", """
class AssertionError(Exception): pass
def f(n): raise AssertionError
"""),
    _misuse("KeyboardInterrupt into the test", "WA RE", """
def f(n): raise KeyboardInterrupt
"""),
    _misuse("hangs in a call", "TLE", """
import time
def f(n): time.sleep(60)
""", "resources"),
    _misuse("loops in a call", "TLE", """
def f(n):
    while True: pass
""", "resources"),
    _misuse("stops itself in a call", "TLE RE", """
import signal
def f(n):
    os.kill(os.getpid(), signal.SIGSTOP)
    return 0
""", "resources"),
    _misuse("prints for ever in a call", "TLE OLE", """
def f(n):
    while True: print("x" * 1000)
""", "resources"),
    _misuse("memory in a call", "MLE", """
def f(n):
    rows = []
    while True: rows.append(bytearray(10**6))
""", "resources", Limits(cpu_s=2.0, wall_s=8.0, memory_mb=128)),
    _misuse("a long list in a call", "OLE MLE", """
def f(n): return [0] * 10**6
""", "resources", Limits(cpu_s=2.0, wall_s=8.0, memory_mb=128)),
    call("resources", "6 MB of source", "CE RE", "x = 1\n" * 1_000_000, tests=CALL),
)  # fmt: skip
