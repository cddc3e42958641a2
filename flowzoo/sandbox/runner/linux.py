"""Kernel interfaces that Python does not wrap, with ctypes; errors name the call."""

import ctypes
import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_REMOUNT, MS_NOATIME, MS_NODIRATIME, MS_BIND = 32, 1024, 2048, 4096
MS_REC, MS_PRIVATE, MS_RELATIME = 16384, 1 << 18, 1 << 21
MNT_DETACH = 2
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP = 1, 4, 22
PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 36, 38
SECCOMP_MODE_FILTER = 2
_CAPABILITY_VERSION = 0x20080522
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446

_libc = ctypes.CDLL(None, use_errno=True)
if sys.platform == "linux":  # elsewhere `tier` imports the module but does not use it
    _text, _long = ctypes.c_char_p, ctypes.c_ulong
    _libc.syscall.restype = ctypes.c_long
    _libc.mount.argtypes = [_text, _text, _text, _long, _text]


class _Program(ctypes.Structure):
    """`struct sock_fprog`: a seccomp filter."""

    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


_kept: list[Any] = []  # memory referenced by the arguments of prepared calls


class _PathRule(ctypes.Structure):
    """`struct landlock_path_beneath_attr`."""

    _pack_ = 1
    _layout_ = "ms"  # implied by `_pack_`, but required by newer versions of Python
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


def fail(call: str) -> NoReturn:
    """Raise the error in `errno` of the last C library call."""
    error = ctypes.get_errno()
    raise OSError(error, f"{call}: {os.strerror(error)}")


def _need(result: int, call: str) -> int:
    if result < 0:
        fail(call)
    return result


def prctl(option: int, value: int, address: int = 0) -> None:
    """`prctl` with one or two arguments."""
    name, function, arguments = prctl_call(option, value, address)
    _need(function(*arguments), name)


def unshare(flags: int) -> None:
    """Leave the namespaces of `flags` for new ones."""
    _need(_libc.unshare(ctypes.c_int(flags)), "unshare")


def mount(source: str, target: str, kind: str | None, flags: int, data: str = "") -> None:
    """`mount`."""
    result = _libc.mount(
        os.fsencode(source), os.fsencode(target), kind and kind.encode(), flags, data.encode()
    )
    _need(result, f"mount {kind or ''} on {target}")


def unmount(target: str) -> None:
    """Detach a mount immediately; it ends with its last user."""
    _need(_libc.umount2(os.fsencode(target), MNT_DETACH), f"umount {target}")


def enter_root(folder: str) -> None:
    """Make `folder`, a mount, the root and detach the old one."""
    os.chdir(folder)
    number = ctypes.c_long(_PIVOT_ROOT[os.uname().machine])
    _need(_libc.syscall(number, b".", b"."), "pivot_root")
    unmount(".")
    os.chdir("/")


# A prepared call: its name, the function, arguments as C types.
LibcCall = tuple[str, Callable[..., int], tuple[Any, ...]]


def prctl_call(option: int, value: int, address: int = 0) -> LibcCall:
    """Prepare `prctl`."""
    longs = [ctypes.c_ulong(word) for word in (value, address, 0, 0)]
    return f"prctl {option}", _libc.prctl, (ctypes.c_int(option), *longs)


def capset_call() -> LibcCall:
    """Prepare dropping all capabilities of the thread."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    return "capset", _libc.capset, (header, (ctypes.c_uint32 * 6)())


def filter_call(program: bytearray) -> LibcCall:
    """Prepare the installation of a seccomp filter, which needs no_new_privs."""
    text = (ctypes.c_char * len(program)).from_buffer(program)
    record = _Program(len(program) // 8, ctypes.addressof(text))
    _kept.extend((text, record))
    _, function, arguments = prctl_call(
        PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.addressof(record)
    )
    return "seccomp", function, arguments


def landlock_abi() -> int:
    """Version of Landlock; 0 without it."""
    call = (ctypes.c_long(_LANDLOCK_CREATE), None, ctypes.c_size_t(0), ctypes.c_uint32(1))
    return max(0, _libc.syscall(*call))


def landlock_ruleset(*handled: int) -> int:
    """Create a ruleset with these masks (files, network, scopes); return its descriptor."""
    record = (ctypes.c_uint64 * len(handled))(*handled)
    call = (ctypes.c_long(_LANDLOCK_CREATE), record, ctypes.c_size_t(8 * len(handled)))
    return _need(_libc.syscall(*call, ctypes.c_uint32(0)), "landlock_create_ruleset")


def landlock_allow(ruleset: int, path: str, rights: int) -> None:
    """Allow `rights` at and below `path`."""
    folder = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        rule = _PathRule(rights, folder)
        call = (ctypes.c_long(_LANDLOCK_ADD), ctypes.c_int(ruleset), ctypes.c_int(1))
        result = _libc.syscall(*call, ctypes.byref(rule), ctypes.c_uint32(0))
        _need(result, f"landlock_add_rule {path}")
    finally:
        os.close(folder)


def landlock_call(ruleset: int) -> LibcCall:
    """Prepare restricting the thread by `ruleset`, which needs no_new_privs."""
    call = (ctypes.c_long(_LANDLOCK_RESTRICT), ctypes.c_int(ruleset), ctypes.c_uint32(0))
    return "landlock_restrict_self", _libc.syscall, call
