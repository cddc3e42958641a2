"""Models in GGUF files: what the file states is what is loaded, and it is converted once."""

import io
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers.convert_slow_tokenizer import bytes_to_unicode
from transformers.utils import logging

from flowzoo.agents.hf.policy import load_model
from flowzoo.agents.model_files import SOURCE_FILE, model_source
from flowzoo.agents.specs import check_spec
from flowzoo.errors import UsageError

# They are of one process, which imports gguf when it comes to them: that takes seconds.
pytestmark = pytest.mark.xdist_group("gguf")

WIDTH, HEADS, INNER, CONTEXT = 64, 2, 128, 256
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tensors(tied: bool) -> dict[str, np.ndarray]:
    """Random weights of a Llama with one layer, by their names in GGUF."""
    rng = np.random.default_rng(0)
    vocab = len(SPECIAL) + 258
    shapes = {
        "token_embd.weight": (vocab, WIDTH),
        "blk.0.attn_q.weight": (WIDTH, WIDTH),
        "blk.0.attn_k.weight": (WIDTH, WIDTH),
        "blk.0.attn_v.weight": (WIDTH, WIDTH),
        "blk.0.attn_output.weight": (WIDTH, WIDTH),
        "blk.0.ffn_gate.weight": (INNER, WIDTH),
        "blk.0.ffn_up.weight": (INNER, WIDTH),
        "blk.0.ffn_down.weight": (WIDTH, INNER),
    } | ({} if tied else {"output.weight": (vocab, WIDTH)})
    built = {name: rng.normal(0, 0.2, shape).astype(np.float32) for name, shape in shapes.items()}
    norms = ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm")
    return built | {f"{name}.weight": np.ones(WIDTH, np.float32) for name in norms}


