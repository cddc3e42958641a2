"""Server of one box: set up, warm up, test, then run jobs until the host ends."""

import _socket
import builtins
import contextlib
import importlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

import inside
import linux
import namespaces
import opening
import semaphores
from channel import HostChannel, make_file
from confine import BoxMode, ConfinementPlan, limit_all, make_ruleset, make_small_ruleset
from job import BoxContext, RunnerJob
from libraries import STDLIB, import_packages, shared_libraries
from seccomp import Filter
from task import pack_head, read_task
from wire import DATA, DONE, JOB, READY, STOP, FrameError
from workspace import OF_CGROUP, OF_MACHINE, TMP, OomKills, Workspace, owns_processes
from zygote import Zygote, ZygoteServer

CONTAINER_USER = 10001
# First user of root's boxes, one per box, so other processes do not count against their limit.
FIRST_OWN_USER = 1 << 30
UNKNOWN_BASE = 64 * 2**20  # assumed address space of the runner without /proc
_PAGE = os.sysconf("SC_PAGE_SIZE")


class BoxServer:
    """A box of one mode."""

    def __init__(self, mode: BoxMode, options: dict[str, Any], channel: HostChannel) -> None:
        self.mode = mode
        self.channel = channel
        self.plan = ConfinementPlan(mode)
        self._uid = options.get("uid")
        self._packages: list[str] = options.get("packages", [])
        self._folder: str = options.get("folder") or "/tmp"
        self._landlock = 0
        self._place: Workspace | None = None

    def get_ready(self) -> None:
        """Set up the box, except for the steps after `split`."""
        home = os.path.dirname(os.path.abspath(__file__))
        own_modules = {
            name
            for name, module in sys.modules.items()
            if os.path.dirname(getattr(module, "__file__", None) or "") == home
        }
        libraries = shared_libraries(self._packages) if self.mode.confined else []
        owned_tmp = self.mode.namespaces and self._enter_namespaces(libraries)
        if self.mode.container and not owns_processes():
            raise OSError(
                f"mode {self.mode.name} needs a separate container: start it as process 1 of one"
            )
        if self.plan.proc is None:
            with contextlib.suppress(OSError):
                self.plan.proc = os.open("/proc", os.O_PATH | os.O_CLOEXEC)
        import_packages(self._packages)
        self._choose_user(owned_tmp)
        everybody = self.mode.separate and os.getpid() == 1
        self._place = Workspace(self.mode, self.plan.user, owned_tmp, everybody, self._folder)
        if self.mode.confined:
            self._build_confinement(libraries)
            semaphores.install()
            sys.executable = ""  # programs have no processes
        else:
            inside.register_hooks()
        path = warm_up(own_modules)
        rehearse()
        with streams_in_place():
            inside.prepare(path)
        opening.patch()
        self.plan.base_memory = self._address_space()

    def split(self) -> Zygote | ZygoteServer:
        """Fork: return the zygote's handle here, and run its server there."""
        if self._place is None:
            raise RuntimeError("a fork before the box is ready")
        jobs, control = _socket.socketpair(), _socket.socketpair()
        if os.fork():
            jobs[1].close()
            control[1].close()
            zygote = Zygote(jobs[0], control[0])
            zygote.wait_until_ready()
            return zygote
        jobs[0].close()
        control[0].close()
        linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
        # Orphans of a program become children of this process.
        linux.prctl(linux.PR_SET_CHILD_SUBREAPER, 1)
        if self.plan.user is not None:
            os.setgroups([])
        os.umask(0o022)
        limit_all(self.plan)
        side = ZygoteServer(
            jobs[1], control[1], self._place, self.plan.make_confinement(), self.plan.proc
        )
        side.say_ready()
        self.channel.close()
        return side

    def serve(self, zygote: Zygote) -> None:
        """Send READY, and run jobs until the end of the stream."""
        kills = OomKills(OF_CGROUP) if self.mode.container else None
        box = BoxContext(
            self.channel, self.plan, zygote, kills, OomKills(OF_MACHINE, self.plan.proc)
        )
        self.channel.send(READY, self._facts())
        while (frame := self.channel.next_frame()) is not None:
            kind, head, sizes = frame
            if kind in (DATA, STOP):  # belongs to an ended job
                for size in sizes:
                    for _ in self.channel.read_blob(size):
                        pass
                continue
            if kind != JOB:
                raise FrameError(f"frame {kind} from the host")
            job = RunnerJob(box, head, sizes)
            job.run()
            end = {"id": job.id, "clean": job.clean, "cpu_s": round(job.cpu, 6)}
            self.channel.send(DONE, end)

    def _enter_namespaces(self, libraries: list[str]) -> bool:
        """Become process 1 of a box; True if its only user is the caller's."""
        self.plan.proc = os.open("/proc", os.O_PATH | os.O_CLOEXEC)
        self._uid = FIRST_OWN_USER + os.getpid()
        mapped = namespaces.leave_host(os.geteuid() == 0 and can_do(self._uid))
        self._packages = namespaces.build_root(libraries, self._packages)
        self.plan.own_user = True
        return mapped

    def _choose_user(self, single_user: bool) -> None:
        plan = self.plan
        if self.mode.root:
            plan.user = self._uid or CONTAINER_USER
        elif self.mode.namespaces:
            plan.user, plan.drops = (None, True) if single_user else (self._uid, False)
        elif self.mode.confined and not self.mode.separate and os.geteuid() == 0:
            user = FIRST_OWN_USER + os.getpid()
            plan.own_user = can_do(user, lambda: os.listdir(STDLIB))
            plan.user, plan.drops = (user, False) if plan.own_user else (None, True)

    def _build_confinement(self, libraries: list[str]) -> None:
        plan = self.plan
        linux.prctl(linux.PR_SET_DUMPABLE, 0)
        plan.filter = Filter(keeps_files=self.mode.separate)
        if self._place is not None and self._place.writable:
            plan.scratch = TMP
        self._landlock = linux.landlock_abi()
        if self._landlock and self.mode.namespaces:
            plan.ruleset = make_small_ruleset(self._landlock)
        elif self._landlock:
            plan.ruleset = make_ruleset(self._landlock, [*libraries, *self._packages], plan.scratch)
        elif not self.mode.separate:
            raise OSError("the kernel has no Landlock, or it is switched off")

    def _address_space(self) -> int:
        proc = self.plan.proc
        try:
            statm = os.open("self/statm" if proc else "/proc/self/statm", os.O_RDONLY, dir_fd=proc)
        except OSError:
            return UNKNOWN_BASE
        with open(statm, encoding="ascii") as file:
            return int(file.read().split()[0]) * _PAGE

    def _facts(self) -> dict[str, Any]:
        plan = self.plan
        return {
            "mode": self.mode.name,
            "python": ".".join(map(str, sys.version_info[:3])),
            "pid": os.getpid(),
            "user": os.geteuid() if plan.user is None else plan.user,
            "landlock": self._landlock,
            "seccomp": plan.filter is not None,
            "files": self._place is not None and (self._place.writable or not self.mode.confined),
            "counts_threads": plan.own_user,
            "base_memory": plan.base_memory,
        }


