"""Holds a process just before it renames something to `FLOWZOO_TEST_HOLD` or writes it, once.

Python imports this module at its start from a folder in `PYTHONPATH`. A process that is held has
come exactly as far as a test wants when the test kills it, however fast or slow the machine is.
"""

import os
import sys
import time
from typing import Any

TARGET = os.environ["FLOWZOO_TEST_HOLD"]
REACHED = os.environ["FLOWZOO_TEST_HELD"]


def hold(event: str, arguments: tuple[Any, ...]) -> None:
    """Wait to be killed; whoever comes here after that goes on."""
    if event == "os.rename":
        path = arguments[1]
    elif event == "open" and arguments[1] == "w" and not isinstance(arguments[0], int):
        path = arguments[0]
    else:
        return
    if os.path.abspath(os.fsdecode(path)) != TARGET:
        return
    try:
        os.close(os.open(REACHED, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    time.sleep(900)
    os._exit(99)


sys.addaudithook(hold)
