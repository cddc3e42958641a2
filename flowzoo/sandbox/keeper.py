"""Keeps a command and all that it starts: `python -I -S keeper.py PARENT LINE MEMORY COMMAND...`.

The command runs in a separate namespace of processes where the machine allows it, and sees no
other process there. When it ends, when the keeper gets SIGTERM, or when the process PARENT is gone,
all that it has started is killed, daemons in other sessions as well. If LINE is not 0, a
longer line on its standard output ends it, too, and of its errors only LINE bytes are passed on.
Each of its processes gets at most MEMORY bytes of data. The keeper ends as the command did.
"""

import contextlib
import os
import resource
import signal
import sys
import threading
import time
from typing import NoReturn

_LINUX = sys.platform == "linux"
_NEWNS, _NEWUSER, _NEWPID = 0x20000, 0x10000000, 0x20000000
_LOOK_S = 0.25
"""Seconds between two checks that the parent is there."""
_KILL_S = 5.0
"""Most seconds in which processes that start others again and again are killed."""
_STOPS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}


def main() -> NoReturn:
    """Start the command, wait for its end or for a reason to end it, and leave nothing of it."""
    (parent, most, memory), command = map(int, sys.argv[1:4]), sys.argv[4:]
    heard = {*_STOPS, signal.SIGCHLD}
    signal.pthread_sigmask(signal.SIG_BLOCK, heard)
    errors = os.dup(2)
    pipes = ((_relay, *_insert_pipe(1), errors), (_relay_errors, *_insert_pipe(2))) if most else ()
    child, pipe = _start_apart(command, memory) if _LINUX else (0, -1)
    child = child or _start_beside(command, memory)
    _close_streams()
    relays = [threading.Thread(target=relay, args=(*of, most), daemon=True) for relay, *of in pipes]
    for thread in relays:
        thread.start()
    status = None
    while status is None and os.getppid() == parent:
        heard_of = signal.sigtimedwait(heard, _LOOK_S)
        if heard_of is not None and heard_of.si_signo in _STOPS:
            break
        status = _reap(child)
    _kill_all(child)
    for thread in relays:
        thread.join(_KILL_S)
    if pipe >= 0 and status is not None:
        status = int(os.read(pipe, 16) or status)
    _end_as(signal.SIGKILL if status is None else status)


def _insert_pipe(stream: int) -> tuple[int, int]:
    # A stream of the command becomes a pipe; returns its end and the original.
    near, far = os.pipe()
    original = os.dup(stream)
    os.dup2(far, stream)
    os.close(far)
    return near, original


def _relay(source: int, out: int, errors: int, most: int) -> None:
    length = 0
    while chunk := os.read(source, 2**16):
        lines = chunk.split(b"\n")
        longest = max(length + len(lines[0]), *map(len, lines))
        length = len(lines[-1]) + (length if len(lines) == 1 else 0)
        if longest > most:
            os.write(errors, f"it wrote a line of more than {most:,} bytes\n".encode())
            os.kill(os.getpid(), signal.SIGTERM)
            return
        if not _write(out, chunk):
            return


def _relay_errors(source: int, out: int, most: int) -> None:
    left = most
    while chunk := os.read(source, 2**16):  # what is too much is read, too: the command goes on
        if left >= 0:
            cut = b"\nits further errors are not shown\n" if len(chunk) > left else b""
            _write(out, chunk[:left] + cut)
            left -= len(chunk)


def _write(stream: int, data: bytes) -> bool:
    try:
        while data:
            data = data[os.write(stream, data) :]
    except BrokenPipeError:
        return False
    return True


def _start_apart(command: list[str], memory: int) -> tuple[int, int]:
    # Process 1 of a new namespace starts the command: with its end the kernel kills the others.
    # Returns its parent and the pipe on which it tells the status, or (0, -1) if that is refused.
    _linux().prctl(_linux().PR_SET_CHILD_SUBREAPER, 1)
    near, far = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            _enter_namespace(command, memory, far)
        finally:
            os._exit(1)
    os.close(far)
    if os.read(near, 1):
        return child, near
    os.waitpid(child, 0)
    os.close(near)
    return 0, -1


def _enter_namespace(command: list[str], memory: int, pipe: int) -> None:
    linux = _linux()
    linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
    user, group = os.geteuid(), os.getegid()
    linux.unshare(_NEWNS | _NEWPID | (_NEWUSER if user else 0))
    if user:
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"),
                           ("gid_map", f"{group} {group} 1")):  # fmt: skip
            with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
                file.write(text)
    if first := os.fork():
        _close_streams()
        os._exit(1 if os.waitpid(first, 0)[1] else 0)  # the first of a namespace may be killed
    linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
    linux.mount("none", "/", None, linux.MS_REC | linux.MS_PRIVATE)
    linux.mount("proc", "/proc", "proc", linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC)
    os.write(pipe, b"+")
    child = _start_beside(command, memory)
    _close_streams()
    ended, status = 0, 0
    while ended != child:
        ended, status = os.wait()
    os.write(pipe, str(status).encode("ascii"))


def _start_beside(command: list[str], memory: int) -> int:
    child = os.fork()
    if child == 0:
        _become(command, memory)
    return child


def _become(command: list[str], memory: int) -> None:
    try:
        os.setsid()
        # Not the address space, of which CUDA and arenas of threads reserve more than they use.
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        most = memory if hard == resource.RLIM_INFINITY else min(memory, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
        if _LINUX:
            linux = _linux()
            linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
            with (
                contextlib.suppress(OSError),
                open("/proc/self/oom_score_adj", "w", encoding="ascii") as file,
            ):
                file.write("1000")  # it is killed first when memory runs out
        for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):  # which Python sets
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"{command[0]} cannot be started: {error.strerror}\n".encode())
    finally:
        os._exit(127)


def _close_streams() -> None:
    # They are the command's: a reader must see when it closes them.
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    os.close(null)


def _reap(child: int) -> int | None:
    status = None
    try:
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == child:
                status = ended[1]
    except ChildProcessError:
        pass
    return status


def _kill_all(child: int) -> None:
    # Of a killed process the children become the keeper's, until there are none.
    for target in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            target(child, signal.SIGKILL)
    end = time.monotonic() + _KILL_S
    while _LINUX and time.monotonic() < end:
        for process in _children():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)
        try:
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                time.sleep(0.0002)
        except ChildProcessError:
            return


def _children() -> list[int]:
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
            return [int(word) for word in file.read().split()]
    except OSError:  # a kernel without this file
        return [int(name) for name in os.listdir("/proc") if name.isdigit() and _is_child(name)]


def _is_child(name: str) -> bool:
    try:
        with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
            return int(file.read().rpartition(")")[2].split()[1]) == os.getpid()
    except OSError:
        return False


def _end_as(status: int) -> NoReturn:
    number = status & 0x7F
    if number:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.kill(os.getpid(), number)
    os._exit(status >> 8)


def _linux():  # type: ignore[no-untyped-def]
    # Here, because it is found beside this file only where the keeper runs.
    folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "runner")
    if folder not in sys.path:
        sys.path.insert(0, folder)
    import linux

    return linux


if __name__ == "__main__":
    main()
