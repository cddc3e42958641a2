"""Identities of models, by which changed ones are refused, and damaged folders."""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants
from safetensors.torch import load_file, save_file

from flowzoo.agents.hf.policy import load_model
from flowzoo.agents.identity import ModelIdentity, adapter_base, identify, whole_model
from flowzoo.agents.pocket import pocket_path
from flowzoo.errors import UsageError
from flowzoo.files import file_digest, present_digest

FILES = (
    "config.json", "flowzoo.json", "generation_config.json", "model.safetensors",
    "tokenizer.json", "tokenizer_config.json",
)  # fmt: skip


def write_model(folder: Path) -> Path:
    shutil.copytree(pocket_path("math", "xs"), folder)
    return folder


def write_adapter(folder: Path, base: str, record: ModelIdentity | None = None) -> Path:
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": base}))
    if record is not None:
        (folder / "base.json").write_text(json.dumps(asdict(record)))
    return folder


def test_what_a_model_computes_and_how_it_speaks_is_digested(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = write_model(tmp_path / "m" / "base")
    before = identify("m/base")
    files = (*FILES, "chat_template.jinja")
    assert (before.name, before.location) == ("m/base", str(folder))
    assert sorted(before.digests) == sorted(files)
    assert (before.ends, before.tools, before.dtype) == ((2,), "", "bfloat16")
    assert ModelIdentity.read(json.loads(json.dumps(asdict(before)))) == before
    for other in ("README.md", ".gitattributes", "learner.pt"):
        (folder / other).write_text("no part of the model")
    assert identify("m/base") == before
    assert before.check("the run") == str(folder)
    (folder / "additional_chat_templates").mkdir()
    for name in (*files, "additional_chat_templates/tool_use.jinja"):
        content = (folder / name).read_bytes() if (folder / name).exists() else b""
        (folder / name).write_bytes(content + b" ")
        with pytest.raises(UsageError) as caught:
            before.check("the run in runs/a")
        text = str(caught.value)
        assert text.startswith(f"{folder} is not the model that the run in runs/a was made with")
        old = before.digests.get(name, "none")[:8]
        assert f"({name} {old} -> {identify(str(folder)).digests[name][:8]}" in text
        assert "\n" not in text
        before = identify(str(folder))


def test_a_change_of_how_a_model_speaks_is_told_by_its_meaning(tmp_path):
    folder = write_model(tmp_path / "base")
    before = identify(str(folder))
    (folder / "generation_config.json").write_text('{"eos_token_id": [2, 5]}')
    with pytest.raises(UsageError, match=r"ends \(2,\) -> \(2,5\)\): put back"):
        before.check("the run")


def test_thoughts_are_found_by_rendering(tmp_path):
    folder = write_model(tmp_path / "base")
    template = (
        "{% for m in messages %}{{ m.role }}:{% if m.reasoning %}[THINK]{{ m.reasoning }}[/THINK]"
        "{% endif %}{{ m.content }}<|im_end|>{% endfor %}"
        "{% if add_generation_prompt %}assistant:{% endif %}"
    )
    for text, opening in (
        (template, "[THINK]"),
        (template.replace("THINK]", "MUSE]"), "[MUSE]"),
        ("{% for m in messages %}{{ m.content }}{% endfor %}{# no <think> #}", ""),
        ("{{ raise_exception('none') }}<think>", ""),
    ):
        (folder / "chat_template.jinja").write_text(text)
        assert identify(str(folder)).thoughts == opening


def test_a_pocket_model_is_known_by_its_id_and_digests():
    identity = identify(str(pocket_path("math", "xs")))
    assert identity.location == "pocket:math-xs"
    assert identity.path == str(pocket_path("math", "xs"))
    assert identify("pocket:math-xs").digests == identity.digests
    error = pytest.raises(UsageError, match="pocket:math-xs is not the model that the run")
    with error:
        replace(identity, digests={**identity.digests, "config.json": "0" * 64}).check("the run")


def test_an_id_of_the_hub_is_opened_again_at_its_revision(tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    cache = tmp_path / "models--owner--name"
    (cache / "refs").mkdir(parents=True)
    for revision in ("a" * 40, "b" * 40):
        write_model(cache / "snapshots" / revision)
    (cache / "refs" / "main").write_text("a" * 40)
    before = identify("owner/name")
    assert (before.location, before.revision, before.named) == (
        "owner/name",
        "a" * 40,
        "owner/name",
    )
    (cache / "refs" / "main").write_text("b" * 40)
    assert identify("owner/name").revision == "b" * 40
    assert before.check("the run") == str(cache / "snapshots" / ("a" * 40))


def test_the_digest_of_a_big_file_is_kept_until_the_file_changes(tmp_path, monkeypatch):
    monkeypatch.setenv("FLOWZOO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("flowzoo.files._TICK_NS", 0)
    file = tmp_path / "model.safetensors"
    file.write_bytes(bytes(2**24))
    digest = present_digest(file)
    (kept,) = (tmp_path / "cache" / "digests").iterdir()
    assert kept.read_text() == digest == file_digest(file)
    kept.write_text("as it was kept")
    assert present_digest(file) == "as it was kept"
    times = file.stat().st_atime_ns, file.stat().st_mtime_ns
    with file.open("r+b") as opened:
        opened.write(b"other")
    os.utime(file, ns=times)  # size and time are those of before
    assert present_digest(file) == file_digest(file) != digest


def test_an_adapter_names_its_base(tmp_path):
    base = write_model(tmp_path / "base")
    with_record = write_adapter(tmp_path / "a", str(base), identify(str(base)))
    of_others = write_adapter(tmp_path / "b", str(base))
    assert whole_model(str(with_record)) == whole_model(str(of_others)) == str(base)
    assert whole_model(str(base)) == str(base)
    assert adapter_base(base) is None
    with (base / "model.safetensors").open("ab") as file:
        file.write(b" ")
    assert whole_model(str(of_others)) == str(base)
    with pytest.raises(UsageError, match=f"{base} is not the model that the adapter in"):
        whole_model(str(with_record))
    (of_others / "adapter_config.json").write_text("{}")
    with pytest.raises(UsageError, match="must name a base_model_name_or_path"):
        whole_model(str(of_others))


def test_a_base_that_was_a_folder_is_not_looked_up_on_the_hub(tmp_path, caplog):
    gone = str(tmp_path / "m" / "base")
    for number, path in enumerate((gone, "./m/base", os.path.join("..", "m", "base"))):
        adapter = write_adapter(tmp_path / str(number), path)
        with pytest.raises(UsageError, match=r"there is no (such )?folder"):
            whole_model(str(adapter))
    assert not caplog.text


WEIGHTS = "model.safetensors"
LOST = "model.layers.0.mlp.down_proj.weight"


def cut_in_half(folder: Path) -> None:
    file = folder / WEIGHTS
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def without_a_tensor(folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS)
    del tensors[LOST]
    save_file(tensors, folder / WEIGHTS, {"format": "pt"})


def with_fields(**fields: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        file = folder / "config.json"
        config = json.loads(file.read_text(encoding="utf-8"))
        file.write_text(json.dumps(config | fields), encoding="utf-8")

    return change


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(pocket_path(scale="xs"), tmp_path / "model"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (cut_in_half, "cannot load a model from .* header"),
        (without_a_tensor, rf"not those of its config.json \({LOST} is missing\)"),
        (with_fields(vocab_size=7), r"embed_tokens.weight is \(\[\d+, \d+\]\), not \(\[7, \d+\]\)"),
        (with_fields(num_hidden_layers=9), "`num_hidden_layers` .9. must be equal to"),
    ],
)
def test_damaged_weights_are_refused_in_one_line(folder, change, message, caplog):
    change(folder)
    with pytest.raises(UsageError, match=message) as caught:
        load_model(str(folder), "float32")
    assert "\n" not in str(caught.value)
    assert "LOAD REPORT" not in caplog.text


def test_tensors_that_are_no_part_of_the_model_are_named(folder, caplog):
    tensors = load_file(folder / WEIGHTS)
    tensors["visual.patch"] = tensors[LOST].clone()
    save_file(tensors, folder / WEIGHTS, {"format": "pt"})
    load_model(str(folder), "float32")
    assert "are no part of the model: visual.patch (1 in all)" in caplog.text
