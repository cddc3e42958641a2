"""Worked examples: what roles are shown before their own chats."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from flowzoo.envs import WORKFLOWS, Episode, Problem, Workflow, make_workflow, with_examples
from flowzoo.envs.testing.playthrough import play_out
from flowzoo.errors import UsageError


@pytest.mark.parametrize("name", WORKFLOWS)
@pytest.mark.parametrize("texts", ["short", "full"])
def test_every_role_is_shown_exchanges_that_can_be_read(name, texts):
    workflow = make_workflow(name, texts=texts, examples=2)
    assert set(workflow.frames) == set(workflow.role_counts())
    seen = dict[str, int]()
    problem = workflow.task.problem(0)
    episode, respond = Episode(workflow, problem), workflow.responder(problem)
    play_out(episode)
    for turn in episode.turns:
        role = workflow.agents[turn.agent][0]
        shown = list(workflow.frames[role].shown(turn.turn))
        assert turn.messages[: len(shown)] == shown
        assert turn.messages[len(shown)]["role"] == "user"
        replies = [message["content"] for message in shown if message["role"] == "assistant"]
        assert len(replies) >= 2
        assert turn.parse is None or turn.parse(replies[-1]) is not None
        seen[role] = seen.get(role, 0) + 1
    assert respond(next(iter(seen)), episode.turns[0].observe())


def test_examples_are_neither_trained_on_nor_evaluated():
    workflow = make_workflow("voting", examples=3)
    questions = [message["content"] for message in workflow.frames["generator"].examples[::2]]
    assert len(set(questions)) == 3
    for split in ("train", "validation", "test"):
        problems = [workflow.task.problem(index, split) for index in range(200)]
        assert not {workflow.task.prompt(problem) for problem in problems} & set(questions)


def test_choices_and_verdicts_vary():
    voting = make_workflow("voting", examples=3)
    output = [
        m["content"] for m in voting.frames["aggregator"].examples if m["role"] == "assistant"
    ]
    assert len(set(output)) == 3
    evaluator = make_workflow("eval_opt", examples=2).frames["evaluator"].examples
    assert ["Incorrect" in m["content"] for m in evaluator if m["role"] == "assistant"].count(
        True
    ) == 1


@pytest.mark.parametrize(
    ("name", "task", "critique"),
    [("eval_opt", "math", "Incorrect"), ("coder_tester", "code", "Mismatches")],
)
def test_only_a_role_that_is_asked_again_is_shown_a_turn_that_mends_its_first(name, task, critique):
    workflow = make_workflow(name, task, examples=4)
    role = "generator" if name == "eval_opt" else "coder"
    frame = workflow.frames[role]
    chat = frame.shown(1)
    (index,) = [at for at, message in enumerate(chat) if critique in message["content"]]
    assert index < 3  # before the first turns
    assert frame.shown(0) == chat[index + 2 :]
    assert len(frame.shown(0)) == 2 * 4
    assert workflow.task.answer(chat[index + 1]["content"]) is not None
    assert not any(chat[index + 1]["content"] in before["content"] for before in chat[: index + 1])


def test_they_are_the_same_in_every_process_and_change_nothing_else():
    plain, shown = make_workflow("eval_opt"), make_workflow("eval_opt", examples=2)
    assert shown == make_workflow("eval_opt", examples=2)
    assert with_examples(plain, 2) == shown
    assert with_examples(plain, 0) is plain
    assert "prompts" in shown.functions
    problem = plain.task.problem(3)
    prompts = [Episode(item, problem).asks[0].observe()[-1] for item in (plain, shown)]
    assert prompts[0] == prompts[1]


def test_files_have_worked_problems_of_their_own(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text('{"question": "What is 2+2?", "answer": "#### 4"}\n' * 3)
    workflow = make_workflow("voting", data=str(file), examples=5)
    questions = "".join(message["content"] for message in workflow.frames["generator"].examples)
    assert "2+2" not in questions
    assert questions.count("\\boxed{") >= 4


@dataclass(frozen=True)
class Silent(Workflow):
    """Its expert never says anything that can be read."""

    name: ClassVar[str] = "silent_v0"
    roles: ClassVar[Mapping[str, int]] = {"generator": 1}

    def play(self, problem: Problem) -> Any:
        from flowzoo.envs import Ask, Outcome

        reply = yield Ask("generator_0", problem.text, lambda text: None)
        return Outcome(reply.strict, 0.0)


def test_too_few_are_an_error():
    with pytest.raises(UsageError, match="only 0 different readable examples of generator"):
        make_workflow(Silent, "math", examples=1)
    with pytest.raises(UsageError, match="a number is valid for env"):
        type(make_workflow("voting"))(task=make_workflow("voting").task, examples=2)
    with pytest.raises(UsageError, match="examples"):
        make_workflow("voting", examples=-1)
