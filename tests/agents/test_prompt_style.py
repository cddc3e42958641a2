"""The prompts that suit a model."""

import json
from functools import partial
from pathlib import Path

import pytest

from flowzoo.agents.prompt_style import FULL, SHORT, PromptStyle, make_styled, usual_style
from flowzoo.envs import make_workflow
from flowzoo.errors import UsageError


def folder(path: Path, context: int | None = None) -> str:
    path.mkdir(parents=True)
    config = {} if context is None else {"max_position_embeddings": context}
    (path / "config.json").write_text(json.dumps(config))
    return str(path)


def test_pocket_models_have_the_texts_they_were_made_on(tmp_path):
    real = folder(tmp_path / "real", 8192)
    assert usual_style([]) == SHORT
    for source in ("pocket", "pocket:math", "scripted:0.5", "human"):
        assert usual_style([source]) == usual_style([real, source]) == SHORT
    for source in (real, f"hf:{real}", f"vllm:{real}", f"vllm:{real}@http://x", "Qwen/Qwen3-4B",
                   "openai:gpt@https://x/v1", "weights.gguf"):  # fmt: skip
        assert usual_style([source]) == FULL
    assert usual_style([folder(tmp_path / "small", 512)]) == SHORT


def test_a_trained_model_keeps_the_prompts_of_its_run(tmp_path):
    settings = {"settings": {"prompts": "full", "examples": 0}}
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text(json.dumps(settings))
    inside = folder(tmp_path / "run" / "checkpoints" / "step-4" / "policies" / "shared", 8192)
    assert usual_style([inside]) == PromptStyle("full", 0)
    exported = folder(tmp_path / "exported", 8192)
    (Path(exported) / "flowzoo.json").write_text(json.dumps({"settings": {"model": "pocket"}}))
    assert usual_style([f"hf:{exported}"]) == SHORT
    (Path(exported) / "flowzoo.json").write_text("[")
    assert usual_style([exported]) == FULL


def test_what_is_asked_for_counts(tmp_path):
    make = partial(make_workflow, "voting", "math")
    real = folder(tmp_path / "real", 8192)
    workflow, style = make_styled(make, {}, [real])
    assert style == FULL
    assert workflow.prompts["ballot"] == workflow.full_prompts["ballot"]
    assert workflow.examples
    workflow, style = make_styled(make, {"texts": "short", "examples": 0}, [real])
    assert style == SHORT
    assert workflow == make()
    assert make_styled(make, {"preset": "paper"}, [real])[1] == SHORT


def test_a_task_without_examples_goes_without(tmp_path):
    file = tmp_path / "boards.jsonl"
    row = "P" + "." * 8 + "G"
    file.write_text(json.dumps({"board": "\n".join([row, *["." * 10] * 9])}) + "\n")
    make = partial(make_workflow, "single", "plan_path", data=str(file))
    real = folder(tmp_path / "real", 8192)
    workflow, style = make_styled(make, {}, [real])
    assert style == PromptStyle("full", 0)
    assert not workflow.examples
    with pytest.raises(UsageError, match="no problems for worked examples"):
        make_styled(make, {"examples": 1}, [real])
