"""Start of commands of others: programs, servers of tools. They get few variables, and a keeper.

`keeper.py` ends everything that a command has started: when the command ends, on SIGTERM, or when
this process is gone.
"""

from __future__ import annotations

import fnmatch
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from flowzoo.provenance import is_secret_variable

INHERITED = (
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "LC_*", "TZ", "TERM", "TMPDIR",
    "TEMP", "TMP", "PYTHON*", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH",
    "*_NUM_THREADS", "http_proxy", "https_proxy", "all_proxy", "no_proxy", "HTTP_PROXY",
    "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR", "*_CA_BUNDLE",
    "NODE_EXTRA_CA_CERTS",
)  # fmt: skip
"""Patterns of the environment variables that commands inherit; secret names are left out."""
_KEEPER = str(Path(__file__).with_name("keeper.py"))


def keeper_command(command: Sequence[str], line_bytes: int = 0) -> list[str]:
    """The command line that runs a command under a keeper of this process.

    `line_bytes`: most bytes of a line on its standard output; 0: no limit.
    """
    numbers = map(str, (os.getpid(), line_bytes))
    return [sys.executable, "-I", "-S", _KEEPER, *numbers, *command]


def inherited(variables: Sequence[str]) -> dict[str, str]:
    """The part of this process's environment for a command that needs `variables`."""
    return {
        name: value
        for name, value in os.environ.items()
        if name in variables
        or (any(fnmatch.fnmatchcase(name, of) for of in INHERITED) and not is_secret_variable(name))
    }
