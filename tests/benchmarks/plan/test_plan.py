"""`python -m benchmarks.plan` as a user types it."""

import json

import pytest

pytest.importorskip("torch", reason="the trainer needs flowzoo[train]")

from benchmarks.plan.command import main

GIB = 2**30
LLAMA_70B = {
    "model_type": "llama", "hidden_size": 8192, "intermediate_size": 28672,
    "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8,
    "vocab_size": 128256, "max_position_embeddings": 131072, "tie_word_embeddings": False,
}  # fmt: skip
WORDS = ["voting", "--model", "qwen3:0.6B", "--gpus", "2", "--gpu-gib", "24"]


def test_a_plan_says_what_fits(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert main([*WORDS, "--json", "--lora-rank", "16", "--engine", "vllm"]) == 0
    results = json.loads(capsys.readouterr().out)
    (policy,) = results["policies"].values()
    assert policy["parameters"] == 596_049_920
    assert policy["adapter_rank"] == 16
    assert policy["sync_bytes"]["lora"] == 4 * policy["adapter_parameters"]
    full, lora = policy["full"], policy["lora"]
    assert full["held"]["weights"] + full["held"]["optimizer"] + full["learning"]["gradients"] == (
        16 * policy["parameters"]
    )
    assert lora["peak"] < full["peak"]
    chosen = [item for item in results["layouts"] if item["chosen"]]
    assert [(item["training"], item["ranks"]) for item in chosen] == [("lora", 1)]
    for item in results["layouts"]:
        room = 24 * GIB * (1 - results["spare"])
        assert item["fits"] == {index: size <= room for index, size in item["bytes"].items()}
    assert main([*WORDS, "--gradient-checkpointing"]) == 0
    message = capsys.readouterr().out
    assert "596,049,920 weights" in message
    assert "… with --gradient-checkpointing" in message
    assert "* full" in message


def test_a_plan_says_what_each_learner_group_of_learner_workers_holds(capsys):
    ray = ["--backend", "ray", "--ray-address", "HEAD:1", "--rollout-workers", "2"]
    ray += ["--compute", "float32"]
    args = [*WORDS, *ray, "--sharing", "isolated", "--shard", "full", "--learner-gpus", "1"]
    assert main([*args, "--json", "--learner-workers", "generator=4", "aggregator=2"]) == 0
    results = json.loads(capsys.readouterr().out)
    aggregator, generator = results["learner_groups"]
    assert aggregator["policies"] == ["aggregator"]
    assert (generator["workers"], generator["gpus"]) == (4, 4)
    assert generator["learner_bytes"] < aggregator["learner_bytes"], "more ranks, smaller parts"
    assert [aggregator["fits"], generator["fits"]] == [False, True]
    pair = next(
        item for item in results["layouts"] if item["ranks"] == 2 and item["shard"] == "full"
    )
    assert aggregator["learner_bytes"] < pair["learner_bytes"], "one policy, not both"
    assert not any(item["chosen"] for item in results["layouts"])
    assert main([*args, "--learner-workers", "2"]) == 0
    assert "aggregator, generator" in capsys.readouterr().out
    assert main([*args, "--learner-workers", "generator=2"]) == 2
    assert "there are none for aggregator" in capsys.readouterr().err


def test_a_plan_needs_a_configuration_and_neither_tokenizer_nor_data(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_70B))
    args = ["--model", str(tmp_path), "--gpus", "32", "--gpu-gib", "72", "--max-prompt", "3072"]
    low = [
        "--weights",
        "bfloat16",
        "--compute",
        "bfloat16",
        "--gradient-checkpointing",
        "--engine-dtype",
        "bfloat16",
    ]
    assert main(["voting", *args, *low]) == 0
    message = capsys.readouterr().out
    table, remarks = message.split("own GPUs", 1)[1].split("Not counted", 1)
    assert "…" not in table, "it fits 80 columns"
    assert "yes×4" in table.replace(" ", "")
    assert "† a run refuses it as the settings are: `shard` full keeps weights" in remarks
    assert f"no tokenizer of {tmp_path} is here" in remarks
    assert main(["--config", "paper/voting-math", "--model", "qwen3:0.6B"]) == 0
    message = capsys.readouterr().out
    assert "no tokenizer" not in message, "the settings have the length of replies"


def test_a_model_without_decoder_layers_is_a_mistake_of_one_line(capsys, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "ctrl"}))
    assert main(["voting", "--model", str(tmp_path), "--max-tokens", "64"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "CTRLLMHeadModel has no decoder layers that a plan can count" in line


def test_a_plan_takes_a_file_of_settings(capsys):
    assert main(["--config", "paper/voting-math@pocket", "--json"]) == 0
    results = json.loads(capsys.readouterr().out)
    assert results["workflow"] == "voting_v0"
    assert next(iter(results["policies"].values()))["files_bytes"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--gpus", "-1"], "--gpus must be at least 0"),
        (["--gpus", "0", "--engine", "vllm"], "leave out `engine`"),
        (["--gpu-gib", "inf"], "--gpu-gib must be a finite number, got inf"),
        (["--model", "nobody/nothing"], "or one of the shapes qwen3:0.6B, qwen3:1.7B"),
    ],
)
def test_mistakes_are_one_line(args, message, capsys):
    assert main(["voting", *args]) == 2
    assert message in capsys.readouterr().err
    assert main([]) == 2
    assert "name a workflow, e.g. `python -m benchmarks.plan voting`" in capsys.readouterr().err
