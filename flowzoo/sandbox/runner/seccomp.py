"""Allow-list of system calls of programs, as a BPF program for the kernel."""

import errno
import os
import struct

# Other calls fail with EPERM, or with ENOSYS if newer libraries try them first and have a fallback
# (such as `clone3`, whose flags a filter cannot read). So there are no new processes, no exec, no
# sockets (only `socketpair`, for event loops), no tracing, keys, bpf, io_uring, System V IPC,
# namespaces, mounts or device nodes; signals reach only the program itself, and memory outside its
# address space limit (memfd, larger pipes) cannot be allocated. If the program and the runner share
# a user, this filter protects the runner.

# Numbers on x86_64 and aarch64 (-1: none) by purpose. Sources: the kernel's
# `asm/unistd_64.h` and `asm-generic/unistd.h`.
X86_64, AARCH64 = 0, 1
# fmt: off

FILES: dict[str, tuple[int, int]] = {
    "close": (3, 57), "close_range": (436, 436), "read": (0, 63), "write": (1, 64),
    "readv": (19, 65), "writev": (20, 66), "pread64": (17, 67), "pwrite64": (18, 68),
    "preadv": (295, 69), "pwritev": (296, 70), "preadv2": (327, 286), "pwritev2": (328, 287),
    "lseek": (8, 62), "stat": (4, -1), "fstat": (5, 80), "lstat": (6, -1), "newfstatat": (262, 79),
    "statx": (332, 291), "statfs": (137, 43), "fstatfs": (138, 44), "access": (21, -1),
    "faccessat": (269, 48), "faccessat2": (439, 439), "getcwd": (79, 17), "chdir": (80, 49),
    "fchdir": (81, 50), "getdents": (78, -1), "getdents64": (217, 61), "readlink": (89, -1),
    "readlinkat": (267, 78), "dup": (32, 23), "dup2": (33, -1), "dup3": (292, 24), "pipe": (22, -1),
    "pipe2": (293, 59), "flock": (73, 32), "fsync": (74, 82), "fdatasync": (75, 83),
    "fadvise64": (221, 223), "sendfile": (40, 71), "copy_file_range": (326, 285),
    "umask": (95, 166),
}
# Only if programs have files.
CHANGES: dict[str, tuple[int, int]] = {
    "creat": (85, -1), "truncate": (76, 45), "ftruncate": (77, 46), "fallocate": (285, 47),
    "mkdir": (83, -1), "mkdirat": (258, 34), "rmdir": (84, -1), "unlink": (87, -1),
    "unlinkat": (263, 35), "rename": (82, -1), "renameat": (264, 38), "renameat2": (316, 276),
    "link": (86, -1), "linkat": (265, 37), "symlink": (88, -1), "symlinkat": (266, 36),
}
# Like `CHANGES`; Landlock, which may be the only barrier, does not cover them.
MODES_AND_TIMES: dict[str, tuple[int, int]] = {
    "chmod": (90, -1), "fchmod": (91, 52), "fchmodat": (268, 53), "utime": (132, -1),
    "utimes": (235, -1), "utimensat": (280, 88), "futimesat": (261, -1),
}
MEMORY: dict[str, tuple[int, int]] = {
    "mmap": (9, 222), "munmap": (11, 215), "mprotect": (10, 226), "mremap": (25, 216),
    "madvise": (28, 233), "brk": (12, 214), "msync": (26, 227), "membarrier": (324, 283),
}
THREADS: dict[str, tuple[int, int]] = {
    "futex": (202, 98), "futex_waitv": (449, 449), "set_robust_list": (273, 99),
    "get_robust_list": (274, 100), "rseq": (334, 293), "set_tid_address": (218, 96),
    "exit": (60, 93), "exit_group": (231, 94), "wait4": (61, 260), "waitid": (247, 95),
    "restart_syscall": (219, 128), "sched_yield": (24, 124), "sched_getaffinity": (204, 123),
    "getcpu": (309, 168), "arch_prctl": (158, -1),
}
SIGNALS: dict[str, tuple[int, int]] = {
    "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139),
    "rt_sigpending": (127, 136), "rt_sigsuspend": (130, 133), "rt_sigtimedwait": (128, 137),
    "sigaltstack": (131, 132), "pause": (34, -1), "alarm": (37, -1), "setitimer": (38, 103),
    "getitimer": (36, 102),
}
CLOCKS: dict[str, tuple[int, int]] = {
    "nanosleep": (35, 101), "clock_nanosleep": (230, 115), "clock_gettime": (228, 113),
    "clock_getres": (229, 114), "gettimeofday": (96, 169), "time": (201, -1), "times": (100, 153),
    "timerfd_create": (283, 85), "timerfd_settime": (286, 86), "timerfd_gettime": (287, 87),
    "timer_create": (222, 107), "timer_settime": (223, 110), "timer_gettime": (224, 108),
    "timer_getoverrun": (225, 109), "timer_delete": (226, 111),
}
FACTS: dict[str, tuple[int, int]] = {
    "getrusage": (98, 165), "sysinfo": (99, 179), "uname": (63, 160), "getpid": (39, 172),
    "gettid": (186, 178), "getppid": (110, 173), "getuid": (102, 174), "geteuid": (107, 175),
    "getgid": (104, 176), "getegid": (108, 177), "getresuid": (118, 148), "getresgid": (120, 150),
    "getgroups": (115, 158), "getpgrp": (111, -1), "getrlimit": (97, 163), "setrlimit": (160, 164),
    "getrandom": (318, 278),
}
WAITING: dict[str, tuple[int, int]] = {
    "poll": (7, -1), "ppoll": (271, 73), "select": (23, -1), "pselect6": (270, 72),
    "epoll_create": (213, -1), "epoll_create1": (291, 20), "epoll_ctl": (233, 21),
    "epoll_wait": (232, -1), "epoll_pwait": (281, 22), "epoll_pwait2": (441, 441),
    "eventfd": (284, -1), "eventfd2": (290, 19), "sendto": (44, 206), "recvfrom": (45, 207),
    "sendmsg": (46, 211), "recvmsg": (47, 212), "shutdown": (48, 210), "getsockopt": (55, 209),
    "getsockname": (51, 204), "getpeername": (52, 205),
}
# Extended attributes: reported as unsupported, which `shutil` handles.
ATTRIBUTES: dict[str, tuple[int, int]] = {
    "getxattr": (191, 8), "lgetxattr": (192, 9), "fgetxattr": (193, 10), "listxattr": (194, 11),
    "llistxattr": (195, 12), "flistxattr": (196, 13), "setxattr": (188, 5), "lsetxattr": (189, 6),
    "fsetxattr": (190, 7), "removexattr": (197, 14), "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
}
# Allowed only with some arguments; see `seccomp`.
CONDITIONAL: dict[str, tuple[int, int]] = {
    "clone": (56, 220), "clone3": (435, 435), "kill": (62, 129), "tgkill": (234, 131),
    "prlimit64": (302, 261), "prctl": (157, 167), "ioctl": (16, 29), "fcntl": (72, 25),
    "socketpair": (53, 199), "open": (2, -1), "openat": (257, 56),
}
# fmt: on

