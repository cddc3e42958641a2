"""One wait that hangs, in a process of its own (`test_waits.py`): `python hung.py KIND FOLDER`.

Real parts are stopped (SIGSTOP) or are given a function that sleeps. The limits are small; what is
said goes to stderr, and the process prints the error, or the result, as its last line.
"""

import asyncio
import logging
import os
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flowzoo import waits

NAMED_S, LIMIT_S = 0.5, 3.0


def engine(folder: Path) -> Any:
    """The thread of the transformers engine hangs in a product of matrices."""
    from flowzoo.agents.hf import policy

    vars(policy)["decode"] = lambda *given, **named: time.sleep(600)
    return _played("pocket:xs")


def endpoint(folder: Path) -> Any:
    """A server takes the connection, and answers nothing."""
    import socket

    server = socket.create_server(("127.0.0.1", 0))
    return _played(f"openai:model@http://127.0.0.1:{server.getsockname()[1]}/v1")


def judge(folder: Path) -> Any:
    """A function judges, and sleeps."""
    from flowzoo.agents.judge import FunctionJudge
    from flowzoo.agents.policy import Request

    judged = FunctionJudge(lambda messages: str(time.sleep(600)))
    return asyncio.run(judged.generate([Request(("e",), "judge", "judge", [])]))


def function(folder: Path) -> Any:
    """A function in a thread that is not the main one."""
    from hooked import hook

    from flowzoo.baselines.settings.hooks import RewardFunction

    def spin(*given: Any) -> None:
        while True:
            time.sleep(0.01)

    failed: list[BaseException] = []

    def call() -> None:
        try:
            hook(RewardFunction, spin, "--reward").call()
        except waits.LateError as error:
            failed.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join(60)
    raise failed[0]


def grader(folder: Path) -> Any:
    """The worker that compares formulas is stopped."""
    from flowzoo.sandbox import pool

    pool.SLACK_S = 1.0
    workers = pool.WorkerPool("tests.sandbox.pool_handlers:setup", workers=1, name="math")
    for _ in range(5):  # the usual time is not that of the start
        assert workers.run([b"echo:ab"], 0.1)[0].value == b"ab"
    os.kill(workers._started[0].process.pid, signal.SIGSTOP)
    first = workers._started[0].process.pid
    found = workers.run([b"echo:ab"], 0.1)
    assert workers._started[0].process.pid != first
    return found


def sandbox(folder: Path) -> Any:
    """The box is stopped while it runs a program; another one judges it."""
    from flowzoo.sandbox import Limits, Program, Sandbox, StdinTest
    from flowzoo.sandbox.box import run

    run.SLACK = 1.0
    box = Sandbox("unsafe", workers=1)
    program, test = Program("import time; time.sleep(2); print(1)"), StdinTest("", "1")
    stopped = threading.Timer(1.0, lambda: [os.kill(p, signal.SIGSTOP) for p in box.box_pids()])
    box.describe()
    stopped.start()
    (verdict,) = box.run_sync([program], [[test]], Limits(cpu_s=0.5))
    return verdict.status, dict(verdict.facts)


def mcp(folder: Path) -> Any:
    """A server of tools reads, and answers nothing."""
    from flowzoo.adapters import mcp_tools
    from flowzoo.adapters.mcp_tools import McpTools

    mcp_tools._START_S = LIMIT_S
    return McpTools((sys.executable, "-c", "import time; time.sleep(600)"), LIMIT_S).tools()


def rank(folder: Path) -> Any:
    """The other rank is stopped."""
    from torch import distributed

    from flowzoo.baselines.backends.data_parallel import join_ranks

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    other = os.fork()
    store = f"file://{folder / 'store'}"
    group = join_ranks("127.0.0.1", "none", cuda=False, init_method=store, rank=int(not other),
                       world_size=2)  # fmt: skip
    assert group.gather(1) == [1, 1]
    if not other:
        os.kill(os.getpid(), signal.SIGSTOP)
    os.waitpid(other, os.WUNTRACED)
    try:
        return group.gather(2)
    finally:
        os.kill(other, signal.SIGKILL)
        distributed.destroy_process_group = None  # type: ignore[assignment]


def lock(folder: Path) -> Any:
    """Another process holds the file of answers."""
    from flowzoo.agents import answers

    answers.LOCKED_S = LIMIT_S
    cache = answers.AnswerCache(folder / "answers.sqlite")
    holder = sqlite3.connect(folder / "answers.sqlite", isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    return cache.put("question", "answer")


def _played(policy: str) -> Any:
    from flowzoo.agents import PolicyMap
    from flowzoo.agents.rollout.episodes import EpisodeJob, Rollout
    from flowzoo.agents.specs import make_policy
    from flowzoo.envs.api.registry import make_workflow

    workflow = make_workflow("single_v0")
    policies = PolicyMap.shared(make_policy(policy, oracle=workflow), workflow.role_counts())
    return Rollout(workflow, policies).run([EpisodeJob(workflow.task.problem(0), 0)])


KINDS: dict[str, Callable[[Path], Any]] = {
    kind.__name__: kind
    for kind in (engine, endpoint, judge, function, grader, sandbox, mcp, rank, lock)
}

if __name__ == "__main__":
    logging.basicConfig(format="%(message)s")
    waits.NAMED_AFTER_S = NAMED_S
    waits.LIMITS.put(LIMIT_S, LIMIT_S)
    try:
        said = KINDS[sys.argv[1]](Path(sys.argv[2]))
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
    sys.stdout.write(f"{said}\n")
    sys.stdout.flush()
    os._exit(0)
