"""A box of namespaces, without an engine: separate files, processes and network.

The tree is a small read-only tmpfs with the standard library, libraries and four devices.
"""

import _socket
import contextlib
import os
import signal

import linux
from libraries import DEVICES, HIDDEN, LINKER_CACHE, STDLIB, TIME_ZONES

SCRATCH = "/tmp"
INODES = 2048  # most files in a program's /tmp
_BUILD = "/tmp"
_PACKAGES = "/packages"

_NEWNS, _NEWCGROUP, _NEWUTS, _NEWIPC = 0x20000, 0x2000000, 0x4000000, 0x8000000
_NEWUSER, _NEWPID, _NEWNET = 0x10000000, 0x20000000, 0x40000000
_ALL = _NEWNS | _NEWCGROUP | _NEWUTS | _NEWIPC | _NEWPID | _NEWNET
# A remount must keep the source's flags, or the kernel refuses it.
_KEPT = {1: linux.MS_RDONLY, 2: linux.MS_NOSUID, 4: linux.MS_NODEV, 8: linux.MS_NOEXEC,
         1024: linux.MS_NOATIME, 2048: linux.MS_NODIRATIME, 4096: linux.MS_RELATIME}  # fmt: skip
_SEALED = linux.MS_NOSUID | linux.MS_NODEV | linux.MS_RDONLY


def leave_host(root: bool) -> bool:
    """Enter new namespaces and return as their process 1; the caller waits outside."""
    # Returns True if users are mapped: without root rights the box has only one user.
    user, group = os.geteuid(), os.getegid()
    mapped = not root
    if root:
        try:
            linux.unshare(_ALL)
        except OSError:
            mapped = True
    if mapped:
        linux.unshare(_ALL | _NEWUSER)
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"0 {user} 1")
        _write("/proc/self/gid_map", f"0 {group} 1")
    if pid := os.fork():
        os.closerange(0, 64)
        _, status = os.waitpid(pid, 0)
        os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
    linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
    return mapped


def build_root(libraries: list[str], packages: list[str]) -> list[str]:
    """Replace the whole file tree; call as process 1, before starting threads."""
    # Returns the folders of packages in the new tree.
    linux.mount("none", "/", None, linux.MS_REC | linux.MS_PRIVATE)
    visible = (STDLIB, TIME_ZONES, *libraries, LINKER_CACHE, *DEVICES)
    paths = [path for path in visible if os.path.exists(path)]
    # Opened before the new tree hides a part of the old one.
    places = {path: path for path in paths}
    places |= {f"{_PACKAGES}/{os.path.basename(path)}": path for path in packages}
    sources = {at: os.open(path, os.O_PATH | os.O_CLOEXEC) for at, path in places.items()}
    linux.mount("tmpfs", _BUILD, "tmpfs", _SEALED & ~linux.MS_RDONLY, "size=1m,mode=755")
    for path, source in sources.items():
        _bind(source, path)
        os.close(source)
    for name in HIDDEN:
        with contextlib.suppress(FileNotFoundError):
            linux.mount("tmpfs", f"{_BUILD}{STDLIB}/{name}", "tmpfs", _SEALED, "size=4k")
    os.makedirs(_BUILD + SCRATCH, exist_ok=True)
    linux.enter_root(_BUILD)
    linux.mount("none", "/", None, linux.MS_REMOUNT | linux.MS_BIND | _SEALED)
    _socket.sethostname("box")
    return [at for at in places if at.startswith(f"{_PACKAGES}/")]


def fresh_scratch(size_mb: int, old: bool) -> None:
    """Give the next program an empty /tmp of `size_mb`; with 0, a read-only one."""
    if old:
        linux.unmount(SCRATCH)
    flags = linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC
    if size_mb == 0:
        flags |= linux.MS_RDONLY
    data = f"size={max(size_mb, 1)}m,nr_inodes={INODES},mode=1777"
    linux.mount("tmpfs", SCRATCH, "tmpfs", flags, data)


def _bind(source: int, path: str) -> None:
    target = _BUILD + path
    link = f"/proc/self/fd/{source}"
    if os.path.isdir(link):
        os.makedirs(target)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC))
    linux.mount(link, target, None, linux.MS_BIND | linux.MS_REC)
    given = os.statvfs(target).f_flag
    flags = sum(flag_value for flag, flag_value in _KEPT.items() if given & flag) | linux.MS_NOSUID
    if not path.startswith("/dev/"):
        flags |= linux.MS_NODEV | linux.MS_RDONLY
    linux.mount("none", target, None, linux.MS_REMOUNT | linux.MS_BIND | flags)


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii") as file:
        file.write(text)
