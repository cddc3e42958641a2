"""Working folder and processes of programs, restored for the next program."""

import contextlib
import itertools
import os
import signal
import time

import namespaces
from confine import BoxMode

REAP_SECONDS = 2.0  # seconds for killed processes to disappear
CLEAN_SECONDS = 1  # seconds for emptying a folder, which may have too many files
TMP = "/tmp"
# Files with the number of OOM kills in a container.
OF_CGROUP = ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control")
OF_MACHINE = ("vmstat",)  # path in /proc
_CONTAINER_MARKS = ("/.dockerenv", "/run/.containerenv")


def owns_processes() -> bool:
    """True if all visible processes belong to the box, which may then kill them all."""
    if os.getpid() == 1:
        return True
    return os.getppid() == 1 and any(map(os.path.exists, _CONTAINER_MARKS))


def kill_rest(pid: int, everybody: bool) -> bool:
    """Kill and reap the remaining processes of a program; True if none is left."""
    # This process adopts orphans, so no process is left if it has no children.
    with contextlib.suppress(OSError):
        os.killpg(pid, signal.SIGKILL)
    end = time.monotonic() + REAP_SECONDS
    while time.monotonic() < end:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return True
        for child in (-1,) if everybody else _children():
            with contextlib.suppress(OSError):
                os.kill(child, signal.SIGKILL)
        time.sleep(0.001)
    return False


def _children() -> list[int]:
    me = os.getpid()
    with contextlib.suppress(OSError), open(f"/proc/self/task/{me}/children") as file:
        return [int(word) for word in file.read().split()]
    return []


def empty_folder(folder: str, user: int | None) -> None:
    """Empty `folder` in a process of the user that created its content."""
    pid = os.fork()
    if not pid:
        with contextlib.suppress(BaseException):
            signal.alarm(CLEAN_SECONDS)
            if user is not None:
                os.setresuid(user, user, user)
            remove_all(folder)
        os._exit(0)
    os.waitpid(pid, 0)


def remove_all(folder: str) -> None:
    """Empty `folder`, of any depth, without recursion or long paths."""
    # Entries of subfolders are moved to the top under a random name.
    fresh = (os.path.join(folder, f"{os.urandom(8).hex()}-{count}") for count in itertools.count())
    waiting = [os.path.join(folder, name) for name in os.listdir(folder)]
    while waiting:
        path = waiting.pop()
        if os.path.islink(path) or not os.path.isdir(path):
            os.unlink(path)
            continue
        os.chmod(path, 0o700)
        for name in os.listdir(path):
            inner = os.path.join(path, name)
            if os.path.isdir(inner) and not os.path.islink(inner):
                os.chmod(inner, 0o700)  # moving a folder needs write permission on it
                waiting.append(next(fresh))
                os.rename(inner, waiting[-1])
            else:
                os.unlink(inner)
        os.rmdir(path)


class OomKills:
    """Counter of processes that the kernel killed when out of memory."""

    def __init__(self, paths: tuple[str, ...], folder: int | None = None) -> None:
        self._file = -1
        for path in paths:
            if self._file < 0:
                with contextlib.suppress(OSError):
                    self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)
        self._count = self._read()

    def more(self) -> bool:
        """True if any was killed since the last call; False if unknown."""
        before, self._count = self._count, self._read()
        return self._count > before

    def _read(self) -> int:
        if self._file >= 0:
            with contextlib.suppress(OSError, ValueError):
                for line in os.pread(self._file, 1 << 16, 0).splitlines():
                    if line.startswith(b"oom_kill "):
                        return int(line.split()[1])
        return 0


class Workspace:
    """Working folder of programs, and their processes."""

    def __init__(
        self, mode: BoxMode, user: int | None, owner_may_mark: bool, everybody: bool, folder: str
    ) -> None:
        self.mode = mode
        self._user = user
        self._owner_may_mark = owner_may_mark
        self._everybody = everybody
        self._mounted = -1  # size in MB of the mounted /tmp; -1: none
        self._touched = False
        # Prefix of the private folder of each process; only in an unconfined box.
        self.private = ""
        if not mode.confined:
            self.private = os.path.join(folder, "")
        # True if programs may write files in /tmp.
        self.writable = mode.namespaces or (mode.container and os.access(TMP, os.W_OK))

    def prepare(self, files_mb: int) -> str:
        """Make an empty folder for the next process; return its path."""
        if self.mode.namespaces and (self._touched or self._mounted != files_mb):
            namespaces.fresh_scratch(files_mb, self._mounted >= 0)
            self._mounted, self._touched = files_mb, False
        return TMP if self.writable else "/"

    def restore(self, pid: int) -> bool:
        """Remove files and processes of `pid`; True if nothing is left."""
        clean = kill_rest(pid, self._everybody)
        if self.private:
            folder = f"{self.private}{pid}"
            if os.path.isdir(folder):
                empty_folder(folder, None)
                with contextlib.suppress(OSError):
                    os.rmdir(folder)
            return clean and not os.path.exists(folder)
        if not self.writable:
            return clean
        if self.mode.namespaces:
            self._touched = self._owner_may_mark or bool(os.listdir(TMP))
            return clean
        if os.listdir(TMP):
            empty_folder(TMP, self._user)
        return clean and not os.listdir(TMP)
