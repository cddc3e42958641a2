"""A base for `deploy/Dockerfile` from this machine, as a tar file: no registry is asked.

    python tools/local_base.py EXTRA ... | docker import --change "ENV ..." - NAME

It holds the running interpreter and the packages that flowzoo needs with these extras, as they are
installed here, a shell and `useradd`; `tools/image.sh` gives the command. Linux with glibc.
"""

from __future__ import annotations

import shutil
import sys
import sysconfig
import tarfile
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement

from flowzoo.sandbox.docker import rootfs

PACKAGES = "packages"
"""Folder of the packages in the image, which takes it as PYTHONPATH."""
HOME = f"usr/local/lib/python{rootfs.VERSION}"


def needed(requirement: Requirement, seen: set[tuple[str, str]]) -> Iterator[str]:
    """Names of the distributions that a requirement brings, itself first; some more than once."""
    for extra in ("", *sorted(requirement.extras)):
        if (requirement.name, extra) in seen:
            continue
        seen.add((requirement.name, extra))
        try:
            requires = distribution(requirement.name).requires or []
        except PackageNotFoundError:  # installed under another name, as builds of vLLM are
            continue
        yield requirement.name
        for line in map(Requirement, requires):
            if line.marker is None or line.marker.evaluate({"extra": extra}):
                yield from needed(line, seen)


def package_paths(extras: Sequence[str]) -> dict[str, Path]:
    """Path in the image -> file, for what flowzoo needs, and pip."""
    names = {*needed(Requirement(f"flowzoo[{','.join(extras)}]"), set()), "pip"} - {"flowzoo"}
    paths = {}
    for name in sorted(names):
        package = distribution(name)
        site = Path(str(package.locate_file("")))
        for top in sorted({file.parts[0] for file in package.files or () if file.parts[0] != ".."}):
            whole = site / top
            files = rootfs.package_files(whole) if whole.is_dir() else [whole]
            paths |= {f"{PACKAGES}/{path.relative_to(site)}": path for path in files}
    return paths


def library_paths() -> dict[str, Path]:
    """Path in the image -> file, for the standard library with `venv`."""
    library = Path(sysconfig.get_path("stdlib"))
    files = [*rootfs.library_files(library), *(library / "venv").rglob("*.py")]
    return {f"{HOME}/{path.relative_to(library)}": path for path in files}


def main(extras: Sequence[str]) -> None:
    """Write the tar file to standard output."""
    program = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    programs = {
        f"usr/local/bin/python{rootfs.VERSION}": program,
        "bin/sh": Path("/bin/sh"),
        "usr/sbin/useradd": Path(shutil.which("useradd") or "/usr/sbin/useradd"),
    }
    paths = {**library_paths(), **package_paths(extras)}
    folders = {path.resolve().parent for path in paths.values()}
    binaries = [*programs.values(), *(path for path in paths.values() if ".so" in path.suffixes)]
    libraries = rootfs.shared_libraries(binaries, strict=False)
    # Others are found from where they lie.
    programs |= {to: path for to, path in libraries.items() if path.resolve().parent not in folders}
    with tarfile.open(fileobj=sys.stdout.buffer, mode="w|", format=tarfile.GNU_FORMAT) as tar:
        for name, mode in (("tmp", 0o1777), ("home", 0o755), ("var/mail", 0o755)):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, mode
            tar.addfile(entry)
        rootfs.add_bytes(tar, "etc/passwd", b"root:x:0:0:root:/root:/bin/sh\n")
        rootfs.add_bytes(tar, "etc/group", b"root:x:0:\n")
        link = tarfile.TarInfo("usr/local/bin/python3")
        link.type, link.linkname = tarfile.SYMTYPE, f"python{rootfs.VERSION}"
        tar.addfile(link)
        for target, path in programs.items():
            rootfs.add_file(tar, path, target, 0o755)
        for target, path in paths.items():
            rootfs.add_file(tar, path, target, 0o644)


if __name__ == "__main__":
    main(sys.argv[1:])