def can_do(user: int, work: Callable[[], object] = lambda: None) -> bool:
    """True if this process can switch to an unprivileged user that can do `work`."""
    # A user namespace may have no other user than root.
    pid = os.fork()
    if not pid:
        with contextlib.suppress(BaseException):
            os.setgroups([])
            os.setresgid(user, user, user)
            os.setresuid(user, user, user)
            work()
            os._exit(0)
        os._exit(1)
    return os.waitpid(pid, 0)[1] == 0


# A copy of the zygote pays for each page that it writes to. Many writes are caches of the
# interpreter for new code, names and types: lookups, specialized instructions, encoders. The
# rehearsal fills them for all copies. A fork copies an entry for every page of the runner:
# `dataclasses`, `decimal`, `fractions` and `datetime` would slow all programs by 5 to 10 %, while
# few import them.
COMMON = (
    "abc", "bisect", "collections", "collections.abc", "copy", "enum", "functools", "heapq",
    "itertools", "json", "math", "operator", "random", "re", "string", "threading", "time", "types",
    "typing",
)  # fmt: skip

_ROUNDS = 12  # the interpreter specializes code after eight runs
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
    """Import what is common, unload the runner's modules; return the programs' module path."""
    for name in COMMON:
        importlib.import_module(name)
    path = sys.path[1:]
    for name in own_modules:
        sys.modules.pop(name, None)
    return path


def rehearse() -> None:
    """Rehearse the process of a stdin program a few times."""
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
    """A program's descriptors, temporarily: a file as 0, pipes as 1, 2 and 3, the job as 4."""
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
