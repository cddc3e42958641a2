"""The number format that `auto` comes to."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest

from flowzoo.agents.hf.int8_linear import Int8Linear
from flowzoo.agents.hf.policy import load_model
from flowzoo.agents.pocket import pocket_path
from flowzoo.agents.specs import make_policy, named_model
from flowzoo.agents.traits import dtype_for, has_bfloat16, traits_of, weights_at
from flowzoo.envs import make_workflow
from flowzoo.errors import UsageError

BY_HARDWARE = "bfloat16" if has_bfloat16("cpu") else "float32"


def folder(root: Path, **shape: object) -> str:
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
    below = folder(tmp_path / "below", vocab_size=48_000, **wide)
    above = folder(tmp_path / "above", vocab_size=49_000, **wide)
    assert weights_at(below) < 100e6 < weights_at(above) < 102e6
    assert dtype_for("auto", below, "cpu") == "float32"
    assert dtype_for("auto", above, "cpu") == BY_HARDWARE
    assert dtype_for("float32", above, "cpu") == "float32"
    assert dtype_for("bfloat16", "nowhere", "cpu") == "bfloat16", "then no model is looked at"
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": above}))
    assert weights_at(str(adapter)) == weights_at(above)
    vision = folder(tmp_path / "vision", model_type="clip_vision_model")
    assert weights_at(vision) == math.inf
    with pytest.raises(UsageError, match="cannot load a model from"):
        weights_at(str(tmp_path))
    text = folder(tmp_path / "text", hidden_size="64")
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
