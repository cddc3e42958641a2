"""docs/authoring.md: every block of Python runs as it stands, and what it defines conforms."""

import importlib
import re
import runpy
from pathlib import Path
from types import ModuleType

import pytest

from flowzoo.envs import Task, Workflow, make_env, make_workflow, script
from flowzoo.envs.readers.judgments import verdict_line
from flowzoo.envs.testing import check_task, check_workflow

TEXT = (Path(__file__).resolve().parent.parent / "docs" / "authoring.md").read_text("utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", TEXT, flags=re.MULTILINE | re.DOTALL)
CLASSES = {
    match[1]: block for block in BLOCKS if (match := re.search(r"^class (\w+)", block, re.M))
}
SCRIPTS = [block for block in BLOCKS if block not in CLASSES.values()]


def imported(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The block of a class as a module, so that other processes can import it, too."""
    module = f"authoring_{name.lower()}"
    (folder / f"{module}.py").write_text(CLASSES[name], encoding="utf-8")
    monkeypatch.syspath_prepend(str(folder))
    return importlib.import_module(module)


@pytest.mark.parametrize("name", CLASSES)
def test_what_is_defined_is_played(name, tmp_path, monkeypatch):
    results = getattr(imported(name, tmp_path, monkeypatch), name)
    if issubclass(results, Task):
        env = make_env("voting_v0", results())
    elif results.asks_judge:
        env = make_env(results, judge=lambda messages: verdict_line(messages, 1.0))
    else:
        env = make_env(results)
    env.reset(seed=0)
    workflow = env.unwrapped.workflow
    respond = workflow.responder(env.unwrapped.episode.problem)
    while not any(env.terminations.values()):
        agent = env.agent_selection
        env.step(respond(workflow.agents[agent][0], env.observe(agent)["messages"]))
    assert env.record().score == 1.0


CHECKED = ("Revise", "LettersTask")
"""A workflow and a task that are always put through all checks; the others by `make test-all`."""


@pytest.mark.parametrize(
    "name", [n if n in CHECKED else pytest.param(n, marks=pytest.mark.full) for n in CLASSES]
)
def test_what_is_defined_conforms(name, tmp_path, monkeypatch):
    module = imported(name, tmp_path, monkeypatch)
    results = getattr(module, name)
    if issubclass(results, Task):
        check_task(results())
        check_workflow(make_workflow("voting_v0", results()))
    else:
        assert issubclass(results, Workflow)
        check_workflow(make_workflow(results))


def test_the_scripts_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for block in SCRIPTS:
        if "TrainConfig" not in block:
            (tmp_path / "block.py").write_text(block, encoding="utf-8")
            runpy.run_path(str(tmp_path / "block.py"))


@pytest.mark.full
def test_a_run_from_python(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (block,) = [block for block in SCRIPTS if "TrainConfig" in block]
    (tmp_path / "block.py").write_text(block, encoding="utf-8")
    runpy.run_path(str(tmp_path / "block.py"))
    assert (tmp_path / "runs" / "small" / "run.json").is_file()


def test_every_word_has_its_example():
    args = {
        "Ask",
        *(kind.__name__ for kind in script.RESULTS if kind is not script.Advance),
        "RoleScore",
        "InterimScore",
        "Outcome",
    }
    yielded = "\n".join(CLASSES.values())
    for word in args:
        assert re.search(rf"(?:yield|return|\[)\s*\[?{word}\(", yielded), word
        assert f"`{word}(" in TEXT or word == "Outcome", word
    for word in ("kinds", "presets", "credit", "simultaneous", "expert", "role_counts"):
        assert word in TEXT
