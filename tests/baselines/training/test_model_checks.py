"""`flowzoo doctor --model` and the checks that training asks at its start."""

import json
import shutil
from pathlib import Path

import pytest

from flowzoo.agents.hf.policy import load_model
from flowzoo.agents.identity import identify
from flowzoo.agents.pocket import pocket_path
from flowzoo.baselines.engines.hf import LoadedPolicy
from flowzoo.baselines.learner.weights import Weights
from flowzoo.baselines.training.model_checks import CHECKS, warn_of_faults
from flowzoo.cli import main

PLAIN = "<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
OPENED = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"


def template(turn: str) -> str:
    return "{% for message in messages %}" + turn + "{% endfor %}" + OPENED


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(pocket_path(scale="xs"), tmp_path / "model"))


def examined(model: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, dict]]:
    """Exit status of the command, and its rows by name."""
    status = main(["doctor", "--model", model, "--json"])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return status, {row["name"]: row for row in rows}


def test_a_pocket_model_has_no_fault(capsys):
    status, rows = examined("pocket:math-xs", capsys)
    assert [row for row in rows.values() if not row["ok"]] == []
    assert (status, list(rows)) == (0, [check.name for check in CHECKS])
    assert "<|im_start|>user" in rows["template"]["detail"]
    assert "packed" in rows["sampler and learner"]["detail"]


def test_a_model_that_cannot_be_loaded_has_one_row(folder, capsys):
    (folder / "model.safetensors").write_bytes(b"")
    status, rows = examined(str(folder), capsys)
    assert (status, list(rows)) == (1, ["weights"])
    assert "cannot load a model from" in rows["weights"]["detail"]
    assert rows["weights"]["remedy"] == CHECKS[0].remedy


def test_a_model_without_a_template_or_ends_has_faults_with_remedies(folder, capsys):
    (folder / "chat_template.jinja").unlink()
    status, rows = examined(str(folder), capsys)
    assert status == 1
    assert not rows["template"]["ok"]
    assert "has no chat template" in rows["template"]["detail"]
    assert "chat_template.jinja" in rows["template"]["remedy"]
    assert rows["batches"]["ok"]


@pytest.mark.parametrize(
    ("turn", "fault"),
    [
        (PLAIN, ""),
        (PLAIN.replace("content }}", "content }} "), ""),
        (PLAIN.replace("content", "content|upper"), "rows: a reply does not follow the prompt"),
        (PLAIN.replace("<|im_end|>", "."), "ends: the chat template ends an assistant's message"),
        (PLAIN.replace("message.content", "messages[-1].content"), "history: the chat template"),
    ],
)
def test_training_names_faults_of_a_template(folder, caplog, turn, fault):
    model, tokenizer = load_model(str(folder), "float32")
    tokenizer.chat_template = template(turn)
    loaded = LoadedPolicy(Weights(model), tokenizer, identify(str(folder)))
    warn_of_faults({"a": loaded, "b": loaded})
    assert (fault in caplog.text) if fault else caplog.text == ""
    assert caplog.text.count("ends:") in (0, 1)
