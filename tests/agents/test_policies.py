"""Policies: requests, the policy map, problems, scripts, people at the terminal."""

import asyncio
import io
import random
import stat
import sys
from collections import Counter

import pytest
from policies import Replies

from flowzoo.agents.human import CUT, HumanPolicy, editor
from flowzoo.agents.policy import Policy, Request, Sampling, canonical, reply_cap
from flowzoo.agents.policy_map import PolicyMap
from flowzoo.agents.problems import distinct_problems, indices_from
from flowzoo.agents.scripted import ScriptedPolicy, problem_from_id
from flowzoo.agents.specs import make_policy
from flowzoo.cli import main
from flowzoo.envs import make_workflow
from flowzoo.envs.tasks import make_task
from flowzoo.envs.tasks.math import MathTask
from flowzoo.envs.text import encodable
from flowzoo.errors import UsageError


def test_keys_of_mixed_parts_have_one_order():
    keys = [(0, "p", 10), (0, "p", 9), (0, 5, "x"), ("0", "p", 9), (0, "p"), (0, "q", 1)]
    ordered = sorted(keys, key=canonical)
    assert ordered == [
        (0, 5, "x"), (0, "p"), (0, "p", 9), (0, "p", 10), (0, "q", 1), ("0", "p", 9)
    ]  # fmt: skip
    random.Random(1).shuffle(keys)
    assert sorted(keys, key=canonical) == ordered


def test_only_lone_surrogates_are_changed():
    assert encodable("π 日本 🙂 \x00") == "π 日本 🙂 \x00"
    assert encodable("a\ud83db\udc00") == "a\ufffdb\ufffd"


ROLES = {"generator": 3, "aggregator": 1}


def echo(name: str) -> Replies:
    return Replies(name=name)


def test_an_agents_entry_wins_over_its_roles():
    first_item, two, three = echo("one"), echo("two"), echo("three")
    policy_map = PolicyMap({"generator": two, "generator_1": first_item, "aggregator": three})
    policy_map.check(ROLES)
    results = [policy_map.policy(f"generator_{slot}").name for slot in range(3)]
    assert results == ["two", "one", "two"]
    assert list(policy_map.policies) == ["one", "three", "two"]
    assert policy_map.entries == {"generator": "two", "generator_1": "one", "aggregator": "three"}


def test_agents_alone_can_cover_a_role():
    policy = echo("p")
    policy_map = PolicyMap(
        {f"generator_{slot}": policy for slot in range(3)} | {"aggregator": policy}
    )
    policy_map.check(ROLES)
    partly = PolicyMap({"generator_0": policy, "generator_2": policy, "aggregator": policy})
    with pytest.raises(UsageError, match=r"no policy for role generator \(generator_1\)"):
        partly.check(ROLES)


def test_a_missing_role_is_named_with_the_valid_ones():
    policy_map = PolicyMap({"generator": echo("p")})
    with pytest.raises(UsageError, match=r"aggregator .*roles are generator, aggregator"):
        policy_map.check(ROLES)
    with pytest.raises(UsageError, match="unknown role or agent 'aggregator_0'"):
        policy_map.policy("aggregator_0")


def test_an_unknown_role_gets_near_matches():
    policy_map = PolicyMap({"generater": echo("p"), "aggregator": echo("q")})
    with pytest.raises(UsageError, match="Did you mean 'generator'"):
        policy_map.check(ROLES)
    with pytest.raises(UsageError, match="unknown role or agent 'generator_3'"):
        PolicyMap.shared(echo("p"), [*ROLES, "generator_3"]).check(ROLES)


def test_from_map_takes_names_and_explains_unknown_ones():
    policies = {"big": echo("big"), "small": echo("small"), "spare": echo("spare")}
    policy_map = PolicyMap.from_map({"generator": "small", "aggregator": "big"}, policies)
    assert policy_map.policy("generator_1") is policies["small"]
    assert list(policy_map.policies) == ["big", "small"]
    with pytest.raises(UsageError, match=r"unknown policy 'smal'. Did you mean 'small'"):
        PolicyMap.from_map({"generator": "smal"}, policies)


def test_wrong_entries_are_refused():
    with pytest.raises(UsageError, match="two different policies are named 'p'"):
        PolicyMap({"generator": echo("p"), "aggregator": echo("p")})
    with pytest.raises(UsageError, match="at least one entry"):
        PolicyMap({})
    with pytest.raises(UsageError, match=r"must be a policy .*got str"):
        PolicyMap({"generator": "p"})  # type: ignore[dict-item]


