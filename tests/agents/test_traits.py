"""Reply budgets: by the task, bounded by the model, the same in training and evaluation."""

import json
from typing import Any

import pytest

from flowzoo.agents.traits import THOUGHT_TOKENS, ModelTraits, reply_budget
from flowzoo.commands.policies import PolicyOptions, with_budget
from flowzoo.envs import make_workflow
from flowzoo.envs.tasks import make_task

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
