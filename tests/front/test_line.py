"""The bounded waiting line."""

import asyncio
from typing import Any

import pytest

from flowzoo.front.line import WaitingLine
from flowzoo.front.refusal import ClientGoneError, RefusalError


def never() -> asyncio.Future[Any]:
    return asyncio.get_running_loop().create_future()


async def test_slots_are_given_in_the_order_of_coming_and_a_large_request_is_not_overtaken():
    line, order = WaitingLine(2, 9), list[int]()
    await line.enter(2, never(), 9)

    async def come(number: int, count: int) -> None:
        await line.enter(count, never(), 9)
        order.append(number)

    tasks = [asyncio.create_task(come(number, count)) for number, count in enumerate((2, 1, 1))]
    await asyncio.sleep(0)
    line.leave(1, 1.0)
    await asyncio.sleep(0.01)
    assert order == []
    line.leave(1, 1.0)
    await asyncio.sleep(0.01)
    assert order == [0]
    line.leave(2, 1.0)
    await asyncio.gather(*tasks)
    assert order == [0, 1, 2]
    assert line.used == 2


async def test_the_seconds_until_a_retry_are_measured():
    line = WaitingLine(4, 2)
    assert line.retry_s == 1
    await line.enter(4, never(), 9)
    line.leave(1, 20.0)
    line.used += 1
    waiting = [asyncio.create_task(line.enter(1, never(), 60)) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(RefusalError) as refused:
        await line.enter(1, never(), 9)
    # Six answers of 20 s before it, four at a time.
    assert (refused.value.status, refused.value.headers) == (429, {"Retry-After": "30"})
    line.leave(1, 1e9)
    assert line.retry_s == 600
    line.close(RefusalError(503, "server_ending", "The server is ending."))
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert [getattr(result, "code", None) for result in results] == [None, "server_ending"]


@pytest.mark.parametrize("end", ["waits in vain", "leaves", "is cancelled", "leaves with a slot"])
async def test_who_gets_no_slot_leaves_its_place_to_the_next(end):
    line, gone = WaitingLine(1, 9), never()
    await line.enter(1, never(), 9)
    first = asyncio.create_task(line.enter(1, gone, 0.05 if end == "waits in vain" else 9))
    second = asyncio.create_task(line.enter(1, never(), 9))
    await asyncio.sleep(0)
    if end == "is cancelled":
        first.cancel()
    elif end != "waits in vain":
        gone.set_result(None)
    if end == "leaves with a slot":  # at the same time
        line.leave(1, 1.0)
    (error,) = await asyncio.gather(first, return_exceptions=True)
    if end == "waits in vain":
        assert isinstance(error, RefusalError)
        assert (error.status, error.headers) == (503, {"Retry-After": "1"})
    else:
        kind = asyncio.CancelledError if end == "is cancelled" else ClientGoneError
        assert isinstance(error, kind)
    if end != "leaves with a slot":
        line.leave(1, 1.0)
    await second
    assert (line.used, len(line.waiting)) == (1, 0)
