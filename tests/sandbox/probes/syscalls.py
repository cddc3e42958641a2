"""System calls that no program needs, with arguments that do nothing where they are let through.

Each row: the number on x86-64, on aarch64 (None: absent), and the arguments. A call is refused if
it ends with EPERM, EACCES or ENOSYS; any other error, such as EINVAL for the arguments, shows that
the kernel's own code was reached. The arguments are invalid on purpose wherever a valid call would
change the machine.
"""

from __future__ import annotations

from typing import Final

SyscallRow = tuple[int | None, int | None, tuple[int, ...]]

_BAD = -1
_NONE = 0

SYSCALLS: Final[dict[str, dict[str, SyscallRow]]] = {
    "tracing": {
        "ptrace": (101, 117, (16, 999_999_999, 0, 0)),  # PTRACE_ATTACH, no such process
        "process_vm_readv": (310, 270, (999_999_999, 0, 0, 0, 0, 0)),
        "process_vm_writev": (311, 271, (999_999_999, 0, 0, 0, 0, 0)),
        "process_madvise": (440, 440, (_BAD, 0, 0, 0, 0)),
        "kcmp": (312, 272, (999_999_999, 999_999_999, 0, 0, 0)),
        "pidfd_getfd": (438, 438, (_BAD, 0, 0)),
        "perf_event_open": (298, 241, (0, 0, -1, -1, 0)),
    },
    "kernel programs": {
        "bpf": (321, 280, (5, 0, 0)),
        "userfaultfd": (323, 282, (_BAD,)),
        "io_uring_setup": (425, 425, (0, 0)),
        "io_uring_enter": (426, 426, (_BAD, 0, 0, 0, 0)),
        "fanotify_init": (300, 262, (0, 0)),
        "memfd_secret": (447, 447, (_BAD,)),
    },
    "keyring": {
        "add_key": (248, 217, (0, 0, 0, 0, 0)),
        "request_key": (249, 218, (0, 0, 0, 0)),
        "keyctl": (250, 219, (0, -3, 0)),  # the session keyring's id
    },
    "namespaces and mounts": {
        "unshare": (272, 97, (0x10000000,)),  # a user namespace for this process alone
        "setns": (308, 268, (_BAD, 0)),
        "mount": (165, 40, (0, 0, 0, 0, 0)),
        "umount2": (166, 39, (0, _BAD)),
        "pivot_root": (155, 41, (0, 0)),
        "fsopen": (430, 430, (0, 0)),
        "open_tree": (428, 428, (_BAD, 0, 0)),
        "move_mount": (429, 429, (_BAD, 0, _BAD, 0, 0)),
        "mount_setattr": (442, 442, (_BAD, 0, 0, 0, 0)),
        "open_by_handle_at": (304, 265, (_BAD, 0, 0)),
    },
    "the machine": {
        "reboot": (169, 142, (0, 0, 0, 0)),  # wrong magic numbers: EINVAL
        "kexec_load": (246, 104, (0, 99, 0, _BAD)),
        "init_module": (175, 105, (0, 0, 0)),
        "delete_module": (176, 106, (0, 0)),
        "swapon": (167, 224, (0, 0)),
        "settimeofday": (164, 170, (1, 0)),
        "clock_settime": (227, 112, (99, 0)),
        "acct": (163, 89, (1,)),
        "quotactl": (179, 60, (0, 0, 0, 0)),
        "syslog": (103, 116, (10, 0, 0)),
        "iopl": (172, None, (3,)),
        "ioperm": (173, None, (0x80, 1, 1)),
        "sethostname": (170, 161, (1, 1)),
    },
    "shared memory and queues": {
        "shmget": (29, 194, (0x464C4F57, 4096, 0o600)),
        "semget": (64, 190, (0x464C4F57, 1, 0o600)),
        "msgget": (68, 186, (0x464C4F57, 0o600)),
        "mq_open": (240, 180, (0, 0, 0, 0)),
    },
    "new processes": {
        "clone3": (435, 435, (0, 0)),
        "execveat": (322, 281, (_BAD, 0, 0, 0, 0)),
        "pidfd_open": (434, 434, (_BAD, 0)),
    },
}
