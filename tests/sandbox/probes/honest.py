"""Correct programs of many kinds: a box that rejects one of them is too tight."""

from __future__ import annotations

from flowzoo.sandbox.attacks.probes import AttackProbe, call, stdin
from flowzoo.sandbox.program import CallTest, Limits, StdinTest

ROOMY = Limits(cpu_s=2.0, wall_s=6.0, memory_mb=256, output_bytes=2**20)

PROBES: tuple[AttackProbe, ...] = (
    stdin("honest", "readline", "AC", "import sys\nprint(int(sys.stdin.readline()) + 1)"),
    stdin(
        "honest",
        "binary buffer and os.write",
        "AC",
        """
        import os, sys
        n = int(sys.stdin.buffer.read())
        os.write(1, b"%d\\n" % (n + 1))
        """,
    ),
    stdin(
        "honest",
        "main guard",
        "AC",
        """
        def main():
            print(int(input()) + 1)
        if __name__ == "__main__":
            main()
        """,
    ),
    stdin(
        "honest",
        "future import and annotations",
        "AC",
        '''
        """A docstring first."""
        from __future__ import annotations
        def add(n: Undefined) -> Unknown:
            return n + 1
        print(add(int(input())))
        ''',
    ),
    stdin(
        "honest",
        "thread that prints late",
        "AC",
        """
        import threading, time
        n = int(input())
        def late():
            time.sleep(0.1)
            print(n + 1)
        threading.Thread(target=late).start()
        """,
    ),
    stdin(
        "honest",
        "atexit prints",
        "AC",
        "import atexit\nn = int(input())\natexit.register(lambda: print(n + 1))",
    ),
    stdin("honest", "sys.exit after the answer", "AC", "print(int(input()) + 1)\nraise SystemExit"),
    stdin(
        "honest",
        "usual imports",
        "AC",
        """
        import array, ast, bisect, collections, copy, dataclasses, datetime, decimal, enum
        import fractions, functools, hashlib, heapq, io, itertools, json, math, operator, random, re
        import statistics, string, struct, sys, textwrap, time, typing, unicodedata
        from typing import List
        random.seed(1)
        print(fractions.Fraction(int(input())) + 1)
        """,
        limits=ROOMY,
    ),
    stdin(
        "honest",
        "deep recursion within reason",
        "AC",
        """
        import sys
        sys.setrecursionlimit(20_000)
        def depth(n):
            return 0 if n == 0 else 1 + depth(n - 1)
        print(depth(int(input())))
        """,
        tests=(StdinTest("10000\n", "10000\n"),),
        limits=ROOMY,
    ),
    stdin(
        "honest",
        "100 MB of lists",
        "AC",
        "n = int(input())\nrows = [0] * (100 * 2**20 // 8)\nprint(len(rows) // len(rows) + n)",
        limits=ROOMY,
    ),
    stdin(
        "honest",
        "5,000 tiny writes",
        "AC",
        """
        import sys
        n = int(input())
        for digit in range(5000):
            sys.stdout.write(str(digit % 10))
            sys.stdout.flush()
        """,
        tests=(StdinTest("1", "0123456789" * 500),),
        limits=ROOMY,
    ),
    stdin(
        "honest",
        "200 kB of output and 2 MB of input",
        "AC",
        "import sys\ntext = sys.stdin.read()\nprint(text[:200_000])",
        tests=(StdinTest("x" * 2_000_000, "x" * 200_000),),
        limits=ROOMY,
    ),
    stdin(
        "honest",
        "unicode both ways",
        "AC",
        "print(input()[::-1])",
        tests=(StdinTest("añπ≈🙂\n", "🙂≈πña\n"),),
    ),
    stdin(
        "honest", "stdin left unread", "AC", "print(42)", tests=(StdinTest("1" * 300_000, "42"),)
    ),
    stdin("honest", "no answer at all", "WA", "n = int(input())"),
    stdin("honest", "syntax error", "CE", "print(int(input()) + 1\n"),
    call(
        "honest",
        "function that prints",
        "AC",
        "import sys\ndef f(n):\n    print('noise')\n    sys.stderr.write('x')\n    return n + 1",
    ),
    call(
        "honest",
        "method of a class",
        "AC",
        "class Solution:\n    def add(self, n: int, by: int = 0) -> int:\n        return n + by",
        entry="Solution.add",
        tests=(CallTest((41,), 42, {"by": 1}), CallTest((0,), 0)),
    ),
    call(
        "honest",
        "values of every plain type",
        "AC",
        "def f(x):\n    return x",
        tests=tuple(
            CallTest((value,), value)
            for value in (
                [None, True, 0, -(10**60), 1.5, float("nan"), -0.0, 1j, "é\ud800", b"\xff"],
                ((1, [2, (3,)]), {1, 2}, frozenset({"a"}), {(1, "k"): {"v": []}}),
            )
        ),
    ),
    call(
        "honest",
        "arguments changed in place",
        "AC",
        "def f(row):\n    row.append(1)\n    return row",
        tests=(CallTest(([],), [1]), CallTest(([],), [1])),
    ),
)
