"""The attack suite: programs that try what a sandbox must stop, and honest ones it must not.

Those of `flowzoo sandbox check` are in `flowzoo.sandbox.attacks.probes`; these are the others: a
TOML file for each subject, and programs that are put together.
"""

import tomllib
from pathlib import Path

from flowzoo.sandbox.attacks import probes as self_check
from flowzoo.sandbox.attacks.probes import CALL, AttackProbe, call, read_probes, stdin
from flowzoo.sandbox.program import EXACT, CallTest, Limits, StdinTest

HERE = Path(__file__).parent
ROOMY = Limits(cpu_s=2.0, wall_s=6.0, memory_mb=256, output_bytes=2**20)
SYSCALLS = tomllib.loads((HERE / "syscalls.toml").read_text(encoding="utf-8"))
CALL_ALL = """
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
column = 0 if platform.machine() == "x86_64" else 1
refused = {errno.EPERM, errno.ENOSYS, errno.EACCES}
done = []
for name, row in calls.items():
    if row[column] < 0:
        continue
    ctypes.set_errno(0)
    result = libc.syscall(*(ctypes.c_long(value) for value in (row[column], *row[2])))
    if result >= 0 or ctypes.get_errno() not in refused:
        done.append(f"{name}={result}/{ctypes.get_errno()}")
print("leak", *done) if done else print(n + 1)
"""
PLAIN_VALUES = (
    [None, True, 0, -(10**60), 1.5, float("nan"), -0.0, 1j, "é\ud800", b"\xff"],
    ((1, [2, (3,)]), {1, 2}, frozenset({"a"}), {(1, "k"): {"v": []}}),
)

GENERATED: tuple[AttackProbe, ...] = (
    stdin("honest", "5,000 tiny writes", "AC", """
        import sys
        n = int(input())
        for digit in range(5000):
            sys.stdout.write(str(digit % 10))
            sys.stdout.flush()
        """, tests=(StdinTest("1", "0123456789" * 500),), limits=ROOMY),
    stdin("honest", "200 kB of output and 2 MB of input", "AC",
          "import sys\ntext = sys.stdin.read()\nprint(text[:200_000])",
          tests=(StdinTest("x" * 2_000_000, "x" * 200_000),), limits=ROOMY),
    stdin("honest", "stdin left unread", "AC", "print(42)",
          tests=(StdinTest("1" * 300_000, "42"),)),
    call("honest", "values of every plain type", "AC", "def f(x):\n    return x",
         tests=tuple(CallTest((value,), value) for value in PLAIN_VALUES)),
    stdin("resources", "5,000 parentheses", "CE RE", "(" * 5000 + ")" * 5000),
    stdin("resources", "200,000 minus signs", "CE RE TLE MLE", "-" * 200_000 + "1"),
    stdin("resources", "nested lambdas", "CE RE TLE MLE", "lambda: " * 20_000 + "0"),
    stdin("resources", "NUL in the source", "CE RE", "print(42)\0\n"),
    stdin("resources", "lone surrogate in the source", "CE RE WA", "print('\ud800')"),
    stdin("resources", "2 MB of source", "AC CE RE TLE MLE",
          "x = [" + "1," * 1_000_000 + "]\nprint(42)",
          limits=Limits(cpu_s=3.0, wall_s=8.0, memory_mb=256)),
    call("resources", "6 MB of source", "CE RE", "x = 1\n" * 1_000_000, tests=CALL),
    stdin("output", "answer behind a backspace", "WA", "print('43\\b2')",
          tests=(StdinTest("41\n", "42\n", EXACT),)),
    *(
        stdin("escape", f"system calls: {group}", "AC RE",
              f"import ctypes, errno, platform\ncalls = {calls!r}\n{CALL_ALL}",
              reaches=True, control=True)
        for group, calls in SYSCALLS.items()
    ),
)  # fmt: skip


SUBJECTS = (
    "honest", "resources", "output", "exit", "signals", "escape", "state", "network", "hacks",
    "sessions",
)  # fmt: skip
PROBES: tuple[AttackProbe, ...] = (
    *(
        probe
        for name in SUBJECTS
        for probe in read_probes(Path(__file__).with_name(f"{name}.toml"))
    ),
    *GENERATED,
    *self_check.PROBES,  # last: one renames a file that others of `escape` look for
)
