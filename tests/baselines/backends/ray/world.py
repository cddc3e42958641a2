"""Rollout workers in a cluster of two nodes on this machine; run by `test_ray.py`.

    world.py FOLDER CASE ...

One cluster for all cases: to start one takes half a minute. Every case writes its result into
FOLDER/CASE.json, or its error; one that hangs writes the stacks of all threads, and ends the
program. See `ray_cluster.py`.
"""

import asyncio
import faulthandler
import json
import os
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ray_cluster import NODE, Killer, meanwhile, raise_loopback, start_cluster, warm_up, workers_now
from world_groups import group_alone, groups_alone, meet, said

from flowzoo.baselines.backends.backend import RolloutSpec
from flowzoo.baselines.backends.ray.worker import Loaded
from flowzoo.errors import UsageError

CASES = ("faults", "pool", "group", "groups", "learners", "graders", "ahead", "further")
"""In the order in which they are played: some need the nodes that earlier ones have added."""
CASE_S = 1200.0
"""Time limit of a case, in seconds; beside all other tests it takes ten times as long as alone."""
PLAN = RolloutSpec("eval", {})
MORE = Path(__file__).parents[1] / "more.jsonl"
SMALL: dict[str, Any] = {
    "workflow": "voting", "model": "pocket:xs", "problems": 2, "samples": 4, "eval_problems": 2,
    "eval_every": 5, "checkpoint_every": 2, "transcripts_every": 1, "threads": 1, "shard_jobs": 2,
    "microbatch_tokens": 1000, "max_tokens": 24, "eval_sets": (f"more={MORE}",),
}  # fmt: skip
AHEAD: dict[str, Any] = {
    **SMALL, "max_staleness": 1, "lora_rank": 4, "sharing": ("isolated",), "eval_every": 10,
    "checkpoint_every": 10, "steps": 3,
}  # fmt: skip
FURTHER: dict[str, Any] = {
    **AHEAD, "max_staleness": 2, "old_logp": "recomputed", "checkpoint_every": 2, "eval_every": 2,
    "steps": 5,
}  # fmt: skip
"""Adapters as in `AHEAD`, and every batch two steps old in the end."""
APART: dict[str, Any] = {
    **SMALL, "sharing": ("isolated",), "checkpoint_every": 1, "steps": 4, "schedule": "linear",
    "schedule_clock": "update", "schedule_steps": 6,
}  # fmt: skip
"""Two policies with full weights, whose learning rates count the updates of both."""


def stutter(over: threading.Event) -> None:
    """Let one worker run a tenth of the time."""
    pid = 0
    while not over.is_set():
        pids = [one.pid for one in workers_now()]
        pid = pid if pid in pids else pids[0] if pids else 0
        for number, seconds in ((signal.SIGSTOP, 0.27), (signal.SIGCONT, 0.03)):
            if pid:
                os.kill(pid, number)
            time.sleep(seconds)


# -- a pool alone, whose workers need no torch -----------------------------------------------------


def open_pool(address: str, kind: str, **given: Any) -> Any:
    """A pool of two workers with a player of this file."""
    from flowzoo.baselines.backends.ray.backend import start_workers
    from flowzoo.baselines.backends.ray.cluster import connect
    from flowzoo.baselines.backends.ray.pool import RolloutPool
    from flowzoo.baselines.backends.ray.worker import OpenPlayer

    connect(address, {})
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)
    opener = OpenPlayer(f"{Path(__file__).stem}:{kind}", (given,))
    workers, _ = start_workers(2, opener, 1, 0)
    pool = RolloutPool(workers, ahead=1)
    pool.ask(lambda worker: worker.open.remote())
    return pool


