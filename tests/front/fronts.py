"""One of the fronts in a process of its own: `python fronts.py serve|keyed|door|page FOLDER {}`.

It prints its port, its key and the path of an honest request; short deadlines make slow clients
quick to test.
"""

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1]
SECRETS = {
    name: f"value-{number:02}-of-{name.lower()}"
    for number, name in enumerate(
        ("HF_TOKEN", "OPENAI_API_KEY", "ANTHROPIC_API_KEY", "WANDB_API_KEY", "GITHUB_TOKEN",
         "AWS_SECRET_ACCESS_KEY", "DB_PASSWORD", "CLIENT_SECRET", "SESSION_COOKIE",
         "SMTP_PASSWD", "SIGNING_KEY", "GOOGLE_APPLICATION_CREDENTIALS")
    )
}  # fmt: skip
"""Twelve variables of the fronts' environments whose values nobody may see."""
DEADLINES = {"HEAD_S": 0.6, "STALL_S": 0.6, "BODY_S": 0.6}


@dataclass
class FrontProcess:
    """A front that listens."""

    kind: str
    port: int
    key: str
    honest: str
    """Method, path and body of a request that is answered with 200."""
    process: subprocess.Popen[str]
    log: Path
    """Its messages."""

    def memory(self) -> float:
        """Resident memory in MiB."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) / 1024


@contextmanager
def front_process(
    kind: str, folder: Path, deadlines: dict[str, float] | None = None
) -> Iterator[FrontProcess]:
    """A front in a process of its own until the end of the block; its messages go to a file."""
    limits = json.dumps(DEADLINES if deadlines is None else deadlines)
    command = [sys.executable, __file__, kind, str(folder), limits]
    variables = {**os.environ, **SECRETS}
    with (
        (folder / f"{kind}.log").open("w") as log,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, text=True, env=variables
        ) as process,
    ):
        try:
            assert process.stdout is not None
            port, key, honest = json.loads(process.stdout.readline())
            yield FrontProcess(kind, port, key, honest, process, Path(log.name))
        finally:
            process.kill()


def tell(url: str, key: str, method: str, path: str, body: Any = None) -> None:
    """Print what a client needs to know."""
    port = int(url.removesuffix("/").removesuffix("/v1").rpartition(":")[2])
    print(json.dumps([port, key, [method, path, body]]), flush=True)


def serve(key: str = "") -> None:
    """A served workflow whose policy answers at once."""
    from served import Gate, serving

    from flowzoo.agents.policy_map import PolicyMap
    from flowzoo.envs import make_workflow

    workflow, gate = make_workflow("single"), Gate()
    gate.open.set()
    policies = PolicyMap.shared(gate, workflow.role_counts())
    body = {"model": "generator", "messages": [{"role": "user", "content": "1+1?"}]}
    with serving(workflow, policies, api_key=key) as served:
        tell(served.url, key, "POST", "/v1/chat/completions", body)
        threading.Event().wait()


def door() -> None:
    """The door with a program that never ends; whatever asks in its name gets a reply."""
    from agent_programs import advance

    from flowzoo.envs import Episode
    from flowzoo.envs.door import run as door_run
    from flowzoo.envs.external.program import OpenAIProgram

    door_run.MOST_REFUSED = 10**9

    def hang(problem: str, base_url: str, key: str) -> str:
        tell(base_url, key, "GET", "/v1/models")
        threading.Event().wait()
        return ""

    workflow = OpenAIProgram(
        hang, roles="writer", at_once=1, seconds=1e6, request_bytes=2**20, max_calls=10**6
    )
    episode = Episode(workflow, workflow.task.problem(0), "e")
    while True:
        advance(episode)
        for turn in list(episode.waiting):
            episode.reply(turn.agent, "1")


def page(folder: Path) -> None:
    """The live page of a run."""
    from flowzoo.baselines.report.live import LivePage

    live = LivePage(folder / "run")

    def ready() -> None:
        tell(live.url, "", "GET", "/")

    live.server._on_ready = ready
    live.run()


def main(kind: str, folder: str, limits: str) -> None:
    """Serve until killed."""
    sys.path.insert(0, str(TESTS))
    from flowzoo.front import connection, request

    for name, seconds in json.loads(limits).items():
        setattr(request if name == "BODY_S" else connection, name, seconds)
    asyncio.set_event_loop(None)
    if kind == "page":
        page(Path(folder))
    else:
        {"serve": serve, "keyed": partial(serve, "key-of-the-workflow"), "door": door}[kind]()


if __name__ == "__main__":
    main(*sys.argv[1:])
