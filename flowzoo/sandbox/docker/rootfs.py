"""A file system with only the running Python interpreter, as a tar file.

It has no shell and no package manager and needs no registry.
"""

import io
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from flowzoo.sandbox.backends import FLAGS, RUNNER
from flowzoo.sandbox.docker.container import PACKAGE_FOLDER
from flowzoo.sandbox.docker.engine import DockerError
from flowzoo.sandbox.runner.libraries import TIME_ZONES

VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
# Folder of the interpreter, which finds its library relative to its path.
PREFIX = "python"
ENTRYPOINT = [f"/{PREFIX}/bin/python{VERSION}", *FLAGS, "/runner"]
# Folder of all shared libraries; the image sets LD_LIBRARY_PATH, since loaders' defaults differ
# between distributions.
LIBRARY_PATH = "/lib"

_PASSWD = (
    b"root:x:0:0:root:/:/none\nnobody:x:65534:65534:nobody:/:/none\nbox:x:10001:10001:box:/:/none\n"
)
_GROUP = b"root:x:0:\nnogroup:x:65534:\nbox:x:10001:\n"

# Parts of the standard library that programs in a box cannot use, and tests.
_LEFT_OUT = re.compile(
    r"""
      (?:tests?|idlelib|tkinter|turtledemo|ensurepip|lib2to3|venv|site-packages|dist-packages
         |config-.*|sitecustomize\.py|.*\.orig)
    | (?:_tkinter|_test\w*|_ctypes_test|_xx\w*|xxlimited\w*|xxsubtype|nis)\..*\.so
    """,
    re.VERBOSE,
)
_LIBRARY = re.compile(r"^\s+(?P<name>\S+)(?: => (?P<path>/\S+))? \(0x[0-9a-f]+\)$", re.MULTILINE)


def write_rootfs(
    out: IO[bytes], runner: Mapping[str, bytes], packages: Sequence[Path] = ()
) -> None:
    """Write the tar file; `runner` has modules by name, `packages` the folders of packages."""
    if sys.platform != "linux":
        raise DockerError(
            f"an image from the running interpreter needs Linux, this is {sys.platform}; build "
            f"from a base image: flowzoo sandbox build --base python:{VERSION}-slim"
        )
    program = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    library = Path(sysconfig.get_path("stdlib"))
    files = list(library_files(library))
    extra = {folder: list(package_files(folder)) for folder in packages}
    package_paths = [path for paths in extra.values() for path in paths]
    binaries = [program, *(path for path in (*files, *package_paths) if ".so" in path.suffixes)]
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
        _add_folder(tar, "tmp", 0o1777)  # the mount gets this mode
        for folder in ("proc", "sys", "dev", "etc"):
            _add_folder(tar, folder, 0o755)
        add_bytes(tar, "etc/passwd", _PASSWD)
        add_bytes(tar, "etc/group", _GROUP)
        add_file(tar, program, ENTRYPOINT[0][1:], 0o755)
        for target, path in sorted(shared_libraries(binaries).items()):
            if path.resolve().parent not in packages:  # found relative to their paths
                add_file(tar, path, target, 0o755)
        for folder, paths in extra.items():
            for path in paths:
                target = f"{PACKAGE_FOLDER[1:]}/{folder.name}/{path.relative_to(folder)}"
                add_file(tar, path, target, 0o644)
        for path in sorted(Path(TIME_ZONES).rglob("*")):
            if path.is_file() and path.suffix not in (".zi", ".tab", ".list"):
                add_file(tar, path, str(path)[1:], 0o644)
        home = f"{PREFIX}/{sys.platlibdir}/python{VERSION}"
        for path in files:
            add_file(tar, path, f"{home}/{path.relative_to(library)}", 0o644)
        for name, content in runner.items():
            add_bytes(tar, f"runner/{name}", content)


def library_files(library: Path) -> Iterator[Path]:
    """Included files of the standard library, with their compiled caches."""
    for folder, folders, names in os.walk(library):
        folders[:] = sorted(name for name in folders if not _LEFT_OUT.fullmatch(name))
        for name in sorted(names):
            path = Path(folder, name)
            stale = path.suffix == ".pyc" and sys.implementation.cache_tag not in name
            if not stale and not _LEFT_OUT.fullmatch(name) and path.is_file():
                yield path


def package_files(folder: Path) -> Iterator[Path]:
    """Files of a package except tests, headers and caches of other interpreters."""
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        stale = path.suffix == ".pyc" and sys.implementation.cache_tag not in path.name
        left_out = {"tests", "include"} & {*parts} or path.suffix in (".a", ".pyi", ".h")
        if path.is_file() and not stale and not left_out:
            yield path


def shared_libraries(binaries: Iterable[Path], strict: bool = True) -> dict[str, Path]:
    """File of this machine by path in the image, for all libraries of `binaries`.

    With `strict` a library that is missing here is an error.
    """
    # The binaries contain the loader's path, so it keeps it; other libraries go to `LIBRARY_PATH`.
    try:
        done = subprocess.run(
            ["ldd", *map(str, binaries)], capture_output=True, text=True, timeout=120, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise DockerError(f"{_REMEDY} (ldd: {error})") from error
    if strict and "not found" in done.stdout:
        line = next(line for line in done.stdout.splitlines() if "not found" in line)
        raise DockerError(f"{_REMEDY} (ldd: {line.strip()})")
    libraries: dict[str, Path] = {}
    for match in _LIBRARY.finditer(done.stdout):
        name, path = match["name"], match["path"]
        if path:
            libraries[f"{LIBRARY_PATH[1:]}/{os.path.basename(name)}"] = Path(path)
        elif name.startswith("/"):
            libraries[name[1:]] = Path(name)
    if not libraries:
        raise DockerError(f"{_REMEDY} (ldd: {' '.join(done.stderr.split())[:200] or 'no answer'})")
    return libraries


def read_runner() -> dict[str, bytes]:
    """Read the modules of the runner by name, once per image."""
    return {path.name: path.read_bytes() for path in sorted(RUNNER.glob("*.py"))}


_REMEDY = (
    "the running interpreter cannot be packed into an image; build from a base image instead: "
    f"flowzoo sandbox build --base python:{VERSION}-slim"
)


def _add_folder(tar: tarfile.TarFile, target: str, mode: int) -> None:
    entry = tarfile.TarInfo(target)
    entry.type, entry.mode = tarfile.DIRTYPE, mode
    tar.addfile(entry)


def add_bytes(tar: tarfile.TarFile, target: str, content: bytes) -> None:
    """Add a small world-readable file."""
    entry = tarfile.TarInfo(target)
    entry.size, entry.mode = len(content), 0o644
    tar.addfile(entry, io.BytesIO(content))


def add_file(tar: tarfile.TarFile, path: Path, target: str, mode: int) -> None:
    """Add a file with its modification time, on which compiled caches depend."""
    with open(path, "rb") as source:
        facts = os.fstat(source.fileno())
        entry = tarfile.TarInfo(target)
        entry.size, entry.mode, entry.mtime = facts.st_size, mode, int(facts.st_mtime)
        tar.addfile(entry, source)
