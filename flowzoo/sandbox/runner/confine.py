"""Confinement of a fresh process before it runs a program.

It is the copy of a warm interpreter, and every page that it writes to is copied first: that is most
of what a program costs. So everything that can be made before the fork is (arguments, filter, limits that
are the same for all), and what is left runs through one function that reads plain globals.

The order matters: user and capabilities first, then the filters, which forbid the steps before them.
"""  # noqa: E501 - one sentence

from __future__ import annotations

import resource
import signal
import struct
import sys
from os import getpid, setresgid, setresuid, setsid
from resource import RLIMIT_AS, RLIMIT_CPU, RLIMIT_FSIZE, RLIMIT_NPROC, setrlimit
from typing import Any, NamedTuple

import linux

# Most bytes of the main thread's stack: deep recursion ends in MemoryError or here.
STACK = 64 * 2**20
OPEN_FILES = 64
pack_number = struct.Struct("=I").pack_into
_LIMITS_MEMORY = sys.platform != "darwin"  # macOS has the limit and refuses to set it


class BoxMode(NamedTuple):
    """Properties of a box; see the table in `start`."""

    name: str
    # Programs run under filters, and under another user where that is possible.
    confined: bool = True
    container: bool = False  # a container engine made the box, and this process is process 1 of it
    namespaces: bool = False  # this process makes the box, of new namespaces
    root: bool = False  # the runner is root of the container, and programs are another user

    @property
    def separate(self) -> bool:
        """True if files and processes of the box are its own."""
        return self.container or self.namespaces


MODES = {
    mode.name: mode
    for mode in (
        BoxMode("docker", container=True, root=True),
        BoxMode("container-user", container=True),
        BoxMode("namespaces", namespaces=True),
        BoxMode("landlock"),
        BoxMode("unsafe", confined=False),
    )
}


class Confinement(NamedTuple):
    """Steps of each process, made once."""

    user: int | None  # the user programs run as; None: the runner's
    # In this order: signal, capabilities, dumps, Landlock, the filter of system calls.
    calls: list[linux.LibcCall]
    program: bytearray  # the filter; it names the process that is under it
    places: list[int]  # offsets in the filter of the id of that process


class ConfinementPlan:
    """Settings of the confinement, from which a `Confinement` is made."""

    def __init__(self, mode: BoxMode) -> None:
        self.mode = mode
        self.user: int | None = None  # the user programs run as; None: the runner's
        # Programs give up capabilities that the runner has without changing the user.
        self.drops = False
        # No process outside this box has the programs' user, so its processes can be counted.
        self.own_user = False
        self.ruleset: int | None = None  # descriptor of the Landlock ruleset
        self.filter: Any = None  # the seccomp filter
        # Descriptor of a /proc that knows this process, where there is one.
        self.proc: int | None = None
        self.base_memory = 64 * 2**20  # address space of the runner, in bytes
        self.scratch: str | None = None  # folder that programs may write to

    def make_confinement(self) -> Confinement:
        """Everything that a fork has only to do."""
        calls: list[linux.LibcCall] = []
        program, places = bytearray(), []
        if sys.platform == "linux":  # after the change of user, which clears it
            calls.append(linux.prctl_call(linux.PR_SET_PDEATHSIG, signal.SIGKILL))
        if self.mode.confined:
            if self.drops:
                calls.append(linux.capset_call())
            calls.append(linux.prctl_call(linux.PR_SET_DUMPABLE, 0))
            if self.ruleset is not None:
                calls.append(linux.landlock_call(self.ruleset))
        if self.filter is not None:
            program, places = bytearray(self.filter.program), self.filter.places
            calls.append(linux.filter_call(program))
        return Confinement(self.user, calls, program, places)


def limit_all(plan: ConfinementPlan) -> None:
    """The limits that are the same for all programs, in the process that is to fork them."""
    set_limit = resource.setrlimit
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    _, most_stack = resource.getrlimit(resource.RLIMIT_STACK)
    stack = STACK if most_stack == resource.RLIM_INFINITY else min(STACK, most_stack)
    set_limit(resource.RLIMIT_CORE, (0, 0))
    set_limit(resource.RLIMIT_STACK, (stack, stack))
    if most_files == resource.RLIM_INFINITY or most_files > OPEN_FILES:
        set_limit(resource.RLIMIT_NOFILE, (OPEN_FILES, OPEN_FILES))
    if plan.mode.confined:
        linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)


def job_limits(plan: ConfinementPlan, limits: dict) -> tuple[int, int, int]:
    """Bytes of memory and of a file, and threads of a program's user; -1: no limit."""
    memory = plan.base_memory + int(limits["memory_mb"] * 2**20)
    files = int(limits["files_mb"] * 2**20) if plan.scratch or not plan.mode.confined else 0
    # The main thread, and a runner of this user, are counted too.
    threads = int(limits["threads"]) + 2 if plan.own_user else -1
    return memory, files, threads


def set_limits(seconds: int, memory: int, files: int, threads: int) -> None:
    """The kernel's own limits for a job: memory and files exactly, CPU time as a second net."""
    setrlimit(RLIMIT_CPU, (seconds, seconds))
    setrlimit(RLIMIT_FSIZE, (files, files))
    if threads >= 0:
        setrlimit(RLIMIT_NPROC, (threads, threads))
    if _LIMITS_MEMORY:
        setrlimit(RLIMIT_AS, (memory, memory))


def confine(confinement: Confinement) -> None:
    """Everything that does not depend on the job."""
    user, calls, program, places = confinement
    setsid()
    if user is not None:
        setresgid(user, user, user)
        setresuid(user, user, user)
    pid = getpid()
    for offset in places:
        pack_number(program, offset, pid)
    for name, function, arguments in calls:
        if function(*arguments) < 0:
            linux.fail(name)
