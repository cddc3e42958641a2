"""Batches sampled ahead: the same ones, kept in checkpoints, dropped with their engine, paced."""

import json
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from flowzoo.agents.problems import ProblemStream
from flowzoo.agents.rollout.episodes import EpisodeJob, RolloutBatch, concat_batches
from flowzoo.agents.vllm.backend import EngineDeadError
from flowzoo.baselines.advantages.compute import RunningMean
from flowzoo.baselines.backends.backend import RolloutSpec, RunBackend, Shard
from flowzoo.baselines.backends.ray.weights import PublishedWeights, VersionError, WeightVersions
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.training import async_rollouts
from flowzoo.baselines.training.advantage_computer import FilteredBatch
from flowzoo.baselines.training.build import start_run
from flowzoo.baselines.training.plan import resolve
from flowzoo.baselines.training.trainer import Trainer
from flowzoo.envs import Call
from flowzoo.envs.tasks import make_task
from flowzoo.errors import UsageError
from tests.baselines.rows import new_call
from tests.refused import refused

SMALL: dict[str, Any] = {
    "steps": 3, "problems": 2, "samples": 3, "eval_problems": 1, "threads": 1, "max_tokens": 12,
    "workflow": "single",
}  # fmt: skip
TREE: dict[str, Any] = {"algorithm": "at_grpo", "workflow": "eval_opt", "candidates": 2,
                        "samples": 1}  # fmt: skip


def trainer(root: Path, **changes: Any) -> Trainer:
    return Trainer(start_run(TrainConfig(**{**SMALL, **changes, "out": str(root)})))


def plain(sampled: async_rollouts.SampledStep) -> dict[str, Any]:
    """A batch as values, without the time that it took."""
    (found,) = json.loads(async_rollouts.to_text([sampled]))
    del found["seconds"]
    return found


def test_a_batch_that_is_sampled_ahead_is_the_one_that_would_be_sampled_later(tmp_path):
    early, late = trainer(tmp_path / "a"), trainer(tmp_path / "b")
    early.run.batches.start(1)
    early.run.batches.wait()
    assert len(early.run.batches.ready) == 1
    assert early.run.state.stream.cursor == 2
    batch = early.run.batches.take(1)
    assert not early.run.batches.ready
    assert plain(batch) == plain(late.run.batches.take(1))
    assert batch.versions == {"shared": 0}
    early.close()
    late.close()


@pytest.mark.parametrize("changes", [{}, TREE])
def test_a_batch_comes_back_from_a_checkpoint_as_it_was(tmp_path, changes):
    run = trainer(tmp_path, **changes)
    sampled = run.run.batches.take(1)
    run.close()
    (tmp_path / async_rollouts.FILE).write_text(
        async_rollouts.to_text([sampled] * 2), encoding="utf-8"
    )
    found, same = async_rollouts.read(tmp_path)
    assert plain(found) == plain(same)
    assert found.gathered.sampled.rows == sampled.gathered.sampled.rows
    assert found.gathered.trained_jobs == sampled.gathered.trained_jobs
    assert found[2:] == sampled[2:]
    assert plain(found) == plain(sampled)
    records = found.gathered.sampled.records
    assert [record.score for record in records] == [
        record.score for record in sampled.gathered.sampled.records
    ]
    own = {id(call) for record in records for call in record.calls}
    shared = sum(id(row) in own for row in found.gathered.sampled.rows)
    assert 0 < shared <= len(found.gathered.sampled.rows)
    assert (shared == len(found.gathered.sampled.rows)) == (not changes)
    assert async_rollouts.read(tmp_path / "checkpoints") == []


def test_a_batch_whose_engine_dies_is_sampled_when_its_step_comes(tmp_path, monkeypatch):
    run = trainer(tmp_path / "a")
    told: list[BaseException] = []
    with monkeypatch.context() as patch:

        def die():
            raise EngineDeadError("it died")

        patch.setattr(run.run.engines, "before_rollout", die)
        patch.setattr(run.run.engines, "recover", told.append)
        run.run.batches.start(1)
        run.run.batches.wait()
    assert [str(error) for error in told] == ["it died"]
    assert not run.run.batches.ready
    assert run.run.state.stream.cursor == 0
    calm = trainer(tmp_path / "b")
    assert plain(run.run.batches.take(1)) == plain(calm.run.batches.take(1))
    run.close()
    calm.close()


