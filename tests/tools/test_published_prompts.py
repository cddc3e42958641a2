"""The file that is made of published prompts gives the chats of the public code."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from flowzoo.envs import Episode, Workflow, make_workflow
from flowzoo.envs.episode.effects import resolve
from flowzoo.envs.script import Message
from tools.published_prompts import FILES, TABLES, prompts_file

SOLVE = "Solve it: {problem}\nUse \\boxed{{}}."
TEXTS = {
    "single": {"generator_initial": SOLVE},
    "voting": {"generator": SOLVE, "aggregator": "{problem}?\nOf:{solutions}\n\\boxed{{N}}, N."},
    "eval_opt": {"generator_initial": SOLVE, "evaluator_critique": "Is it {{so}}? \\boxed{Correct}",
                 "generator_refinement": "Other way, \\boxed{{}}."},
    "orch_workers": {
        "orchestrator_propose": "At most {max_subtasks} for {problem}: STRATEGY 1: [{{way}}]",
        "worker_full_solve": "{problem} by {strategy}, \\boxed{{}}.",
        "orchestrator_compare": "{problem}\nCompare:{solutions}\nThen \\boxed{{}}.",
    },
}  # fmt: skip
"""Texts in the layout of the public `prompt.json`, by workflow."""


def public_copy(folder: Path) -> Path:
    """A folder with the files that hold the public prompts."""
    for task, place in FILES.items():
        path = folder / place / "prompt.json"
        path.parent.mkdir(parents=True)
        tables = {
            TABLES[task][name]: {key: {"template": text} for key, text in texts.items()}
            for name, texts in TEXTS.items()
        }
        path.write_text(json.dumps(tables | {"metadata": {"version": "1"}}))
    return folder


def chats(workflow: Workflow, replies: Mapping[str, list[str]]) -> list[tuple[str, list[Message]]]:
    """Agent and chat of every call of an episode with the given replies by role."""
    problem = workflow.task.problem(0, "test")
    episode, found = Episode(workflow, problem), []
    left = {role: list(texts) for role, texts in replies.items()}
    while not episode.done:
        if episode.effects:
            jobs = [(problem, effect) for effect in episode.effects]
            episode.resolve(resolve(workflow.task, jobs))
            continue
        turn = episode.waiting[0]
        found.append((turn.agent, list(turn.messages)))
        episode.reply(turn.agent, left[workflow.agents[turn.agent][0]].pop(0))
    return found


def asks(*texts: str) -> list[Message]:
    """A chat whose messages are of the user and the assistant in turns."""
    roles: list[Any] = ["user", "assistant"]
    return [{"role": roles[number % 2], "content": text} for number, text in enumerate(texts)]


@pytest.mark.parametrize("task", FILES)
def test_every_chat_is_the_published_one(task, tmp_path):
    copy = public_copy(tmp_path / "copy")

    def played(name: str, **replies: list[str]) -> tuple[str, list[tuple[str, list[Message]]]]:
        file = tmp_path / f"{name}.toml"
        file.write_text(prompts_file(copy, name, task))
        workflow = make_workflow(f"{name}_v0", task, preset="published", texts=str(file))
        return workflow.task.problem(0, "test").text, chats(workflow, replies)

    problem, found = played("single", generator=["a"])
    first = SOLVE.format(problem=problem)
    assert found == [("generator_0", asks(first))]

    problem, found = played("voting", generator=["a{}", "b", "c"], aggregator=["\\boxed{2}"])
    solutions = "".join(f"\n--- Solution {i} ---\n{text}\n"
                        for i, text in enumerate(("a{}", "b", "c"), start=1))  # fmt: skip
    ballot = TEXTS["voting"]["aggregator"].format(problem=problem, solutions=solutions)
    assert found == [*((f"generator_{i}", asks(first)) for i in range(3)),
                     ("aggregator_0", asks(ballot))]  # fmt: skip

    _, found = played("eval_opt", generator=["a", "b"],
                      evaluator=["\\boxed{Incorrect}", "\\boxed{Correct}"])  # fmt: skip
    check, again = (
        TEXTS["eval_opt"]["evaluator_critique"],
        TEXTS["eval_opt"]["generator_refinement"],
    )
    assert found[0] == ("generator_0", asks(first))
    assert found[1] == ("evaluator_0", asks(first, "a", check))
    assert found[2][1][-1] == asks(again)[0]
    assert found[3][1][-2:] == [{"role": "assistant", "content": "b"}, asks(check)[0]]

    problem, found = played("orch_workers", orchestrator=["STRATEGY 1: x\nSTRATEGY 2: y"],
                            worker=["a", "b"], synthesizer=["c"])  # fmt: skip
    texts = TEXTS["orch_workers"]
    assert [chat for _, chat in found[:3]] == [
        asks(texts["orchestrator_propose"].format(problem=problem, max_subtasks=3)),
        asks(texts["worker_full_solve"].format(problem=problem, strategy="x")),
        asks(texts["worker_full_solve"].format(problem=problem, strategy="y")),
    ]
    solutions = "\n--- Worker 1 (x) ---\na\n\n--- Worker 2 (y) ---\nb\n"
    compare = texts["orchestrator_compare"].format(problem=problem, solutions=solutions)
    assert found[3] == ("synthesizer_0", asks(compare))


def test_a_folder_that_is_no_copy_is_refused(tmp_path):
    with pytest.raises(
        SystemExit, match=r"no copy of the public code .*math_reasoning/prompt\.json"
    ):
        prompts_file(tmp_path, "voting", "math")
