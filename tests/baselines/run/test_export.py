"""Exported policies, loaded by the software they are exported for."""

import asyncio
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import AutoPeftModelForCausalLM
from transformers import AutoModelForCausalLM, AutoTokenizer

from flowzoo.agents import Request, Sampling
from flowzoo.agents.hf.policy import TransformersPolicy, load_model
from flowzoo.agents.pocket import pocket_path
from flowzoo.baselines.engines.hf import load_policies, policy_models
from flowzoo.baselines.learner.config import LearnerConfig
from flowzoo.baselines.learner.update import Learner
from flowzoo.baselines.learner.weights import Weights
from flowzoo.baselines.run import checkpoint
from flowzoo.baselines.run.checkpoint import CheckpointRetention
from flowzoo.baselines.run.export import export_policy
from flowzoo.baselines.run.manifest import find_checkpoint
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.settings.policies import starting_models
from flowzoo.cli import main
from flowzoo.errors import DataError, UsageError
from flowzoo.files import file_digest, read_json, write_json
from tests.refused import refused

pytestmark = pytest.mark.xdist_group("export")  # they share runs

TEXT = "What is 3 + 4?"


def make_run(root: Path, rank: int) -> dict[str, Any]:
    """A run of two policies with checkpoints of steps 1 and 2; returns their logits by step."""
    config = TrainConfig(lora_rank=rank, device="cpu", threads=1)
    trained = load_policies(
        config, policy_models(config, starting_models(config, ["solver", "writer"]), "math")
    )
    learners = {name: Learner(one.weights, LearnerConfig()) for name, one in trained.items()}
    tokenizers = {name: one.tokenizer for name, one in trained.items()}
    seen: dict[str, Any] = {}
    torch.manual_seed(0)
    for step, score in ((1, 0.75), (2, 0.5)):
        for name, one in trained.items():
            with torch.no_grad():
                for weight in one.weights.parameters():
                    weight.add_(0.02 * torch.randn_like(weight))
            seen[f"{name}-{step}"] = logits_of(one.weights)
        checkpoint.save(
            root / "checkpoints", step, learners, tokenizers, score=score,
            state={"config": {"lora_rank": rank}}, keep=CheckpointRetention(last=3),
        )  # fmt: skip
    settings = {"workflow": "voting", "lora_rank": rank, "sharing": ["isolated"], "steps": 2}
    write_json(root / "run.json", {"settings": settings})
    rows = ({"step": step, "eval/scores": [1.0, 0.0, float(step), 1.0]} for step in range(2))
    (root / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return seen


def logits_of(weights: Any) -> Any:
    with weights.active():
        return logits(weights.model)


def logits(model: Any) -> Any:
    with torch.no_grad():
        return model(torch.arange(12)[None], use_cache=False).logits


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    root = tmp_path_factory.mktemp("full")
    return root, make_run(root, 0)


@pytest.fixture(scope="module")
def lora(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    root = tmp_path_factory.mktemp("lora")
    return root, make_run(root, 4)


def plays(model: Any, tokenizer: Any) -> str:
    """The chat template, the end token and the model belong together."""
    policy = TransformersPolicy(model, tokenizer, sampling=Sampling(0.0, max_tokens=24))
    chat = [{"role": "user", "content": TEXT}]
    return asyncio.run(policy.generate([Request(("k",), "a_0", "a", chat)]))[0].text


@pytest.mark.parametrize(("step", "number"), [("best", 1), ("last", 2), ("1", 1)])
def test_full_weights_load_with_transformers(step, number, full, tmp_path):
    root, seen = full
    out = tmp_path / "out"
    done = export_policy(root, out, policy="writer", step=step)
    assert (done.path, done.step, done.base) == (out, number, None)
    model = AutoModelForCausalLM.from_pretrained(out)
    assert torch.equal(logits(model), seen[f"writer-{number}"])
    assert isinstance(plays(model, AutoTokenizer.from_pretrained(out)), str)
    assert model.generation_config.eos_token_id is not None
    names = {path.name for path in out.iterdir()}
    assert {"config.json", "generation_config.json", "tokenizer.json", "flowzoo.json"} <= names
    assert "learner.pt" not in names
    record = json.loads((out / "flowzoo.json").read_text())
    assert (record["policy"], record["step"], record["score"]) == (
        "writer", number, {1: 0.75, 2: 0.5}[number],
    )  # fmt: skip
    assert record["settings"] == {"lora_rank": 0}


def test_an_adapter_loads_with_peft(lora, tmp_path):
    root, seen = lora
    done = export_policy(root, tmp_path / "out", policy="solver")
    assert done.base is not None
    model = AutoPeftModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    torch.testing.assert_close(logits(model), seen["solver-2"], atol=1e-5, rtol=1e-5)
    assert not list((tmp_path / "out").glob("model*.safetensors"))
    AutoTokenizer.from_pretrained(tmp_path / "out")


def test_a_merged_adapter_is_a_plain_model(lora, tmp_path):
    root, seen = lora
    done = export_policy(root, tmp_path / "out", policy="solver", step="best", merge=True)
    assert done.base is None
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert not hasattr(model, "peft_config")
    torch.testing.assert_close(logits(model), seen["solver-1"], atol=1e-4, rtol=1e-4)
    assert isinstance(plays(model, AutoTokenizer.from_pretrained(tmp_path / "out")), str)
    assert not list((tmp_path / "out").glob("adapter*"))
    assert (tmp_path / "out" / "generation_config.json").exists()


@pytest.mark.parametrize("rank", [0, 2])
def test_exports_end_where_training_did(rank, tmp_path):
    base = tmp_path / "base"
    shutil.copytree(pocket_path("math", "xs"), base)
    write_json(base / "generation_config.json", {"eos_token_id": 5})  # the tokenizer's is 2
    config = TrainConfig(model=str(base), lora_rank=rank, device="cpu", threads=1)
    trained = load_policies(
        config, policy_models(config, starting_models(config, ["solver"]), "math")
    )
    learners = {name: Learner(one.weights, LearnerConfig()) for name, one in trained.items()}
    checkpoint.save(
        tmp_path / "run" / "checkpoints", 1, learners,
        {name: one.tokenizer for name, one in trained.items()},
        models={name: one.model for name, one in trained.items()},
    )  # fmt: skip
    outs = {merge: tmp_path / f"out-{merge}" for merge in ([False, True] if rank else [False])}
    for merge, out in outs.items():
        export_policy(tmp_path / "run", out, merge=merge)
        assert read_json(out / "generation_config.json")["eos_token_id"] == [2, 5]
        record = read_json(out / "flowzoo.json")["model"]
        assert (record["location"], record["ends"]) == (str(base), [2, 5])


def test_an_export_has_a_manifest_that_is_checked(full, tmp_path):
    out = tmp_path / "out"
    export_policy(full[0], out, policy="writer", card=lambda done: "a card")
    statement = read_json(out / "manifest.json")
    rows = statement["predicate"]["resources"]
    assert [row["name"] for row in rows] == sorted(
        path.name for path in out.iterdir() if path.name != "manifest.json"
    )
    assert all(row["digest"] == file_digest(out / row["name"]) for row in rows)
    (out / "README.md").write_text("people write into it")
    load_model(str(out), "float32")
    with (out / "chat_template.jinja").open("a") as file:
        file.write(" ")
    with pytest.raises(DataError, match=r"chat_template.jinja has another SHA-256"):
        load_model(str(out), "float32")


def test_openssf_s_package_verifies_the_manifest(full, tmp_path):
    hashing = pytest.importorskip("model_signing.hashing")
    signing = pytest.importorskip("model_signing._signing.signing")
    out = tmp_path / "out"
    export_policy(full[0], out, policy="writer")
    expected = signing.dsse_payload_to_manifest(read_json(out / "manifest.json"))
    found = hashing.Config().set_ignored_paths(paths=["manifest.json"]).hash(out)
    assert found == expected


def copied(source: Path) -> Callable[[Path], None]:
    """A writer of an adapter's files that takes those in `source`."""

    def write(folder: Path) -> None:
        shutil.copytree(source, folder, dirs_exist_ok=True)

    return write


@pytest.mark.vllm
@pytest.mark.full
@pytest.mark.parametrize("kind", ["full", "merged", "adapter"])
def test_vllm_loads_them(kind, full, lora, tmp_path):
    """Greedy replies are those of transformers with the same folder."""
    from flowzoo.agents.vllm.engine import VLLMEngine
    from flowzoo.agents.vllm.policy import VLLMPolicy
    from flowzoo.agents.vllm.settings import EngineSettings

    root = full[0] if kind == "full" else lora[0]
    out = tmp_path / "out"
    done = export_policy(root, out, policy="solver", merge=kind == "merged")
    adapters = int(kind == "adapter")
    settings = EngineSettings(max_batch=8, kv_gib=0.0625, adapters=adapters, adapter_rank=8)
    engine = VLLMEngine.local(done.base or out, settings)
    try:
        if adapters:
            engine.load_adapter("solver", copied(out))
        policy = VLLMPolicy(
            engine, name="solver", sampling=Sampling(0.0, max_tokens=24),
            adapter="solver" if adapters else None,
        )  # fmt: skip
        chat = [{"role": "user", "content": TEXT}]
        reply = asyncio.run(policy.generate([Request(("k",), "a_0", "a", chat)]))[0].text
    finally:
        engine.close()
    loader: Any = AutoPeftModelForCausalLM if adapters else AutoModelForCausalLM
    model = loader.from_pretrained(out, dtype=torch.float32)
    assert reply == plays(model, AutoTokenizer.from_pretrained(out))


def test_the_command(full, tmp_path, capsys, monkeypatch):
    root, out = full[0], tmp_path / "deep" / "out"
    words = ["export", str(root), "--policy", "writer", "--step", "best", "--out", str(out)]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "policy writer after step 1 (validation accuracy 75.0 %): model in" in shown
    assert "| these weights | 1 | 75.0" in (out / "README.md").read_text(encoding="utf-8")
    assert main(words) == 2
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    assert main([*words[:-1], "."]) == 2
    assert capsys.readouterr().err.count("exists already: choose a new folder") == 2


def test_a_generation_config_is_written_as_it_was_read(tmp_path):
    shutil.copytree(pocket_path("math", "xs"), tmp_path / "read")
    given = {"eos_token_id": 2, "pad_token_id": 0, "temperature": 0.6}  # and no `do_sample`
    write_json(tmp_path / "read" / "generation_config.json", given)
    Weights(load_model(str(tmp_path / "read"), "float32")[0]).save(tmp_path / "written")
    written = read_json(tmp_path / "written" / "generation_config.json")
    assert written == {**given, "transformers_version": written["transformers_version"]}


@pytest.mark.parametrize(("choice", "text"), refused(__file__, "exports"))
def test_mistakes(choice, text, full, tmp_path):
    with pytest.raises(UsageError, match=text):
        export_policy(full[0], tmp_path / "out", **choice)
    assert not list(tmp_path.iterdir())


def test_a_damaged_checkpoint_is_never_exported(full, tmp_path, caplog):
    root = tmp_path / "run"
    shutil.copytree(full[0], root)
    weights = root / "checkpoints" / "step-00000002" / "policies" / "solver" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    said = "model.safetensors has another SHA-256"
    with pytest.raises(DataError, match=said):
        export_policy(root, tmp_path / "out", policy="solver", step="2")
    assert export_policy(root, tmp_path / "out", policy="solver").step == 1
    assert said in caplog.text


def test_a_folder_without_a_run(tmp_path):
    with pytest.raises(UsageError, match="no complete checkpoint"):
        find_checkpoint(tmp_path, "last")
