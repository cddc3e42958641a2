"""Programs that end oddly: only a regular end with the right answer may be accepted."""

from __future__ import annotations

from flowzoo.sandbox.attacks.probes import CHECK, NAP, AttackProbe, call, stdin

PROBES: tuple[AttackProbe, ...] = (
    stdin("exit", "sys.exit(0) without an answer", "WA", "import sys\nsys.exit(0)"),
    stdin("exit", "os._exit(0) with the answer unflushed", "WA",
          "import os\nprint(42)\nos._exit(0)"),
    stdin("exit", "os._exit(256)", "WA RE", "import os\nos._exit(256)"),
    stdin("exit", "os._exit(137) after the answer", "RE",
          "import os\nprint(42, flush=True)\nos._exit(137)"),
    stdin("exit", "exit with a text", "RE", "print(42)\nraise SystemExit('fine')"),
    stdin("exit", "exit with a huge code", "RE AC", "print(42)\nraise SystemExit(10**30)"),
    stdin("exit", "KeyboardInterrupt", "RE", "print(42, flush=True)\nraise KeyboardInterrupt"),
    stdin("exit", "abort", "RE", "import os\nprint(42, flush=True)\nos.abort()"),
    stdin("exit", "null read", "RE", "import ctypes\nprint(42, flush=True)\nctypes.string_at(0)"),
    stdin("exit", "SIGKILL to itself", "RE MLE",
          "import os, signal\nprint(42, flush=True)\nos.kill(os.getpid(), signal.SIGKILL)\n"
          "raise SystemExit(3)"),
    stdin("exit", "SIGSTOP to itself", "TLE RE",
          "import os, signal\nprint(42, flush=True)\nos.kill(os.getpid(), signal.SIGSTOP)\n"
          "raise SystemExit(3)", limits=NAP),
    stdin("exit", "SIGINT to itself", "RE",
          "import os, signal\nprint(42, flush=True)\nos.kill(os.getpid(), signal.SIGINT)\n"
          "raise SystemExit(3)"),
    stdin("exit", "looping excepthook", "TLE", """
        import sys
        def hook(*_):
            while True: pass
        sys.excepthook = hook
        raise ValueError
        """),
    stdin("exit", "looping atexit", "TLE", """
        import atexit
        @atexit.register
        def loop():
            while True: pass
        print(42)
        """),
    stdin("exit", "looping __del__", "TLE AC", """
        class Loop:
            def __del__(self):
                while True: pass
        keep = Loop()
        print(42)
        """),
    stdin("exit", "exception whose text raises", "RE", """
        print(42, flush=True)
        class Odd(Exception):
            def __str__(self):
                raise SystemExit(0)
            __repr__ = __str__
        raise Odd
        """),
    stdin("exit", "exception with a huge text", "RE MLE TLE OLE",
          "print(42, flush=True)\nraise ValueError('x' * 20_000_000)"),
    stdin("exit", "excepthook that ends well", "RE AC WA", """
        import os, sys
        sys.excepthook = lambda *_: os._exit(0)
        raise ValueError
        """),
    stdin("exit", "stdout replaced", "WA RE",
          "import io, sys\nsys.stdout = io.StringIO()\nprint(42)"),
    stdin("exit", "stdout deleted", "WA RE", "import sys\ndel sys.stdout"),
    stdin("exit", "stdout whose flush raises", "RE AC WA", """
        import sys
        print(42, flush=True)
        class Odd:
            def write(self, text): return 0
            def flush(self): raise SystemExit(0)
        sys.stdout = Odd()
        """),
    stdin("exit", "exit from a thread", "WA RE", """
        import os, threading
        threading.Thread(target=lambda: os._exit(0)).start()
        while True: pass
        """),
    stdin("exit", "modules and builtins deleted", "RE WA AC", """
        import builtins, sys
        for name in list(sys.modules): sys.modules.pop(name)
        vars(builtins).clear()
        """),
    call("exit", "sys.exit(0) in the call", "RE", "import sys\ndef f(n):\n    sys.exit(0)"),
    call("exit", "SystemExit subclass in the call", "RE",
         "class Done(SystemExit):\n    code = 0\ndef f(n):\n    raise Done"),
    call("exit", "BaseException in the call", "RE",
         "class Odd(BaseException):\n    pass\ndef f(n):\n    raise Odd"),
    call("exit", "sys.exit(0) at import", "RE CE",
         "import sys\nsys.exit(0)\ndef f(n): return n + 1"),
    call("exit", "os._exit(0) at import", "RE", "import os\nos._exit(0)"),
    call("exit", "no such function", "RE", "def g(n):\n    return n + 1"),
    call("exit", "os._exit(0) in a checked call", "RE WA", "import os\ndef f(n):\n    os._exit(0)",
         tests=CHECK),
    call("exit", "SystemExit in a checked call", "RE WA", "def f(n):\n    raise SystemExit(0)",
         tests=CHECK),
    call("exit", "os._exit(0) at import, checked", "RE WA", "import os\nos._exit(0)", tests=CHECK),
    call("exit", "thread that exits during the call", "RE WA", """
        import os, threading, time
        def f(n):
            threading.Thread(target=lambda: os._exit(0)).start()
            time.sleep(0.5)
            return n
        """),
)  # fmt: skip
