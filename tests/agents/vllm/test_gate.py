"""The gate between requests and changes of weights."""

import asyncio
import random
import threading
import time

from processes import wait_for

from flowzoo.agents.vllm.engine import WeightsGate


class Changing:
    """A version that changes under a gate while threads with loops of their own ask for it."""

    def __init__(self, seed: int) -> None:
        self.gate, self.version, self.rng = WeightsGate(), 0, random.Random(seed)
        self.replies: list[tuple[int, int]] = []

    async def ask(self, delay: float) -> None:
        async with self.gate.request():
            before = self.version
            await asyncio.sleep(delay)
            self.replies.append((before, self.version))

    def play(self, delays: list[list[float]]) -> None:
        async def turns(of_episode: list[float]) -> None:
            for delay in of_episode:
                await self.ask(delay)

        async def episodes() -> None:
            await asyncio.gather(*map(turns, delays))

        asyncio.run(episodes())


def test_no_reply_sees_two_versions_and_episodes_go_on_with_the_next():
    changing = Changing(0)
    delays = [[changing.rng.choice([0, 0.001, 0.005]) for _ in range(6)] for _ in range(20)]
    threads = [threading.Thread(target=changing.play, args=(delays,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        with changing.gate.closed(10.0) as idle:
            assert idle
            changing.version += 1
        time.sleep(0.001)
    assert len(changing.replies) == 2 * 20 * 6
    assert all(before == after for before, after in changing.replies)
    assert len({before for before, _ in changing.replies}) > 3


def test_a_request_that_does_not_end_is_told_and_others_wait_until_the_gate_opens():
    gate, order, asked = WeightsGate(), list[str](), threading.Event()

    async def main() -> None:
        release = asyncio.Event()

        async def hold() -> None:
            async with gate.request():
                await release.wait()

        async def late() -> None:
            async with gate.request():
                order.append("late")

        def close() -> bool:
            with gate.closed(0.05) as idle:
                assert asked.wait(60)
                order.append("opened")
                return idle

        holding = asyncio.create_task(hold())
        await asyncio.sleep(0)
        closing = asyncio.create_task(asyncio.to_thread(close))
        await asyncio.to_thread(wait_for, lambda: gate._closed)
        waiting, cancelled = asyncio.create_task(late()), asyncio.create_task(late())
        await asyncio.to_thread(wait_for, lambda: len(gate._waiting) == 2)
        cancelled.cancel()
        asked.set()
        assert await closing is False
        await waiting
        release.set()
        await holding
        await asyncio.gather(cancelled, return_exceptions=True)
        assert cancelled.cancelled()

    asyncio.run(main())
    assert order == ["opened", "late"]
    with gate.closed(0.0) as idle:
        assert idle
