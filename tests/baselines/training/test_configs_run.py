"""Every bundled config runs: the pocket versions train, the others are accepted as far as a machine
without GPU and network can tell."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flowzoo.agents.chat.template import read_thinking
from flowzoo.baselines.settings.file import FOLDER, bundled_names, load_config
from flowzoo.baselines.training.plan import resolve
from flowzoo.baselines.training.trainer import train
from flowzoo.commands.train import check_settings
from flowzoo.envs.api.registry import workflow_class
from tests.baselines.bundled import POCKET

USUAL = ("at_grpo/plan_path", "dr_mas/search")
"""Configs that are also tried in `make test`."""


def marks(name: str) -> list[Any]:
    """Marks of a config's test: a process may have each of them for itself."""
    group = pytest.mark.xdist_group(f"config+{name.replace('/', '-')}")
    return [group] if name in USUAL else [group, pytest.mark.full]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=marks(name))
        for name in (config.partition("@")[0] for config in POCKET)
        if not name.startswith("published/")  # paper's with other rules
    ],
)
def test_the_pocket_version_starts_as_it_is_with_readable_replies(name, tmp_path):
    config = replace(load_config(f"{name}@pocket"), steps=1, threads=1, out=str(tmp_path))
    check_settings(config)  # its number of held-out problems, too, of which a fifth is enough
    assert config.eval_problems
    summary = train(replace(config, eval_problems=config.eval_problems // 5))
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    policies = set(summary["policies"].values())
    assert [row["step"] for row in rows] == [0, 1]
    readable = {
        role: rows[0][f"eval/strict/{role}"] for role in workflow_class(config.workflow).roles
    }
    assert min(readable.values()) >= 0.9, readable
    assert summary["training_tokens"] > 0
    assert {f"learn/rows/{policy}" for policy in policies} <= set(rows[1])
    if "isolated" in config.sharing:
        assert len(policies) == len(summary["policies"])
    if config.options and config.task == "code":
        grading = json.loads((tmp_path / "run.json").read_text())["grading"]
        assert grading["sandbox"]["trust"]


OF_POCKET = (
    "model", "engine", "engine_dtype", "sync_tolerance", "deterministic", "compute", "thinking",
    "gradient_checkpointing", "microbatch_tokens", "max_prompt", "max_tokens",
)  # fmt: skip
"""Settings of size and machine."""


@pytest.mark.full
@pytest.mark.parametrize("name", ["at_grpo/plan_path", "dr_mas/math", "magrpo/code"])
def test_a_published_variant_trains_on_a_pocket_model(name, tmp_path):
    small, config = load_config(f"{name}@pocket"), load_config(f"{name}@published")
    config = replace(
        config,
        **{field: getattr(small, field) for field in OF_POCKET},
        eval_problems=1,
        eval_sets=(),
        options=tuple(word for word in config.options if not word.startswith("data=")),
        problems=2,
        weights="float32",
        token_budget=1,
        threads=1,
        out=str(tmp_path),
    )
    summary = train(config)
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [0, 1]
    for policy in set(summary["policies"].values()):
        assert rows[1][f"learn/rows/{policy}"] > 0
    if config.drop_groups:  # one policy, whose groups are of `candidates` rows
        kept, dropped = rows[1]["learn/rows/shared"], rows[1]["filter/rows"]
        assert dropped == (kept + dropped) // 8 // 2 * 8 > 0


def local_data(task: str, folder: Path) -> Path:
    """A small file in the layout of the config's data set."""
    path = folder / f"{task}.jsonl"
    rows: list[dict[str, Any]] = []
    for i in range(40):
        if task == "math":
            # The layout of DAPO-Math-17k-Processed.
            graded = {"ground_truth": str(i + 1), "style": "rule-lighteval/MATH_v2"}
            rows.append({"prompt": f"1 + {i}?", "solution": str(i + 1), "reward_model": graded})
        elif task == "code":
            # The layout of DeepCoder's parts.
            tests = [{"input": "1\n", "output": f"{i + 1}\n", "type": "stdin_stdout"}]
            rows.append({"problem": f"Read x, print x + {i}.", "tests": json.dumps(tests),
                         "solutions": [f"print(int(input()) + {i})"]})  # fmt: skip
        elif task == "writing":
            rows.append({"prompt": f"SUBREDDIT: r/test\nPOST: my cat number {i} ran away."})
        else:
            rows.append({"id": f"q{i}", "question": f"who is person {i}?",
                         "golden_answers": [f"name {i}"]})  # fmt: skip
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def humaneval(folder: Path) -> Path:
    """A small file in the layout of HumanEval."""
    path = folder / "humaneval.jsonl"
    rows = [
        {
            "task_id": f"HumanEval/{i}",
            "prompt": f'def add{i}(x):\n    """Add {i} to x."""\n',
            "canonical_solution": f"    return x + {i}\n",
            "test": f"def check(candidate):\n    assert candidate(1) == {i + 1}\n",
            "entry_point": f"add{i}",
        }
        for i in range(40)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


VARIANTS = [
    f"{name}@published"
    for name in bundled_names(FOLDER)
    if not name.startswith(("paper/", "published/"))
]


@pytest.mark.parametrize("name", [*bundled_names(FOLDER), *VARIANTS])
def test_the_full_size_version_is_accepted(name, tmp_path):
    config = load_config(name)
    made = {True: humaneval, False: lambda folder: local_data(config.task or "", folder)}
    options = tuple(
        f"data={made['humaneval' in word](tmp_path)}" if word.startswith("data=") else word
        for word in config.options
    )
    sets = tuple(
        f"{word.partition('=')[0]}={local_data(config.task or '', tmp_path)}"
        for word in config.eval_sets
    )
    config = replace(config, options=options, eval_sets=sets)
    plan = resolve(config)
    workflow = plan.workflow
    read_thinking(config.thinking, plan.names)
    assert plan.budgets.reply == config.max_tokens
    assert all(lengths.prompt == config.max_prompt for lengths in plan.budgets.roles.values())
    assert set(plan.learners) == set(plan.names)
    for settings in plan.learners.values():
        assert settings.compute == "bfloat16"
        assert (settings.updates_per_iteration == "by_rows") == (config.updates == 0)
    problem = workflow.task.problem(0, config.split)
    assert problem.text
    if any(word.startswith("data=") for word in options):
        assert workflow.task.size(config.split)