class WordPlayer:
    """Multiplies numbers by its weights, which are wrong until some are loaded."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.given, self.weights = given, -1

    def play(self, plan: RolloutSpec, jobs: Sequence[int]) -> list[int]:
        time.sleep(0.05)
        if self.given["deadly"] in jobs:
            os._exit(1)
        if self.given["bad"] in jobs:
            raise UsageError("no such job")
        return [job * self.weights for job in jobs]

    def load(self, policy: str, version: int, weights: bytes) -> Loaded:
        self.weights = int(weights)
        time.sleep(4 if self.weights == self.given["late"] else 0)
        return Loaded(weights.decode() if self.weights != self.given["lies"] else "other", version)

    def lost(self) -> list[str]:
        return []

    def probes(self) -> dict[str, Any]:
        return {}

    def grading(self) -> dict[str, Any]:
        return {}


def publish(pool: Any, version: int, weights: int, within: float = 60.0) -> int:
    import numpy as np
    import ray

    file = ray.put(np.frombuffer(str(weights).encode(), np.uint8))
    pool.publish("p", version, file, str(weights))
    return pool.prove(within)


def beside(pool: Any) -> list[Any]:
    """Three batches of two versions, played by three threads, and a worker killed meanwhile."""
    import numpy as np
    import ray

    plans = [replace(PLAN, versions={"p": version}) for version in (1, 5, 1)]
    pool.publish("p", 5, ray.put(np.frombuffer(b"7", np.uint8)), "7")
    work = [[number] for number in range(30)]
    with meanwhile(Killer(1)), ThreadPoolExecutor(len(plans)) as threads:
        return [*threads.map(lambda plan: [*chain(*pool.play(plan, work))], plans)]


def pool(address: str, folder: Path) -> dict[str, Any]:
    """Kills between and during plays, weights that change, and errors."""
    import ray

    from flowzoo.baselines.backends.ray import pool as pools
    from flowzoo.baselines.backends.ray.cluster import connect, place

    found: dict[str, Any] = {}
    work = [[number, number + 1] for number in range(40)]
    one = open_pool(address, "WordPlayer", bad=105, deadly=107, lies=40, late=50)
    found["proved"] = publish(one, 1, 10)
    found["first"] = one.play(PLAN, work) == [[job * 10 for job in jobs] for jobs in work]
    found["beside"] = beside(one)
    os.kill(workers_now()[0].pid, signal.SIGKILL)
    killer = Killer(1)
    with meanwhile(killer):
        publish(one, 6, 20)
        found["second"] = one.play(PLAN, work) == [[j * 20 for j in jobs] for jobs in work]
    found["losses"], found["killed"] = one.losses, len(killer.done)
    found["no room"] = said(lambda: place([{"CPU": 1.0}], within=2))
    found["no gpu"] = said(lambda: place([{"CPU": 1.0, "GPU": 2.0}], within=1))
    found["twice"] = said(lambda: connect(address, {}))
    found["raised"] = said(lambda: one.play(PLAN, [[101], [105]]))
    pools.MOST_LOSSES = 1
    found["deadly"] = said(lambda: one.play(PLAN, [[107]]))
    found["late"] = said(lambda: publish(one, 7, 50, within=2))
    # The older load is still under way.
    found["back"] = publish(one, 8, 60, within=30)
    found["lies"] = said(lambda: publish(one, 9, 40))
    ray.shutdown()
    return found


# -- whole runs ------------------------------------------------------------------------------------


def settings(address: str, out: Path, **changes: Any) -> Any:
    from flowzoo.baselines.settings.config import TrainConfig

    there = {"backend": "ray", "ray_address": address, "rollout_workers": 2} if address else {}
    return TrainConfig(**{**SMALL, "steps": 5, **there, **changes, "out": str(out)})


def faults(address: str, folder: Path) -> dict[str, Any]:
    """Driver killed after step 2, then a worker and a node, another joined; and one process."""
    from flowzoo.baselines.training.trainer import train

    DRIVERS["faults"].begin(address)
    at = DRIVERS["faults"].kill_after(3, folder / "ray" / "metrics.jsonl")
    killer = Killer(3)

    def lose(row: dict[str, Any]) -> None:
        if row["step"] == 4:
            CLUSTER.remove_node(CLUSTER.nodes[1])
            CLUSTER.nodes[1] = CLUSTER.add_node(**NODE)

    with meanwhile(killer):
        train(settings(address, folder / "ray"), lose)
    train(settings("", folder / "local"))
    return {"killed": len(killer.done), "driver killed after": at}


@contextmanager
def overlaps() -> Iterator[set[int]]:
    """Steps whose shards were given out while shards of the step before had no result."""
    from flowzoo.baselines.backends.ray.schedule import Schedule

    steps, usual = set[int](), Schedule.assign

    def assign(self: Any, now: float) -> Any:
        assignments = usual(self, now)
        under_way = {
            plan.step
            for batch in self._batches if not batch.finished
            for plan, _ in batch.work[:1] if plan.mode == "train"
        }  # fmt: skip
        for assignment in assignments:
            plan, _ = assignment.shard.batch.work[assignment.shard.index]
            if plan.mode == "train" and plan.step - 1 in under_way:
                steps.add(plan.step)
        return assignments

    Schedule.assign = assign
    try:
        yield steps
    finally:
        Schedule.assign = usual


def ahead(address: str, folder: Path) -> dict[str, Any]:
    """One step ahead with adapters: one worker alone, and two, of which one is slow."""
    from flowzoo.baselines.training.build import start_run
    from flowzoo.baselines.training.trainer import Trainer, train

    sent = []
    train(
        settings(address, folder / "quiet", **AHEAD, rollout_workers=1),
        lambda row: sent.append(row.get("perf/published_mib")),
    )
    adapters = [
        path.stat().st_size
        for path in (folder / "quiet/checkpoints/step-00000003").rglob("adapter_model.safetensors")
    ]
    trainer = Trainer(start_run(settings(address, folder / "loud", **AHEAD, learner_workers=1)))
    with meanwhile(stutter), overlaps() as steps:
        trainer.train()
    return {"mib": sent, "adapters": adapters, "overlaps": sorted(steps)}


def further(address: str, folder: Path) -> dict[str, Any]:
    """Two steps ahead: one worker, and two, one slow, with a driver and a worker killed."""
    from flowzoo.baselines.training.trainer import train

    train(settings(address, folder / "two-quiet", **FURTHER, rollout_workers=1))
    with meanwhile(stutter):
        DRIVERS["further"].begin(address)
        at = DRIVERS["further"].kill_after(3, folder / "two-loud" / "metrics.jsonl")
        kept = (folder / "two-loud/checkpoints/step-00000002/ahead.json").read_bytes()
        killer = Killer(1)
        with meanwhile(killer):
            train(settings(address, folder / "two-loud", **FURTHER))
    steps = [one["step"] for one in json.loads(kept)]
    return {"driver killed after": at, "kept": steps, "killed": len(killer.done)}


def learners(address: str, folder: Path) -> dict[str, Any]:
    """One learner worker, killed after step 3, until step 4; from there two, in both ways.

    The first one that is started in its place is killed too, before it has learned anything.
    """
    from flowzoo.baselines.training import trainer as module
    from flowzoo.baselines.training.build import start_run
    from flowzoo.baselines.training.trainer import Trainer, train

    module.AGAIN_S = 0.0
    known: list[int] = []

    def kill_next(over: threading.Event) -> None:
        while not over.wait(0.02):
            new = [worker.pid for worker in workers_now("LearnerWorker") if worker.pid not in known]
            if known and new:
                os.kill(new[0], signal.SIGKILL)
                known.append(new[0])
                return

    one = Trainer(
        start_run(settings(address, folder / "one", rollout_workers=1, learner_workers=1))
    )
    seen: list[int] = []

    def disturb(row: dict[str, Any]) -> None:
        seen.append(row["step"])
        if seen == [0, 1, 2, 3]:
            known.extend(one.run.backend.learner_groups.pids["shared"])
            os.kill(known[0], signal.SIGKILL)
        if row["step"] == 4:
            raise InterruptedError

    with suppress(InterruptedError), meanwhile(kill_next):
        one.train(disturb)
    for shard in ("none", "full"):
        shutil.copytree(folder / "one", folder / shard)
        train(settings(address, folder / shard, rollout_workers=1, learner_workers=2, shard=shard))
    return {
        "seen": seen,
        "killed": len(known),
        "driver": str(one.run.state.trained["shared"].weights.model.device),
    }


# -- graders ---------------------------------------------------------------------------------------


class WordGrader:
    """Says words loudly; some end it, and a file says what it grades with."""

    def __init__(self, given: dict[str, str]) -> None:
        self.folder = Path(given["folder"])

    def grading(self) -> dict[str, str]:
        return {"sandbox": "other" if (self.folder / "other").exists() else "usual"}

    def resolve(self, plan: RolloutSpec, effects: Sequence[Any]) -> list[Any]:
        words = [word for _, word in effects]
        if "once" in words and not (self.folder / "once").exists():
            (self.folder / "once").touch()
            os._exit(1)
        if "deadly" in words:
            os._exit(1)
        if "bad" in words:
            raise UsageError("no such word")
        return [(word.upper(), len(words), os.getpid()) for word in words]


def graders_alone(address: str, folder: Path) -> dict[str, Any]:
    """Two graders of this file, and effects that end them."""
    import ray

    from flowzoo.baselines.backends.ray import graders as module
    from flowzoo.baselines.backends.ray.cluster import connect
    from flowzoo.baselines.backends.ray.worker import OpenPlayer

    connect(address, {})
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)
    token = folder / "token"
    token.touch()
    opener = OpenPlayer(f"{Path(__file__).stem}:WordGrader", ({"folder": str(folder)},))
    some, group = module.start_graders(2, opener, 1, str(token), str(folder))

    def ask(*words: str) -> list[Any]:
        async def wait() -> list[Any]:
            problem: Any = SimpleNamespace(id="words/1")
            task: Any = None
            effects: Any = [(problem, word) for word in words]
            return await some(PLAN)(task, effects)

        return asyncio.run(wait())

    found: dict[str, Any] = {"grading": some.grading}
    found["strategy"] = ray.util.placement_group_table(group)["strategy"]
    found["few"] = ask("a", "b")
    found["many"] = ask(*map(str, range(600)))
    found["once"] = [word for word, _, _ in ask("a", "once", *"bcdefghijk")]
    found["bad"] = said(lambda: ask("a", "bad"))
    module.MOST_LOSSES = 1
    found["deadly"] = said(lambda: ask("deadly"))
    module.MOST_LOSSES = 10
    (folder / "other").touch()
    for one in workers_now("GraderWorker"):
        os.kill(one.pid, signal.SIGKILL)
    found["other"] = said(lambda: ask("a"))
    ray.util.remove_placement_group(group)
    ray.shutdown()
    return found


def graders(address: str, folder: Path) -> dict[str, Any]:
    """Two graders that hang after step 1, and then die with what they were asked; then a worker."""
    from flowzoo.baselines.training.trainer import train

    (folder / "alone").mkdir()
    found = graders_alone(address, folder / "alone")
    seen: list[int] = []
    there: list[list[int]] = []

    def wake(pids: Sequence[int]) -> None:
        there.append(list(seen))
        for pid in pids:
            os.kill(pid, signal.SIGKILL)

    def disturb(row: dict[str, Any]) -> None:
        seen.append(row["step"])
        if row["step"] == 1:
            pids = [one.pid for one in workers_now("GraderWorker")]
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
            threading.Timer(2.0, wake, [pids]).start()
        if row["step"] == 2:
            os.kill(workers_now()[0].pid, signal.SIGKILL)
        if row["step"] == 3:
            raise InterruptedError

    with suppress(InterruptedError):
        train(settings(address, folder / "graded", rollout_workers=1, graders=2), disturb)
    return {**found, "when they hung": there, "seen": seen}


# -- learner groups


def group(address: str, folder: Path) -> dict[str, Any]:
    """Two ranks that work together, on a node that is added for them."""
    CLUSTER.add_node(**{**NODE, "num_cpus": 2})
    return group_alone(address)


def timed_update(learner: Any, folder: Path, policy: str, other: str, *given: Any) -> Any:
    """An update that begins beside the other policy's, and says from when to when it took."""
    began, number = time.monotonic(), learner.iteration
    meet(learner, folder, f"{policy} {number}", f"{other} {number}")
    row = learner.update(*given)
    took = json.dumps([began, time.monotonic()])
    (folder / f"{policy} {number}.json").write_text(took, encoding="utf-8")
    return row


