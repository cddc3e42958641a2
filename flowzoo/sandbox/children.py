"""Start of commands of others: programs, servers of tools. They get few variables, and a keeper.

`keeper.py` ends everything that a command has started: when the command ends, on SIGTERM, or when
this process is gone. It bounds the memory of each of its processes.
"""

import fnmatch
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from flowzoo.errors import UsageError
from flowzoo.provenance import is_secret_variable

INHERITED = (
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "LC_*", "TZ", "TERM", "TMPDIR",
    "TEMP", "TMP", "PYTHON*", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH",
    "*_NUM_THREADS", "http_proxy", "https_proxy", "all_proxy", "no_proxy", "HTTP_PROXY",
    "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR", "*_CA_BUNDLE",
    "NODE_EXTRA_CA_CERTS",
)  # fmt: skip
"""Patterns of the environment variables that commands inherit; secret names are left out."""
MEMORY = "FLOWZOO_COMMAND_MEMORY"
"""Variable with the most bytes of data of a command's process, by default 8 GiB."""
_KEEPER = str(Path(__file__).with_name("keeper.py"))


def keeper_command(command: Sequence[str], line_bytes: int = 0) -> list[str]:
    """The command line that runs a command under a keeper of this process.

    `line_bytes`: most bytes of a line on its standard output, and of all its errors; 0: no limit.

    Raises:
        UsageError: the variable `MEMORY` is no number of bytes.
    """
    memory = os.environ.get(MEMORY, "") or str(2**33)
    if not (memory.isascii() and memory.isdigit() and 2**24 <= int(memory) < 2**63):
        raise UsageError(f"{MEMORY} must be a number of bytes of at least 2**24, got {memory:.40}")
    numbers = map(str, (os.getpid(), line_bytes, int(memory)))
    return [sys.executable, "-I", "-S", _KEEPER, *numbers, *command]


def inherited(variables: Sequence[str]) -> dict[str, str]:
    """The part of this process's environment for a command that needs `variables`."""
    return {
        name: value
        for name, value in os.environ.items()
        if name in variables
        or (any(fnmatch.fnmatchcase(name, of) for of in INHERITED) and not is_secret_variable(name))
    }
