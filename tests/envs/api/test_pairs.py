"""The table of workflows and tasks: every possible pair conforms, impossible ones say what is.

Nothing is listed by hand: pairs and presets are the registry's.
"""

import json
from dataclasses import fields
from typing import Any, get_type_hints

import gymnasium
import pettingzoo
import pytest
from processes import run_python

from flowzoo.cli import main
from flowzoo.commands.list import catalog
from flowzoo.envs import Episode, Workflow, testing
from flowzoo.envs.api.registry import WORKFLOWS, make_workflow, workflow_class
from flowzoo.envs.episode.recording import record
from flowzoo.envs.tasks import TASKS, make_task, task_class
from flowzoo.errors import UsageError
from tests.envs.playing import play_experts

RULES = {
    "copies": ["check_forks"],
    "interfaces": ["check_declared", "check_api", "check_solo"],
    "hostile": [
        "check_yields", "check_methods", "check_ends", "check_parsers", "check_hostile",
    ],
    "leaks": ["check_phase_leaks", "check_gold_leaks", "check_truth_blindness"],
    "sums": ["check_credit", "check_seeds", "check_returns", "check_budget"],
    "crowds": ["check_isolation", "check_processes"],
}  # fmt: skip
"""The checks by what they are about; each group is one test."""


def refused(name: str, task: str) -> str:
    """Why a pair is impossible; empty if it is possible."""
    try:
        make_workflow(name, task)
    except UsageError as error:
        return str(error)
    return ""


PAIRS = [(name, task) for name in WORKFLOWS for task in TASKS if not refused(name, task)]
PRESETS = [(*pair, preset) for pair in PAIRS for preset in workflow_class(pair[0]).presets]
HOMES = {(make_task(task).home, task) for task in TASKS}
"""The workflow that each task is at home in."""
pairs = pytest.mark.parametrize(("name", "task"), PAIRS)


def presets() -> list[Any]:
    """All; `make test` takes each workflow on its own task, and each task at its home."""
    marked, seen = [], set()
    for name, task, preset in PRESETS:
        is_own = task == workflow_class(name).default_task
        once = (is_own or (name, task) in HOMES) and (name, task) not in seen
        seen.add((name, task))
        # The conformance checks of a pair share its programs' verdicts and its kernels.
        group = pytest.mark.xdist_group(f"pairs-{task}")
        marks = [group] if once else [group, pytest.mark.full]
        marked.append(pytest.param(name, task, preset, marks=marks))
    return marked


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize(("name", "task", "preset"), presets())
def test_every_pair_conforms(name, task, preset, rules):
    workflow = make_workflow(name, task, preset=preset)
    for check in testing.CHECKS:
        if check.__name__ in RULES[rules]:
            check(workflow)


def test_the_groups_are_all_checks():
    grouped = [check for group in RULES.values() for check in group]
    assert sorted(grouped) == sorted(check.__name__ for check in testing.CHECKS)


@pytest.mark.parametrize("name", WORKFLOWS)
def test_an_impossible_pair_lists_the_possible_ones(name):
    possible = [task for task in TASKS if (name, task) in PAIRS]
    assert workflow_class(name).default_task in possible
    for task in set(TASKS) - set(possible):
        message = refused(name, task)
        assert message.startswith(f"{name} does not support task {task!r}")
        assert message.endswith(f": {', '.join(possible)}.")


def published_name(workflow: Workflow, agent: str) -> str:
    """The trajectory's name in the code of arXiv 2605.24202: the role, which numbers voters."""
    role, slot = workflow.agents[agent]
    is_voter = workflow.name == "voting_v0" and role == "generator"
    is_numbered = workflow.task.kind != "code" or workflow.credit == "rubric"
    return f"{role}{slot}" if is_voter and is_numbered else role


FORMS = [
    *((name, task, {}) for name, task in PAIRS),
    *(("voting_v0", task, {"credit": "rubric"}) for task in ("math", "code")),
    ("voting_v0", "code", {"test_rounds": 2}),
    ("eval_opt_v0", "math", {"history": "own"}),
    ("eval_opt_v0", "code", {"test_rounds": 2}),
    ("orch_workers_v0", "math", {"mode": "sequential"}),
]


@pytest.mark.parametrize(("name", "task", "options"), FORMS)
def test_calls_are_grouped_as_in_the_published_code(name, task, options):
    workflow = make_workflow(name, task, **options)
    for skill in (0.0, 1.0):
        calls = record(play_experts(workflow, workflow.task.problem(0, "train"), skill)).calls
        keys = {(call.name, published_name(workflow, call.agent)) for call in calls}
        assert len(keys) == len({ours for ours, _ in keys}) == len({theirs for _, theirs in keys})


def test_the_list_of_workflows_shows_the_same_pairs():
    listed = [(entry["name"], task) for entry in catalog() for task in entry["tasks"]]
    assert listed == PAIRS


