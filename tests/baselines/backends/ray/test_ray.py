"""Runs and faults in Ray clusters, all in one program: see `world.py` and `world_vllm.py`."""

import json
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

if find_spec("ray") is None:
    if os.environ.get("FLOWZOO_REQUIRE_RAY"):
        raise pytest.UsageError("FLOWZOO_REQUIRE_RAY is set and Ray is not installed")
    pytest.skip("needs flowzoo[scale]", allow_module_level=True)

pytestmark = [pytest.mark.full, pytest.mark.xdist_group("ray")]

WORLD = Path(__file__).with_name("world.py")
sys.path.append(str(WORLD.parent))

from ray_cluster import run_apart  # noqa: E402
from safetensors.torch import load_file  # noqa: E402

CASES = ("faults", "pool", "group", "groups", "learners", "graders", "ahead", "further")
_SECONDS = 4000


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that all cases have written to."""
    root = tmp_path_factory.mktemp("ray")
    words = [str(WORLD), str(root), *CASES]
    done = run_apart(words, _SECONDS, capture_output=True)
    # A case that hangs ends the program: the cases before it have results, and it has its stacks.
    hung = any(root.glob("*.stacks"))
    assert done.returncode == 0 or hung, done.stderr[-5000:]
    return root


def case(world: Path, name: str) -> dict[str, Any]:
    path = world / f"{name}.json"
    assert path.exists(), f"a case before hung: {[file.stem for file in world.glob('*.stacks')]}"
    found = json.loads(path.read_text(encoding="utf-8"))
    assert "error" not in found, found["error"]
    return found


def test_a_run_has_the_numbers_of_one_process_whoever_dies(world, repeated_rows, same_files):
    found = case(world, "faults")
    assert found["killed"] == 3
    assert 2 <= found["driver killed after"] < 5
    rows = repeated_rows(world / "local")
    assert len(rows) == 6
    assert repeated_rows(world / "ray") == rows
    same_files(world / "local", world / "ray", 5)
    summaries = [
        json.loads((world / name / "summary.json").read_text(encoding="utf-8")) | {"minutes": 0}
        for name in ("local", "ray")
    ]
    assert summaries[0] == summaries[1], "a driver without engines knows how its policies sample"


def test_one_step_ahead_repeats_with_another_number_of_workers_a_slow_one(world, repeated_rows):
    found = case(world, "ahead")
    rows = repeated_rows(world / "quiet")
    assert len(rows) == 4
    assert repeated_rows(world / "loud") == rows
    assert [row["staleness/generator"] for row in rows[1:]] == [0, 1, 1]
    assert found["overlaps"], "who is idle begins with the next step"
    adapters = sum(found["adapters"]) / 2**20
    assert len(found["adapters"]) == 2
    for sent in found["mib"][1:]:
        assert sent == pytest.approx(adapters, rel=0.01), "a sync moves the adapters alone"


@pytest.mark.parametrize(
    ("run", "steps", "apart"), [("one", 4, 0.0), ("none", 5, 1e-6), ("full", 5, 1e-6)]
)
def test_learners_that_are_actors_have_the_numbers_of_one_process(
    world, repeated_rows, run, steps, apart
):
    found = case(world, "learners")
    assert found["seen"] == [0, 1, 2, 3, 3, 4], "step 3 is done again, from the checkpoint of 2"
    assert found["killed"] == 2, "the second while it was starting in the place of the first"
    assert found["driver"] == "meta", "the driver has no weights"
    local, other = repeated_rows(world / "local")[: steps + 1], repeated_rows(world / run)
    assert len(other) == steps + 1
    for left, right in zip(local, other, strict=True):
        assert left.keys() == right.keys()
        for name, value in left.items():
            assert value == right[name] or abs(value - right[name]) <= apart, name
    files = sorted((world / run).glob("transcripts/*.jsonl"))
    assert len(files) == steps + 2 * (1 + (steps == 5)), "two of an evaluation, with its set"
    for path in files:
        assert path.read_bytes() == (world / "local" / "transcripts" / path.name).read_bytes(), path
    saved = f"checkpoints/step-{steps:08d}/policies/shared"
    weights = [load_file(world / name / saved / "model.safetensors") for name in ("local", run)]
    for name, value in weights[0].items():
        assert float((value - weights[1][name]).abs().max()) <= apart, name
    assert (world / run / saved / "optimizer").is_dir() == (run == "full")


def test_a_learner_group_returns_its_first_ranks_result_or_an_error(world):
    found = case(world, "group")
    assert found["strategy"] == "PACK"
    works = found["works"]
    assert [one[:2] for one in works] == [["works", 0.5]] * 2
    assert works[0][2] != works[1][2], "two processes"
    assert found["state"] == [["a note"], 1, 0.5]
    assert found["raises"] == "UsageError: no such row"
    assert found["dies"].startswith("LearnersLostError: learner worker 1 is gone (ActorDiedError)")
    assert "the same command goes on from there" in found["dies"]
    assert "learner workers 0, 1 have not answered in 3 s" in found["sleeps"]
    for what in ("raises", "dies", "sleeps"):
        assert found[f"{what}, seconds"] < 200, what


def test_policies_that_learn_at_the_same_time_have_the_numbers_of_one_process(
    world, repeated_rows, same_files
):
    found = case(world, "groups")
    assert found["seen"] == [0, 1, 2, 3], "step 3 is done again, from the checkpoint of 2"
    rows = repeated_rows(world / "apart-local")
    assert len(rows) == 5
    rates = [row[f"learn/lr/{name}"] for row in rows[1:] for name in ("aggregator", "generator")]
    updates = [1e-4, 2e-4, 2e-4, 1.8e-4, 1.6e-4, 1.4e-4, 1.2e-4, 1e-4]
    assert rates == pytest.approx(updates), "every update counts, after a warm-up of two"
    assert repeated_rows(world / "apart") == rows
    same_files(world / "apart-local", world / "apart", 4)
    took = [
        [json.loads(path.read_text()) for path in (world / "met").glob(f"*/* {number}.json")]
        for number in range(3)
    ]
    for both in took:
        assert len(both) == 2
        assert max(began for began, _ in both) < min(ended for _, ended in both)
    timed = [json.loads(line) for line in (world / "apart" / "metrics.jsonl").open()]
    for row in timed[1:]:
        for name in ("generator", "aggregator"):
            assert 0 < row[f"time/learn/{name}"] < row["time/learn"]


def test_data_parallel_work_at_the_same_time_and_end_together(world):
    found = case(world, "groups")
    assert found["strategies"] == ["PACK", "PACK"]
    works = found["works"]
    assert list(works) == ["a", "b", "c"]
    assert works["a"] == works["c"] != works["b"], "two processes"
    assert found["raises"] == "UsageError: no such row"
    lost = "LearnersLostError: learner worker 0 of b is gone (ActorDiedError)"
    assert found["dies"].startswith(lost)
    for what in ("raises", "dies"):
        assert found[f"{what}, seconds"] < 300, what


def test_graders_change_no_number_and_one_that_dies_loses_nothing(world, repeated_rows):
    found = case(world, "graders")
    assert found["when they hung"] == [[0, 1]], "nobody else grades"
    assert found["seen"] == [0, 1, 2, 3]
    assert repeated_rows(world / "graded") == repeated_rows(world / "local")[:4]
    files = sorted((world / "graded").glob("transcripts/*.jsonl"))
    assert len(files) == 5
    for path in files:
        assert path.read_bytes() == (world / "local" / "transcripts" / path.name).read_bytes(), path


def test_what_graders_are_asked_is_cut_repeated_or_an_error(world):
    found = case(world, "graders")
    assert found["strategy"] == "SPREAD"
    assert found["grading"] == {"sandbox": "usual"}
    few, many = found["few"], found["many"]
    assert [(word, size) for word, size, _ in few] == [("A", 2), ("B", 2)]
    assert [word for word, _, _ in many] == [str(number) for number in range(600)]
    assert [many[place][1] for place in (0, 256, 512)] == [256, 256, 88]
    assert len({pid for _, _, pid in many}) == 2
    assert found["once"] == ["A", "ONCE", *"BCDEFGHIJK"]
    assert found["bad"] == "UsageError: no such word"
    assert (
        "1 effects, the first of problem words/1, were lost with their grader 1 times"
        in (found["deadly"])
    )
    assert found["other"].startswith("UsageError: nodes would grade with different means")


def test_two_steps_ahead_repeats_with_a_slow_worker_and_whoever_is_killed(
    world, repeated_rows, same_files
):
    found = case(world, "further")
    assert found["kept"] == [3, 4]
    assert 3 <= found["driver killed after"] < 5
    assert found["killed"] == 1
    rows = repeated_rows(world / "two-quiet")
    assert len(rows) == 6
    assert repeated_rows(world / "two-loud") == rows
    for name in ("generator", "aggregator"):
        assert [row[f"version/{name}"] for row in rows[1:]] == [0, 0, 0, 1, 2]
        assert [row[f"staleness/{name}"] for row in rows[1:]] == [0, 1, 2, 2, 2]
        gaps = [row[f"learn/logp_gap_max/{name}"] for row in rows[1:]]
        assert gaps[0] < 1e-3 < min(gaps[1:]), "rows that were sampled with other weights"
        assert all(row[f"learn/importance/{name}"] != 1 for row in rows[2:])
    same_files(world / "two-quiet", world / "two-loud", 5)


def test_a_pool_loses_nothing_and_says_what_is_wrong(world):
    found = case(world, "pool")
    assert found["proved"] == 2
    assert found["beside"] == [[job * by for job in range(30)] for by in (10, 7, 10)]
    assert found["first"] is found["second"] is True
    assert found["losses"] >= 1
    assert found["raised"] == "UsageError: no such job"
    assert "was lost with its worker 2 times" in found["deadly"]
    assert found["back"] >= 1
    assert "does not have the learner's weights of policy 'p' after loading" in found["lies"]
    assert "have not proved in 2 s that they have the new weights" in found["late"]
    assert found["no room"].startswith(
        "NoRoomError: 1 rollout workers need a bundle of 1 CPU, 0 GPU each, and the cluster had no "
        "room for them in 2 s: it has 0 CPU, 0 GPU free of 2 CPU, 0 GPU on 2 nodes."
    )
    assert "1 rollout workers need a bundle of 1 CPU, 2 GPU each" in found["no gpu"]
    assert found["twice"].startswith("UsageError: this process is in a Ray cluster already")


VLLM_WORLD = Path(__file__).with_name("world_vllm.py")


def played(row: dict[str, Any]) -> dict[str, Any]:
    """All but the proofs of engines, which ask other tokens."""
    return {name: value for name, value in row.items() if not name.startswith("sync/")}


@pytest.mark.vllm
def test_a_worker_with_vllm_has_the_numbers_of_a_split_engine_whoever_dies(
    tmp_path, repeated_rows, same_files
):
    """Its engine, and then the worker; adapters of two policies share the engine.

    A learner worker learns while the next step is sampled.
    """
    done = run_apart([str(VLLM_WORLD), str(tmp_path)], 600, capture_output=True)
    assert done.returncode == 0, done.stderr[-5000:]
    found = json.loads((tmp_path / "vllm.json").read_text(encoding="utf-8"))
    assert found == {"killed": ["engine", "worker"], "left": 0, "learners": 1}
    mine, theirs = repeated_rows(tmp_path / "ray"), repeated_rows(tmp_path / "local")
    assert len(mine) == len(theirs) == 4
    for row, other in zip(mine, theirs, strict=True):
        assert played(row) == played(other), "bit for bit"
    for row in mine[1:]:
        for policy in ("generator", "aggregator"):
            assert row[f"learn/steps/{policy}"] == 1.0, "else nothing is published"
            assert row[f"staleness/{policy}"] == (row["step"] > 1)
            assert (row[f"learn/logp_gap_max/{policy}"] < 1e-3) == (row["step"] == 1)
    for policy in ("generator", "aggregator"):  # in the row that is written next after the proof
        gaps = [row[f"sync/gap_max/{policy}"] for row in mine if f"sync/gap_max/{policy}" in row]
        assert 0 < max(gaps) < 1e-3
    same_files(tmp_path / "local", tmp_path / "ray", 3)