def groups(address: str, folder: Path) -> dict[str, Any]:
    """A learner group each, one killed after step 2, until step 3; one process goes on."""
    from flowzoo.baselines.backends.ray.learners import RemoteLearner
    from flowzoo.baselines.training.build import start_run
    from flowzoo.baselines.training.trainer import Trainer, train

    found = groups_alone(address, folder / "groups-alone")
    others = {"generator": "aggregator", "aggregator": "generator"}
    seen: list[int] = []

    def update(self: Any, *given: Any) -> Any:
        pids = one.run.backend.learner_groups.pids
        there = folder / "met" / "-".join(str(pids[name][0]) for name in others)
        return self.apply(timed_update, there, self._policy, others[self._policy], *given)

    def disturb(row: dict[str, Any]) -> None:
        seen.append(row["step"])
        if seen == [0, 1, 2]:
            os.kill(one.run.backend.learner_groups.pids["generator"][0], signal.SIGKILL)
        if row["step"] == 3:
            raise InterruptedError

    words = ("generator=1", "aggregator=1")
    there = settings(address, folder / "apart", **APART, rollout_workers=1, learner_workers=words)
    usual, RemoteLearner.update = RemoteLearner.update, update
    try:
        one = Trainer(start_run(there))
        with suppress(InterruptedError):
            one.train(disturb)
    finally:
        RemoteLearner.update = usual
    train(settings("", folder / "apart", **APART))
    train(settings("", folder / "apart-local", **APART))
    return {**found, "seen": seen}


