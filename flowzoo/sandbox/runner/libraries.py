"""Files that a Python program needs: the standard library and shared libraries."""

import contextlib
import ctypes
import importlib
import os
import sys

STDLIB = os.path.dirname(os.__file__)
LINKER_CACHE = "/etc/ld.so.cache"
TIME_ZONES = "/usr/share/zoneinfo"
# Entries of the library folder that programs do not get: other packages and unneeded files.
HIDDEN = ("site-packages", "dist-packages", "test", "idlelib", "tkinter", "turtledemo", "ensurepip")
DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")


# Libraries that read their number of threads from the environment.
THREADS = ("OMP", "OPENBLAS", "MKL", "NUMEXPR")


def import_packages(folders: list[str]) -> None:
    """Import the packages in these folders, with one thread each, without their neighbors."""
    for library in THREADS if folders else ():
        os.environ[f"{library}_NUM_THREADS"] = "1"
    for folder in folders:
        home, name = os.path.split(folder)
        if not name.endswith(".libs"):
            sys.path.insert(0, home)
            try:
                importlib.import_module(name)
            finally:
                sys.path.remove(home)


def shared_libraries(packages: list[str]) -> list[str]:
    """Paths, under every name, of the libraries of the interpreter, extensions and packages."""
    # They are loaded in a separate process to read its memory map. The links next to a file are the
    # names that the loader uses.
    reader, writer = os.pipe()
    if not (pid := os.fork()):
        try:
            os.write(writer, "\n".join(_mapped_after_loading(packages)).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, encoding="utf-8") as pipe:
        files = pipe.read().split("\n")
    os.waitpid(pid, 0)
    return sorted({name for path in files if path for name in _names(path)})


def _mapped_after_loading(packages: list[str]) -> set[str]:
    with contextlib.suppress(ImportError):  # reported at the first use
        import_packages(packages)
    folder = os.path.join(STDLIB, "lib-dynload")
    for name in os.listdir(folder) if os.path.isdir(folder) else ():
        if ".so" in name and not name.startswith(("_tkinter", "_test", "_xxtest", "xx")):
            with contextlib.suppress(OSError):
                ctypes.CDLL(os.path.join(folder, name))
    with open("/proc/self/maps", encoding="utf-8") as maps:
        paths = {line.split(maxsplit=5)[5].strip() for line in maps if line.count("/")}
    inside = tuple(os.path.realpath(folder) + "/" for folder in (STDLIB, *packages))
    return {path for path in paths if ".so" in path and not path.startswith(inside)}


def _names(path: str) -> set[str]:
    folder, name = os.path.split(path)
    stem = name.split(".so")[0]
    links = {
        os.path.join(folder, entry)
        for entry in os.listdir(folder)
        if entry.startswith(stem) and ".so" in entry
    }
    return {path} | {link for link in links if os.path.realpath(link) == path}


def library_entries() -> list[str]:
    """Return the readable paths of the library: its folder, or the entries not in `HIDDEN`."""
    names = os.listdir(STDLIB)
    if not set(names) & set(HIDDEN):
        return [STDLIB]
    return [os.path.join(STDLIB, name) for name in names if name not in HIDDEN]
