"""Episodes of a program whose clients are patient, retry, leave or send twice, as drawn by a seed:

    python tests/envs/door/mixture.py [--episodes 512] [--seeds 0 1] [--only KIND ...]

All episodes are open at once. Calls, answers and scores must be those of patient clients.
"""

import argparse
import asyncio
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest import mock
from uuid import uuid4

import openai

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from agent_programs import raw_request

from flowzoo.agents import PolicyMap
from flowzoo.agents.policy import Completion, Request
from flowzoo.agents.rollout.episodes import EpisodeJob, Rollout
from flowzoo.agents.scripted import ScriptedPolicy
from flowzoo.envs import EpisodeRecord
from flowzoo.envs.door import app
from flowzoo.envs.external.program import OpenAIProgram
from flowzoo.seeding import key_rng

Asking = Callable[[openai.AsyncOpenAI, dict[str, Any], random.Random], Coroutine[Any, Any, str]]

WITHHELD: set[str] = set()
"""Prompts that get no reply now."""


async def whole(client: openai.AsyncOpenAI, body: dict[str, Any], **fields: Any) -> str:
    """A reply in one piece."""
    done = await client.chat.completions.create(**body, **fields)
    return done.choices[0].message.content or ""


async def streamed(client: openai.AsyncOpenAI, body: dict[str, Any], most: int = 9) -> str:
    """A stream, of which at most so many chunks are read."""
    text, count = "", 0
    async with await client.chat.completions.create(**body, stream=True) as stream:
        async for chunk in stream:
            text += chunk.choices[0].delta.content or ""
            count += 1
            if count == most:
                break
    return text


async def patient(client: openai.AsyncOpenAI, body: dict[str, Any], rng: random.Random) -> str:
    """Ask once, in one piece or as a stream."""
    return await (streamed if rng.random() < 0.5 else whole)(client, body)


async def retrying(client: openai.AsyncOpenAI, body: dict[str, Any], rng: random.Random) -> str:
    """Give the client a short limit, after which it asks again by itself."""
    hasty = client.with_options(timeout=0.02 + 0.2 * rng.random(), max_retries=2)
    with suppress(openai.APITimeoutError):
        return await (streamed if rng.random() < 0.5 else whole)(hasty, body)
    return await whole(client, body)


async def leaving(client: openai.AsyncOpenAI, body: dict[str, Any], rng: random.Random) -> str:
    """Read some chunks of a stream, leave it, and ask again."""
    for _ in range(rng.randint(1, 3)):
        await streamed(client, body, most=rng.randint(1, 2))
    return await whole(client, body)


async def cancelling(client: openai.AsyncOpenAI, body: dict[str, Any], rng: random.Random) -> str:
    """Cancel a request after some time, and ask again.

    There is no reply before: to a door, one that a client had and threw away is a turn of its own.
    """
    text = body["messages"][0]["content"]
    WITHHELD.add(text)
    with suppress(TimeoutError):
        async with asyncio.timeout(0.02 + 0.2 * rng.random()):
            await (streamed if rng.random() < 0.5 else whole)(client, body)
    WITHHELD.remove(text)
    return await whole(client, body)


async def doubling(client: openai.AsyncOpenAI, body: dict[str, Any], rng: random.Random) -> str:
    """Send the same request several times at once, under one key."""
    headers = {"Idempotency-Key": str(uuid4())}
    replies = [whole(client, body, extra_headers=headers) for _ in range(rng.randint(2, 3))]
    texts = await asyncio.gather(*replies)
    assert len(set(texts)) == 1
    return texts[0]


async def vanishing(client: openai.AsyncOpenAI, body: dict[str, Any], rng: random.Random) -> str:
    """Send a request on a connection that is closed at once or after some bytes, and ask again."""
    raw = json.dumps({**body, "stream": rng.random() < 0.5}).encode()
    with raw_request(str(client.base_url), client.api_key, raw) as connection:
        if rng.random() < 0.5:
            await asyncio.to_thread(connection.recv, rng.randint(1, 200))
    return await whole(client, body)


KINDS: Mapping[str, Asking] = {
    kind.__name__: kind for kind in (patient, retrying, leaving, cancelling, doubling, vanishing)
}


def program(kinds: Sequence[str], seed: int) -> Callable[..., Coroutine[Any, Any, str]]:
    """Two agents that are asked one after the other, by clients of drawn kinds."""

    async def solve(problem: str, base_url: str, key: str) -> str:
        said, rng = problem, key_rng("mixture", seed, problem)
        # Certificates are of no use here, and reading them takes most of a short episode.
        sockets = openai.DefaultAsyncHttpxClient(verify=False)
        async with openai.AsyncOpenAI(
            base_url=base_url, api_key=key, timeout=300, http_client=sockets
        ) as client:
            for model in ("writer", "reviewer"):
                body = {"model": model, "messages": [{"role": "user", "content": said}]}
                reply = await KINDS[rng.choice(kinds)](client, body, rng)
                said = f"{problem}\n{reply}"
        return said

    return solve


class Slow(ScriptedPolicy):
    """Answers after a moment, so that clients give up."""

    async def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Wait, and answer."""
        await asyncio.sleep(0.05)
        while any(request.messages[-1]["content"] in WITHHELD for request in requests):
            await asyncio.sleep(0.01)
        return await super().generate(requests)


def played(kinds: Sequence[str], seed: int, count: int) -> list[EpisodeRecord]:
    """Records of so many episodes."""
    workflow = OpenAIProgram(program(kinds, seed), roles="writer,reviewer", at_once=1)
    policies = PolicyMap(dict.fromkeys(("writer", "reviewer"), Slow(workflow, 0.5)))
    jobs = [EpisodeJob(workflow.task.problem(number)) for number in range(count)]
    # On a busy machine, too, a client leaves a stream before its last events.
    with mock.patch.object(app, "LAST_S", 0.2):
        return Rollout(workflow, policies, seed=3, in_flight=count).run(jobs)


def differences(calm: Sequence[EpisodeRecord], hasty: Sequence[EpisodeRecord]) -> Counter[str]:
    """Numbers of episodes by what differs from the patient ones."""
    found = Counter[str]()
    for one, other in zip(calm, hasty, strict=True):
        found["turns"] += len(one.calls) != len(other.calls)
        found["calls"] += one.calls != other.calls
        found["score"] += (one.answer, one.score) != (other.answer, other.score)
        expected = {**one.facts, "repeated": other.facts["repeated"]}
        found["facts"] += dict(other.facts) != expected
    return found


def main() -> int:
    """Play, compare and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=512)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--only", nargs="+", default=list(KINDS), choices=list(KINDS))
    given, failed = parser.parse_args(), 0
    calm = played(["patient"], 0, given.episodes)
    for seed in given.seeds:
        start = time.perf_counter()
        hasty = played(given.only, seed, given.episodes)
        found = differences(calm, hasty)
        turns = sum(len(record.calls) for record in hasty)
        repeated = sum(record.facts["repeated"] for record in hasty)
        sys.stdout.write(
            f"seed {seed}: {turns:,} turns of {2 * given.episodes:,}, {repeated:,} repeated "
            f"requests, {time.perf_counter() - start:.0f} s; episodes that differ: {dict(found)}\n"
        )
        sys.stdout.flush()
        failed |= any(found.values())
    return failed


if __name__ == "__main__":
    sys.exit(main())
