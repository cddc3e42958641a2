"""OpenEnv: examples/openenv as a server of its own on loopback, beside the view in this process."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from openenv.core.generic_client import GenericEnvClient
from rows import Row, report

from flowzoo.envs.api.solo import SoloEnv

FOLDER = Path(__file__).resolve().parent.parent.parent / "examples" / "openenv"
EXAMPLE = "[examples/openenv](../examples/openenv/server.py)"
REPLIES = ("\\boxed{1}", "A", "B", "<answer>2</answer>", "3", "")


@contextmanager
def serving(workflow: str, role: str) -> Iterator[str]:
    """The example's server; its URL."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "uvicorn", "server:app", "--host", "127.0.0.1",
         "--port", str(port), "--log-level", "error"],
        cwd=FOLDER, env={**os.environ, "FLOWZOO_WORKFLOW": workflow, "FLOWZOO_ROLE": role},
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 300
        while True:
            assert server.poll() is None, "the server ended"
            assert time.monotonic() < deadline, "the server does not answer"
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                time.sleep(0.2)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()


def played(reset: Any, step: Any, golds: list[str]) -> list[Any]:
    """What is seen and paid in an episode of each seed; every second begins with its answer."""
    found = []
    for seed, gold in enumerate(golds):
        turn, done = reset(seed), False
        found.append(turn)
        for number in range(20):
            if done:
                break
            right = number == 0 and seed % 2 == 0
            reply = f"\\boxed{{{gold}}}" if right else REPLIES[(seed + number) % len(REPLIES)]
            turn, reward, done = step(reply)
            found.append((turn, reward, done))
        assert done
    return found


def same(workflow: str, role: str) -> None:
    """Observations, rewards and ends are those of the view in this process."""
    from client import WorkflowClient  # both lie in the example's folder
    from models import ReplyAction

    view = SoloEnv(workflow, role=role)

    def step(text: str) -> Any:
        seen, reward, terminated, truncated, _ = view.step(text)
        return seen["messages"], reward, terminated or truncated

    golds = []
    for seed in range(6):
        view.reset(seed=seed)
        core: Any = view.aec.unwrapped
        # The others are right, so the first candidate is.
        golds.append("1" if role == "aggregator" else core.episode.problem.gold)
    wanted = played(lambda seed: view.reset(seed=seed)[0]["messages"], step, golds)
    with serving(workflow, role) as url:
        with WorkflowClient(base_url=url).sync() as client:

            def over_wire(text: str) -> Any:
                result = client.step(ReplyAction(text=text))
                return result.observation.messages, result.reward, result.done

            begin = lambda seed: client.reset(seed=seed).observation.messages  # noqa: E731
            found = played(begin, over_wire, golds)
            assert client.state().problem.count("/") == 3
        if role == "aggregator":
            sessions(url)
    assert found == wanted
    assert len({item[1] for item in found if isinstance(item, tuple)}) > 1


def sessions(url: str) -> None:
    """Two sessions at once, with the client of dicts."""
    with GenericEnvClient(base_url=url).sync() as one, GenericEnvClient(base_url=url).sync() as two:
        asked = [one.reset(index=0).observation, two.reset(index=1).observation]
        assert asked[0]["messages"] != asked[1]["messages"]
        assert one.step({"text": "A"}).done
        assert two.step({"text": "A"}).done


if __name__ == "__main__":
    sys.path.insert(0, str(FOLDER))
    report(
        "OpenEnv",
        ["openenv"],
        [
            Row("a server of the aggregator of `voting`, two sessions at once; what is seen and "
                "paid is the view's",
                partial(same, "voting", "aggregator"), EXAMPLE),
            Row("the same for the generator of `eval_opt`, asked several times",
                partial(same, "eval_opt", "generator"), EXAMPLE),
        ],
    )  # fmt: skip
