"""Facts of a model and what follows from them: reply budgets, number formats, default prompts."""

import json
import math
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from flowzoo.agents.hf.int8_linear import Int8Linear
from flowzoo.agents.hf.policy import load_model
from flowzoo.agents.pocket import pocket_path
from flowzoo.agents.prompt_style import FULL, SHORT, PromptStyle, make_styled, usual_style
from flowzoo.agents.specs import make_policy, named_model
from flowzoo.agents.traits import (
    THOUGHT_TOKENS,
    ModelTraits,
    dtype_for,
    has_bfloat16,
    reply_budget,
    traits_of,
    weights_at,
)
from flowzoo.commands.policies import PolicyOptions, with_budget
from flowzoo.envs import make_workflow
from flowzoo.envs.tasks import make_task
from flowzoo.errors import UsageError

REAL = ModelTraits(1e9)


@pytest.mark.parametrize(
    ("models", "switches", "budget"),
    [
        ([REAL], [None], (512, "the task")),
        ([REAL], [True], (THOUGHT_TOKENS, "the model")),
        ([ModelTraits(1e9, thinks=True)], [False], (512, "the task")),
        ([ModelTraits()], [None], (64, "the model")),
        ([ModelTraits(), REAL], [None, None], (512, "the task")),
        ([ModelTraits(1e9, context=600), REAL], [None, None], (300, "the model")),
        ([ModelTraits(1e9, generation={"max_new_tokens": 100})], [None], (100, "the model")),
        ([ModelTraits(1e9, context=1)], [None], (1, "the model")),
    ],
)
def test_the_task_asks_and_the_model_bounds(models, switches, budget):
    assert reply_budget(models, switches, 512, 64) == budget


def test_what_tasks_ask_for(tmp_path):
    def tokens(name: str, rows: list[dict[str, Any]] | None = None, **options: Any) -> int:
        if rows is not None:
            path = tmp_path / f"{name}-{len(list(tmp_path.iterdir()))}.jsonl"
            path.write_text("\n".join(map(json.dumps, rows)))
            options["data"] = str(path)
        return make_task(name, **options).reply_tokens

    assert [tokens("math", level=level) for level in (1, 2, "1-3")] == [128, 256, 256]
    short = {"question": "2 + 3?", "answer": "The sum is 5.\n#### 5"}
    assert tokens("math", [short] * 3) == 512
    long = {"problem": "Find x.", "solution": "So it is. " * 200 + "\\boxed{5}"}
    assert tokens("math", [long] * 3) == 1024
    bare = {"problem": "Find x.", "answer": "5"}
    assert tokens("math", [bare] * 3) == 1024
    assert tokens("code") == 512


@pytest.mark.parametrize(
    ("policies", "tokens"),
    [
        (PolicyOptions(), 256),
        (PolicyOptions(("scripted:0.5",)), 256),
        (PolicyOptions(("openai:gpt@http://127.0.0.1:9/v1",)), 256),
        (PolicyOptions(("openai:gpt@http://127.0.0.1:9/v1",), thinking=("on",)), THOUGHT_TOKENS),
        (PolicyOptions(max_tokens=77), 77),
    ],
)
def test_evaluations_without_a_model_of_their_own_keep_their_budget(policies, tokens):
    assert with_budget(make_workflow("voting"), policies).max_tokens == tokens


def test_an_evaluation_that_goes_on_keeps_its_own():
    results = with_budget(
        make_workflow("voting"), PolicyOptions(("hf:nowhere",)), {"max_tokens": 99}
    )
    assert results.max_tokens == 99


BY_HARDWARE = "bfloat16" if has_bfloat16("cpu") else "float32"


def shaped_folder(root: Path, **shape: object) -> str:
    """A model's configuration: the pocket model's with another shape."""
    root.mkdir()
    config = json.loads((pocket_path() / "config.json").read_text(encoding="utf-8"))
    (root / "config.json").write_text(json.dumps(config | shape), encoding="utf-8")
    return str(root)


@pytest.mark.skipif(not Path("/proc/cpuinfo").exists(), reason="the flags are Linux's")
def test_a_cpu_has_bfloat16_if_its_flags_say_so():
    args = set(Path("/proc/cpuinfo").read_text(encoding="utf-8").split())
    assert has_bfloat16("cpu") is bool(args & {"avx512_bf16", "amx_bf16", "bf16"})


def test_auto_follows_size_and_hardware(tmp_path):
    wide = {"hidden_size": 1024, "num_hidden_layers": 1, "layer_types": ["full_attention"]}
    below = shaped_folder(tmp_path / "below", vocab_size=48_000, **wide)
    above = shaped_folder(tmp_path / "above", vocab_size=49_000, **wide)
    assert weights_at(below) < 100e6 < weights_at(above) < 102e6
    assert dtype_for("auto", below, "cpu") == "float32"
    assert dtype_for("auto", above, "cpu") == BY_HARDWARE
    assert dtype_for("float32", above, "cpu") == "float32"
    assert dtype_for("bfloat16", "nowhere", "cpu") == "bfloat16", "then no model is looked at"
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": above}))
    assert weights_at(str(adapter)) == weights_at(above)
    vision = shaped_folder(tmp_path / "vision", model_type="clip_vision_model")
    assert weights_at(vision) == math.inf
    with pytest.raises(UsageError, match="cannot load a model from"):
        weights_at(str(tmp_path))
    text = shaped_folder(tmp_path / "text", hidden_size="64")
    for load in (weights_at, traits_of, lambda path: load_model(path, "float32")):
        with pytest.raises(UsageError, match="expected int, got str"):
            load(text)


@pytest.mark.parametrize("engine", ["transformers", "vllm"])
def test_pocket_models_stay_in_float32(engine):
    for spec in ("pocket", "pocket:xs", f"hf:{pocket_path()}", f"vllm:{pocket_path('code')}"):
        named = named_model(spec, "math", engine)
        assert named is not None
        assert named.dtype("auto") == "float32"
    assert named_model("scripted:0.5", "math") is None
    for spec, given in (("vllm:m@http://h/v1", "vllm"), ("hf:m", "openai")):
        named = named_model(spec, "math", given, "http://e/v1")
        assert named is not None
        assert named.engine.name == "openai"
        assert named.dtype("auto") is None, "a server has its own"


async def test_a_policy_says_its_number_format(tmp_path):
    shutil.copytree(pocket_path("math", "xs"), tmp_path / "copy")
    workflow = make_workflow("single", "math")
    for dtype, weights in (("float32", "float32"), ("bfloat16", "bfloat16"), ("int8", "float32")):
        policy: Any = make_policy(f"hf:{tmp_path / 'copy'}", oracle=workflow, engine_dtype=dtype)
        assert (policy.engine_dtype, str(policy.model.dtype)) == (dtype, f"torch.{weights}")
        assert (type(policy.model.lm_head) is Int8Linear) is (dtype == "int8")
        await policy.close()


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