def write(path: Path, *, tied: bool = True, eos: int = 2, **changes: Any) -> Path:
    """A GGUF file whose end token is not the one that transformers takes by default."""
    from gguf import GGMLQuantizationType, GGUFWriter
    from gguf.quants import quantize

    writer = GGUFWriter(path, "llama")
    writer.add_name("Tiny")
    writer.add_license("apache-2.0")
    writer.add_block_count(1)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(changes.get("width", WIDTH))
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_rope_freq_base(10000.0)
    tokens = [*SPECIAL, *bytes_to_unicode().values(), "AB", "CD"]
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([3] * len(SPECIAL) + [1] * 258)
    writer.add_token_merges(["A B", "C D"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(eos)
    writer.add_pad_token_id(0)
    writer.add_add_bos_token(changes.get("add_bos", False))
    if changes.get("template", True):
        writer.add_chat_template(TEMPLATE)
    for name, values in tensors(tied).items():
        if values.ndim == 2:
            packed = quantize(values, GGMLQuantizationType.Q8_0)
            writer.add_tensor(name, packed, raw_dtype=GGMLQuantizationType.Q8_0)
        else:
            writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of the test's own."""
    monkeypatch.setenv("FLOWZOO_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.parametrize("tied", [True, False])
def test_weights_tokens_and_template_are_those_of_the_file(tmp_path, tied):
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize, quantize

    path = write(tmp_path / "tiny.gguf", tied=tied)
    model, tokenizer = load_model(str(path), "float32")
    for name, values in tensors(tied).items():
        if values.ndim == 2 and "attn_q" not in name and "attn_k" not in name:  # those are permuted
            packed = quantize(values, GGMLQuantizationType.Q8_0)
            stored = dequantize(packed, GGMLQuantizationType.Q8_0)
            loaded = {
                "token_embd.weight": "model.embed_tokens.weight",
                "output.weight": "lm_head.weight",
                "blk.0.attn_v.weight": "model.layers.0.self_attn.v_proj.weight",
                "blk.0.attn_output.weight": "model.layers.0.self_attn.o_proj.weight",
                "blk.0.ffn_gate.weight": "model.layers.0.mlp.gate_proj.weight",
                "blk.0.ffn_up.weight": "model.layers.0.mlp.up_proj.weight",
                "blk.0.ffn_down.weight": "model.layers.0.mlp.down_proj.weight",
            }[name]
            assert torch.equal(model.state_dict()[loaded], torch.from_numpy(stored)), name
    assert model.config.tie_word_embeddings is tied
    assert (model.lm_head.weight is model.model.embed_tokens.weight) is tied
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token) == (
        "<|im_start|>", "<|im_end|>", "<|endoftext|>",
    )  # fmt: skip
    assert model.generation_config.eos_token_id == model.config.eos_token_id == 2
    assert tokenizer.chat_template == TEMPLATE
    letters = [len(SPECIAL) + list(bytes_to_unicode()).index(byte) for byte in "Aé 1".encode()]
    assert tokenizer("Aé 1").input_ids == letters
    assert tokenizer("AB<|im_end|>").input_ids == [len(SPECIAL) + 256, 2]


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_bars_are_for_terminals(tmp_path, monkeypatch, terminal):
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: terminal, raising=False)
    monkeypatch.setattr(sys, "stderr", stream)
    logging.enable_progress_bar()
    load_model(str(write(tmp_path / "tiny.gguf")), "float32")
    assert ("Converting and de-quantizing" in stream.getvalue()) is terminal
    assert ("Loading weights" in stream.getvalue()) is terminal
    logging.disable_progress_bar()


def test_a_file_is_converted_once_and_a_torn_conversion_again(tmp_path, cache):
    path = write(tmp_path / "tiny.gguf")
    folder = Path(model_source(path))
    assert folder.is_relative_to(cache / "gguf")
    assert json.loads((folder / SOURCE_FILE).read_text())["file"] == "tiny.gguf"
    assert 'license: "apache-2.0"' in (folder / "README.md").read_text()
    (folder / "mark").touch()
    assert Path(model_source(path)) == folder
    assert (folder / "mark").exists()
    (folder / SOURCE_FILE).unlink()  # as a process that was killed leaves it
    assert Path(model_source(path)) == folder
    assert not (folder / "mark").exists()
    assert [item.name for item in (cache / "gguf").iterdir()] == [folder.name]
    assert Path(model_source(write(path, eos=0))) != folder, "another file under the same name"


def test_what_is_not_gguf_is_refused_before_anything_is_loaded(tmp_path):
    with pytest.raises(UsageError, match=r"cannot read the GGUF file .*No such file"):
        check_spec(f"hf:{tmp_path / 'none.gguf'}", "math")
    (tmp_path / "text.gguf").write_text("GGML of old")
    with pytest.raises(UsageError, match="does not begin with the bytes 'GGUF'"):
        check_spec(f"vllm:{tmp_path / 'text.gguf'}", "math")


def test_a_damaged_file_leaves_nothing_behind(tmp_path, cache):
    path = write(tmp_path / "tiny.gguf")
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(UsageError, match="is damaged"):
        model_source(path)
    assert list((cache / "gguf").iterdir()) == []


def test_a_refusal_comes_before_the_weights_and_is_kept(tmp_path, cache):
    base = write(tmp_path / "base.gguf", template=False)
    with pytest.raises(UsageError, match=r"base.gguf holds no chat template: use the instruct"):
        model_source(base)
    path = write(tmp_path / "tiny.gguf", add_bos=True)
    for text in ("add_bos_token is not True", "as it was kept"):
        with pytest.raises(UsageError, match=text):
            model_source(path)
        for kept in (cache / "refused").iterdir():
            kept.write_text("as it was kept")
    assert not list((cache / "gguf").iterdir())


def test_a_shape_that_the_weights_do_not_have_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"by its metadata model.embed_tokens.weight"):
        model_source(write(tmp_path / "tiny.gguf", width=WIDTH * 2))
