"""Probes: attacks that a sandbox must stop, and honest programs, a few per category.

The whole suite is in `tests/sandbox/probes`.
"""

from dataclasses import dataclass
from functools import partial
from textwrap import dedent
from typing import Any, Literal, get_args

from flowzoo.sandbox.program import CallTest, CheckTest, Limits, Status, StdinTest, Test

Category = Literal[
    "honest", "resources", "output", "exit", "signals", "escape", "state", "network", "hacks"
]

QUICK = Limits(cpu_s=0.5, wall_s=4.0, memory_mb=128)  # small, to keep the suite fast
NAP = Limits(cpu_s=0.5, wall_s=1.0, memory_mb=128)  # for probes that wait for the wall clock
FILES = Limits(cpu_s=1.0, wall_s=4.0, memory_mb=128, files_mb=8)
ANSWER = (StdinTest("41\n", "42\n"),)
TWICE = (StdinTest("41\n", "42\n"), StdinTest("1\n", "2\n"), StdinTest("1\n", "2\n"))
CALL = (CallTest((41,), 42),)
CHECK = (CheckTest("def check(candidate):\n    assert candidate(41) == 42\n", "check(candidate)"),)

# Prefix of probes that try to access something: exceptions other than `passes` are errors of the
# probe.
HEAD = '''
import os, sys
n = int(sys.stdin.readline())
def tries(*actions, passes=(OSError,)):
    """Print `leak` and the actions that succeeded, or the answer where all were refused."""
    done = []
    for action in actions:
        try:
            result = action()
        except passes:
            continue
        done.append(f"{action.__name__}={result!r}"[:200])
    print("leak " + " ".join(done) if done else n + 1)
'''


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackProbe:
    """A program of the suite: it reads n and prints n + 1, or `leak` after a forbidden access.

    `Canaries` replace placeholders such as `@FILE@` in its source.
    """

    name: str
    category: Category
    source: str
    allowed: frozenset[Status]
    tests: tuple[Test, ...] = ANSWER
    entry: str | None = None
    limits: Limits = QUICK
    control: bool = False
    """True if it prints `leak` outside a box, which shows that the probe works."""
    harmful: bool = False
    """True if `unsafe` must not run it, since it would harm the machine or send data out."""


def stdin(
    category: Category, name: str, allowed: str, source: str, reaches: bool = False, **options: Any
) -> AttackProbe:
    """Make a probe that reads stdin, with the prefix `HEAD` if it `reaches` for something."""
    text = source.lstrip("\n")
    text = dedent(text) if text[:1] in (" ", "\t") else text  # a source of 6 MB is not indented
    statuses: dict[str, Status] = {status: status for status in get_args(Status)}
    return AttackProbe(
        name=name,
        category=category,
        source=HEAD + text if reaches else text,
        allowed=frozenset(statuses[status] for status in allowed.split()),
        **options,
    )


call = partial(stdin, tests=CALL, entry="f")  # a probe whose function is called

