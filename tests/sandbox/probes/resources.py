"""Programs that use too much of something: time, memory, processes, files, stack, the parser.

Counts are bounded, so that a box that stops nothing is found out without harming the machine.
"""

from __future__ import annotations

from flowzoo.sandbox.attacks.probes import HEAVY, NAP, AttackProbe, stdin
from flowzoo.sandbox.program import Limits

FILES = Limits(cpu_s=1.0, wall_s=4.0, memory_mb=128, files_mb=8)

PROBES: tuple[AttackProbe, ...] = (
    stdin("resources", "endless loop after the answer", "TLE", "print(42)\nwhile True: pass"),
    stdin("resources", "waits for a lock", "TLE", "import _thread\n_thread.allocate_lock()\n"
          "lock = _thread.allocate_lock()\nlock.acquire()\nlock.acquire()", limits=NAP),
    stdin("resources", "loops in C", "TLE", "sum(iter(int, 1))"),
    stdin("resources", "huge power", "TLE MLE", "print(9 ** 9 ** 9)"),
    stdin("resources", "digits of a huge number", "TLE MLE RE",
          "import sys\nsys.set_int_max_str_digits(0)\nprint(str(3 ** 10_000_000)[:1])"),
    stdin("resources", "catastrophic regex", "TLE",
          "import re\nre.match(r'(a+)+$', 'a' * 40 + 'b')"),
    stdin("resources", "10 GB piece by piece", "MLE",
          "rows = []\nwhile True: rows.append(bytearray(2**20))", limits=HEAVY),
    stdin(
        "resources",
        "grows and catches MemoryError",
        "MLE TLE",
        """
        rows = []
        while True:
            try:
                rows.append(bytearray(2**16))
            except MemoryError:
                pass
        """,
    ),
    stdin("resources", "many small objects", "MLE TLE RE", "rows = []\n"
          "while True: rows.append({len(rows): str(len(rows))})",
          limits=Limits(cpu_s=3.0, wall_s=6.0, memory_mb=64)),
    stdin("resources", "anonymous mmap", "MLE RE", "import mmap\n"
          "rows = [mmap.mmap(-1, 2**26) for _ in range(100)]\n"
          "for row in rows: row.write(b'x' * 2**26)", limits=HEAVY),
    stdin(
        "resources",
        "memory files outside the address space",
        "AC RE MLE",
        """
        written = 0
        for _ in range(32):
            fd = os.memfd_create("m")
            for _ in range(16):
                written += os.write(fd, bytes(2**20))
        print("leak" if written > 200 * 2**20 else n + 1)
        """,
        reaches=True,
        limits=FILES,
        control=True,
    ),
    stdin(
        "resources",
        "pipes filled",
        "AC RE MLE",
        """
        import fcntl
        held, pipes = 0, []
        try:
            for _ in range(200):
                pipes.append(os.pipe())
                os.set_blocking(pipes[-1][1], False)
                fcntl.fcntl(pipes[-1][1], 1031, 2**20)
                held += os.write(pipes[-1][1], bytes(2**20))
        except OSError:
            pass
        print("leak" if held > 100 * 2**20 else n + 1)
        """,
        reaches=True,
    ),
    stdin(
        "resources",
        "thread bomb",
        "AC RE MLE",
        """
        import threading, time
        made = 0
        try:
            for _ in range(2000):
                threading.Thread(target=time.sleep, args=(0.3,), daemon=True).start()
                made += 1
        except (RuntimeError, MemoryError):
            pass
        print("leak" if made > 500 else n + 1)
        """,
        reaches=True,
    ),
    stdin("resources", "recursion without a limit", "RE MLE TLE",
          "import sys\nsys.setrecursionlimit(10**9)\ndef f():\n    f()\nf()"),
    stdin("resources", "recursion through C", "RE MLE TLE",
          "import sys\nsys.setrecursionlimit(10**9)\nclass A: pass\n"
          "A.__getattr__ = lambda self, name: getattr(self, name + 'x')\nA().a"),
    stdin("resources", "deep repr", "RE MLE TLE",
          "import sys\nsys.setrecursionlimit(10**9)\nx = []\n"
          "for _ in range(10**6): x = [x]\nrepr(x)"),
    stdin("resources", "all descriptors", "AC RE", "import os\nn = int(input())\nfds = []\ntry:\n"
          "    while len(fds) < 5000: fds.append(os.dup(0))\nexcept OSError: pass\n"
          "print('leak' if len(fds) >= 5000 else n + 1)"),
    stdin(
        "resources",
        "endless files",
        "AC RE",
        """
        made = 0
        try:
            for k in range(50_000):
                os.close(os.open(f"/tmp/flowzoo-probe-{k}", os.O_CREAT | os.O_WRONLY))
                made += 1
        except OSError:
            pass
        print("leak" if made == 50_000 else n + 1)
        """,
        reaches=True,
        limits=FILES,
        harmful=True,
    ),
    stdin("resources", "truncate to 1 TB", "AC RE OLE", "def grow():\n"
          "    with open('/tmp/flowzoo-probe', 'wb') as file: file.truncate(2**40)\n"
          "tries(grow)", reaches=True, harmful=True),
    stdin("resources", "timer storm", "TLE RE", "import signal\n"
          "signal.signal(signal.SIGALRM, lambda *_: None)\n"
          "signal.setitimer(signal.ITIMER_REAL, 1e-6, 1e-6)\nwhile True: pass"),
    stdin("resources", "5,000 parentheses", "CE RE", "(" * 5000 + ")" * 5000),
    stdin("resources", "200,000 minus signs", "CE RE TLE MLE", "-" * 200_000 + "1"),
    stdin("resources", "nested lambdas", "CE RE TLE MLE", "lambda: " * 20_000 + "0"),
    stdin("resources", "constant folding", "CE RE TLE MLE AC",
          "x = 'ab' * 2**40\nprint(42)"),
    stdin("resources", "NUL in the source", "CE RE", "print(42)\0\n"),
    stdin("resources", "unknown coding", "CE RE", "# -*- coding: nonsense -*-\nprint(42)"),
    stdin("resources", "lone surrogate in the source", "CE RE WA", "print('\ud800')"),
    stdin("resources", "2 MB of source", "AC CE RE TLE MLE",
          "x = [" + "1," * 1_000_000 + "]\nprint(42)",
          limits=Limits(cpu_s=3.0, wall_s=8.0, memory_mb=256)),
    stdin("resources", "zlib bomb", "MLE", "import zlib\n"
          "bomb = zlib.compress(bytes(2**24))\nrows = []\n"
          "while True: rows.append(zlib.decompress(bomb))", limits=HEAVY),
    stdin("resources", "import of itself for ever", "AC RE TLE", "import __main__\n"
          "print(int(input()) + 1)"),
)  # fmt: skip
