import asyncio

import pytest

from flowzoo.agents.policy import Policy, Request
from flowzoo.agents.scripted import ScriptedPolicy, problem_from_id
from flowzoo.agents.specs import make_policy
from flowzoo.envs import make_workflow
from flowzoo.envs.tasks.math import MathTask
from flowzoo.errors import UsageError

WORKFLOW = make_workflow("single_v0", "math")
TASK = WORKFLOW.task


def ask(index: int, *key: str | int) -> Request:
    problem = TASK.problem(index, "validation")
    messages = [{"role": "user", "content": TASK.prompt(problem)}]
    return Request(key or (index,), "generator_0", "generator", messages, problem=problem.id)


def replies(policy: Policy, requests: list[Request]) -> list[str]:
    return [done.text for done in asyncio.run(policy.generate(requests))]


def rights(policy: Policy, requests: list[Request]) -> list[bool]:
    """Whether the reply to each request is right."""
    problems = [problem_from_id(TASK, request.problem) for request in requests]
    answers = [TASK.answer(text) for text in replies(policy, requests)]
    return [grade.score == 1.0 for grade in TASK.grade_batch(problems, answers)]


def test_skill_1_is_always_right_and_skill_0_never():
    requests = [ask(i) for i in range(50)]
    assert rights(ScriptedPolicy(WORKFLOW, 1.0), requests) == [True] * 50
    assert rights(ScriptedPolicy(WORKFLOW, 0.0), requests) == [False] * 50


def test_skill_is_a_probability_independent_over_keys():
    requests = [ask(7, "e", i, role) for i in range(2000) for role in ("a", "b")]
    right = rights(ScriptedPolicy(WORKFLOW, 0.8), requests)
    assert sum(right) / 4000 == pytest.approx(0.8, abs=0.03)
    both = sum(item and two for item, two in zip(right[::2], right[1::2], strict=True)) / 2000
    assert both == pytest.approx(0.64, abs=0.04)


def test_replies_are_a_function_of_key_and_seed_not_of_order():
    requests = [ask(i % 50, "e", i) for i in range(200)]
    first = replies(ScriptedPolicy(WORKFLOW, 0.5), requests)
    assert replies(ScriptedPolicy(WORKFLOW, 0.5), requests[::-1])[::-1] == first
    assert replies(ScriptedPolicy(WORKFLOW, 0.5, seed=1), requests) != first


def test_completions_say_they_are_scripted():
    (done,) = asyncio.run(ScriptedPolicy(WORKFLOW).generate([ask(1)]))
    assert (done.finish, done.output_ids, done.logps) == ("scripted", (), ())


@pytest.mark.parametrize("source", ["", "test.jsonl", "b:c.jsonl"])
def test_references_resolve_to_their_problem(source, tmp_path):
    task = MathTask(seed=3)
    if source:
        row = '{{"question": "{0}+1?", "answer": "#### {0}"}}\n'
        (tmp_path / source).write_text("".join(row.format(number) for number in range(50)))
        task = MathTask(data=str(tmp_path / source))
    for index in (0, 17, 49):
        problem = task.problem(index, "all")
        assert problem_from_id(task, problem.id) == problem


@pytest.mark.parametrize(
    "reference", ["", "math", "math/all/0", "math/all/0/x", "math/all/0/-1", "math/all/0/²"]
)
def test_what_is_no_reference_is_explained(reference):
    with pytest.raises(UsageError, match="expected a problem reference such as"):
        problem_from_id(TASK, reference)


def test_an_oracle_of_another_task_is_refused():
    reference = MathTask(seed=1).problem(4, "test").id
    with pytest.raises(UsageError, match=r"'math/test/1/level-1:4' to 'math/test/0/level-1:4'"):
        problem_from_id(TASK, reference)
    with pytest.raises(UsageError, match="other"):
        problem_from_id(TASK, "other/test/0/4")
    with pytest.raises(UsageError, match="unknown split 'tests'"):
        problem_from_id(TASK, "math/tests/0/4")


@pytest.mark.parametrize("skill", [-0.1, 1.1, float("nan")])
def test_skill_outside_0_to_1_is_refused(skill):
    with pytest.raises(UsageError, match="probability"):
        ScriptedPolicy(WORKFLOW, skill)


def test_specs_make_the_policy_they_name():
    scripted = make_policy("scripted:0.25", oracle=WORKFLOW, name="p")
    assert isinstance(scripted, ScriptedPolicy)
    assert (scripted.name, scripted.skill) == ("p", 0.25)
    remote = make_policy("openai:org/model@2024@http://localhost:1/v1")
    assert "model='org/model@2024', url='http://localhost:1/v1/chat/completions'" in repr(remote)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("scripted:often", "expected scripted:P"),
        ("scripted:1.5", "probability"),
        ("openai:model", "expected openai:MODEL@URL"),
        ("openai:@http://host", "expected openai:MODEL@URL"),
        ("hf:", "unknown policy"),
        ("hf:/does/not/exist", "cannot load a model"),
        ("gpt", "Valid choices: DIRECTORY, hf:PATH"),
    ],
)
def test_wrong_specs_are_explained(spec, message):
    with pytest.raises(UsageError, match=message):
        make_policy(spec, oracle=WORKFLOW)


def test_a_scripted_spec_needs_an_oracle():
    with pytest.raises(UsageError, match="needs the workflow"):
        make_policy("scripted:1.0")
