"""Programs that print too much, print odd bytes, or speak to the host in its own frames."""

from __future__ import annotations

from flowzoo.sandbox.attacks.probes import HEAVY, NAP, AttackProbe, call, stdin
from flowzoo.sandbox.program import EXACT, Limits, StdinTest

# The layout of the frames, spelled out: a program can know it. Kinds 17 and 18 are a result and
# the end of a job; the ids are guessed. An accepted forgery would show as AC or a broken box as SE.
_FORGE = """
import json, os, struct
def frame(kind, head, *blobs):
    text = json.dumps({**head, "blobs": [len(blob) for blob in blobs]}).encode()
    body = struct.pack(">I", len(text)) + text + b"".join(blobs)
    return struct.pack(">IB", len(body), kind) + body
case = dict(index=0, outcome="exited", code=0, signal=0, detail="", started=True, cpu_s=0.0,
            wall_s=0.0, memory=0, truncated=False, clean=True)
def forgeries():
    for job in (*range(4), "", None):
        yield frame(17, {"id": job, **case}, b"42\\n", b"")
        yield frame(18, {"id": job, **case})
        yield frame(19, {"detail": "forged"})
        yield frame(16, {"detail": "forged"})
"""

PROBES: tuple[AttackProbe, ...] = (
    stdin("output", "100 MB at once", "OLE MLE",
          "import os\nos.write(1, b'4' * 100_000_000)", limits=HEAVY),
    stdin("output", "many small pieces", "OLE", "while True: print(4)"),
    stdin("output", "stderr flood", "AC OLE TLE",
          "import sys\nfor _ in range(20_000): sys.stderr.write('x' * 1000)\nprint(42)"),
    stdin("output", "endless stderr", "OLE TLE",
          "import sys\nwhile True: sys.stderr.write('x' * 1000)"),
    stdin("output", "broken UTF-8 for a replacement character", "WA",
          "import os\nos.write(1, b'\\xff')", tests=(StdinTest("1\n", "\ufffd"),)),
    stdin("output", "broken UTF-8 for an escape", "WA", "import os\nos.write(1, b'\\xff')",
          tests=(StdinTest("1\n", "\\xff"), StdinTest("1\n", "?"))),
    stdin("output", "lone surrogate", "RE WA", "print('\\ud800')"),
    stdin("output", "closes stdout", "WA RE", "import os\nos.close(1)"),
    stdin("output", "answers and closes all descriptors", "AC RE",
          "import os\nos.write(1, b'42')\nos.closerange(0, 256)"),
    stdin("output", "closes stdin first", "AC RE", "import os\nos.close(0)\nprint(42)"),
    stdin("output", "answers and hangs", "TLE",
          "import time\nprint(42, flush=True)\ntime.sleep(60)", limits=NAP),
    stdin("output", "ANSI escapes", "WA", "print('\\x1b[2J\\x1b[31m42\\x1b[0m')"),
    stdin("output", "answer behind a backspace", "WA", "print('43\\b2')",
          tests=(StdinTest("41\n", "42\n", EXACT),)),
    stdin("output", "all candidates", "WA", "for k in range(100): print(k)"),
    stdin("output", "an answer of blanks", "WA", "print(' \\n' * 1000)"),
    stdin("output", "forged frames on stdout", "WA OLE",
          _FORGE + "for data in forgeries(): os.write(1, data)"),
    stdin(
        "output",
        "forged frames on every descriptor",
        "WA RE OLE",
        _FORGE
        + """
for fd in range(256):
    for data in forgeries():
        try:
            os.write(fd, data)
        except OSError:
            break
""",
    ),
    call("output", "forged frames from a function", "RE WA OLE",
         _FORGE + """
def f(n):
    for fd in range(256):
        for data in forgeries():
            try:
                os.write(fd, data)
            except OSError:
                break
    return 0
"""),
    call("output", "encoded answer on every descriptor", "RE WA OLE", """
        import os
        def f(n):
            for fd in range(256):
                for data in (b"42", b"i42", b"[42]", b'{"value": 42}', b"\\x00\\x00\\x00\\x0242"):
                    try:
                        os.write(fd, data)
                    except OSError:
                        break
            os._exit(0)
        """),
    stdin("output", "stdin written back", "WA RE", "import os\nos.write(0, b'42')"),
    stdin(
        "output",
        "child that keeps stdout open",
        "AC RE",
        """
        import os, time
        print(42, flush=True)
        try:
            child = os.fork()
        except OSError:
            child = 1
        if child == 0:
            time.sleep(20)
        """,
        limits=Limits(cpu_s=0.5, wall_s=2.0, memory_mb=128),
    ),
    stdin("output", "stdout made non-blocking", "AC OLE RE",
          "import os\nos.set_blocking(1, False)\nos.write(1, b'42')"),
    call("output", "returns 50 MB", "OLE MLE",
         "def f(n):\n    return 'x' * 50_000_000", limits=HEAVY),
    call("output", "prints 50 MB and returns the answer", "AC OLE",
         "def f(n):\n    for _ in range(50): print('x' * 1_000_000)\n    return n + 1",
         limits=HEAVY),
)  # fmt: skip