def test_flowzoo_list_prints_the_pairs(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    assert main(["list"]) == 0
    workflows = capsys.readouterr().out.partition("Tasks (")[0].splitlines()
    for name in WORKFLOWS:
        start = next(number for number, row in enumerate(workflows) if row.startswith(name))
        row = next(row for row in workflows[start:] if row.split()[:1] == ["tasks"])
        default = workflow_class(name).default_task
        listed = row.partition("tasks")[2].replace(f"{default} (default)", default)
        assert {task.strip() for task in listed.split(",")} == {t for n, t in PAIRS if n == name}


def test_every_task_is_played_and_its_home_plays_it():
    assert {task for _, task in PAIRS} == set(TASKS)
    for task in TASKS:
        assert (make_task(task).home, task) in PAIRS


@pairs
def test_both_registries_make_the_pair(name, task):
    env = pettingzoo.make("aec", f"flowzoo/{name.replace('_', '-')}", task=task)
    env.reset(seed=0)
    obs = env.last()[0]
    camel = "".join(part.capitalize() for part in name.split("_")[:-1])
    # A role that is asked first: its view needs no answers of others.
    role = env.unwrapped.workflow.agents[env.agent_selection][0]
    view = gymnasium.make(f"flowzoo/{camel}-v0", task=task, role=role)
    assert view.reset(seed=0)[0] == obs


def first_prompts(workflow: Workflow, index: int) -> dict[str, str]:
    """The first prompt of each agent, all messages as one text."""
    episode = Episode(workflow, testing.problem_at(workflow, index))
    testing.play_out(episode, "prompts", index)
    return {
        turn.agent: "\n".join(message["content"] for message in turn.messages)
        for turn in episode.turns
        if turn.turn == 0
    }


@pairs
def test_everybody_is_told_the_same_problem_and_generators_what_the_control_is(name, task):
    workflow = make_workflow(name, task)
    for index in range(3):
        problem = testing.problem_at(workflow, index)
        prompts = first_prompts(workflow, index)
        assert all(problem.text in prompt for prompt in prompts.values())
        alone = {prompts[agent] for agent in prompts if agent.startswith("generator_")}
        assert alone <= {workflow.task.prompt(problem)}
        assert bool(alone) == ("generator" in workflow.role_counts())


@pytest.mark.parametrize("credit", ["team", "local", "mix"])
@pairs
def test_every_call_has_a_role_score_and_a_bounded_reward_under_every_credit(name, task, credit):
    workflow = make_workflow(name, task, credit=credit)
    for index in range(2):
        episode = Episode(workflow, testing.problem_at(workflow, index))
        calls = record(testing.play_out(episode, "credit", index)).calls
        assert all(call.role_score is not None for call in calls)
        assert all(0 <= call.reward <= (2 if credit == "mix" else 1) for call in calls)


BAD_NUMBERS: dict[type, tuple[object, ...]] = {
    int: ("x", 2.5, True, [1]),
    float: ("x", True, float("nan"), float("inf"), [1.0]),
}


def numbers_of(kind: Any) -> list[tuple[str, type]]:
    """The options of a dataclass that are numbers, each with the type it should have."""
    hints = get_type_hints(kind)
    return [
        (option.name, number)
        for option in fields(kind)
        for number in BAD_NUMBERS
        if hints[option.name] in (number, number | None)
    ]


@pytest.mark.parametrize("name", WORKFLOWS)
def test_no_workflow_takes_an_odd_number(name):
    for option, kind in numbers_of(workflow_class(name)):
        for value in BAD_NUMBERS[kind]:
            with pytest.raises(UsageError, match=option):
                make_workflow(name, **{option: value})


@pytest.mark.parametrize("name", TASKS)
def test_no_task_takes_an_odd_number(name):
    assert ("seed", int) in numbers_of(task_class(name))
    for option, kind in numbers_of(task_class(name)):
        for value in BAD_NUMBERS[kind]:
            with pytest.raises(UsageError, match=option):
                make_task(name, **{option: value})


PRINT = """
import hashlib, json
from flowzoo.envs.tasks import TASKS, make_task, task_class
found = {}
for name in TASKS:
    task, hasher = make_task(name), hashlib.blake2b(digest_size=8)
    for split in ("pretrain", "train", "validation", "test"):
        for index in range(4):
            problem = task.problem(index, split)
            hasher.update(f"{problem.id}|{problem.text}|{problem.gold}|".encode())
    found[name] = hasher.hexdigest()
print(json.dumps(found))
"""

PROBLEMS = {
    "math": "d1014ece52a4e59f",
    "code": "5c0d82ec16c26edf",
    "plan_path": "39f6cb55cf1336a1",
    "search": "5e468c314790739a",
    "writing": "bf80eb93bd5fbc05",
    "sokoban": "b545f9825ae89d87",
    "sudoku": "8c3b89bc325df7e1",
}
"""Digests of the first problems of every split. One that changes is another task: then this table
does, too, and so do the results that were measured on it."""


def test_a_problem_is_the_same_in_every_process_and_on_every_machine():
    assert json.loads(run_python(PRINT, PYTHONHASHSEED="1")) == PROBLEMS
