"""Ctrl-C ends the command in one line while it is still loading.

A KeyboardInterrupt in the middle of an import passes through other libraries, which may catch or
replace it, so a handler ends the process until the command handles signals itself
(`flowzoo.commands.progress.stopping`). Before this file is imported, Ctrl-C shows a traceback of
Python.
"""

import os
import signal
import sys
from functools import cache


@cache  # `python -m flowzoo` changes sys.argv after its first import of flowzoo
def is_command() -> bool:
    """True if this process runs the command `flowzoo`; false in processes that it spawns."""
    program, line = sys.argv[0], sys.orig_argv
    if program == "-m" and "-m" in line:  # while Python looks for the module
        return line[line.index("-m") + 1] in ("flowzoo", "flowzoo.cli")
    return os.path.basename(program) in ("flowzoo", "flowzoo.exe") and program in line


def end_at_once(number: int, frame: object) -> None:
    """Signal handler: print one line and exit."""
    os.write(2, b"\ninterrupted: nothing was done\n")
    os._exit(128 + number)


def end_when_interrupted() -> None:
    """Handle Ctrl-C, unless it has a handler or is ignored."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, end_at_once)
