"""The filter of system calls, run as the kernel runs it."""

import errno
import itertools
import struct
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from flowzoo.sandbox.runner import wire

sys.path.insert(0, str(Path(wire.__file__).parent))

import seccomp
from seccomp import AARCH64, ALLOWED, ATTRIBUTES, CHANGES, CONDITIONAL, MODES_AND_TIMES, X86_64

ALLOW, KILL, REFUSE = 0x7FFF0000, 0x80000000, 0x00050000
PID = 77
ARCH = {X86_64: 0xC000003E, AARCH64: 0xC00000B7}


def answer(
    steps: list[seccomp.BpfStep], arch: int, number: int, arguments: Sequence[int] = ()
) -> int:
    """Verdict of the filter on a call, by the rules of classic BPF."""
    data = struct.pack("<IIQ6Q", number, arch, 0, *arguments, *[0] * (6 - len(arguments)))
    value = index = 0
    while True:
        code, true, false, constant = steps[index]
        constant = PID if constant == seccomp.OWN_PID else constant
        index += 1
        if code == 0x20:
            (value,) = struct.unpack_from("<I", data, constant)
        elif code == 0x54:
            value &= constant
        elif code == 0x05:
            index += constant
        elif code == 0x06:
            return constant
        else:
            test = {0x15: value == constant, 0x35: value >= constant, 0x45: value & constant}[code]
            index += true if test else false


@pytest.mark.parametrize("keeps_files", [True, False])
@pytest.mark.parametrize("machine", [X86_64, AARCH64])
def test_the_filter_says_what_the_tables_say(machine, keeps_files):
    steps = seccomp.filter_steps(machine, keeps_files)
    assert len(steps) < 4096
    allowed = ALLOWED | CHANGES | MODES_AND_TIMES if keeps_files else ALLOWED
    expected = {numbers[machine]: ALLOW for numbers in allowed.values()}
    expected |= {numbers[machine]: REFUSE | errno.ENOTSUP for numbers in ATTRIBUTES.values()}
    conditional = {numbers[machine] for numbers in CONDITIONAL.values()}
    for number in set(range(1000)) - conditional:
        unlisted = REFUSE | (errno.ENOSYS if number >= 424 else errno.EPERM)
        assert answer(steps, ARCH[machine], number) == expected.get(number, unlisted), number
    assert answer(steps, ARCH[1 - machine], 0) == KILL
    if machine == X86_64:
        assert answer(steps, ARCH[machine], 0x40000000) == KILL


@pytest.mark.parametrize("machine", [X86_64, AARCH64])
@pytest.mark.parametrize(
    ("name", "arguments", "allowed"),
    [
        ("kill", (PID, 9), True),
        ("kill", (1, 9), False),
        ("tgkill", (PID, PID, 9), True),
        ("tgkill", (PID + 1, PID, 9), False),
        ("prlimit64", (0,), True),
        ("prlimit64", (PID,), True),
        ("prlimit64", (1,), False),
        ("clone", (0x3D0F00,), True),
        ("clone", (17,), False),
        ("clone", (0x3D0F00 | 0x10000000,), False),
        ("fcntl", (0, 4), True),
        ("fcntl", (0, 1031), False),
        ("ioctl", (0, 0x5401), True),
        ("ioctl", (0, 0x5412), False),
        ("socketpair", (1, 1), True),
        ("socketpair", (2, 1), False),
        ("socketpair", (1, 2), False),
        ("openat", (0, 0, 0), True),
        ("openat", (0, 0, 0o1000), False),
        ("openat", (0, 0, 0o1002), True),
    ],
)
def test_calls_that_depend_on_their_arguments(machine, name, arguments, allowed):
    steps = seccomp.filter_steps(machine, keeps_files=True)
    verdict = answer(steps, ARCH[machine], CONDITIONAL[name][machine], arguments)
    assert verdict == (ALLOW if allowed else REFUSE | errno.EPERM)


def test_no_path_through_the_filter_is_long():
    """The kernel walks it for every number when it is installed: each program pays for that."""
    for machine, keeps_files in itertools.product((X86_64, AARCH64), (True, False)):
        runs = seccomp.syscall_runs(seccomp.syscall_answers(machine, keeps_files))
        assert len(seccomp.search_steps(runs)) < 320
        assert len(runs).bit_length() <= 8