# -- the world ------------------------------------------------------------------------------------


class Driver:
    """A fork that trains until it is killed, once it is told where the cluster is."""

    def __init__(self, out: Path, **changes: Any) -> None:
        reading, self._telling = os.pipe()
        self.pid = os.fork()
        if self.pid:
            os.close(reading)
            return
        os.close(self._telling)
        try:
            with os.fdopen(reading) as pipe:
                address = pipe.readline().strip()  # forks after this one hold the other end, too
            if address:
                from flowzoo.baselines.training.trainer import train

                train(settings(address, out, **changes))
        except BaseException:
            traceback.print_exc()
        os._exit(1)

    def begin(self, address: str) -> None:
        """Tell it."""
        os.write(self._telling, f"{address}\n".encode())
        os.close(self._telling)

    def kill_after(self, step: int, metrics: Path) -> int:
        """Kill it once it has done `step`; the step that it has come to."""
        deadline = time.monotonic() + CASE_S / 2
        while not metrics.exists() or len(metrics.read_bytes().splitlines()) <= step:
            assert time.monotonic() < deadline, f"the driver does not come to step {step}"
            assert not os.waitpid(self.pid, os.WNOHANG)[0], "the driver has ended by itself"
            time.sleep(0.05)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        return len(metrics.read_bytes().splitlines()) - 1


