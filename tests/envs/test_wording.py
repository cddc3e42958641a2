"""Options of workflows and tasks: texts in words of the user's, and values of another type."""

import json
import math
import pickle
from collections.abc import Callable
from dataclasses import fields
from typing import Any, get_type_hints

import pytest

from flowzoo.declared import fits
from flowzoo.envs import WORKFLOWS, Episode, Workflow, make_workflow
from flowzoo.envs.tasks import TASKS, make_task
from flowzoo.envs.wording import placeholders, read_wording
from flowzoo.errors import DataError, UsageError
from tests.tables import read_tables

TABLES = read_tables(__file__)

NEAR = {"ballot": "{candidates}\n\nWhich? \\boxed{{NUMBER}}"}


def first_chat(workflow: Workflow) -> list[dict[str, str]]:
    return Episode(workflow, workflow.task.problem(0)).asks[0].observe()


def test_texts_are_taken_and_named_in_records():
    plain = make_workflow("voting")
    changed = make_workflow("voting", texts=NEAR)
    assert changed.prompts["ballot"] == NEAR["ballot"]
    assert changed.prompts["candidate"] == plain.prompts["candidate"]
    assert type(plain).prompts["ballot"] != NEAR["ballot"], "the class is as it was"
    assert plain.prompts_id != changed.prompts_id
    assert plain.spec_digest != changed.spec_digest
    assert "prompts" in changed.functions
    assert not plain.functions
    again = pickle.loads(pickle.dumps(changed))
    assert again == changed
    assert again.prompts_id == changed.prompts_id


def test_the_instruction_is_the_tasks():
    workflow = make_workflow("voting", texts={"instruction": "Box it."})
    assert first_chat(workflow)[0]["content"].endswith("\nBox it.")
    assert make_workflow("voting").task.instruction != "Box it."
    with pytest.raises(UsageError, match="no single instruction"):
        make_workflow("writing_pair", texts={"instruction": "Be brief."})


def test_texts_are_the_writers_instructions():
    texts = {"tldr_0": "Be brief.", "tldr_1": "Be exact."}
    workflow = make_workflow("writing_pair", texts=texts)
    problem = workflow.task.problem(0)
    episode, expert = Episode(workflow, problem), workflow.responder(problem)
    chats = [turn.observe() for turn in episode.asks]
    assert [chat[-1]["content"].rpartition("\n\n")[2] for chat in chats] == [*texts.values()]
    assert [expert("writer", chat) for chat in chats] == json.loads(problem.meta["solution"])


def test_system_messages_go_to_their_role():
    workflow = make_workflow("voting", system=("generator=You are careful.",))
    first, second = first_chat(workflow)
    assert first == {"role": "system", "content": "You are careful."}
    assert second["role"] == "user"
    assert workflow.prompts_id != make_workflow("voting").prompts_id


@pytest.mark.parametrize("name", ["search_team", "code_pair"])
def test_an_instruction_that_is_not_shown_cannot_be_replaced(name):
    with pytest.raises(UsageError, match="does not show the task's instruction"):
        make_workflow(name, texts={"instruction": "Be brief."})


@pytest.mark.parametrize(("options", "message"), TABLES["mistakes"])
def test_mistakes_are_one_line(options, message):
    with pytest.raises((UsageError, DataError), match=message):
        make_workflow("voting", **options)


def test_a_file_gives_all_three(tmp_path):
    file = tmp_path / "prompts.toml"
    file.write_text(
        "instruction = 'Box it: \\boxed{}.'\n[prompts]\n"
        "\"ballot/code\" = '{problem} {candidates}'\n"
        "[system]\naggregator = 'Judge.'\n"
    )
    workflow = make_workflow("voting", texts=str(file), system=("generator=Solve.",))
    assert workflow.task.instruction == "Box it: \\boxed{}."
    assert dict(workflow.system) == {"aggregator": "Judge.", "generator": "Solve."}
    file.write_text("[systems]\ngenerator = 'x'\n")
    with pytest.raises(UsageError, match="unknown table"):
        read_wording(file)
    file.write_text("instruction = \n")
    with pytest.raises(DataError, match="is not TOML"):
        read_wording(file)


@pytest.mark.parametrize("name", WORKFLOWS)
def test_every_text_can_replace_itself_and_full_texts_fit(name):
    kind = type(make_workflow(name))
    again = make_workflow(name, texts=dict(kind.prompts))
    assert again.prompts == kind.prompts
    for purpose, text in kind.full_prompts.items():
        assert placeholders(text) <= placeholders(kind.prompts[purpose])
    make_workflow(name, texts="full")


WRONG = (1.5, -1, "nonsense", "3", True, None, math.nan, math.inf, (1.5,), b"1", {}, object())
"""Values of types of which few options have more than one."""
OWN = {"task", "digest", "failing"}
"""Fields that no user gives."""
ALSO = [["eval_opt_v0", "tools", None]]
"""`none` on a command line, which is read as None."""


def misuses(made: object) -> list[tuple[str, object]]:
    """Each option of an object with each value of another type, or that is not finite."""
    hints = get_type_hints(type(made), include_extras=True)
    return [
        (option.name, value)
        for option in fields(made)  # type: ignore[arg-type]
        for value in WRONG
        if option.name not in OWN
        and not (
            fits(value, hints[option.name])
            and not (value in (math.nan, math.inf) and isinstance(option.default, float))
        )
    ]


@pytest.mark.parametrize(
    ("make", "name"),
    [*((make_workflow, name) for name in WORKFLOWS), *((make_task, name) for name in TASKS)],
)
def test_values_of_another_type_are_refused_by_name(make: Callable[..., Any], name: str):
    cases = misuses(make(name))
    for option, value in cases:
        if [name, option, value] in ALSO:
            continue
        with pytest.raises(UsageError, match=rf"\b{option}\b") as refused:
            make(name, **{option: value})
        assert "\n" not in str(refused.value)
    assert len(cases) >= 40, "a rule that generates nothing tests nothing"
