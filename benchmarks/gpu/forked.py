"""Programs in forks of a process that has imported what they need."""

from __future__ import annotations

import multiprocessing
import os
import runpy
import signal
import sys
from collections.abc import Sequence
from functools import cache
from multiprocessing.context import ForkServerContext
from pathlib import Path

_IMPORTS = (
    "torch", "transformers", "transformers.models.qwen3.modeling_qwen3", "peft", "numba",
    "flowzoo.commands.train", "flowzoo.baselines.training.trainer", "benchmarks.gpu.common",
)  # fmt: skip
"""Modules of the server that forks. None of them looks at the GPU."""


def run_forked(module: str, arguments: Sequence[str], log: Path, limit: float) -> int | None:
    """Run `python -m module arguments`, with its output in `log`.

    Returns:
        The exit status, or None if it took longer than `limit` seconds and was killed with all
        that it had started.
    """
    log.write_text("", encoding="utf-8")
    process = _server().Process(target=_run, args=(module, [*arguments], log))
    process.start()
    process.join(limit)
    if process.is_alive() and process.pid is not None:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:  # it has no group yet
            process.kill()
        process.join()
        return None
    return process.exitcode


@cache
def _server() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*_IMPORTS])
    first = context.Process(target=int)  # waits for the imports
    first.start()
    first.join()
    return context


def _run(module: str, arguments: list[str], log: Path) -> None:
    os.setsid()
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
