"""Confinement of a fresh process before it runs a program."""

from __future__ import annotations

import contextlib
import resource
import signal
import struct
import sys
from os import getpid, setresgid, setresuid, setsid
from resource import RLIMIT_AS, RLIMIT_CPU, RLIMIT_FSIZE, RLIMIT_NPROC, setrlimit
from typing import Any, NamedTuple

import linux
from libraries import DEVICES, LINKER_CACHE, TIME_ZONES, library_entries

# Most bytes of the main thread's stack: deep recursion ends in MemoryError or here.
STACK = 64 * 2**20
OPEN_FILES = 64
pack_number = struct.Struct("=I").pack_into
_LIMITS_MEMORY = sys.platform != "darwin"  # macOS has the limit and refuses to set it


class BoxMode(NamedTuple):
    """Properties of a box."""

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


# Users that programs run as: `docker`, option `uid`, else 10001; `container-user`, the container's;
# `namespaces`, one of the box's own, or without root: root of a user namespace, without
# capabilities; `landlock`, with root a new one if it can read the library, else the caller's;
# `unsafe`, the caller's.
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
    """Do everything that does not depend on the job; OSError where a step is refused."""
    # The process is the copy of a warm interpreter, and every page that it writes to is copied
    # first: that is most of what a program costs. So everything that can be made before the fork is
    # (arguments, filter, limits that are the same for all), and the rest reads plain globals.
    # The order matters: user and capabilities first, then the filters, which forbid these steps.
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


# Landlock rulesets are a second barrier in namespaces, and the only one without them. Source for
# rights and versions: the kernel's `linux/landlock.h`.
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_MAKE_CHAR, _MAKE_SOCK, _MAKE_FIFO, _MAKE_BLOCK = 1 << 6, 1 << 9, 1 << 10, 1 << 11
_REFER, _TRUNCATE = 1 << 13, 1 << 14
_OF_FILES = _WRITE_FILE | _READ_FILE | _TRUNCATE
_SPECIAL = _MAKE_CHAR | _MAKE_SOCK | _MAKE_FIFO | _MAKE_BLOCK


def handled_rights(abi: int) -> list[int]:
    """Everything that version `abi` can forbid: masks for files, network and scopes."""
    files = (1 << {1: 13, 2: 14, 3: 15, 4: 15}.get(abi, 16)) - 1
    masks = [files]
    if abi >= 4:
        masks.append(0b11)  # to bind and to connect TCP
    if abi >= 6:
        masks.append(0b11)  # abstract sockets and signals beyond the own domain
    return masks


def make_ruleset(abi: int, libraries: list[str], scratch: str | None) -> int:
    """A ruleset: read the standard library, libraries and devices, use `scratch`; nothing else."""
    # Where other packages lie in the folder of the standard library, it cannot be listed, since a
    # right on a folder holds for everything beneath it; the import system knows its content from
    # before the fork. Elsewhere the folder itself is named: each rule costs each process 0.5 us.
    masks = handled_rights(abi)
    files = masks[0]
    ruleset = linux.landlock_ruleset(*masks)
    for path in library_entries():
        with contextlib.suppress(OSError):  # a link that leads nowhere
            _allow_read(ruleset, path)
    for path in (*libraries, LINKER_CACHE, TIME_ZONES):
        with contextlib.suppress(FileNotFoundError):
            _allow_read(ruleset, path)
    for path in DEVICES:
        with contextlib.suppress(FileNotFoundError):
            linux.landlock_allow(ruleset, path, (_WRITE_FILE | _READ_FILE) & files)
    if scratch is not None:
        linux.landlock_allow(ruleset, scratch, files & ~_SPECIAL)
    return ruleset


def make_small_ruleset(abi: int) -> int:
    """A ruleset for a box whose mounts already say what can be read and written."""
    # No executing, no special files, no network, no signals to others. A rule could not name its
    # /tmp, which is another one for each program; but one for the whole tree lets files be moved
    # from folder to folder, which any ruleset forbids that does not speak of it.
    special = handled_rights(abi)
    refer = special[0] & _REFER
    special[0] = _EXECUTE | _SPECIAL | refer
    ruleset = linux.landlock_ruleset(*special)
    if refer:
        linux.landlock_allow(ruleset, "/", refer)
    return ruleset


def _allow_read(ruleset: int, path: str) -> None:
    try:
        linux.landlock_allow(ruleset, path, _READ_FILE | _READ_DIR)
    except OSError:  # not a folder: the right to list is no right of files
        linux.landlock_allow(ruleset, path, _READ_FILE)
