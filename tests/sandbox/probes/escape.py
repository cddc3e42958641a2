"""Programs that reach for the host: its files, processes, kernel, secrets and memory."""

from __future__ import annotations

from flowzoo.sandbox.attacks.probes import AttackProbe, call, stdin
from flowzoo.sandbox.program import CallTest, Limits, StdinTest
from tests.sandbox.probes.syscalls import SYSCALLS

SECRET_ANSWER = (StdinTest("41\n", "@SECRET@\n"),)
"""The expected text is a secret of the caller: a program that finds it anywhere is accepted."""
SLOW = Limits(cpu_s=2.0, wall_s=4.0, memory_mb=256)

# The marker is put together at run time, so that the program's own text does not hold it.
_SCAN = """
import gc, re, sys
start = "".join(("FLOWZOO", "-CANARY", "-"))
pattern = re.compile(start.encode() + rb"[0-9a-f]{32}")
def found(data):
    match = pattern.search(data)
    if match:
        print(match[0].decode())
        sys.exit()
"""

PROBES: tuple[AttackProbe, ...] = (
    stdin("escape", "size of a file of the host", "AC",
          'def stat(): return os.stat("@FILE@").st_size\ntries(stat)', reaches=True, control=True),
    stdin("escape", "usual secrets of a host", "AC", """
        def shadow(): return open("/etc/shadow").read(1)
        def keys(): return os.listdir("/root/.ssh")
        def listed(folder):
            found = [name for name in os.listdir(folder)
                     if not sys.base_prefix.startswith(f"{folder}/{name}/")]
            if not found:  # at most the way to the interpreter
                raise FileNotFoundError(folder)
            return found
        def root(): return listed("/root")
        def homes(): return listed("/home")
        def hosts(): return open("/etc/hostname").read(99)
        tries(shadow, keys, root, homes, hosts)
        """, reaches=True),
    stdin("escape", "writes everywhere", "AC", """
        import sysconfig
        folders = ["/", "/etc", "/usr", "/usr/lib", "/usr/local/lib", "/var/tmp", "/dev",
                   "/dev/shm", "/run", "/proc", "/sys", "/home", "/root", "/runner", sys.prefix,
                   sysconfig.get_paths()["stdlib"]] + [path for path in sys.path if path]
        done = []
        for folder in folders:
            try:
                os.close(os.open(folder + "/flowzoo-probe", os.O_CREAT | os.O_WRONLY, 0o600))
                os.unlink(folder + "/flowzoo-probe")
            except OSError:
                continue
            done.append(folder)
        print("leak", done) if done else print(n + 1)
        """, reaches=True, harmful=True),
    stdin("escape", "modules of the interpreter changed", "AC", """
        import json
        def append(): return os.open(json.__file__, os.O_WRONLY | os.O_APPEND)
        def unlink(): return os.unlink(json.__file__ + ".flowzoo-probe-none") or None
        def chmod(): return os.chmod(json.__file__, os.stat(json.__file__).st_mode)
        tries(append, chmod)
        """, reaches=True, control=True),
    stdin("escape", "descriptors of process 1", "AC", """
        def fds(): return [os.readlink(f"/proc/1/fd/{k}") for k in range(3)]
        def steal(): return os.open("/proc/1/fd/0", os.O_RDONLY | os.O_NONBLOCK)
        def memory(): return os.open("/proc/1/mem", os.O_RDWR)
        def environ(): return open("/proc/1/environ", "rb").read() or None
        def one():
            if os.getpid() == 1:
                raise OSError
            return [action() for action in (fds, steal, memory)]
        tries(one)
        """, reaches=True),
    stdin("escape", "kernel knobs", "AC", """
        names = ["/proc/sys/kernel/core_pattern", "/proc/sys/kernel/hostname",
                 "/proc/sysrq-trigger",
                 "/proc/sys/vm/overcommit_memory", "/sys/kernel/uevent_helper",
                 "/proc/sys/fs/binfmt_misc/register", "/sys/fs/cgroup/cgroup.procs",
                 "/sys/fs/cgroup/release_agent", "/proc/self/oom_score_adj"]
        done = []
        for name in names[:-1]:
            try:
                os.close(os.open(name, os.O_WRONLY))
            except OSError:
                continue
            done.append(name)
        print("leak", done) if done else print(n + 1)
        """, reaches=True),
    stdin("escape", "kernel memory and devices", "AC", """
        names = ["/dev/mem", "/dev/kmem", "/dev/port", "/dev/kmsg", "/proc/kcore", "/dev/sda",
                 "/dev/vda", "/dev/nvme0n1", "/dev/fuse", "/dev/kvm", "/dev/net/tun",
                 "/proc/kallsyms_none", "/sys/kernel/debug/x", "/dev/nvidia0", "/dev/ptmx"]
        done = []
        for name in names:
            try:
                os.close(os.open(name, os.O_RDONLY | os.O_NONBLOCK))
            except OSError:
                continue
            done.append(name)
        print("leak", done) if done else print(n + 1)
        """, reaches=True),
    stdin("escape", "inherited descriptors", "AC", """
        done = []
        for fd in range(3, 1024):
            try:
                os.fstat(fd)
            except OSError:
                continue
            done.append(fd)
        print("leak", done) if done else print(n + 1)
        """, reaches=True),
    stdin("escape", "what is behind stdin", "AC RE", """
        import socket
        def peer(): return socket.socket(fileno=os.dup(0)).getpeername()
        def path(): return open(os.readlink("/proc/self/fd/0")).read(1) or "file"
        def again(): os.lseek(0, 0, 0); os.ftruncate(0, 0)
        tries(peer)
        """, reaches=True),
    stdin("escape", "heap of the process", "WA", _SCAN + """
        for item in gc.get_objects():
            if isinstance(item, dict):
                for key, value in list(item.items()):
                    for part in (key, value):
                        if isinstance(part, (str, bytes)):
                            found(part.encode(errors="replace") if type(part) is str else part)
            elif isinstance(item, (list, tuple)):
                for part in item:
                    if isinstance(part, (str, bytes)):
                        found(part.encode(errors="replace") if type(part) is str else part)
        print("nothing")
        """.replace("\n        ", "\n"), tests=SECRET_ANSWER, limits=SLOW),
    stdin("escape", "memory of the process", "WA RE", _SCAN + """
        import ctypes
        try:
            lines = open("/proc/self/maps").read().splitlines()
            memory = open("/proc/self/mem", "rb", 0)
        except OSError:
            lines = []
        for line in lines:
            place, mode = line.split()[:2]
            first, last = (int(part, 16) for part in place.split("-"))
            if "rw" in mode and last - first < 2**26:
                try:
                    memory.seek(first)
                    found(memory.read(last - first))
                except (OSError, OverflowError):
                    pass
        print("nothing")
        """.replace("\n        ", "\n"), tests=SECRET_ANSWER, limits=SLOW),
    stdin("escape", "frames of the caller", "WA", _SCAN + """
        frame, seen = sys._getframe(), 0
        while frame is not None:
            found(repr(frame.f_globals).encode() + repr(frame.f_locals).encode())
            frame, seen = frame.f_back, seen + 1
        try:
            raise ValueError
        except ValueError as error:
            trace = error.__traceback__
        for other in sys._current_frames().values():
            while other is not None:
                found(repr(other.f_locals).encode())
                other = other.f_back
        print("nothing", seen)
        """.replace("\n        ", "\n"), tests=SECRET_ANSWER),
    stdin("escape", "own arguments and modules", "WA", _SCAN + """
        for name, module in list(sys.modules.items()):
            for key, value in list(vars(module).items()):
                if isinstance(value, (str, bytes, list, tuple, dict)):
                    found(repr(value)[:100_000].encode())
        found(repr((sys.argv, sys.orig_argv, sys.path, sys.flags)).encode())
        print("nothing")
        """.replace("\n        ", "\n"), tests=SECRET_ANSWER, limits=SLOW),
    call("escape", "expected value in the heap of a call", "WA RE", """
        import gc
        start = "".join(("FLOWZOO", "-CANARY-"))
        def f(n):
            for item in gc.get_objects():
                for part in item if isinstance(item, (list, tuple)) else ():
                    if isinstance(part, str) and part.startswith(start) and part != start:
                        return part
            frame = __import__("sys")._getframe()
            while frame is not None:
                for value in (*frame.f_locals.values(), *frame.f_globals.values()):
                    if isinstance(value, str) and value.startswith(start) and value != start:
                        return value
                frame = frame.f_back
            return "nothing"
        """, tests=(CallTest((41,), "@SECRET@"),), limits=SLOW),
    stdin("escape", "special files", "AC", """
        import stat
        def device(): os.mknod("/tmp/flowzoo-probe-null", 0o600 | stat.S_IFCHR, os.makedev(1, 1))
        def block(): os.mknod("/tmp/flowzoo-probe-disk", 0o600 | stat.S_IFBLK, os.makedev(8, 0))
        def suid():
            with open("/tmp/flowzoo-probe-suid", "w") as file: os.fchmod(file.fileno(), 0o6755)
            os.execv("/tmp/flowzoo-probe-suid", ["x"])
        tries(device, block)
        """, reaches=True, harmful=True),
    stdin("escape", "TIOCSTI", "AC", """
        import fcntl
        def stuff():
            for fd in (0, 1, 2):
                try:
                    fcntl.ioctl(fd, 0x5412, b"x")
                except OSError:
                    continue
                return fd
            with open("/dev/tty", "wb", 0) as terminal: fcntl.ioctl(terminal, 0x5412, b"x")
        tries(stuff)
        """, reaches=True),
    *(
        stdin("escape", f"system calls: {group}", "AC RE",
              "import ctypes, errno, platform\n"
              f"calls = {calls!r}\n"
              """
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
column = 0 if platform.machine() == "x86_64" else 1
refused = {errno.EPERM, errno.ENOSYS, errno.EACCES}
done = []
for name, row in calls.items():
    if row[column] is None:
        continue
    ctypes.set_errno(0)
    result = libc.syscall(*(ctypes.c_long(value) for value in (row[column], *row[2])))
    if result >= 0 or ctypes.get_errno() not in refused:
        done.append(f"{name}={result}/{ctypes.get_errno()}")
print("leak", *done) if done else print(n + 1)
""", reaches=True, control=True)
        for group, calls in SYSCALLS.items()
    ),
    stdin("escape", "32-bit and x32 system calls", "AC RE", """
        import ctypes, mmap, platform
        def foreign():
            if platform.machine() != "x86_64":
                raise OSError
            code = mmap.mmap(-1, 4096, prot=7)
            code.write(bytes.fromhex("b814000000cd80c3"))  # mov eax, 20 (getpid); int 0x80; ret
            place = ctypes.addressof(ctypes.c_char.from_buffer(code))
            result = ctypes.CFUNCTYPE(ctypes.c_int)(place)()
            if result < 0:
                raise OSError
            return result
        def x32():
            result = ctypes.CDLL(None).syscall(ctypes.c_long(0x40000000 | 39))
            if result < 0:
                raise OSError
            return result
        tries(foreign, x32)
        """, reaches=True),
)  # fmt: skip
