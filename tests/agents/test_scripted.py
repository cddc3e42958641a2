from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import pytest

from flowzoo.agents.policy import Policy, Request
from flowzoo.agents.scripted import ScriptedPolicy, problem_from_id
from flowzoo.agents.specs import make_policy
from flowzoo.envs.script import Graded, Message
from flowzoo.envs.tasks.task import Problem, Task, check_split
from flowzoo.errors import UsageError


class Sums(Task):
    """i + seed = ?, optionally as if read from a file."""

    name = "sums"
    kind = "number"

    def __init__(self, seed: int = 0, source: str = "") -> None:
        self.seed, self.source = seed, source

    def size(self, split: str) -> int | None:
        return 50

    def problem(self, index: int, split: str = "train") -> Problem:
        check_split(split)
        if not 0 <= index < 50:
            raise UsageError(f"index {index} is outside 0..49")
        meta = {"source": self.source} if self.source else {}
        gold = str(index + self.seed)
        return Problem("sums", split, self.seed, index, f"{index}+{self.seed}", gold, meta)

    def prompt(self, problem: Problem) -> str:
        return problem.text

    def answer(self, text: str) -> str | None:
        return text

    answer_lenient = answer

    def grade_batch(
        self, problems: Sequence[Problem], answers: Sequence[str | None]
    ) -> list[Graded]:
        pairs = zip(problems, answers, strict=True)
        return [Graded(float(item.gold == two), "ok") for item, two in pairs]

    def classes(self, answers: Sequence[str | None]) -> tuple[int, ...]:
        return tuple(range(len(answers)))

    def solve(self, problem: Problem, rng: random.Random, right: bool) -> str:
        return problem.gold if right else f"{problem.gold}.{rng.randint(1, 9)}"

    def samples(self) -> tuple[str, ...]:
        return ("1",)


class Flow:
    """The part of a workflow that a scripted policy uses."""

    def __init__(self, task: Task) -> None:
        self.task = task

    def expert(
        self, role: str, messages: list[Message], problem: Problem, rng: random.Random, right: bool
    ) -> str:
        return f"{role}:{len(messages)}:{self.task.solve(problem, rng, right)}"


def ask(index: int, *key: str | int, role: str = "generator") -> Request:
    problem = Sums().problem(index, "validation").id
    messages = [{"role": "user", "content": "?"}]
    return Request(key or (index,), f"{role}_0", role, messages, problem=problem)


def replies(policy: Policy, requests: list[Request]) -> list[str]:
    return [done.text for done in asyncio.run(policy.generate(requests))]


def test_skill_1_is_always_right_and_skill_0_never() -> None:
    requests = [ask(i) for i in range(50)]
    golds = [f"generator:1:{i}" for i in range(50)]
    assert replies(ScriptedPolicy(Flow(Sums()), 1.0), requests) == golds
    wrong = replies(ScriptedPolicy(Flow(Sums()), 0.0), requests)
    assert not set(wrong) & set(golds)


def test_skill_is_a_probability_independent_over_keys() -> None:
    policy = ScriptedPolicy(Flow(Sums()), 0.8)
    requests = [ask(7, "e", i, role) for i in range(2000) for role in ("a", "b")]
    right = [text == "generator:1:7" for text in replies(policy, requests)]
    assert sum(right) / 4000 == pytest.approx(0.8, abs=0.03)
    both = sum(item and two for item, two in zip(right[::2], right[1::2], strict=True)) / 2000
    assert both == pytest.approx(0.64, abs=0.04)


def test_replies_are_a_function_of_key_and_seed_not_of_order() -> None:
    requests = [ask(i % 50, "e", i) for i in range(200)]
    first = replies(ScriptedPolicy(Flow(Sums()), 0.5), requests)
    assert replies(ScriptedPolicy(Flow(Sums()), 0.5), requests[::-1])[::-1] == first
    assert replies(ScriptedPolicy(Flow(Sums()), 0.5, seed=1), requests) != first


def test_completions_say_they_are_scripted() -> None:
    (done,) = asyncio.run(ScriptedPolicy(Flow(Sums())).generate([ask(1)]))
    assert (done.finish, done.output_ids, done.logps) == ("scripted", (), ())


@pytest.mark.parametrize("source", ["", "test.jsonl", "a/b:c.jsonl"])
def test_references_resolve_to_their_problem(source: str) -> None:
    task = Sums(seed=3, source=source)
    for index in (0, 17, 49):
        problem = task.problem(index, "all")
        assert problem_from_id(task, problem.id) == problem


@pytest.mark.parametrize(
    "reference", ["", "sums", "sums/all/0", "sums/all/0/x", "sums/all/0/-1", "sums/all/0/²"]
)
def test_what_is_no_reference_is_explained(reference: str) -> None:
    with pytest.raises(UsageError, match="expected a problem reference such as"):
        problem_from_id(Sums(), reference)


def test_an_oracle_of_another_task_is_refused() -> None:
    reference = Sums(seed=1).problem(4, "test").id
    with pytest.raises(UsageError, match=r"'sums/test/1/4' to 'sums/test/0/4'"):
        problem_from_id(Sums(seed=0), reference)
    with pytest.raises(UsageError, match="other"):
        problem_from_id(Sums(), "other/test/0/4")
    with pytest.raises(UsageError, match="unknown split 'tests'"):
        problem_from_id(Sums(), "sums/tests/0/4")


@pytest.mark.parametrize("skill", [-0.1, 1.1, float("nan")])
def test_skill_outside_0_to_1_is_refused(skill: float) -> None:
    with pytest.raises(UsageError, match="probability"):
        ScriptedPolicy(Flow(Sums()), skill)


def test_specs_make_the_policy_they_name() -> None:
    scripted = make_policy("scripted:0.25", oracle=Flow(Sums()), name="p")
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
        ("gpt", "Valid choices: hf:PATH"),
    ],
)
def test_wrong_specs_are_explained(spec: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make_policy(spec, oracle=Flow(Sums()))


def test_a_scripted_spec_needs_an_oracle() -> None:
    with pytest.raises(UsageError, match="needs the workflow"):
        make_policy("scripted:1.0")
