"""CPU time that the door of agent programs takes a request, and how many it holds open.

    python -m benchmarks.agent_programs [--programs 16] [--agents 32] [--rounds 8] [--repeat 1]

Programs are commands, whose CPU time is their own; each has one request of every agent open at the
same time, again and again. The script asks the same without a program. Prints JSON; seconds are CPU
time of this process, which has the rollout engine and the door. `--repeat` plays all that so often
and tells the resident memory after a quarter of it and at the end.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from benchmarks.harness.memory import resident_mib
from flowzoo.agents import PolicyMap
from flowzoo.agents.policy import Batching, Completion, Request
from flowzoo.agents.rollout.episodes import EpisodeJob, Rollout
from flowzoo.envs import Ask, Outcome, Problem, Workflow
from flowzoo.envs.external.program import OpenAIProgram
from flowzoo.envs.tasks import make_task

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


@dataclass(frozen=True)
class Rounds(Workflow):
    """The program as a script."""

    name: ClassVar[str] = "rounds_v0"
    roles: ClassVar[Mapping[str, int]] = {"agent": 1}
    agents_in_phase: int = 1
    rounds: int = 1

    def role_counts(self) -> Mapping[str, int]:
        """As many agents as are asked at the same time."""
        return {"agent": self.agents_in_phase}

    def play(self, problem: Problem) -> Any:
        """Ask all agents, again and again."""
        question, replies = self.task.prompt(problem), []
        for turn in range(self.rounds):
            asks = [Ask(agent, f"{question} {turn}") for agent in self.agents]
            replies = yield asks
        return Outcome(replies[0].text if replies else None)


class Constant:
    """A policy whose replies cost nothing."""

    name = "constant"
    batching: Batching = "static"

    def __init__(self) -> None:
        self.largest = 0

    async def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Answer `requests`, which are all that is open."""
        self.largest = max(self.largest, len(requests))
        return [Completion("\\boxed{1}")] * len(requests)

    async def close(self) -> None:
        """No-op."""


def measure(workflow: Workflow, episodes: int) -> tuple[float, float, int]:
    """CPU seconds, seconds on the wall, and the largest number of requests in a batch."""
    policy = Constant()
    rollout = Rollout(workflow, PolicyMap(dict.fromkeys(workflow.role_counts(), policy)))
    jobs: Iterator[EpisodeJob] = (EpisodeJob(workflow.task.problem(n)) for n in range(episodes))
    start, wall = time.process_time(), time.monotonic()
    records = rollout.run(jobs)
    used = time.process_time() - start, time.monotonic() - wall
    failed = [dict(record.facts) for record in records if record.facts.get("failed")]
    assert not failed, failed[0]
    return *used, policy.largest


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=16)
    parser.add_argument("--agents", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--repeat", type=int, default=1)
    given = parser.parse_args()
    command = client_command(given.agents, given.rounds)
    program = OpenAIProgram(command, roles={"agent": given.agents}, at_once=given.agents)
    script = Rounds(make_task("math"), agents_in_phase=given.agents, rounds=given.rounds)
    measure(program, 1)  # opens the door
    requests = given.programs * given.agents * given.rounds
    cpu, wall, largest = measure(program, given.programs)
    resident = [resident_mib()]
    for _ in range(given.repeat - 1):
        measure(program, given.programs)
        resident.append(resident_mib())
    cpu_script, _, _ = measure(script, given.programs)
    row = {
        "requests": requests * given.repeat,
        "open at the same time": largest,
        "ms CPU a request": round(1000 * cpu / requests, 3),
        "ms CPU a request of the script": round(1000 * cpu_script / requests, 3),
        "ms CPU a request above the script": round(1000 * (cpu - cpu_script) / requests, 3),
        "seconds": round(wall, 1),
        "resident MiB after a quarter": round(resident[(given.repeat - 1) // 4], 1),
        "resident MiB at the end": round(resident[-1], 1),
    }
    print(json.dumps(row, indent=1))


if __name__ == "__main__":
    main()
