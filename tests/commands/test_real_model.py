"""Workflows and training with a pretrained model that is not ours: SmolLM2-135M-Instruct.

`FLOWZOO_REAL_MODEL` is its GGUF file or converted folder; `python tools/fetch_models.py smollm2`
fetches the file. Without it these tests are skipped, unless `FLOWZOO_REQUIRE_REAL_MODEL` is set.
"""

import asyncio
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from flowzoo.agents import Request, Sampling
from flowzoo.agents.hf.policy import TransformersPolicy
from flowzoo.agents.model_files import model_source
from flowzoo.agents.traits import has_bfloat16
from flowzoo.cli import main

NAME = "FLOWZOO_REAL_MODEL"
GIVEN = os.environ.get(NAME, "")
LOWER = "bfloat16" if has_bfloat16("cpu") else "float32"
SIGNS = """
def signs(rows, advantages, scores):
    return [1.0 if place % 2 else -1.0 for place in range(len(rows))]
"""
"""Advantages of either sign, as a model of this size solves nothing within a few tokens."""

if not GIVEN and os.environ.get("FLOWZOO_REQUIRE_REAL_MODEL"):
    raise pytest.UsageError(f"FLOWZOO_REQUIRE_REAL_MODEL is set and {NAME} names no model")
pytestmark = [
    pytest.mark.full,
    pytest.mark.xdist_group("real-model"),
    pytest.mark.skipif(not GIVEN, reason=f"{NAME} names no model (tools/fetch_models.py smollm2)"),
]


@pytest.fixture(scope="module")
def model() -> str:
    """The model's folder, converted if need be."""
    return model_source(GIVEN)


@pytest.fixture
def out(tmp_path: Path) -> Iterator[Path]:
    """A run directory that is not kept: checkpoints of all weights are large."""
    yield tmp_path / "run"
    shutil.rmtree(tmp_path / "run", ignore_errors=True)


def test_it_answers_as_a_model_with_its_own_tokens_and_template(model):
    policy = TransformersPolicy.from_pretrained(
        model, sampling=Sampling(temperature=0.0, max_tokens=24)
    )
    question = {"role": "user", "content": "What is the capital of France?"}
    (reply,) = asyncio.run(policy.generate([Request(("a",), "p", "p", [question])]))
    assert "Paris" in reply.text
    assert reply.finish == "stop"
    assert policy.engine_dtype == LOWER
    asyncio.run(policy.close())


def play(workflow: str, policy: str, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Evaluate on two problems; every reply has tokens, and the number format is said."""
    args = ["eval", workflow, "--options", "level=1", "--n", "2", "--max-tokens", "8"]
    assert main([*args, "--policy", policy, "--out", str(out)]) == 0
    *_, protocol, _, last = capsys.readouterr().out.splitlines()
    assert f", {LOWER}, " in protocol
    assert last.startswith("accuracy ")
    episodes = [json.loads(line) for line in (out / "episodes.jsonl").open()]
    assert len(episodes) == 2
    assert all(call["output_ids"] for episode in episodes for call in episode["calls"])


@pytest.mark.parametrize("workflow", ["voting", "eval_opt"])
def test_it_plays(workflow, model, out, capsys):
    play(workflow, f"hf:{model}", out, capsys)


@pytest.mark.vllm
def test_it_plays_with_vllm(model, out, capsys):
    play("voting", f"vllm:{model}", out, capsys)


def train(model: str, out: Path, steps: int, *args: str) -> list[dict[str, float]]:
    """Train to a step and return the rows of metrics."""
    (out.parent / "mine.py").write_text(SIGNS, encoding="utf-8")
    settings = [
        "train", "single", "--model", model, "--options", "level=1", "--problems", "2",
        "--samples", "2", "--max-tokens", "12", "--truncated", "penalize", "--eval-problems", "1",
        "--advantage-function", f"{out.parent / 'mine.py'}:signs", "--eval-every", "2",
        "--checkpoint-every", "1", "--keep-last", "1", "--optimizer", "adafactor",
        "--steps", str(steps), "--out", str(out),
    ]  # fmt: skip
    assert main([*settings, *args]) == 0
    return [json.loads(line) for line in (out / "metrics.jsonl").open()]


@pytest.mark.parametrize("rank", [0, 16])
def test_it_trains_and_resumes(rank, model, out, capsys):
    """All weights, and an adapter: a run of one step goes on to a second."""
    train(model, out, 1, f"--lora-rank={rank}")
    output = capsys.readouterr()
    assert ("engine_dtype bfloat16" in output.err) is (LOWER == "bfloat16")
    rows = train(model, out, 2, f"--lora-rank={rank}")
    assert f"resuming {out} after step 1" in capsys.readouterr().out
    assert [row["step"] for row in rows] == [0, 1, 2]
    for row in rows[1:]:
        assert row["learn/steps/shared"] >= 1
        # A mean over some 48 tokens, sampled in bfloat16; of another model it would be above 1.
        assert row["learn/logp_gap_mean/shared"] < 0.3, "sampler and learner are one model"
    record = json.loads((out / "run.json").read_text(encoding="utf-8"))
    assert record["settings"]["engine_dtype"] == LOWER