def test_what_sampling_raises_is_raised_where_it_is_waited_for(tmp_path, monkeypatch):
    run = trainer(tmp_path)

    def fail():
        raise UsageError("a grader is missing")

    monkeypatch.setattr(run.run.engines, "before_rollout", fail)
    run.run.batches.start(1)
    with pytest.raises(UsageError, match="a grader is missing"):
        run.run.batches.wait()
    run.close()


SPLIT: dict[str, Any] = {"max_staleness": 1, "engine": "vllm", "placement": "split"}


@pytest.mark.parametrize(("changes", "text"), refused(__file__, "staleness"))
def test_settings_that_cannot_be_meant(changes, text):
    with pytest.raises(UsageError, match=text):
        resolve(TrainConfig(**changes))


def test_what_corrects_for_older_weights_is_taken():
    resolve(TrainConfig(**SPLIT))
    resolve(TrainConfig(**SPLIT, algorithm="rloo", old_logp="recomputed"))
    resolve(TrainConfig(**{**SPLIT, "max_staleness": 3, "deterministic": False}))


class Versions(RunBackend):
    """Plays rows that say what weights they were played with, and takes its time."""

    def __init__(self, most: int, seed: int) -> None:
        self.rng, self.published = random.Random(seed), WeightVersions(most)

    def play(self, plan: RolloutSpec, shards: Sequence[Shard], play: Any) -> list[RolloutBatch]:
        wanted = self.published.newest() if plan.versions is None else plan.versions
        time.sleep(self.rng.choice([0, 0, 0.001, 0.01]))
        version = self.published.get("p", wanted["p"]).file
        row = new_call(problem=f"{plan.step}", version=version)
        return [RolloutBatch([], [row])]


