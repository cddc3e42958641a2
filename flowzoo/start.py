"""The first thing that the command does: Ctrl-C ends it in one line while it is still loading.

A KeyboardInterrupt in the middle of an import leaves through other libraries' code, which may
swallow it or make another error of it, so until the command sees to its signals itself
(`flowzoo.commands.stopping`) a handler ends the process. Before this file is reached, in Python's
own start and in the script that pip wrote (40 ms of 900), Ctrl-C still shows a traceback of Python.
"""

from __future__ import annotations

import os
import signal
import sys
from functools import cache


@cache  # `python -m flowzoo` changes sys.argv after its first import of flowzoo
def is_command() -> bool:
    """True if this process runs the command `flowzoo`; false in processes that it spawns."""
    program, words = sys.argv[0], sys.orig_argv
    if program == "-m" and "-m" in words:  # while Python looks for the module
        return words[words.index("-m") + 1] in ("flowzoo", "flowzoo.cli")
    return os.path.basename(program) in ("flowzoo", "flowzoo.exe") and program in words


def end_at_once(number: int, frame: object) -> None:
    """The handler: nothing was begun, so there is nothing to end."""
    os.write(2, b"\ninterrupted: nothing was done\n")
    os._exit(128 + number)


def end_when_interrupted() -> None:
    """Take Ctrl-C, unless somebody has it already or ignores it (as `nohup` does)."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, end_at_once)