def test_a_judge_is_apart_from_a_role_that_is_named_so():
    policy, judge = echo("p"), echo("j")
    roles = {"judge": 1, "solver": 1}
    plain = PolicyMap({"solver": policy, "judge": policy})
    plain.check(roles)
    assert (plain.judge, plain.policy("judge_0")) == (None, policy)
    judged = PolicyMap({"solver": policy}).with_judge(judge)
    judged.check({"solver": 1}, judge=True)
    assert (judged.policy("judge"), judged.entries) == (judge, {"solver": "p"})
    assert judged.with_policies({"p": policy, "j": judge}).judge is judge
    with pytest.raises(UsageError, match="asks a judge, and no policy is one"):
        plain.check(roles, judge=True)


def test_held_out_problems_are_distinct_and_begin_at_the_first():
    task = make_task("math")
    problems = distinct_problems(task, "validation", 500)
    assert len({problem.text for problem in problems}) == 500
    assert problems[0] == task.problem(0, "validation")


def test_all_of_a_generator_is_refused():
    with pytest.raises(UsageError, match="has no end"):
        distinct_problems(make_task("math"), "validation", None)


def test_more_than_there_are_is_refused(tmp_path):
    path = tmp_path / "two.jsonl"
    path.write_text('{"question": "1+1?", "answer": "#### 2"}\n' * 2)
    task = make_task("math", data=str(path))
    assert len(distinct_problems(task, "all", None)) == 2
    with pytest.raises(UsageError, match="only 1 distinct"):
        distinct_problems(task, "all", 2)


def test_the_counted_problems_of_a_generator_are_all_that_it_draws():
    task = make_task("math", level="1")
    size = task.distinct("test")
    assert size is not None
    assert len(distinct_problems(task, "test", size)) == size
    with pytest.raises(UsageError, match=f"has only {size} distinct problems from index 3 on"):
        distinct_problems(task, "test", size + 1, start=3)
    assert make_task("math", level="1-2").distinct("test") is None


def test_a_finite_stream_covers_every_problem_once_an_epoch_in_new_orders():
    indices = indices_from(10, seed=3, first=0, count=40)
    for start in (0, 10, 20, 30):
        assert Counter(indices[start : start + 10]) == Counter(range(10))
    assert indices[:10] != indices[10:20]
    assert indices[:10] != indices_from(10, seed=4, first=0, count=10)
    assert indices[4:12] == indices_from(10, seed=3, first=4, count=8)


def test_an_endless_stream_is_a_function_of_seed_and_position():
    first = indices_from(None, seed=0, first=0, count=32)
    assert first == indices_from(None, seed=0, first=0, count=32)
    assert not set(first) & set(indices_from(None, seed=0, first=32, count=32))
    assert not set(first) & set(indices_from(None, seed=1, first=0, count=32))


WORKFLOW = make_workflow("single_v0", "math")
TASK = WORKFLOW.task


def scripted_ask(index: int, *key: str | int) -> Request:
    problem = TASK.problem(index, "validation")
    messages = [{"role": "user", "content": TASK.prompt(problem)}]
    return Request(key or (index,), "generator_0", "generator", messages, problem=problem.id)


def scripted_replies(policy: Policy, requests: list[Request]) -> list[str]:
    return [done.text for done in asyncio.run(policy.generate(requests))]


def rights(policy: Policy, requests: list[Request]) -> list[bool]:
    """Whether the reply to each request is right."""
    problems = [problem_from_id(TASK, request.problem) for request in requests]
    answers = [TASK.answer(text) for text in scripted_replies(policy, requests)]
    return [grade.score == 1.0 for grade in TASK.grade_batch(problems, answers)]


def test_skill_1_is_always_right_and_skill_0_never():
    requests = [scripted_ask(i) for i in range(50)]
    assert rights(ScriptedPolicy(WORKFLOW, 1.0), requests) == [True] * 50
    assert rights(ScriptedPolicy(WORKFLOW, 0.0), requests) == [False] * 50


def test_skill_is_a_probability_independent_over_keys():
    requests = [scripted_ask(7, "e", i, role) for i in range(2000) for role in ("a", "b")]
    right = rights(ScriptedPolicy(WORKFLOW, 0.8), requests)
    assert sum(right) / 4000 == pytest.approx(0.8, abs=0.03)
    both = sum(item and two for item, two in zip(right[::2], right[1::2], strict=True)) / 2000
    assert both == pytest.approx(0.64, abs=0.04)


def test_replies_are_a_function_of_key_and_seed_not_of_order():
    requests = [scripted_ask(i % 50, "e", i) for i in range(200)]
    first = scripted_replies(ScriptedPolicy(WORKFLOW, 0.5), requests)
    assert scripted_replies(ScriptedPolicy(WORKFLOW, 0.5), requests[::-1])[::-1] == first
    assert scripted_replies(ScriptedPolicy(WORKFLOW, 0.5, seed=1), requests) != first