ALLOWED = FILES | MEMORY | THREADS | SIGNALS | CLOCKS | FACTS | WAITING

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _AND, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
_JUMP, _FARTHEST = 0x05, 255  # most steps that a condition can skip
_NUMBER, _ARCH, _ARGUMENTS = 0, 4, 16  # offsets in `struct seccomp_data`
_ALLOW, _ERROR, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_AUDIT_ARCH = {X86_64: 0xC000003E, AARCH64: 0xC00000B7}
_X32_BIT = 0x40000000
# From here numbers are the same on all machines, and libraries expect that they may be missing.
_FIRST_NEW = 424

OWN_PID = 0xFFFF_FFFE  # placeholder for the id of the filter's process
_CLONE_THREAD, _CLONE_NEW_ANY = 0x00010000, 0x7E020080  # the latter: all namespaces
_SOCKET_TYPE, _SOCK_STREAM, _AF_UNIX = 0xF, 1, 1
# TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX.
_IOCTLS = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
# Duplicates, flags and locks; no owners, signals, leases, seals or pipe sizes.
_FCNTLS = (0, 1, 2, 3, 4, 5, 6, 7, 1030)
_PRCTLS = (15, 16)  # PR_SET_NAME, PR_GET_NAME

BpfStep = tuple[int, int, int, int]  # opcode, steps to skip if true, steps to skip if false, value


def _refuse(number: int) -> BpfStep:
    return (_RETURN, 0, 0, _ERROR | number)


_OK: BpfStep = (_RETURN, 0, 0, _ALLOW)


def _if_one_of(index: int, values: tuple[int, ...]) -> list[BpfStep]:
    steps: list[BpfStep] = [(_LOAD, 0, 0, _ARGUMENTS + 8 * index)]
    for value in values:
        steps += [(_EQUAL, 0, 1, value), _OK]
    return [*steps, _refuse(errno.EPERM)]