PROBES: tuple[AttackProbe, ...] = (
    stdin("escape", "a file of the host", "AC", """
        def read(): return open("@FILE@").read()
        def through_root(): return open("/proc/1/root@FILE@").read()
        def through_self(): return open("/proc/self/root@FILE@").read()
        def dots(): return open("../" * 30 + "@FILE@".lstrip("/")).read()
        def names(): return os.listdir("@FOLDER@")
        tries(read, through_root, through_self, dots, names)
        """, reaches=True, control=True),
    stdin("escape", "writes next to a file of the host", "AC", """
        def new(): return os.open("@FOLDER@/flowzoo-probe", os.O_CREAT | os.O_WRONLY, 0o600)
        def change(): return os.open("@FILE@", os.O_WRONLY)
        def rename(): return os.rename("@FILE@", "@FOLDER@/flowzoo-probe-2")
        def mode(): return os.chmod("@FOLDER@", 0o700)
        def owner(): return os.chown("@FILE@", os.getuid(), os.getgid())
        def times(): return os.utime("@FILE@", (1, 1))
        def attribute(): return os.setxattr("@FILE@", "user.flowzoo", b"x")
        tries(new, change, mode, owner, times, attribute, rename)
        """, reaches=True, control=True),
    stdin("escape", "other processes in /proc", "AC", """
        def outside(): return open("/proc/@PID@/cmdline").read()
        def caller(): return open("/proc/@CALLER@/environ", "rb").read(1)
        def parent(): return open(f"/proc/{os.getppid() or 999_999_999}/environ", "rb").read(1)
        def memory(): return open(f"/proc/{os.getppid() or 999_999_999}/mem", "rb").close()
        def fds(): return os.listdir(f"/proc/{os.getppid() or 999_999_999}/fd")
        tries(outside, caller, parent, memory, fds)
        """, reaches=True, control=True),
    stdin("escape", "docker sockets", "AC", """
        import socket
        paths = ["/var/run/docker.sock", "/run/docker.sock", "/run/containerd/containerd.sock",
                 "/run/podman/podman.sock", "/run/dbus/system_bus_socket", "@UNIX@"]
        def connect():
            reached = []
            for path in paths:
                try:
                    with socket.socket(socket.AF_UNIX) as client:
                        client.connect(path)
                except OSError:
                    continue
                reached.append(path)
            if not reached:
                raise OSError
            return reached
        tries(connect)
        """, reaches=True, control=True),
    stdin("escape", "secrets in the environment", "AC", """
        def environment(): return [k for k in os.environ if "FLOWZOO" in k or "TOKEN" in k][0]
        def self_environ(): return open("/proc/self/environ", "rb").read().index(b"FLOWZOO")
        tries(environment, self_environ, passes=(OSError, IndexError, ValueError))
        """, reaches=True, control=True),
    stdin("escape", "identity", "AC", """
        def root(): os.setuid(0)
        def group(): os.setgroups([0])
        def effective(): os.seteuid(0)
        def chroot(): os.chroot("/")
        tries(root, group, effective, chroot)
        """, reaches=True, control=True),
    stdin("exit", "os._exit(0) without an answer", "WA", "import os\nos._exit(0)"),
    call("exit", "os._exit(0) in the call", "RE", "import os\ndef f(n):\n    os._exit(0)"),
    call("hacks", "subclass of int", "WA RE", """
        class Odd(int):
            def __eq__(self, other): return True
            def __hash__(self): return 42
        def f(n): return Odd(0)
        """),
    call("hacks", "patched builtins", "WA RE", """
        import builtins
        builtins.len = builtins.abs = builtins.isinstance = lambda *_: True
        builtins.AssertionError = ValueError
        builtins.all = builtins.any = lambda *_: True
        builtins.int = type("int", (int,), {"__eq__": lambda *_: True, "__hash__": lambda _: 42})
        def f(n): return 0
        """),
    call("hacks", "AssertionError from the program", "WA RE", "def f(n): raise AssertionError",
         tests=CHECK),
    stdin("honest", "plain", "AC", "print(int(input()) + 1)"),
    stdin("honest", "wrong answer", "WA", "print(int(input()) + 2)"),
    stdin("honest", "uncaught exception", "RE", "print(int(input()) + 1)\n1 / 0"),
    call("honest", "function", "AC", "def f(n):\n    return n + 1"),
    call("honest", "check with asserts", "AC", "def f(n):\n    return n + 1", tests=CHECK),
    call("honest", "check that fails", "WA", "def f(n):\n    return n + 2", tests=CHECK),
    stdin("network", "a port of the host", "AC", """
        import socket
        def connect(): return socket.create_connection(("127.0.0.1", @PORT@), 0.3).close()
        tries(connect)
        """, reaches=True, control=True),
    stdin("network", "an address outside", "AC", """
        import socket
        def tcp():
            with socket.socket() as client:
                client.settimeout(0.2)
                client.connect(("192.0.2.1", 80))
        def metadata():
            with socket.socket() as client:
                client.settimeout(0.2)
                client.connect(("169.254.169.254", 80))
        def six():
            with socket.socket(socket.AF_INET6) as client:
                client.settimeout(0.2)
                client.connect(("2001:db8::1", 80))
        def gateway(): return socket.create_connection(("172.17.0.1", @PORT@), 0.1).close()
        def broadcast():
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
                out.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
                return out.sendto(b"x", ("255.255.255.255", 9))
        tries(tcp, metadata, six, gateway, broadcast)
        """, reaches=True, harmful=True),
    stdin("network", "abstract socket of the host", "AC", """
        import socket
        def connect():
            with socket.socket(socket.AF_UNIX) as client:
                client.connect("\\0@ABSTRACT@")
        tries(connect)
        """, reaches=True, control=True),
    stdin("output", "endless output", "OLE", "while True: print('42' * 1000)"),
    stdin("output", "bytes 0 to 255", "WA", "import os\nos.write(1, bytes(range(256)))"),
    stdin("output", "answers and crashes", "RE", "print(42, flush=True)\nraise ValueError"),
    stdin("resources", "endless loop", "TLE", "while True: pass"),
    stdin("resources", "sleeps", "TLE", "import time\ntime.sleep(60)", limits=NAP),
    stdin("resources", "10 GB at once", "MLE", "x = bytearray(10 * 2**30)\nprint(42)"),
    stdin("resources", "fork bomb", "AC RE", """
        import time
        made = 0
        for _ in range(300):
            try:
                if os.fork() == 0:
                    time.sleep(1)
                    os._exit(0)
            except OSError:
                break
            made += 1
        print("leak", made) if made > 100 else print(n + 1)
        """, reaches=True, control=True),
    stdin("resources", "endless recursion", "RE", "def f():\n    f()\nf()"),
    stdin("resources", "fills /tmp", "AC RE OLE MLE", """
        written = 0
        try:
            for k in range(64):
                with open(f"/tmp/flowzoo-probe-{k}", "wb") as file:
                    written += file.write(bytes(2**20))
        except OSError:
            pass
        print("leak" if written > 48 * 2**20 else n + 1)
        """, reaches=True, limits=FILES, harmful=True),
    stdin("signals", "signal 0 to a process of the host", "AC",
          "def outside(): os.kill(@PID@, 0)\ndef caller(): os.kill(@CALLER@, 0)\n"
          "tries(outside, caller)", reaches=True, control=True),
    stdin("signals", "kills the parent", "AC RE", """
        import signal
        def parent():
            target = os.getppid()
            os.kill(target, 0 if target else 999_999_999)
            os.kill(target, signal.SIGTERM)
        tries(parent)
        """, reaches=True, harmful=True),
    stdin("state", "files left behind", "AC", """
        places = {os.path.realpath(p) for p in ("/tmp", "/dev/shm", "/var/tmp", ".")}
        found = []
        for place in places:
            try:
                found += [name for name in os.listdir(place) if name.startswith("flowzoo-probe-l")]
                open(place + "/flowzoo-probe-left", "w").close()
            except OSError:
                pass
        print("leak", found) if found else print(n + 1)
        """, tests=TWICE, reaches=True, harmful=True),
    stdin("state", "environment left behind", "AC", """
        found = "FLOWZOO_PROBE_LEFT" in os.environ
        os.environ["FLOWZOO_PROBE_LEFT"] = "1"
        os.putenv("FLOWZOO_PROBE_LEFT", "1")
        print("leak") if found else print(n + 1)
        """, tests=TWICE, reaches=True),
)  # fmt: skip
