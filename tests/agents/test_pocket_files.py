"""The shipped pocket models: their files, and that they are as mediocre as they should be."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from transformers import AutoTokenizer

from flowzoo.agents import Roster, Sampling
from flowzoo.agents.evaluate import evaluate
from flowzoo.agents.pocket import TASKS, load, pocket_options, pocket_path
from flowzoo.agents.problems import distinct_problems
from flowzoo.baselines.pocket_recipes import RECIPES
from flowzoo.envs import make_workflow


@pytest.fixture(scope="module", params=TASKS)
def task(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def policy(task: str) -> Any:
    return load(task, sampling=Sampling(max_tokens=64))


@pytest.fixture(scope="module")
def config(task: str) -> dict[str, Any]:
    return json.loads((pocket_path(task) / "config.json").read_text(encoding="utf-8"))


def test_finding_the_model_loads_no_training_library() -> None:
    code = (
        "import sys, flowzoo.agents.pocket as p; assert p.pocket_path().is_dir()\n"
        "print([m for m in ('torch', 'transformers', 'tokenizers') if m in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


def test_it_is_small_enough_for_a_wheel(task: str) -> None:
    assert sum(path.stat().st_size for path in pocket_path(task).iterdir()) < 4 * 2**20


def test_it_avoids_the_traps_of_other_engines(config: dict[str, Any]) -> None:
    assert config["architectures"] == ["Qwen3ForCausalLM"]
    assert config["tie_word_embeddings"] is False
    assert config["head_dim"] in (32, 64)
    assert config["dtype"] == "bfloat16"


def test_every_file_agrees_on_the_end_of_a_turn(task: str, config: dict[str, Any]) -> None:
    tokenizer = AutoTokenizer.from_pretrained(pocket_path(task))
    generation = json.loads(
        (pocket_path(task) / "generation_config.json").read_text(encoding="utf-8")
    )
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert config["eos_token_id"] == generation["eos_token_id"] == tokenizer.eos_token_id == end
    assert config["pad_token_id"] == tokenizer.pad_token_id != end
    assert config["vocab_size"] == len(tokenizer)


def test_prompts_and_digits_are_tokenized_as_in_training(task: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(pocket_path(task))
    made = make_workflow("single_v0", task, **pocket_options(task)).task
    for index in range(50):
        text = made.prompt(made.problem(index, "validation"))
        ids = tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], add_generation_prompt=True, return_dict=True
        )["input_ids"]
        texts = [tokenizer.decode([i]) for i in ids]
        assert len(ids) <= 55
        assert all(len(t) == 1 for t in texts if t[0].isdigit())


def test_the_card_gives_the_command(task: str) -> None:
    card = (pocket_path(task) / "README.md").read_text(encoding="utf-8")
    assert "python -m flowzoo.baselines.pocket --out DIR" in card
    assert "| single_v0 | greedy |" in card


def test_it_says_which_problems_it_was_made_for(task: str) -> None:
    assert pocket_options(task) == RECIPES[task].options
    for name, own in RECIPES[task].measured.items():
        assert pocket_options(task, name) == {**RECIPES[task].options, **own}


PLAYED = [(task, name) for task in TASKS for name in RECIPES[task].measured]


@pytest.mark.parametrize(("task", "name"), PLAYED, indirect=["task"])
def test_every_role_is_readable_and_no_workflow_is_solved(
    policy: Any, task: str, name: str
) -> None:
    workflow = make_workflow(name, task, **pocket_options(task, name))
    problems = distinct_problems(workflow.task, "validation", 150)
    roster = Roster.shared(policy, workflow.role_counts())
    _, summary = evaluate(workflow, roster, problems)
    # Questions that need a search cannot be answered without one.
    low, high = (0.0, 0.05) if (task, name) == ("search", "single_v0") else (0.05, 0.9)
    assert low <= summary["accuracy"] <= high
    for role, values in summary["roles"].items():
        assert values["strict"] >= 0.8, role
        assert values["truncated"] <= 0.05, role