def test_completions_say_they_are_scripted():
    (done,) = asyncio.run(ScriptedPolicy(WORKFLOW).generate([scripted_ask(1)]))
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


REQUEST = Request(("k",), "judge_0", "judge", [{"role": "user", "content": "is \x1b[31m it π?"}])


def typed_replies(monkeypatch, typed: str, count: int = 1) -> list[str]:
    """Replies to `count` requests when this is typed."""
    monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
    policy = make_policy("human")
    assert isinstance(policy, HumanPolicy)
    assert isinstance(policy, Policy)
    return [done.text for done in asyncio.run(policy.generate([REQUEST] * count))]


def script(tmp_path, code: str) -> str:
    """An editor that runs `code` over `sys.argv[1]`."""
    path = tmp_path / "an editor.py"
    path.write_text(f"#!{sys.executable}\nimport sys, pathlib\n{code}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return f"'{path}'"


def test_a_line_or_several_are_the_reply_as_typed(monkeypatch, capsys):
    typed = '\\boxed{1}\n\n"""\nfirst\n\n  second\n"""\n'
    assert typed_replies(monkeypatch, typed, 3) == ["\\boxed{1}", "", "first\n\n  second"]
    requested = capsys.readouterr()
    assert requested.out == ""  # which is for the transcript
    assert requested.err.count("you are judge_0") == 3
    assert "is \\u001b[31m it π?" in requested.err
    assert requested.err.count("/edit") == 1


@pytest.mark.parametrize("typed", ["", '"""\nunfinished\n'])
def test_the_end_of_standard_input_is_one_line(monkeypatch, typed):
    with pytest.raises(UsageError, match="standard input ended while judge_0"):
        typed_replies(monkeypatch, typed)


def test_an_editor_shows_the_question_and_gives_what_stands_above_it(monkeypatch, tmp_path):
    code = (
        "p = pathlib.Path(sys.argv[1]); t = p.read_text(); seen = p.with_suffix('.seen')\n"
        f"pathlib.Path({str(tmp_path / 'asked')!r}).write_text(t)\n"
        "p.write_text('def f():\\n    return 1\\n' + t)"
    )
    monkeypatch.setenv("VISUAL", script(tmp_path, code))
    assert typed_replies(monkeypatch, "/edit\n") == ["def f():\n    return 1"]
    requested = (tmp_path / "asked").read_text()
    assert requested.startswith(f"\n{CUT}\nuser:\nis ")


def test_an_empty_text_is_asked_for_again(monkeypatch, tmp_path):
    monkeypatch.setenv("VISUAL", script(tmp_path, ""))
    assert typed_replies(monkeypatch, "/edit\ntyped after all\n") == ["typed after all"]


def test_what_is_wrong_with_an_editor_is_one_line(monkeypatch, tmp_path):
    monkeypatch.setenv("VISUAL", script(tmp_path, "sys.exit(3)"))
    with pytest.raises(UsageError, match="status 3"):
        typed_replies(monkeypatch, "/edit\n")
    monkeypatch.setenv("VISUAL", "/nowhere/editor")
    with pytest.raises(UsageError, match="cannot start"):
        typed_replies(monkeypatch, "/edit\n")
    monkeypatch.setenv("VISUAL", "vi '")
    with pytest.raises(UsageError, match="cannot read the editor's command \"vi '\": No closing"):
        editor()
    monkeypatch.delenv("VISUAL")
    monkeypatch.delenv("EDITOR", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="set EDITOR"):
        editor()


def test_a_person_plays_a_role_and_sees_no_more_than_it(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.StringIO("\\boxed{2}\n"))
    args = ["--policy", "generator=scripted:1", "aggregator=human"]
    assert main(["play", "voting", *args]) == 0
    output = capsys.readouterr()
    assert "Candidate 3" in output.err
    assert "gold" not in output.err
    assert "Candidate" not in output.out
    rewards = "generator_0 1, generator_1 1, generator_2 1, aggregator_0 1"
    assert output.out.endswith(f"rewards: {rewards}\n")


def test_a_request_can_tighten_the_cap_but_not_loosen_it():
    def cap(local: int | None) -> int:
        request = Request(("k",), "a_0", "a", [], max_tokens=local)
        return reply_cap(request, Sampling(max_tokens=8))

    assert [cap(None), cap(3), cap(99)] == [8, 3, 8]
    with pytest.raises(UsageError, match="at least 1"):
        cap(0)
