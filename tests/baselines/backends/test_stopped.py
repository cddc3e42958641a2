"""A first SIGINT or SIGTERM makes a checkpoint on every backend, and the run goes on as if none."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

HERE = Path(__file__).parent
RAY = ("--backend=ray", "--rollout-workers=1")
RANKS = ("--backend=torchrun", "--ranks=2")


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "status", "moment", "words"),
    [
        ("SIGTERM", 143, "sampled", ()),
        ("SIGINT", 130, "quiet", ()),
        ("SIGTERM", 143, "sampled", RANKS),
        ("SIGINT", 130, "quiet", RANKS),
        pytest.param("SIGTERM", 143, "sampled", RAY, marks=pytest.mark.xdist_group("ray")),
    ],
)
def test_a_signal_makes_a_checkpoint_from_which_the_run_has_the_same_bits(
    tmp_path, monkeypatch, name, status, moment, words
):
    program = [str(HERE / "stopped.py"), str(tmp_path), name, moment, *words]
    if words == RAY:
        if find_spec("ray") is None:
            pytest.skip("needs flowzoo[scale]")
        monkeypatch.syspath_prepend(HERE / "ray")
        from ray_cluster import run_apart

        run_apart(program, 3000)
    else:
        subprocess.run([sys.executable, *program], check=True, timeout=3000)
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["status"] == status, found["said"]
    lines = [line for line in found["said"].splitlines() if line]
    assert f"{name}: the run ends with a checkpoint, after this step or in 3 s" in found["said"]
    if moment == "sampled":
        assert lines[-1].startswith("interrupted: step 2 of 4 was done; "), found["said"]
        assert "has a checkpoint of step 2, from which the same command resumes" in lines[-1]
    assert found["kept"][0] == "step-00000000"
    assert len(found["kept"]) == 2, "one more than the run itself would have made"
    assert "Traceback" not in found["said"]
    assert found["ends"] == [0, 0]
    assert (found["steps"], found["files"]) == (5, 1)
    assert found["rows"]
    assert found["weights"]
