"""Identities of models: digests by which a changed model is refused, and bases of adapters."""

import json
import os
from pathlib import Path

import pytest
from huggingface_hub import constants

from flowzoo.agents.model_files import ModelIdentity, adapter_base, identify, whole_model
from flowzoo.errors import UsageError

FILES = ("config.json", "model.safetensors", "tokenizer.json", "generation_config.json")


def write_model(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for name in FILES:
        (folder / name).write_text("{}")
    return folder


def write_adapter(folder: Path, base: str, record: ModelIdentity | None = None) -> Path:
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": base}))
    if record is not None:
        (folder / "base.json").write_text(json.dumps(record._asdict()))
    return folder


def test_what_a_model_computes_and_how_it_speaks_is_digested(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = write_model(tmp_path / "m" / "base")
    before = identify("m/base")
    assert (before.path, sorted(before.digests)) == (str(folder), sorted(FILES))
    for other in ("README.md", ".gitattributes", "learner.pt"):
        (folder / other).write_text("no part of the model")
    assert identify("m/base") == before
    assert before.check("the run") == str(folder)
    (folder / "additional_chat_templates").mkdir()
    for name in (*FILES, "chat_template.jinja", "additional_chat_templates/tool_use.jinja"):
        (folder / name).write_text("other")
        with pytest.raises(UsageError, match=name) as caught:
            before.check("the run in runs/a")
        text = str(caught.value)
        assert text.startswith(f"{folder} is not the model that the run in runs/a was made with")
        assert "\n" not in text
        before = identify(str(folder))


def test_an_id_of_the_hub_is_known_by_its_revision(tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    cache = tmp_path / "models--owner--name"
    (cache / "refs").mkdir(parents=True)
    for revision in ("a" * 40, "b" * 40):
        write_model(cache / "snapshots" / revision)
    (cache / "refs" / "main").write_text("a" * 40)
    before = identify("owner/name")
    assert before == ModelIdentity("owner/name", {"revision": "a" * 40})
    assert before.check("the run") == "owner/name"
    (cache / "refs" / "main").write_text("b" * 40)
    with pytest.raises(UsageError, match=r"owner/name is not the model .*\(other: revision\)"):
        before.check("the run")


def test_an_adapter_names_its_base(tmp_path):
    base = write_model(tmp_path / "base")
    with_record = write_adapter(tmp_path / "a", str(base), identify(str(base)))
    of_others = write_adapter(tmp_path / "b", str(base))
    assert whole_model(str(with_record)) == whole_model(str(of_others)) == str(base)
    assert whole_model(str(base)) == str(base)
    assert adapter_base(base) is None
    (base / "model.safetensors").write_text("other")
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
