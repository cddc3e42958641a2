"""System calls that a sandbox container may make: an allow-list, for the runner and its programs.

The engine's own default profile leaves open what reaches beyond a container or outlives a program:
AF_VSOCK (no namespace holds it), netlink, io_uring, System V and POSIX message queues, setting
affinities. Here everything that a CPython fork-server does not need is refused. The runner adds a
second, stricter filter to every program: this one must let it fork, change its user and kill.

Source for the format: https://docs.docker.com/engine/security/seccomp/
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

_NAMESPACE_FLAGS = 0x7E020000  # every CLONE_NEW* flag of clone(2) (time namespaces have none there)
_ENOSYS, _AF_UNIX = 38, 1

_FILES = """
access chdir chmod close close_range copy_file_range creat dup dup2 dup3 epoll_create
epoll_create1 epoll_ctl epoll_pwait epoll_pwait2 epoll_wait eventfd eventfd2 faccessat faccessat2
fadvise64 fallocate fchdir fchmod fchmodat fchmodat2 fchown fchownat fcntl fdatasync flock fstat
fstatfs fsync ftruncate futimesat getcwd getdents getdents64 ioctl lchown chown link linkat lseek
lstat memfd_create mkdir mkdirat newfstatat open openat openat2 pipe pipe2 poll ppoll pread64
preadv preadv2 pselect6 pwrite64 pwritev pwritev2 read readlink readlinkat readv rename renameat
renameat2 rmdir select sendfile stat statfs statx symlink symlinkat truncate umask unlink unlinkat
utime utimensat utimes write writev
"""
_MEMORY = "brk madvise membarrier mmap mprotect mremap msync munmap"
_PROCESSES = """
arch_prctl capget capset execve exit exit_group fork futex futex_waitv get_robust_list getcpu
getegid geteuid getgid getgroups getpgid getpgrp getpid getppid getpriority getresgid getresuid
getrlimit getrusage getsid gettid getuid kill landlock_add_rule landlock_create_ruleset
landlock_restrict_self pidfd_open pidfd_send_signal prctl prlimit64 restart_syscall rseq
sched_get_priority_max sched_get_priority_min sched_getaffinity sched_getparam sched_getscheduler
sched_yield seccomp set_robust_list set_tid_address setgid setgroups setpgid setregid setresgid
setresuid setreuid setrlimit setsid setuid sysinfo tgkill times tkill uname vfork wait4 waitid
"""
_SIGNALS_AND_TIME = """
alarm clock_getres clock_gettime clock_nanosleep getitimer getrandom gettimeofday nanosleep pause
rt_sigaction rt_sigpending rt_sigprocmask rt_sigqueueinfo rt_sigreturn rt_sigsuspend
rt_sigtimedwait rt_tgsigqueueinfo setitimer sigaltstack signalfd signalfd4 time timer_create
timer_delete timer_getoverrun timer_gettime timer_settime timerfd_create timerfd_gettime
timerfd_settime
"""
# On the pair that socketpair makes; there is no socket(), so nothing to bind or connect.
_SOCKET_PAIRS = """
getpeername getsockname getsockopt recvfrom recvmsg sendmsg sendto setsockopt shutdown
"""


def profile() -> dict[str, Any]:
    """The profile, in the engine's own format."""
    names = " ".join((_FILES, _MEMORY, _PROCESSES, _SIGNALS_AND_TIME, _SOCKET_PAIRS)).split()
    no_namespaces = {
        "index": 0,
        "value": _NAMESPACE_FLAGS,
        "valueTwo": 0,
        "op": "SCMP_CMP_MASKED_EQ",
    }
    only_unix = {"index": 0, "value": _AF_UNIX, "op": "SCMP_CMP_EQ"}
    return {
        "defaultAction": "SCMP_ACT_ERRNO",
        # The native architecture alone: calls by another one's numbers kill the process.
        "archMap": [
            {"architecture": name, "subArchitectures": []}
            for name in ("SCMP_ARCH_X86_64", "SCMP_ARCH_AARCH64")
        ],
        "syscalls": [
            {"names": sorted(names), "action": "SCMP_ACT_ALLOW"},
            {"names": ["clone"], "action": "SCMP_ACT_ALLOW", "args": [no_namespaces]},
            {"names": ["socketpair"], "action": "SCMP_ACT_ALLOW", "args": [only_unix]},
            # Its flags lie in memory, out of a filter's sight; the C library then takes clone.
            {"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": _ENOSYS},
        ],
    }


@cache
def profile_text() -> str:
    """The profile as the engine's API takes it."""
    return json.dumps(profile(), separators=(",", ":"))