def _unless_truncated(index: int) -> list[BpfStep]:
    # The first versions of Landlock allow truncating a file that is opened for reading.
    return [
        (_LOAD, 0, 0, _ARGUMENTS + 8 * index),
        (_AND, 0, 0, os.O_TRUNC | os.O_ACCMODE),
        (_EQUAL, 0, 1, os.O_TRUNC | os.O_RDONLY),
        _refuse(errno.EPERM),
        _OK,
    ]


def _conditions() -> dict[str, list[BpfStep]]:
    load_first: BpfStep = (_LOAD, 0, 0, _ARGUMENTS)
    no = _refuse(errno.EPERM)
    return {
        "open": _unless_truncated(1),
        "openat": _unless_truncated(2),
        "clone": [
            load_first,
            (_ANY_BIT, 0, 2, _CLONE_THREAD),
            (_ANY_BIT, 1, 0, _CLONE_NEW_ANY),
            _OK,
            no,
        ],
        "clone3": [_refuse(errno.ENOSYS)],
        "kill": _if_one_of(0, (OWN_PID,)),
        "tgkill": _if_one_of(0, (OWN_PID,)),
        "prlimit64": _if_one_of(0, (0, OWN_PID)),
        "prctl": _if_one_of(0, _PRCTLS),
        "ioctl": _if_one_of(1, _IOCTLS),
        "fcntl": _if_one_of(1, _FCNTLS),
        "socketpair": [
            load_first,
            (_EQUAL, 0, 4, _AF_UNIX),
            (_LOAD, 0, 0, _ARGUMENTS + 8),
            (_AND, 0, 0, _SOCKET_TYPE),
            (_EQUAL, 0, 1, _SOCK_STREAM),
            _OK,
            no,
        ],
    }


def syscall_answers(machine: int, keeps_files: bool) -> dict[int, list[BpfStep]]:
    """Steps that decide a system call, by number."""
    allowed = ALLOWED | CHANGES | MODES_AND_TIMES if keeps_files else ALLOWED
    answers: dict[int, list[BpfStep]] = {}
    for numbers in allowed.values():
        answers[numbers[machine]] = [_OK]
    for numbers in ATTRIBUTES.values():
        answers[numbers[machine]] = [_refuse(errno.ENOTSUP)]
    for name, condition in _conditions().items():
        answers[CONDITIONAL[name][machine]] = condition
    answers.pop(-1, None)  # not on this machine
    return answers


def syscall_runs(answers: dict[int, list[BpfStep]]) -> list[tuple[int, list[BpfStep]]]:
    """First number and decision of every run of numbers with the same decision."""
    runs: list[tuple[int, list[BpfStep]]] = []
    for number in range(max(_FIRST_NEW, *answers) + 2):
        unlisted = errno.ENOSYS if number >= _FIRST_NEW else errno.EPERM
        answer = answers.get(number, [_refuse(unlisted)])
        if not runs or runs[-1][1] != answer:
            runs.append((number, answer))
    return runs


def search_steps(runs: list[tuple[int, list[BpfStep]]]) -> list[BpfStep]:
    """A binary search over the runs."""
    # The kernel runs a new filter over all numbers to find those it always allows, so each program
    # pays for the length of its paths.
    if len(runs) == 1:
        return runs[0][1]
    middle = len(runs) // 2
    below, above = search_steps(runs[:middle]), search_steps(runs[middle:])
    first = runs[middle][0]
    if len(below) > _FARTHEST:
        return [(_AT_LEAST, 0, 1, first), (_JUMP, 0, 0, len(below)), *below, *above]
    return [(_AT_LEAST, len(below), 0, first), *below, *above]


def filter_steps(machine: int, keeps_files: bool) -> list[BpfStep]:
    """The whole filter of a machine."""
    steps: list[BpfStep] = [
        (_LOAD, 0, 0, _ARCH),
        (_EQUAL, 1, 0, _AUDIT_ARCH[machine]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
    ]
    if machine == X86_64:
        steps += [(_AT_LEAST, 0, 1, _X32_BIT), (_RETURN, 0, 0, _KILL)]
    return steps + search_steps(syscall_runs(syscall_answers(machine, keeps_files)))


class Filter:
    """The filter for this machine, completed for each process."""

    def __init__(self, keeps_files: bool) -> None:
        machine = {"x86_64": X86_64, "aarch64": AARCH64}.get(os.uname().machine)
        if machine is None:
            raise OSError(errno.ENOSYS, f"no seccomp filter for {os.uname().machine}")
        steps = filter_steps(machine, keeps_files)
        self.program = b"".join(struct.pack("=HBBI", *step) for step in steps)
        # Offsets of the process id in its own namespace; four bytes each.
        self.places = [8 * row + 4 for row, step in enumerate(steps) if step[3] == OWN_PID]
