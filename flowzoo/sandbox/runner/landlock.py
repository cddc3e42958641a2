"""Landlock rulesets: a second barrier in namespaces, and the only one without them.

Source for rights and versions: the kernel's `linux/landlock.h`.
"""

from __future__ import annotations

import contextlib

import linux
from libraries import DEVICES, LINKER_CACHE, TIME_ZONES, library_entries

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_MAKE_CHAR, _MAKE_SOCK, _MAKE_FIFO, _MAKE_BLOCK = 1 << 6, 1 << 9, 1 << 10, 1 << 11
_REFER, _TRUNCATE = 1 << 13, 1 << 14
_OF_FILES = _WRITE_FILE | _READ_FILE | _TRUNCATE
_SPECIAL = _MAKE_CHAR | _MAKE_SOCK | _MAKE_FIFO | _MAKE_BLOCK


def handled_rights(abi: int) -> list[int]:
    """Everything that version `abi` can forbid: masks for files, network and scopes."""
    files = (1 << {1: 13, 2: 14, 3: 15, 4: 15}.get(abi, 16)) - 1
    masks = [files]
    if abi >= 4:
        masks.append(0b11)  # to bind and to connect TCP
    if abi >= 6:
        masks.append(0b11)  # abstract sockets and signals beyond the own domain
    return masks


def make_ruleset(abi: int, libraries: list[str], scratch: str | None) -> int:
    """A ruleset: read the standard library, libraries and devices, use `scratch`; nothing else."""
    # Where other packages lie in the folder of the standard library, it cannot be listed, since a
    # right on a folder holds for everything beneath it; the import system knows its content from
    # before the fork. Elsewhere the folder itself is named: each rule costs each process 0.5 us.
    masks = handled_rights(abi)
    files = masks[0]
    ruleset = linux.landlock_ruleset(*masks)
    for path in library_entries():
        with contextlib.suppress(OSError):  # a link that leads nowhere
            _allow_read(ruleset, path)
    for path in (*libraries, LINKER_CACHE, TIME_ZONES):
        with contextlib.suppress(FileNotFoundError):
            _allow_read(ruleset, path)
    for path in DEVICES:
        with contextlib.suppress(FileNotFoundError):
            linux.landlock_allow(ruleset, path, (_WRITE_FILE | _READ_FILE) & files)
    if scratch is not None:
        linux.landlock_allow(ruleset, scratch, files & ~_SPECIAL)
    return ruleset


def make_small_ruleset(abi: int) -> int:
    """A ruleset for a box whose mounts already say what can be read and written."""
    # No executing, no special files, no network, no signals to others. A rule could not name its
    # /tmp, which is another one for each program; but one for the whole tree lets files be moved
    # from folder to folder, which any ruleset forbids that does not speak of it.
    special = handled_rights(abi)
    refer = special[0] & _REFER
    special[0] = _EXECUTE | _SPECIAL | refer
    ruleset = linux.landlock_ruleset(*special)
    if refer:
        linux.landlock_allow(ruleset, "/", refer)
    return ruleset


def _allow_read(ruleset: int, path: str) -> None:
    try:
        linux.landlock_allow(ruleset, path, _READ_FILE | _READ_DIR)
    except OSError:  # not a folder: the right to list is no right of files
        linux.landlock_allow(ruleset, path, _READ_FILE)
