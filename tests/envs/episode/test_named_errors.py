"""Errors of own tools and judges name workflow, agent and problem, with file and line."""

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

from flowzoo.cli import main
from flowzoo.envs import make_env
from flowzoo.errors import TaskError, UsageError

SOURCE = '''
from typing import ClassVar

from flowzoo.envs import Ask, Judge, Outcome, Tool, UseTool, Workflow
from flowzoo.envs.tools import call_text

SIZE = Tool("size", "The size.", {"type": "object", "properties": {}})


class Sized:
    def use(self, calls):
        return ANSWER


class Own(Workflow):
    """A solver uses a tool, and a writer is judged."""

    name = "own_v0"
    roles: ClassVar = {"writer": 1, "solver": 1}
    tool_roles: ClassVar = ("solver",)
    asks_judge: ClassVar = JUDGES

    def play(self, problem):
        text = yield Ask("writer_0", "Write.")
        if JUDGES:
            yield Judge(text, "Good?")
        reply = yield Ask("solver_0", "What size?", tools=(SIZE,))
        yield UseTool(reply.tool_calls[0], Sized())
        return Outcome(score=1.0)

    def expert(self, role, messages, problem, rng, right):
        return call_text('{"name": "size", "arguments": {}}') if role == "solver" else "A text."
'''
NO_SIZE = "[str(1 // 0)]"


def written(folder: Path, answer: str = NO_SIZE, *, judges: bool = False) -> Path:
    path = folder / "own_tools.py"
    source = SOURCE.replace("ANSWER", answer).replace("JUDGES", str(judges))
    path.write_text(source, encoding="utf-8")
    return path


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`make(...)`: an environment of `Own`, after the writer's reply."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def load(answer: str = NO_SIZE, judge: Any = None) -> Any:
        written(tmp_path, answer, judges=judge is not None)
        sys.modules.pop("own_tools", None)
        importlib.invalidate_caches()
        env = make_env(importlib.import_module("own_tools").Own, judge=judge)
        env.reset(seed=0)
        return env

    yield load
    sys.modules.pop("own_tools", None)


CALL = '<tool_call>{"name": "size", "arguments": {}}</tool_call>'


def test_an_error_of_a_tool_is_named(make):
    env = make()
    env.step("A text.")
    named = (
        r"tool size of problem math/train/0/\S+ \(own_v0, solver_0\) raised ZeroDivisionError: "
        r".* \(own_tools.py, line 12\)"
    )
    with pytest.raises(TaskError, match=named):
        env.step(CALL)


@pytest.mark.parametrize("answer", ["[]", "[7]", "['a', 'b']"])
def test_a_tool_that_answers_otherwise_is_named(answer, make):
    env = make(answer)
    env.step("A text.")
    with pytest.raises(UsageError, match=r"tool size of .* \(own_v0, solver_0\): `use` of"):
        env.step(CALL)


def test_an_error_of_a_judge_is_named(make):
    def judge(messages: Any) -> str:
        raise KeyError("verdict")

    named = (
        r"the judge of problem math/train/0/\S+ \(own_v0, writer_0\) raised KeyError.*\.py, line"
    )
    with pytest.raises(TaskError, match=named):
        make(judge=judge).step("A text.")
    with pytest.raises(UsageError, match=r"\(own_v0, writer_0\): `judge` must return a str"):
        make(judge=lambda messages: 1.0).step("A text.")


def test_a_command_prints_one_line(tmp_path, capsys):
    path = written(tmp_path)
    assert main(["eval", f"{path}:Own", "--policy", "scripted:1", "--n", "2"]) != 0
    said = capsys.readouterr().err
    assert "(own_v0, solver_0) raised ZeroDivisionError" in said
    assert "Traceback" not in said
