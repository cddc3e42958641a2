"""Folders whose weights are damaged, or of another model, are refused in one line."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from flowzoo.agents.hf.policy import load_model
from flowzoo.agents.pocket import pocket_path
from flowzoo.errors import UsageError

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
