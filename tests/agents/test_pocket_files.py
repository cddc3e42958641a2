"""The shipped pocket models: their files, and that they are as mediocre as they should be."""

import json
from typing import Any

import pytest
from transformers import AutoTokenizer

from flowzoo.agents import PolicyMap, Sampling, pocket
from flowzoo.agents.evaluation.evaluate import evaluate
from flowzoo.agents.pocket import (
    NAMES,
    OPTIONS_FILE,
    SCALED,
    SCALES,
    Pocket,
    load,
    made_folder,
    pocket_options,
    pocket_path,
    pocket_task,
    read_pocket,
    shipped_folder,
)
from flowzoo.agents.problems import distinct_problems
from flowzoo.agents.specs import make_policy
from flowzoo.envs import make_workflow
from flowzoo.envs.tasks import make_task
from flowzoo.errors import UsageError
from tools.pocket.recipes import RECIPES

SIZED = [Pocket(task, scale) for task in SCALED for scale in ("xs",)]
SHIPPED = [Pocket(task) for task in NAMES] + SIZED


@pytest.fixture(scope="module", params=SHIPPED, ids="-".join)
def model(request: pytest.FixtureRequest) -> Pocket:
    return request.param


@pytest.fixture(scope="module", params=NAMES)
def task(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def policy(task: str) -> Any:
    return load(task, sampling=Sampling(max_tokens=RECIPES[task].max_tokens))


@pytest.fixture(scope="module")
def config(model: Pocket) -> dict[str, Any]:
    return json.loads((shipped_folder(*model) / "config.json").read_text(encoding="utf-8"))


def test_all_are_small_enough_for_a_wheel():
    files = [path for model in SHIPPED for path in shipped_folder(*model).iterdir()]
    assert sum(path.stat().st_size for path in files) < 12 * 2**20


def test_it_avoids_the_traps_of_other_engines(config):
    assert config["architectures"] == ["Qwen3ForCausalLM"]
    assert config["tie_word_embeddings"] is False
    assert config["head_dim"] in (32, 64)
    assert config["dtype"] == "bfloat16"


def test_every_file_agrees_on_the_end_of_a_turn(model, config):
    tokenizer = AutoTokenizer.from_pretrained(shipped_folder(*model))
    generation = json.loads(
        (shipped_folder(*model) / "generation_config.json").read_text(encoding="utf-8")
    )
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert config["eos_token_id"] == generation["eos_token_id"] == tokenizer.eos_token_id == end
    assert config["pad_token_id"] == tokenizer.pad_token_id != end
    assert config["vocab_size"] == len(tokenizer)


def test_prompts_and_digits_are_tokenized_as_in_training(task):
    tokenizer = AutoTokenizer.from_pretrained(pocket_path(task))
    built = make_task(pocket_task(task), **pocket_options(task))
    for index in range(50):
        text = built.prompt(built.problem(index, "validation"))
        ids = tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], add_generation_prompt=True, return_dict=True
        )["input_ids"]
        texts = [tokenizer.decode([i]) for i in ids]
        assert len(ids) <= max(60, len(text) / 4)
        assert all(len(t) == 1 for t in texts if t[0].isdigit())


def test_the_card_gives_the_command(model):
    card = (shipped_folder(*model) / "README.md").read_text(encoding="utf-8")
    assert "python -m tools.pocket --out DIR" in card
    assert (f"--scale {model.scale}" in card) is (model.scale != "default")
    assert (f"--task {model.task} " in card.replace("\n", " ")) is (model.task != "math")
    first = "single_v0" if "single_v0" in (names := RECIPES[model.task].measured) else min(names)
    assert f"| {first} | greedy |" in card


def test_it_says_which_problems_it_was_made_for(task):
    assert pocket_options(task) == RECIPES[task].options
    for name, local in RECIPES[task].measured.items():
        assert pocket_options(task, name) == {**RECIPES[task].options, **local}


PLAYED = [(task, name) for task in NAMES for name in RECIPES[task].measured]
LAST = dict(PLAYED)
"""The workflow of each task that `make test` plays."""


