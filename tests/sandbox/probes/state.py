"""Programs that leave something for the next run, and look for it there.

The two tests of a probe are two runs in the same box: the first (n = 41) leaves things, the second
(n = 1) looks for them. Both must find a fresh world.
"""

from __future__ import annotations

from flowzoo.sandbox.attacks.probes import AttackProbe, call, stdin
from flowzoo.sandbox.program import CallTest, Limits, StdinTest

TWICE = (StdinTest("41\n", "42\n"), StdinTest("1\n", "2\n"), StdinTest("1\n", "2\n"))
ROOMY = Limits(cpu_s=1.0, wall_s=4.0, memory_mb=128)

PROBES: tuple[AttackProbe, ...] = (
    stdin("state", "files with odd modes and names", "AC", """
        found = []
        try:
            found = os.listdir("/tmp")
            os.mkdir("/tmp/flowzoo-probe-locked")
            os.mkdir("/tmp/flowzoo-probe-locked/inner")
            for name in ("\\n", "\\udcff", "-rf", " ", "x" * 255):
                open("/tmp/flowzoo-probe-locked/inner/" + name, "w").close()
            os.chmod("/tmp/flowzoo-probe-locked/inner", 0)
            os.chmod("/tmp/flowzoo-probe-locked", 0)
            os.chmod("/tmp", 0)
        except OSError:
            pass
        print("leak", ascii(found)) if found else print(n + 1)
        """, tests=TWICE, reaches=True, harmful=True),
    stdin("state", "tree 3,000 levels deep", "AC", """
        try:
            found = os.listdir("/tmp")
        except OSError:
            found = []
        try:
            os.chdir("/tmp")
            for _ in range(3000):
                os.mkdir("flowzoo-probe-deep")
                os.chdir("flowzoo-probe-deep")
        except OSError:
            pass
        print("leak", found) if found else print(n + 1)
        """, tests=TWICE, reaches=True, limits=ROOMY, harmful=True),
    stdin("state", "link as bait", "AC", """
        try:
            found = os.listdir("/tmp")
        except OSError:
            found = []
        try:
            os.symlink("@FOLDER@", "/tmp/flowzoo-probe-link")
            os.symlink("/", "/tmp/flowzoo-probe-root")
            os.link("@FILE@", "/tmp/flowzoo-probe-hard")
            print("leak hard link")
            sys.exit()
        except OSError:
            pass
        print("leak", found) if found else print(n + 1)
        """, tests=TWICE, reaches=True, harmful=True),
    stdin("state", "patched standard library", "AC", """
        import builtins, json, math
        found = hasattr(math, "flowzoo_probe") or hasattr(builtins, "flowzoo_probe")
        math.flowzoo_probe = builtins.flowzoo_probe = True
        json.dumps = builtins.len = builtins.int = lambda *_: 0
        sys.modules["os"].flowzoo_probe = True
        builtins.print("leak", found) if found else builtins.print(n + 1)
        """, tests=TWICE, reaches=True),
    stdin("state", "module that shadows another", "AC", """
        sys.path.insert(0, "/tmp")
        try:
            import flowzoo_probe_module
            print("leak")
        except ImportError:
            pass
        try:
            with open("/tmp/flowzoo_probe_module.py", "w") as file:
                file.write("left = True")
        except OSError:
            pass
        print(n + 1)
        """, tests=TWICE, reaches=True, harmful=True),
    stdin("state", "shared memory left behind", "AC", """
        import ctypes
        libc = ctypes.CDLL(None, use_errno=True)
        def attach():
            if libc.shmget(0x464C4F58, 4096, 0o600) < 0:
                libc.shmget(0x464C4F58, 4096, 0o1600)
                raise OSError
            return "found"
        tries(attach)
        """, tests=TWICE, reaches=True, harmful=True),
    stdin("state", "abstract socket left behind", "AC", """
        import socket
        def bound():
            left = socket.socket(socket.AF_UNIX)
            try:
                left.bind("\\0flowzoo-probe-left")
                os.set_inheritable(left.fileno(), True)
                left.detach()
            except OSError as error:
                if error.errno == 98:
                    return "in use"
                raise
            raise OSError
        tries(bound)
        """, tests=TWICE, reaches=True),
    stdin("state", "limits and mask left behind", "AC", """
        import resource, signal
        found = [resource.getrlimit(resource.RLIMIT_NOFILE)[1] == 17, os.umask(0o111) == 0o111,
                 signal.getsignal(signal.SIGTERM) == signal.SIG_IGN, os.getcwd() == "/tmp/x"]
        resource.setrlimit(resource.RLIMIT_NOFILE, (17, 17))
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print("leak", found) if any(found) else print(n + 1)
        """, tests=TWICE, reaches=True),
    stdin("state", "inputs of the other runs", "AC RE", """
        import gc
        marker = b"41" + bytes([48]) * int("30")
        found = [item for item in gc.get_objects() if isinstance(item, (list, tuple))
                 for part in item if isinstance(part, bytes) and marker in part]
        try:
            with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb", 0) as memory:
                pass
        except OSError:
            pass
        rest = sys.stdin.read()
        print("leak" if found and n != 41 else n + 1)
        """, tests=(StdinTest("41\n41" + "0" * 30 + "\n", "42\n"), StdinTest("1\n", "2\n")),
        reaches=True),
    call("state", "crash in one call, the next ones fresh", "RE", """
        import os
        def f(n):
            if n == 41:
                os._exit(0)
            return n + 1
        """, tests=(CallTest((1,), 2), CallTest((41,), 42))),
    stdin("state", "randomness of hashes", "AC", """
        print(n + 1 if hash("flowzoo") == hash("flowzoo") and not sys.flags.hash_randomization
              else "leak")
        """, tests=TWICE, reaches=True),
)  # fmt: skip
