"""The system calls a program may make: an allow-list, as a BPF program for the kernel.

Everything that is not listed is refused with EPERM, and with ENOSYS what a newer kernel or library
may try first and do without (`clone3`, whose flags a filter cannot see, among it). So there are no
new processes, no exec, no sockets (`socketpair` alone, for event loops), no tracing, keys, bpf,
io_uring, System V IPC, namespaces, mounts or device nodes; signals reach the program itself only,
and memory that its address space limit would not count (memfd, larger pipes) cannot be had.
The last matter where the program and the runner share a user: there this filter is what keeps the
program's hands off the runner.
"""

from __future__ import annotations

import errno
import os
import struct

from syscalls import AARCH64, ALLOWED, ATTRIBUTES, CHANGES, CONDITIONAL, MODES_AND_TIMES, X86_64

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _AND, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
_JUMP, _FARTHEST = 0x05, 255  # a condition skips so many steps at most
_NUMBER, _ARCH, _ARGUMENTS = 0, 4, 16  # offsets in `struct seccomp_data`
_ALLOW, _ERROR, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_AUDIT_ARCH = {X86_64: 0xC000003E, AARCH64: 0xC00000B7}
_X32_BIT = 0x40000000
_FIRST_NEW = 424
"""From here on numbers are the same everywhere, and libraries expect that they may be absent."""

_PID = 0xFFFF_FFFE
"""Stands in a filter for the id of the process that will be under it."""
_CLONE_THREAD, _CLONE_NEW_ANY = 0x00010000, 0x7E020080  # the latter: all namespaces
_SOCKET_TYPE, _SOCK_STREAM, _AF_UNIX = 0xF, 1, 1
_IOCTLS = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
"""TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX."""
_FCNTLS = (0, 1, 2, 3, 4, 5, 6, 7, 1030)
"""Duplicates, flags and locks; no owners, signals, leases, seals or pipe sizes."""
_PRCTLS = (15, 16)
"""PR_SET_NAME, PR_GET_NAME."""

BpfStep = tuple[int, int, int, int]
"""Opcode, steps to skip if true, steps to skip if false, value."""


def _refuse(number: int) -> BpfStep:
    return (_RETURN, 0, 0, _ERROR | number)


_OK: BpfStep = (_RETURN, 0, 0, _ALLOW)


def _if_one_of(place: int, values: tuple[int, ...]) -> list[BpfStep]:
    """Allow if the low word of argument `place` is one of `values`."""
    steps: list[BpfStep] = [(_LOAD, 0, 0, _ARGUMENTS + 8 * place)]
    for value in values:
        steps += [(_EQUAL, 0, 1, value), _OK]
    return [*steps, _refuse(errno.EPERM)]


def _unless_truncated(place: int) -> list[BpfStep]:
    """Allow to open, with the flags in argument `place`, unless reading truncates the file.

    The first versions of Landlock let that pass.
    """
    return [
        (_LOAD, 0, 0, _ARGUMENTS + 8 * place),
        (_AND, 0, 0, os.O_TRUNC | os.O_ACCMODE),
        (_EQUAL, 0, 1, os.O_TRUNC | os.O_RDONLY),
        _refuse(errno.EPERM),
        _OK,
    ]


def _conditions() -> dict[str, list[BpfStep]]:
    """What decides about a call whose arguments matter."""
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
        "kill": _if_one_of(0, (_PID,)),
        "tgkill": _if_one_of(0, (_PID,)),
        "prlimit64": _if_one_of(0, (0, _PID)),
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


def _answers(machine: int, keeps_files: bool) -> dict[int, list[BpfStep]]:
    """What the listed system calls get, by number."""
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


def _runs(answers: dict[int, list[BpfStep]]) -> list[tuple[int, list[BpfStep]]]:
    """The answers to all numbers: each stands with the first of those that it is for."""
    runs: list[tuple[int, list[BpfStep]]] = []
    for number in range(max(_FIRST_NEW, *answers) + 2):
        unlisted = errno.ENOSYS if number >= _FIRST_NEW else errno.EPERM
        answer = answers.get(number, [_refuse(unlisted)])
        if not runs or runs[-1][1] != answer:
            runs.append((number, answer))
    return runs


def _search(runs: list[tuple[int, list[BpfStep]]]) -> list[BpfStep]:
    """A binary search among `runs`.

    The kernel runs a new filter over all numbers to learn which it always allows, so that the
    length of its paths is what each program pays for.
    """
    if len(runs) == 1:
        return runs[0][1]
    middle = len(runs) // 2
    below, above = _search(runs[:middle]), _search(runs[middle:])
    first = runs[middle][0]
    if len(below) > _FARTHEST:
        return [(_AT_LEAST, 0, 1, first), (_JUMP, 0, 0, len(below)), *below, *above]
    return [(_AT_LEAST, len(below), 0, first), *below, *above]


def _steps(machine: int, keeps_files: bool) -> list[BpfStep]:
    """The whole filter, with `_PID` where the id of the process goes."""
    steps: list[BpfStep] = [
        (_LOAD, 0, 0, _ARCH),
        (_EQUAL, 1, 0, _AUDIT_ARCH[machine]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
    ]
    if machine == X86_64:
        steps += [(_AT_LEAST, 0, 1, _X32_BIT), (_RETURN, 0, 0, _KILL)]
    return steps + _search(_runs(_answers(machine, keeps_files)))


class Filter:
    """The filter for this machine, to be completed for each process.

    Args:
        keeps_files: programs may have files of their own, and name, move and remove them.

    Raises:
        OSError: the architecture is neither x86_64 nor aarch64.
    """

    def __init__(self, keeps_files: bool) -> None:
        machine = {"x86_64": X86_64, "aarch64": AARCH64}.get(os.uname().machine)
        if machine is None:
            raise OSError(errno.ENOSYS, f"no seccomp filter for {os.uname().machine}")
        steps = _steps(machine, keeps_files)
        self.program = b"".join(struct.pack("=HBBI", *step) for step in steps)
        self.places = [8 * row + 4 for row, step in enumerate(steps) if step[3] == _PID]
        """Where the id of the process goes, as its own namespace counts: four bytes each."""
