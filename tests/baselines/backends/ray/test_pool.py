"""The pool of rollout workers, here of threads, which take calls in order as Ray's actors do."""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from importlib.util import find_spec
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

from flowzoo.baselines.backends.backend import RolloutSpec
from flowzoo.baselines.backends.ray.worker import Loaded, Opened, Played, Stale

if find_spec("ray"):
    from flowzoo import waits
    from flowzoo.baselines.backends.ray import pool

pytestmark = pytest.mark.skipif(not find_spec("ray"), reason="needs flowzoo[scale]")

Jobs = Sequence[str]


class ThreadWorker:
    """A worker that echoes its jobs."""

    def __init__(self, threads: ThreadPoolExecutor, play: Callable[[Jobs], None]) -> None:
        self._threads, self._play = threads, play
        self._versions: dict[str, int] = {}
        self.open = SimpleNamespace(remote=lambda: threads.submit(Opened, {}, {}))
        self.load = SimpleNamespace(remote=self._send_load)
        self.play = SimpleNamespace(remote=self._send_play)

    def _send_load(self, policy: str, version: int, file: str | None) -> Future[Any]:
        def load() -> Loaded:
            self._versions[policy] = version
            return Loaded("digest", version)

        return self._threads.submit(load)

    def _send_play(self, plan: Any, jobs: Jobs) -> Future[Any]:
        if "cannot be sent" in jobs:
            raise TypeError("cannot pickle a lock")

        def play() -> Played | Stale:
            if self._versions != plan.versions:
                return Stale(dict(self._versions))
            self._play(jobs)
            return Played(list(jobs))

        return self._threads.submit(play)


@pytest.fixture
def make_pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """`make_pool(play, ...)`: a pool with a worker for each function, whose weights are proved."""

    def ray_wait(calls: Sequence[Any], num_returns: int = 1, timeout: float | None = None) -> Any:
        done, _ = wait(calls, timeout, return_when=FIRST_COMPLETED)
        first = [call for call in calls if call in done][:num_returns]
        return first, [call for call in calls if call not in first]

    ray = SimpleNamespace(wait=ray_wait, get=lambda call: call.result())
    monkeypatch.setattr(pool, "ray", ray)
    with ExitStack() as stack:

        def make(*plays: Callable[[Jobs], None], batches: int = 0) -> Any:
            workers = [
                ThreadWorker(stack.enter_context(ThreadPoolExecutor(1)), play) for play in plays
            ]
            made = pool.RolloutPool(workers, batches)
            made.publish("policy", 0, None, "digest")
            made.prove()
            return made

        yield make


def test_every_batch_is_told_that_jobs_cannot_be_sent(make_pool):
    rollouts = make_pool(lambda jobs: time.sleep(0.2), batches=1)
    with ThreadPoolExecutor(2) as threads:
        bad = [["a"], ["cannot be sent"]]
        batches = [threads.submit(rollouts.play, RolloutSpec("train", {}, 1), bad)]
        time.sleep(0.05)
        batches += [threads.submit(rollouts.play, RolloutSpec("train", {}, 2), [["b"]])]
        for batch in batches:
            with pytest.raises(TypeError, match="cannot pickle a lock"):
                batch.result(60)


def test_new_weights_do_not_wait_for_a_worker_whose_shard_another_has_finished(make_pool):
    released = Event()
    slow = {"first": True}

    def wait_once(jobs: Jobs) -> None:
        if slow.pop("first", False):
            assert released.wait(60)

    rollouts = make_pool(wait_once, lambda jobs: time.sleep(0.02))
    spec = RolloutSpec("train", {})
    shards = [[str(number)] for number in range(4)]
    assert rollouts.play(spec, shards) == shards
    rollouts.publish("policy", 1, None, "digest")
    assert rollouts.prove(within=30) == 1
    assert rollouts.play(spec, shards) == shards
    released.set()
    rollouts.publish("policy", 2, None, "digest")
    assert rollouts.prove() >= 1
    assert rollouts.play(spec, shards) == shards


def test_workers_that_do_not_answer_are_named_and_given_up(make_pool, monkeypatch, caplog):
    monkeypatch.setattr(waits, "NAMED_AFTER_S", 0.3)
    monkeypatch.setattr(waits, "FIRST_LIMIT_S", 2.0)
    monkeypatch.setattr(pool, "SHARDS", waits.WaitKind("the run ends"))
    awake = Event()
    stopped = make_pool(*[lambda jobs: awake.wait(30) and None] * 2)
    try:
        start = time.monotonic()
        with pytest.raises(
            pool.WorkerError, match=r"workers 0, 1 have neither .* in 2 s; the last"
        ):
            stopped.play(RolloutSpec("train", {}), [["a"], ["b"], ["c"]])
        assert 2 <= time.monotonic() - start < 20
    finally:
        awake.set()
    named = [text for text in caplog.messages if "no answer for" in text]
    assert 1 <= len(named) <= 4
    assert "from rollout worker 0, rollout worker 1; after 2 s the run ends" in named[0]
