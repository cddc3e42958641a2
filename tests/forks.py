"""Processes that have imported what is heavy already, such as vLLM: 16 CPU s, paid once."""

import gc
import importlib
import os
import socket
import sys
import warnings
from collections.abc import Iterable
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext, ForkServerProcess
from typing import Any

ENGINE_MODULES = [
    "flowzoo.agents.vllm.convert",  # it imports vLLM, and mends what trips over other libraries
    "vllm.v1.engine.async_llm", "vllm.v1.engine.core", "vllm.v1.worker.cpu_worker",
    "vllm.v1.worker.cpu_model_runner", "vllm.model_executor.models.qwen3",
    "vllm.entrypoints.launchers.api_server.entry",
]  # fmt: skip
TRAINING_MODULES = [
    "flowzoo.baselines.training.trainer", "flowzoo.baselines.training.finished",
    "flowzoo.commands.train", "flowzoo.commands.matrix",
    "transformers.models.qwen3.modeling_qwen3", "torch.utils.tensorboard",
]  # fmt: skip


freeze, unfreeze = gc.freeze, gc.unfreeze


def freeze_modules() -> None:
    """Take what is imported out of garbage collection, so that full collections stay short."""
    gc.collect()
    freeze()
    # Else each engine of vLLM thaws it all at its end: 3 CPU s of collections for each.
    gc.freeze = gc.unfreeze = lambda: None


def serve_forks() -> None:
    """Let a copy of this process, as it is now, be the fork server of `multiprocessing`.

    vLLM takes 16 CPU s to import and the trainer 7: here it is done once for this process and all
    its forks.
    """
    server: Any = vars(forkserver)["_forkserver"]
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("")  # a name that Linux chooses, and no file
        listener.listen()
        reader, writer = os.pipe()
        pid = os.fork()
        if not pid:
            try:
                os.close(writer)
                sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__  # no files of pytest's
                forkserver.main(listener.detach(), reader, [])
            finally:
                os._exit(0)  # it ends when nobody holds the other end of the pipe any more
        os.close(reader)
        server._forkserver_address = listener.getsockname()
        server._forkserver_alive_fd, server._forkserver_pid = writer, pid
        server.ensure_running = lambda: None  # forks of this process cannot wait for it


class ForkedProcess(ForkServerProcess):
    """A fork that has the variables of the process that starts it, as a spawned one has."""

    def start(self) -> None:
        """Keep the variables of this moment."""
        self.variables = dict(os.environ)
        super().start()

    def run(self) -> None:
        """Take them over."""
        os.environ.clear()
        os.environ.update(self.variables)
        super().run()


class Forks(ForkServerContext):
    """What vLLM takes for `multiprocessing`."""

    Process = ForkedProcess


def import_modules(names: Iterable[str]) -> None:
    """Import modules without their warnings."""
    with warnings.catch_warnings(action="ignore"):
        for name in names:
            importlib.import_module(name)
