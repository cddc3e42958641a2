"""Emulation of files that a box lacks: standard streams, the program's source."""

import builtins
import io
import linecache
import os
from typing import Any

from inside import FILE, PROGRAM

# Links into /proc, which is not in boxes; they are opened as descriptors.
STREAMS = {
    path: number
    for number, name in enumerate(("stdin", "stdout", "stderr"))
    for path in (f"/dev/{name}", f"/dev/fd/{number}", f"/proc/self/fd/{number}")
}
_open, _os_open = io.open, os.open
_source = b""


def offer(source: bytes) -> None:
    """Allow the program of this process to read its own source."""
    global _source
    _source = source
    lines = source.decode("utf-8", "replace").splitlines(keepends=True)
    linecache.cache[PROGRAM] = (len(source), None, lines, PROGRAM)


def patch() -> None:
    """Patch `open` for these names."""
    builtins.open = io.open = open_file
    os.open = open_descriptor


def open_file(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
    """Like the builtin."""
    name = os.fspath(file) if isinstance(file, os.PathLike) else file
    if isinstance(name, str):
        if name in STREAMS:
            file = os.dup(STREAMS[name])
        elif (
            os.path.basename(name) == FILE and mode.strip("rbt") == "" and not os.path.exists(name)
        ):
            return _own_source(mode, *args, **kwargs)
    return _open(file, mode, *args, **kwargs)


open_file.__name__ = open_file.__qualname__ = "open"
open_file.__doc__ = _open.__doc__
open_file.__code__ = open_file.__code__.replace(co_filename="<io>")


def open_descriptor(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
    """Like `os.open`."""
    if isinstance(path, str) and path in STREAMS:
        return os.dup(STREAMS[path])
    return _os_open(path, flags, mode, dir_fd=dir_fd)


def _own_source(
    mode: str, buffering: int = -1, encoding: str | None = None, *rest: Any, **kwargs: Any
) -> Any:
    content = io.BytesIO(_source)
    if "b" in mode:
        return content
    return io.TextIOWrapper(content, encoding or "utf-8", *rest[:2], **kwargs)
