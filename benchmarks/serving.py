"""Requests a second of `flowzoo serve`, beside a rollout of the same episodes.

    python -m benchmarks.serving [WORKFLOW] [--requests 128] [--rounds 5] [--out FILE]

The pocket model at temperature 0. The server is a process; the client, in this one, has 1, 16 and
64 requests open and sends the next with each answer. The rollout, in this process, has as many
episodes open. Answers must be equal. Rows are the best of the rounds, as others may use the
machine; CPU time is that of the process that plays, without the client's.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.harness.record import write_results
from flowzoo.agents import PolicyMap
from flowzoo.agents.policy import Sampling
from flowzoo.agents.rollout.episodes import EpisodeJob, Rollout
from flowzoo.agents.specs import make_policy
from flowzoo.envs import Problem, Workflow, make_workflow

TOKENS = 64
"""Most tokens of a reply."""


@contextmanager
def served(workflow: str) -> Iterator[tuple[int, int]]:
    """The process of a server, and its port."""
    command = [sys.executable, "-m", "flowzoo.cli", "serve", workflow, "--port", "0"]
    settings = ["--temperature", "0", "--max-tokens", str(TOKENS)]
    with subprocess.Popen([*command, *settings], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        try:
            yield process.pid, int(line.partition("http://127.0.0.1:")[2].partition("/")[0])
        finally:
            process.terminate()


def cpu_seconds(process: int) -> float:
    """CPU time of a process."""
    with open(f"/proc/{process}/stat", encoding="ascii") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def ask_all(port: int, model: str, problems: Sequence[Problem], at_once: int) -> list[str]:
    """The answers to all problems, by as many connections."""
    answers, waiting = [""] * len(problems), iter(range(len(problems)))

    async def connection() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for number in waiting:
            messages = [{"role": "user", "content": problems[number].text}]
            body = json.dumps({"model": model, "messages": messages}).encode()
            head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: "
            writer.write(f"{head}{len(body)}\r\n\r\n".encode() + body)
            top = (await reader.readuntil(b"\r\n\r\n")).decode("ascii").lower()
            length = int(top.partition("content-length:")[2].partition("\r")[0])
            answers[number] = choice_of(json.loads(await reader.readexactly(length)))
        writer.close()

    await asyncio.gather(*(connection() for _ in range(at_once)))
    return answers


def choice_of(reply: dict[str, Any]) -> str:
    """The text of a reply."""
    assert "choices" in reply, reply
    return reply["choices"][0]["message"]["content"]


class DirectRollout:
    """The same episodes, played in this process."""

    def __init__(self, workflow: Workflow) -> None:
        """Load the model."""
        sampling = Sampling(temperature=0.0, max_tokens=TOKENS)
        policy = make_policy("pocket", oracle=workflow, sampling=sampling)
        self.workflow = workflow
        self.policy_map = PolicyMap.shared(policy, workflow.role_counts())

    def answers(self, problems: Sequence[Problem], at_once: int) -> list[str]:
        """The answers to all problems."""
        player = Rollout(self.workflow, self.policy_map, in_flight=at_once)
        return [record.answer or "" for record in player.run(map(EpisodeJob, problems))]


class Round(NamedTuple):
    """Seconds of the requests and of the rollout."""

    served: float
    served_cpu: float
    played: float
    played_cpu: float


def measured(
    server: tuple[int, int], direct: DirectRollout, problems: Sequence[Problem], at_once: int
) -> Round:
    """One round of both."""
    process, port = server
    start, used = time.perf_counter(), cpu_seconds(process)
    answers = asyncio.run(ask_all(port, direct.workflow.name, problems, at_once))
    served, served_cpu = time.perf_counter() - start, cpu_seconds(process) - used
    start, used = time.perf_counter(), time.process_time()
    expected = direct.answers(problems, at_once)
    played, played_cpu = time.perf_counter() - start, time.process_time() - used
    assert answers == expected, "the server answers otherwise than the rollout"
    return Round(served, served_cpu, played, played_cpu)


def row_of(at_once: int, rounds: Sequence[Round], requests: int) -> list[str]:
    """A row of the table."""
    served, served_cpu, played, played_cpu = map(min, zip(*rounds, strict=True))
    return [
        str(at_once), f"{requests / served:.0f}", f"{requests / played:.0f}",
        f"{played / served:.2f}", f"{1000 * served_cpu / requests:.1f}",
        f"{1000 * played_cpu / requests:.1f}", f"{played_cpu / served_cpu:.2f}",
    ]  # fmt: skip


COLUMNS = (
    "open at once", "requests a second", "episodes a second of the rollout", "ratio",
    "CPU of a request, ms", "CPU of an episode, ms", "ratio of CPU",
)  # fmt: skip


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workflow", nargs="?", default="voting")
    parser.add_argument("--requests", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    workflow = make_workflow(given.workflow)
    problems = [workflow.task.problem(index, "validation") for index in range(given.requests)]
    direct, rows = DirectRollout(workflow), []
    with served(given.workflow) as server:
        measured(server, direct, problems[:4], 1)  # the first calls compile
        for at_once in (1, 16, 64):
            rounds = [measured(server, direct, problems, at_once) for _ in range(given.rounds)]
            rows.append(row_of(at_once, rounds, given.requests))
            print(dict(zip(COLUMNS, rows[-1], strict=False)), flush=True)
    line = f"{given.workflow} --requests {given.requests} --rounds {given.rounds}"
    command = f"taskset -c 0 python -m benchmarks.serving {line}"
    if given.out:
        write_results(given.out, {"command": command, "columns": COLUMNS, "rows": rows})


if __name__ == "__main__":
    main()
