"""CPU time of a request: the door of agent programs beside the proxy of agent-lightning.

    python3 -m venv PEER && PEER/bin/pip install agentlightning==0.3.0
    python -m benchmarks.peer_proxy PEER/bin/python [--programs 8] [--agents 8] [--rounds 4]

The same programs ask both, and all replies are one constant. Programs are commands, whose CPU time
is their own; each has one request of every agent open at the same time, again and again. CPU time
of the door is that of the process that plays the rollout, with the door and the engine; CPU time of
the proxy is that of its process, with its store of spans in memory, and an endpoint behind it that
is not counted. Prints JSON, and writes docs/data/peer-proxy.json with `--write`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.harness.record import write_results
from benchmarks.serving import cpu_seconds
from benchmarks.speed.bookkeeping import REPLY, InstantPolicy
from benchmarks.third_party.said import answering
from flowzoo.agents import PolicyMap
from flowzoo.agents.rollout.episodes import EpisodeJob, Rollout
from flowzoo.envs.external.program import OpenAIProgram

ROOT = Path(__file__).resolve().parents[1]
RESULT = ROOT / "docs/data/peer-proxy.json"
# No key, as agent-lightning starts it, and no list of prices from the network.
PEER = {
    "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "PYTHONPATH": "",
}


CLIENT = """
import json, os, socket, sys
_, _, address, *path = os.environ["OPENAI_BASE_URL"].split("/")
(host, port), path = address.split(":"), "/".join(path)
problem, agents, rounds = sys.stdin.read(), int(sys.argv[1]), int(sys.argv[2])
files = [socket.create_connection((host, int(port))).makefile("rwb") for _ in range(agents)]
for turn in range(rounds):
    for number, file in enumerate(files):
        message = {"role": "user", "content": f"{problem} {turn}"}
        body = json.dumps({"model": f"agent_{number}", "messages": [message]}).encode()
        head = f"POST /{path}/chat/completions HTTP/1.1\\r\\nHost: x\\r\\nAuthorization: Bearer "
        head += os.environ["OPENAI_API_KEY"] + f"\\r\\nContent-Length: {len(body)}\\r\\n\\r\\n"
        file.write(head.encode() + body)
        file.flush()
    for file in files:
        length, line = 0, file.readline()
        assert b" 200 " in line, line
        while line.strip():
            name, _, value = line.partition(b":")
            length = int(value) if name.lower() == b"content-length" else length
            line = file.readline()
        reply = json.loads(file.read(length))["choices"][0]["message"]["content"]
print(reply)
"""


def client_command(agents: int, rounds: int) -> tuple[str, ...]:
    """The command of a program with so many agents, each asked so often."""
    return sys.executable, "-S", "-c", CLIENT, str(agents), str(rounds)


def measure(workflow: OpenAIProgram, episodes: int) -> float:
    """CPU seconds of this process for a rollout of episodes that are all played at once."""
    policy = InstantPolicy()
    policy.batching = "static"  # as an engine that is asked for all that is open
    rollout = Rollout(workflow, PolicyMap.shared(policy, workflow.role_counts()))
    jobs = [EpisodeJob(workflow.task.problem(number)) for number in range(episodes)]
    start = time.process_time()
    records = rollout.run(jobs)
    used = time.process_time() - start
    failed = [dict(record.facts) for record in records if record.facts.get("failed")]
    assert not failed, failed[0]
    return used


@contextmanager
def proxied(python: str, agents: int) -> Iterator[tuple[dict[str, Any], dict[str, int]]]:
    """The proxy's first line, and a dict that gets its last when it ends."""
    last: dict[str, int] = {}
    with answering(lambda body: {"content": REPLY}) as upstream:
        script = ROOT / "benchmarks/third_party/lightning_proxy.py"
        with subprocess.Popen(
            [python, str(script), upstream, str(agents)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **PEER},
            text=True,
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            lines = (line for line in process.stdout if line.startswith("{"))
            try:
                yield json.loads(next(lines)), last
                process.stdin.close()
                last.update(json.loads(next(lines)))
            finally:
                process.kill()


def ask(url: str, programs: int, command: tuple[str, ...]) -> None:
    """Run the programs, all at the same time."""
    environment = {**os.environ, "OPENAI_BASE_URL": url, "OPENAI_API_KEY": "any"}
    running = [
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
        )
        for _ in range(programs)
    ]
    for process in running:
        answer, _ = process.communicate("Compute 3*4+5.", timeout=500)
        assert answer.strip() == REPLY, answer


def main() -> None:
    """Measure, print, and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("python", help="interpreter of the peer's environment")
    parser.add_argument("--programs", type=int, default=8)
    parser.add_argument("--agents", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    requests = given.programs * given.agents * given.rounds
    command = client_command(given.agents, given.rounds)
    workflow = OpenAIProgram(command, roles={"agent": given.agents}, at_once=given.agents)
    measure(workflow, 1)  # opens the door
    ours = measure(workflow, given.programs)
    with proxied(given.python, given.agents) as (first, last):
        ask(first["url"], 1, client_command(given.agents, 1))
        start = cpu_seconds(first["process"])
        ask(first["url"], given.programs, command)
        theirs = cpu_seconds(first["process"]) - start
    rows = [
        ["flowzoo, door and rollout engine", f"{1000 * ours / requests:.2f}"],
        [f"agent-lightning {first['version']}, proxy", f"{1000 * theirs / requests:.2f}"],
    ]
    data = {
        "command": "taskset -c 0 python -m benchmarks.peer_proxy PEER/bin/python",
        "columns": ["", "ms of CPU a request"],
        "rows": rows,
        "requests": requests,
        "spans": last["spans"],
    }
    print(json.dumps(data, indent=1))
    if given.write:
        write_results(RESULT, data)


if __name__ == "__main__":
    main()