@pytest.mark.usual(2)
@pytest.mark.parametrize(
    ("task", "name"),
    [
        pytest.param(task, name, marks=[] if LAST[task] == name else pytest.mark.full)
        for task, name in PLAYED
    ],
    indirect=["task"],
)
def test_every_role_is_readable_and_no_workflow_is_solved(policy, task, name):
    workflow = make_workflow(name, pocket_task(task), **pocket_options(task, name))
    problems = distinct_problems(workflow.task, "validation", 100)
    policy_map = PolicyMap.shared(policy, workflow.role_counts())
    _, summary = evaluate(workflow, policy_map, problems)
    # Questions that need a search cannot be answered without one.
    low, high = (0.0, 0.05) if (task, name) == ("search", "single_v0") else (0.05, 0.9)
    assert low <= summary["accuracy"] <= high
    for role, values in summary["roles"].items():
        assert values["strict"] >= 0.9, role
        assert values["truncated"] <= 0.05, role


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(item, marks=pytest.mark.full if number else [], id="-".join(item))
        for number, item in enumerate(SIZED)
    ],
)
def test_a_scale_has_the_size_of_its_name_and_half_of_the_work_to_learn(model):
    policy = load(*model, sampling=Sampling(max_tokens=64))
    assert policy.model.num_parameters() == pytest.approx(0.3e6, rel=0.15)
    workflow = make_workflow("single_v0", model.task, **pocket_options(model.task))
    problems = distinct_problems(workflow.task, "validation", 150)
    _, summary = evaluate(workflow, PolicyMap.shared(policy, workflow.role_counts()), problems)
    assert 0.2 <= summary["accuracy"] <= 0.85
    assert summary["roles"]["generator"]["strict"] >= 0.95


@pytest.mark.parametrize("task", SCALED)
def test_all_scales_of_a_task_were_made_alike(task):
    folders = [pocket_path(task, scale) for scale in ("xs", "default")]
    for name in ("tokenizer_config.json", "chat_template.jinja", OPTIONS_FILE):
        assert len({(folder / name).read_bytes() for folder in folders}) == 1, name
    card = (folders[0] / "README.md").read_text(encoding="utf-8")
    line = next(line for line in card.splitlines() if "tools.pocket" in line)
    assert line.endswith("--scale xs"), "nothing but its size differs from the recipe"


@pytest.mark.parametrize(
    ("args", "played", "results"),
    [
        ("", "math", Pocket("math")),
        ("s", "code", Pocket("code", "s")),
        ("math", "code", Pocket("math")),
        ("math-xs", "code", Pocket("math", "xs")),
        ("plan_path", "", Pocket("plan_path")),
        ("code-m", "", Pocket("code", "m")),
    ],
)
def test_a_line_names_a_task_and_a_scale(args, played, results):
    assert read_pocket(args, played) == results


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ("", r"'pocket' needs the workflow that is played"),
        ("s", r"'pocket:s' needs the workflow that is played, or pocket:TASK"),
        ("math-k", r"unknown scale of a pocket model 'k'. Valid choices: l, m, s, xl, xs"),
        (
            "maths",
            r"no pocket model for the task 'maths', only for code, code_teams, math,",
        ),
        ("plan_path-s", r"in scale s 'plan_path'. Valid choices: code, math"),
        ("-s", r"no pocket model for the task ''"),
    ],
)
def test_other_lines_are_refused(args, message):
    with pytest.raises(UsageError, match=message):
        make_policy(f"pocket:{args}")


def test_a_policy_of_the_played_task_and_a_scale():
    workflow = make_workflow("voting_v0", "math")
    policy: Any = make_policy("pocket:xs", oracle=workflow)
    assert policy.name == "pocket:xs"
    assert policy.model.config.hidden_size == 80


@pytest.mark.parametrize("scale", ["s", "m", "l", "xl"])
@pytest.mark.parametrize("task", SCALED)
def test_a_model_too_large_to_ship_is_looked_for_where_its_command_makes_it(
    monkeypatch, tmp_path, task, scale
):
    monkeypatch.setenv("FLOWZOO_CACHE", str(tmp_path))
    args = f"python -m tools.pocket --task {task} --scale {scale}"
    long = r" in about \d+ minutes" if scale in ("s", "m") else "; see its --help"
    with pytest.raises(UsageError, match=rf"{tmp_path}.*`{args}` in a clone makes it there{long}"):
        pocket_path(task, scale)
    folder = tmp_path / "pocket" / f"{task}-{scale}"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}", encoding="utf-8")
    with pytest.raises(UsageError, match="none in"):  # the making was broken off
        pocket_path(task, scale)
    (folder / OPTIONS_FILE).write_text("{}", encoding="utf-8")
    assert pocket_path(task, scale) == folder == made_folder(task, scale)


def test_a_wheel_has_no_small_model_of_code_and_says_what_makes_it(monkeypatch, tmp_path):
    monkeypatch.setenv("FLOWZOO_CACHE", str(tmp_path))
    monkeypatch.setattr(pocket, "shipped_folder", lambda task, scale: tmp_path / "absent")
    folder = tmp_path / "pocket" / "code-xs"
    args = f"python -m tools.pocket --task code --scale xs --out {folder}"
    with pytest.raises(UsageError, match=f"`{args}` in a clone makes it there"):
        make_policy("pocket:code-xs")


def test_without_a_folder_of_its_own_the_users_cache_is_used(monkeypatch, tmp_path):
    monkeypatch.delenv("FLOWZOO_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert made_folder("code", "m") == tmp_path / "xdg/flowzoo/pocket/code-m"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert made_folder("code", "m") == tmp_path / ".cache/flowzoo/pocket/code-m"
    assert SCALES == ("xs", "s", "m", "l", "xl")