class Paced:
    """A trainer's loop without models, as often stopped and continued as `seed` says."""

    def __init__(self, most: int, steps: int, at_once: int, seed: int, root: Path) -> None:
        self.at_once = at_once
        self.most, self.steps, self.rng = most, steps, random.Random(seed)
        self.root, self.learned, self.seen = root, 0, list[tuple[Any, ...]]()
        self.stream, self.means = ProblemStream("train", 0), RunningMean()
        self.open()

    def open(self) -> None:
        """As a process with nothing but a checkpoint; only the newest weights are in that."""
        engines: Any = None  # rows come from the backend
        self.backend = Versions(self.most, self.rng.randrange(99))
        self.batches = async_rollouts.StepSampler(
            self.draw, engines, self.stream, self.means, lambda: {"p": self.learned},
            self.backend, 0, at_once=self.at_once,
        )  # fmt: skip
        self.batches.ready.extend(async_rollouts.read(self.root))
        self.publish()

    def publish(self) -> None:
        self.backend.published.add("p", PublishedWeights(self.learned, self.learned, ""))

    def draw(self, step: int, play: async_rollouts.PlayStep, means: RunningMean) -> FilteredBatch:
        """More from the stream at every other step; of lone batches in two draws, as a refill."""
        sampler: Any = None
        parts, known = [], means.means.get(("judged",), 0.0)
        draws = 2 if self.at_once == 1 else 1
        for _ in range(draws):
            self.stream.cursor += (1 + step % 2) * 2 // draws
            cursor = self.stream.cursor
            parts += [play(RolloutSpec("train", {}, step), sampler, []) for _ in range(2 // draws)]
        counts = {"cursor": float(cursor), "known": known}
        return FilteredBatch(concat_batches(parts), frozenset(), counts)

    def run(self) -> list[tuple[Any, ...]]:
        """Step, version, cursor and the last judged step that is known, of every row."""
        for step in range(1, self.steps + 1):
            self.batches.run_ahead(step - 1, min(step + self.most, self.steps))
            taken = self.batches.take(step)
            assert taken.step == step
            counts, rows = taken.gathered.counts, taken.gathered.sampled.rows
            assert len(rows) == 2
            for row in rows:
                assert row.problem == str(step)
                assert row.version == taken.versions["p"]
                self.seen.append((step, row.version, counts["cursor"], counts["known"]))
            self.means.means["judged",] = float(step)
            time.sleep(self.rng.choice([0, 0, 0.002, 0.02]))
            self.learned += 1
            if self.batches.lone:
                self.batches.wait()
            self.publish()
            assert len(self.backend.published) <= self.most + 1, "what nobody asks for is kept"
            if self.rng.random() < 0.2:
                if not self.batches.independent:
                    self.batches.settle()
                (found,) = self.backend.play(RolloutSpec("eval", {}), [], None)
                assert found.rows[0].version == self.learned, "evaluations have the newest weights"
            if self.rng.random() < 0.3:
                self.batches.settle()
                text = async_rollouts.to_text(self.batches.ready)
                (self.root / async_rollouts.FILE).write_text(text, encoding="utf-8")
                self.batches.close()
                self.open()
        self.batches.close()
        return self.seen


@pytest.mark.parametrize("most", [0, 1, 2, 5])
@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_every_step_has_the_weights_of_so_many_steps_before_whoever_is_faster(
    most, seed, beside, tmp_path
):
    found = Paced(most, 12, 1 + most * beside, seed, tmp_path).run()
    assert [row[:2] for row in found] == [
        (step, max(0, step - 1 - most)) for step in range(1, 13) for _ in range(2)
    ]
    cursors = [sum(2 * (1 + done % 2) for done in range(1, step + 1)) for step in range(1, 13)]
    assert [row[2] for row in found[::2]] == cursors, "each goes on where the one before has ended"
    # A batch is judged by the means of the steps behind its weights.
    known = [max(0, step - 1 - most) for step in range(1, 13)]
    assert [row[3] for row in found[::2]] == known


class InFlight(RunBackend):
    """One engine, whose weights are replaced while rows are played with it."""

    def __init__(self, seed: int) -> None:
        self.rng, self.version, self.deaths = random.Random(seed), 0, 0

    def play(self, plan: RolloutSpec, shards: Sequence[Shard], play: Any) -> list[RolloutBatch]:
        rows: list[Call] = []
        for job in [job for shard in shards for job in shard.jobs]:
            time.sleep(self.rng.choice([0, 0, 0.001, 0.02]))
            if self.deaths < 3 and self.rng.random() < 0.02:
                self.deaths += 1
                raise EngineDeadError("it died")
            problem = job.problem.id
            row = new_call(problem=problem, episode=job.key, policy="p", version=self.version)
            rows.append(row)
        return [RolloutBatch([], rows)]


class Recovering:
    """Engines that are alive again."""

    def recover(self, error: BaseException) -> None:
        """Do nothing."""


@pytest.mark.parametrize("most", [1, 2, 4])
@pytest.mark.parametrize("seed", range(4))
def test_weights_that_change_in_flight_are_at_most_so_many_steps_old(most, seed):
    backend, rng = InFlight(seed), random.Random(seed)
    stream, task = ProblemStream("train", 0), make_task("math")
    engines: Any = Recovering()

    def draw(step: int, play: async_rollouts.PlayStep, means: RunningMean) -> FilteredBatch:
        sampler: Any = None
        problems = stream.take(task, 6)
        jobs = [EpisodeJob(problem, number) for number, problem in enumerate(problems)]
        return FilteredBatch(play(RolloutSpec("train", {}, step), sampler, jobs), frozenset(), {})

    batches = async_rollouts.StepSampler(
        draw, engines, stream, RunningMean(), lambda: {"p": backend.version}, backend, 0,
        at_once=2, in_flight=True,
    )  # fmt: skip
    mixed, problems = 0, list[str]()
    while backend.version < 20:
        batches.run_ahead(backend.version, min(backend.version + 1 + most, 20))
        try:
            batch = batches.take(backend.version + 1)
        except EngineDeadError:  # beside nothing: the trainer's engines restart and play again
            stream.cursor = 6 * backend.version
            continue
        versions = [row.version for row in batch.gathered.sampled.rows]
        assert batch.versions == {"p": min(versions)}
        assert backend.version - min(versions) <= most
        mixed += len(set(versions)) > 1
        problems += [row.problem for row in batch.gathered.sampled.rows]
        time.sleep(rng.choice([0, 0.002, 0.03]))
        backend.version += 1
    batches.close()
    assert mixed, "else every batch waited for the weights"
    assert problems == [problem.id for problem in ProblemStream("train", 0).take(task, 120)]


def test_weights_that_are_still_to_be_played_with_are_kept_and_no_others():
    published = WeightVersions(2)
    for version in (2, 3, 4, 6):
        published.add("p", PublishedWeights(version, f"file {version}", ""))
    published.add("q", PublishedWeights(1, "file", ""))
    assert published.newest() == {"p": 6, "q": 1}
    assert [published.get("p", version).file for version in (3, 4, 6)] == [
        "file 3", "file 4", "file 6",
    ]  # fmt: skip
    assert len(published) == 4, "not 2, of a step that was played"
    with pytest.raises(VersionError, match=r"policy 'p' after 2 .* those after \[3, 4, 6\]"):
        published.get("p", 2)
    with pytest.raises(VersionError, match=r"policy 'r' after 0 .* those after \[\]"):
        published.get("r", 0)