def ray_shutdown() -> None:
    import ray

    ray.shutdown()


def give_up(result: Path) -> None:
    """Write the stacks of all threads as the error of a case, and end cluster and program."""
    stacks = result.with_suffix(".stacks")
    with stacks.open("w", encoding="utf-8") as file:
        faulthandler.dump_traceback(file)
    there = {kind: workers_now(kind) for kind in ("RolloutWorker", "LearnerWorker", "GraderWorker")}
    error = f"not done in {CASE_S:.0f} s\nactors: {there}\n{stacks.read_text(encoding='utf-8')}"
    result.write_text(json.dumps({"error": error}), encoding="utf-8")
    kill_forks()
    for node in CLUSTER.nodes:  # `shutdown` refuses while this program is connected
        node.kill_all_processes(check_alive=False)
    os._exit(1)


def kill_forks() -> None:
    """Kill the drivers and the server of workers."""
    for pid in (*(driver.pid for driver in DRIVERS.values()), SERVER):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def main() -> None:
    global CLUSTER, DRIVERS, SERVER
    folder, cases = Path(sys.argv[1]), sys.argv[2:]
    raise_loopback()
    SERVER = warm_up()
    DRIVERS = {}
    if "faults" in cases:
        DRIVERS["faults"] = Driver(folder / "ray", rollout_workers=1)
    if "further" in cases:
        DRIVERS["further"] = Driver(folder / "two-loud", **FURTHER)
    CLUSTER = start_cluster(NODE, NODE)
    try:
        for case in sorted(cases, key=CASES.index):
            began, result = time.monotonic(), folder / f"{case}.json"
            watchdog = threading.Timer(CASE_S, give_up, [result])
            watchdog.daemon = True
            watchdog.start()
            found: dict[str, Any]
            try:
                found = globals()[case](CLUSTER.address, folder)
            except BaseException:
                found = {"error": traceback.format_exc()}
            finally:
                ray_shutdown()
                watchdog.cancel()
            if result.exists():  # it is being given up
                return
            found["seconds"] = time.monotonic() - began
            result.write_text(json.dumps(found), encoding="utf-8")
    finally:
        CLUSTER.shutdown()
        kill_forks()


if __name__ == "__main__":
    main()
