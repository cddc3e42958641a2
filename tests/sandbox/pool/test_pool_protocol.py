"""The pure parts of the pool: reading the stream of a worker, and the order of jobs."""

from __future__ import annotations

import math

import pytest

from flowzoo.sandbox.pool.batch import AssignedJob, JobBatch, JobQueue
from flowzoo.sandbox.pool.protocol import DONE, REPLY, Result, WorkerReply, split_replies


def frame(id_: int, value: bytes, kind: int = DONE, seconds: float = 0.5) -> bytes:
    return REPLY.pack(id_, kind, seconds, len(value)) + value


def test_replies_are_split_wherever_the_stream_is_cut() -> None:
    whole = frame(7, b"") + frame(8, b"abc") + frame(9, b"x" * 300)
    wanted = [
        WorkerReply(7, DONE, 0.5, b""),
        WorkerReply(8, DONE, 0.5, b"abc"),
        WorkerReply(9, DONE, 0.5, b"x" * 300),
    ]
    for cut in range(len(whole) + 1):
        first = split_replies(whole[:cut])
        second = split_replies(whole[first.used :])
        assert first.replies + second.replies == wanted
        assert first.sound
        assert second.sound


@pytest.mark.parametrize(
    "bad",
    [
        frame(1, b"", kind=77),
        frame(1, b"", seconds=math.nan),
        frame(1, b"", seconds=math.inf),
        frame(1, b"", seconds=-1.0),
        REPLY.pack(1, DONE, 0.0, 2**31),
        b"\xff" * 64,
    ],
)
def test_an_impossible_header_is_seen_after_the_good_replies(bad: bytes) -> None:
    split = split_replies(frame(1, b"good") + bad)
    assert [reply.value for reply in split.replies] == [b"good"]
    assert not split.sound


def test_batches_take_turns_and_returned_jobs_come_first() -> None:
    ledger = JobQueue()
    first, second = JobBatch([b"a"] * 4, 1.0, 2), JobBatch([b"b"] * 2, 1.0, 2)
    ledger.add([first, second])
    assert ledger.take(3, 100) == (first, [0, 1, 2])
    assert ledger.take(3, 100) == (second, [0, 1])
    for idx in (2, 1):
        ledger.put_back(AssignedJob(0, first, idx))
    assert ledger.waiting() == 3
    assert ledger.take(9, 100) == (first, [1, 2, 3])
    assert ledger.take(9, 100) is None


def test_big_jobs_are_taken_one_by_one() -> None:
    ledger = JobQueue()
    batch = JobBatch([b"x" * 60] * 5, 1.0, 2)
    ledger.add([batch])
    assert ledger.take(5, 100) == (batch, [0, 1])
    assert ledger.take(5, 60) == (batch, [2])


def test_a_batch_is_done_with_its_last_verdict_and_keeps_its_order() -> None:
    ledger = JobQueue()
    batch = JobBatch([b"a", b"b"], 1.0, 2)
    ledger.add([batch])
    ledger.take(2, 100)
    ledger.settle(AssignedJob(0, batch, 1), Result("timeout"))
    assert not batch.future.done()
    ledger.settle(AssignedJob(0, batch, 0), Result("ok", b"A"))
    assert [result.status for result in batch.future.result(0)] == ["ok", "timeout"]


def test_a_cancelled_batch_loses_its_waiting_jobs() -> None:
    ledger = JobQueue()
    batch, other = JobBatch([b"a"] * 3, 1.0, 2), JobBatch([b"b"], 1.0, 2)
    ledger.add([batch, other])
    assert batch.future.cancel()
    assert ledger.take(5, 100) == (other, [0])
    ledger.fail(RuntimeError("over"))
    with pytest.raises(RuntimeError, match="over"):
        other.future.result(0)
