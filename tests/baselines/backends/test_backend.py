"""Shards, and where the work of a run is done."""

import ast
from collections.abc import Iterator
from pathlib import Path

import torch

import flowzoo
from flowzoo.agents.rollout.episodes import EpisodeJob
from flowzoo.baselines.backends.backend import Shard, cut_shards
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.training.build import start_run
from flowzoo.baselines.training.trainer import Trainer
from flowzoo.envs import make_workflow

PACKAGE = Path(flowzoo.__file__).parent
APART = {"torch.distributed", "ray"}
"""Modules that a single process does not import."""


def test_shards_are_cut_by_size_alone():
    task = make_workflow("single").task
    jobs = [EpisodeJob(task.problem(0, "train"), sample) for sample in range(5)]
    whole = cut_shards(jobs, 0)
    assert whole == [Shard(0, tuple(jobs))]
    assert [(one.number, len(one.jobs)) for one in cut_shards(jobs, 2)] == [(0, 2), (1, 2), (2, 1)]
    assert [job for one in cut_shards(jobs, 2) for job in one.jobs] == jobs
    assert cut_shards([], 2) == [Shard(0, ())]


def test_a_shard_is_a_batch_of_its_own(tmp_path):
    small = {
        "workflow": "single", "model": "pocket:xs", "problems": 2, "samples": 3, "steps": 1,
        "eval_problems": 2, "threads": 1, "max_tokens": 12,
    }  # fmt: skip
    batches = []
    for name, size in (("whole", 0), ("cut", 4)):
        trainer = Trainer(
            start_run(TrainConfig(**small, shard_jobs=size, out=str(tmp_path / name)))
        )
        played: list[int] = []
        sample = trainer.run.draws.sampler

        def watched(*given, sample=sample, played=played):
            found = sample(*given)
            before = found.sample
            found.sample = lambda jobs: played.append(len(list(jobs))) or before(jobs)
            return found

        trainer.run.draws.sampler = watched
        batches.append(trainer.run.batches.take(1).gathered.sampled)
        assert played == ([6] if not size else [4, 2])
        trainer.close()
    whole, cut = batches
    assert [row.output_ids for row in whole.rows] == [row.output_ids for row in cut.rows]
    assert [one.episode for one in whole.records] == [one.episode for one in cut.records]
    assert not torch.distributed.is_initialized()


def imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def at_start(path: Path) -> Iterator[str]:
    """Imports of a module when it is imported, without those for types."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, (ast.Import, ast.ImportFrom, ast.Try, ast.With)):
            yield from imports(node)


def test_one_process_imports_neither_ray_nor_torch_distributed():
    starts = {
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): set(at_start(path))
        for path in PACKAGE.rglob("*.py")
    }
    apart = {
        name
        for name, found in starts.items()
        if any(one == kind or one.startswith(f"{kind}.") for one in found for kind in APART)
    }
    reached, new = (
        set[str](),
        {"flowzoo.baselines.training.trainer", "flowzoo.baselines.backends.backend"},
    )
    while new:
        reached |= new
        new = {one for name in new for one in starts.get(name, ())} - reached
    assert len(reached) > 100, "looked in the wrong place"
    assert not reached & apart
