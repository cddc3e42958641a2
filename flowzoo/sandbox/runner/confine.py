"""Confinement of a fresh process before it runs a program."""

import contextlib
import resource
import signal
import struct
from os import getpid, setresgid, setresuid, setsid
from resource import RLIMIT_AS, RLIMIT_CPU, RLIMIT_FSIZE, RLIMIT_NPROC, setrlimit
from typing import Any, NamedTuple

import linux
from libraries import DEVICES, LINKER_CACHE, TIME_ZONES, library_entries

# Most bytes of the main thread's stack, for deep recursion.
STACK = 64 * 2**20
OPEN_FILES = 64
pack_number = struct.Struct("=I").pack_into


class BoxMode(NamedTuple):
    """Properties of a box."""

    name: str
    # True if programs run under filters, and under another user if possible.
    confined: bool = True
    container: bool = False  # a container engine made the box; this process is process 1 of it
    namespaces: bool = False  # True if this process makes the box from new namespaces
    root: bool = False  # True if the runner is root of the container and programs are another user

    @property
    def separate(self) -> bool:
        """True if the box has separate files and processes."""
        return self.container or self.namespaces


# Users of programs: `docker`, option `uid`, else 10001; `container-user`, the container's;
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
    """Prepared confinement steps of each process."""

    user: int | None  # user of programs; None: the runner's
    # In order: signal, capabilities, dumps, Landlock, the filter of system calls.
    calls: list[linux.LibcCall]
    program: bytearray  # the filter; it contains the id of its process
    places: list[int]  # offsets of that id in the filter


class ConfinementPlan:
    """Settings for making a `Confinement`."""

    def __init__(self, mode: BoxMode) -> None:
        self.mode = mode
        self.user: int | None = None  # user of programs; None: the runner's
        # True if programs drop the runner's capabilities without changing the user.
        self.drops = False
        # True if no process outside this box has the programs' user, so its processes can be
        # counted.
        self.own_user = False
        self.ruleset: int | None = None  # descriptor of the Landlock ruleset
        self.filter: Any = None  # the seccomp filter
        # Descriptor of a /proc with this process, if any.
        self.proc: int | None = None
        self.base_memory = 64 * 2**20  # address space of the runner, in bytes
        self.scratch: str | None = None  # folder that programs may write to

    def make_confinement(self) -> Confinement:
        """Prepare all steps that a fork then only executes."""
        program, places = bytearray(), []
        # After the change of user, which clears it.
        calls = [linux.prctl_call(linux.PR_SET_PDEATHSIG, signal.SIGKILL)]
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
    """Set the limits common to all programs, in the process that forks them."""
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
    # The main thread, and a runner of this user, also count.
    threads = int(limits["threads"]) + 2 if plan.own_user else -1
    return memory, files, threads


def set_limits(seconds: int, memory: int, files: int, threads: int) -> None:
    """Set the kernel's limits for a job: memory and files exactly, CPU time as a fallback."""
    setrlimit(RLIMIT_CPU, (seconds, seconds))
    setrlimit(RLIMIT_FSIZE, (files, files))
    if threads >= 0:
        setrlimit(RLIMIT_NPROC, (threads, threads))
    setrlimit(RLIMIT_AS, (memory, memory))


def confine(confinement: Confinement) -> None:
    """Execute all steps that do not depend on the job; OSError if a step is denied."""
    # The process is a copy of a warm interpreter, and every page that it writes to is copied first,
    # which is most of a program's cost. Arguments, filter and common limits are therefore prepared
    # before the fork, and the rest reads plain globals. The order matters: user and capabilities
    # first, then the filters, which deny these steps.
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
_REFER = 1 << 13
_SPECIAL = _MAKE_CHAR | _MAKE_SOCK | _MAKE_FIFO | _MAKE_BLOCK


def handled_rights(abi: int) -> list[int]:
    """All rights that version `abi` can handle: masks for files, network and scopes."""
    files = (1 << {1: 13, 2: 14, 3: 15, 4: 15}.get(abi, 16)) - 1
    masks = [files]
    if abi >= 4:
        masks.append(0b11)  # bind and connect TCP
    if abi >= 6:
        masks.append(0b11)  # abstract sockets and signals outside the domain
    return masks


def make_ruleset(abi: int, libraries: list[str], scratch: str | None) -> int:
    """Make a ruleset that allows only reading libraries and devices, and using `scratch`."""
    # If other packages are in the folder of the standard library, it cannot be listed, since a
    # right on a folder applies to everything below it; the import system has cached its content
    # before the fork. Otherwise the folder itself is named, since each rule costs each process 0.5
    # us.
    masks = handled_rights(abi)
    files = masks[0]
    ruleset = linux.landlock_ruleset(*masks)
    for path in library_entries():
        with contextlib.suppress(OSError):  # a dangling link
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
    """Make a ruleset for a box whose mounts already restrict reading and writing."""
    # It denies execution, special files, network and signals to others. A rule cannot name /tmp,
    # which changes with each program; a rule for the whole tree allows moving files between
    # folders, which any ruleset otherwise denies.
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
    except OSError:  # not a folder: files have no right to list
        linux.landlock_allow(ruleset, path, _READ_FILE)
