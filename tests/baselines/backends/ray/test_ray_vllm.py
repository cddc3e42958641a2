"""A rollout worker that samples with vLLM, in a cluster of one node: see `world_vllm.py`."""

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

pytestmark = [pytest.mark.vllm, pytest.mark.full, pytest.mark.xdist_group("ray")]

WORLD = Path(__file__).with_name("world_vllm.py")
sys.path.append(str(WORLD.parent))

from ray_cluster import run_apart  # noqa: E402


def played(row: dict[str, Any]) -> dict[str, Any]:
    """All but the proofs of engines, which ask other tokens."""
    return {name: value for name, value in row.items() if not name.startswith("sync/")}


def test_a_worker_with_vllm_has_the_numbers_of_a_split_engine_whoever_dies(
    tmp_path, repeated_rows, same_files
):
    """Its engine, and then the worker; adapters of two policies share the engine.

    A learner worker learns while the next step is sampled.
    """
    done = run_apart([str(WORLD), str(tmp_path)], 600, capture_output=True)
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
