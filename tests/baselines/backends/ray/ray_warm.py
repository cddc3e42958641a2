"""Ray's worker processes as forks of a program that has imported what is heavy.

A raylet starts a Python for every worker, in which torch and the trainer take 6 CPU seconds to
import. `Cluster.add_node(setup_worker_path=this file)` has it run this file in place of Ray's own
`setup_worker.py`: it hands its words, variables and output to the program (`serve`), which forks,
and the fork runs Ray's `default_worker.py` as it is, with a process number of its own. The program
must not have imported Ray, which reads the worker's variables as it is imported.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import signal
import socket
import sys
from collections.abc import Sequence
from typing import Any

PLACE = "FLOWZOO_WARM_WORKERS"
"""Variable: the socket at which the program listens."""
_OF_SETUP = ("--language=", "--serialized-runtime-env-context=")
_MOST = 1 << 20


def serve(path: str) -> int:
    """Fork a process that forks workers until it is killed; its number."""
    if "ray" in sys.modules:
        raise RuntimeError("Ray has been imported already, and every worker would be the first")
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(path)
    listening.listen(64)
    os.environ[PLACE] = path
    pid = os.fork()
    if pid:
        listening.close()
        return pid
    gc.freeze()  # a collection in a worker would look at, and copy, all that is imported here
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # whoever has ended is nobody's
    while True:
        asked, _ = listening.accept()
        said, files, _, _ = socket.recv_fds(asked, _MOST, 3)
        while not said.endswith(b"\n"):
            said += asked.recv(_MOST)
        if not os.fork():
            listening.close()
            become(json.loads(said), files)
        asked.close()
        for file in files:
            os.close(file)


def become(asked: dict[str, Any], files: Sequence[int]) -> None:
    """Let this fork be the worker; the connection stays open while it lives."""
    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number, file in enumerate(files):
            os.dup2(file, number)
        os.chdir(asked["folder"])
        os.environ.clear()
        os.environ.update(asked["variables"])
        sys.argv = asked["words"]
        runpy.run_path(sys.argv[0], run_name="__main__")
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(bool(ended.code))
    finally:
        os._exit(code)


def main() -> None:
    """In the process that the raylet has started."""
    worker = next(n for n, word in enumerate(sys.argv) if word.endswith("default_worker.py"))
    words = [word for word in sys.argv[worker:] if not word.startswith(_OF_SETUP)]
    asked = {"words": words, "variables": dict(os.environ), "folder": os.getcwd()}
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(os.environ[PLACE])
        socket.send_fds(server, [json.dumps(asked).encode() + b"\n"], [0, 1, 2])
        server.recv(1)  # nothing comes: it ends with the fork


if __name__ == "__main__":
    main()
