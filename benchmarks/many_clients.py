"""Official `openai` clients that all ask `flowzoo serve` at once: how many get their answer.

    python -m benchmarks.many_clients [--clients 512] [--slow SECONDS] [-- OPTIONS OF SERVE]

Each client has a connection of its own and the library's usual retries and time limits. With
`--slow` a policy that takes so long for each reply plays instead of the pocket model.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from openai import AsyncOpenAI, DefaultAsyncHttpxClient, OpenAIError

from flowzoo.agents.policy import Completion, Request
from flowzoo.cli import main as command


class Slow:
    """A policy that answers after a time."""

    name, batching = "slow", "stream"
    seconds = 1.0

    async def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Wait, and answer."""
        await asyncio.sleep(self.seconds)
        return [Completion("\\boxed{7}", (1, 2), (3,), (0.0,)) for _ in requests]

    async def close(self) -> None:
        """Do nothing."""


def serve_slow(seconds: float, options: Sequence[str]) -> int:
    """Serve with the slow policy in place of any other."""
    from flowzoo.commands import serve

    Slow.seconds = seconds
    serve.make_policy = lambda *_, **__: Slow()  # type: ignore[attr-defined]
    return command(["serve", "single", "--port", "0", *options])


@contextmanager
def served(slow: float, options: Sequence[str]) -> Iterator[int]:
    """The port of a server in a process of its own."""
    line = ["-m", "flowzoo.cli", "serve", "single", "--port", "0", "--max-tokens", "64"]
    if slow:
        line = ["-m", "benchmarks.many_clients", "--serve", "--slow", str(slow), "--"]
    with subprocess.Popen(
        [sys.executable, *line, *options], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            first = process.stdout.readline()
            yield int(first.partition("http://127.0.0.1:")[2].partition("/")[0])
        finally:
            process.terminate()


async def ask_all(port: int, count: int) -> tuple[Counter[str], list[float]]:
    """What became of each client's request, and the seconds of those that were answered."""
    clients = [
        AsyncOpenAI(
            base_url=f"http://127.0.0.1:{port}/v1", api_key="any",
            http_client=DefaultAsyncHttpxClient(verify=False),  # saves reading certificates
        )
        for _ in range(count)
    ]  # fmt: skip
    outcomes, seconds, start = Counter[str](), list[float](), time.monotonic()

    async def ask(number: int) -> None:
        chat = [{"role": "user", "content": f"Compute {number}+1."}]
        try:
            reply = await clients[number].chat.completions.create(
                model="generator", messages=chat  # type: ignore[arg-type]
            )  # fmt: skip
            outcomes["answered" if reply.choices[0].message.content else "empty"] += 1
            seconds.append(time.monotonic() - start)
        except OpenAIError as error:
            outcomes[f"lost: {type(error).__name__}"] += 1

    await ask(0)  # imports what the library imports late
    outcomes.clear()
    seconds.clear()
    start = time.monotonic()
    await asyncio.gather(*(ask(number) for number in range(count)))
    await asyncio.gather(*(client.close() for client in clients))
    return outcomes, sorted(seconds)


def statuses(port: int) -> dict[str, int]:
    """Numbers of replies by status, as the server counts them."""
    asker = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    asker.request("GET", "/metrics")
    text = asker.getresponse().read().decode()
    asker.close()
    rows = re.findall(r'requests_total\{status="(\d+)"\} (\d+)', text)
    return {status: int(number) for status, number in rows}


def main() -> int:
    """Ask, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=512)
    parser.add_argument("--slow", type=float, default=0.0)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("options", nargs="*")
    given = parser.parse_args()
    if given.serve:
        return serve_slow(given.slow, given.options)
    with served(given.slow, given.options) as port:
        outcomes, seconds = asyncio.run(ask_all(port, given.clients))
        result = {
            "clients": given.clients, **outcomes, "statuses": statuses(port),
            "median s": round(seconds[len(seconds) // 2], 1), "last s": round(seconds[-1], 1),
        }  # fmt: skip
    print(json.dumps(result))
    return outcomes["answered"] != given.clients


if __name__ == "__main__":
    sys.exit(main())
