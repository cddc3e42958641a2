import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flowzoo.envs import Episode
from flowzoo.envs.episode.recording import record
from flowzoo.envs.tasks import make_task
from flowzoo.envs.testing import advance, check_workflow

PATH = Path(__file__).resolve().parents[3] / "examples" / "debate.py"


@pytest.fixture
def debate(monkeypatch: pytest.MonkeyPatch) -> Any:
    spec = importlib.util.spec_from_file_location("debate_example", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "debate_example", module)  # pickling looks it up by name
    spec.loader.exec_module(module)
    return module.Debate(task=make_task("math"))


def test_the_example_is_at_most_forty_lines():
    assert len(PATH.read_text().splitlines()) <= 40


def test_the_example_passes_the_conformance_suite(debate):
    check_workflow(debate)


def test_the_example_plays_two_rounds_and_a_verdict(debate):
    problem = debate.task.problem(0)
    episode = Episode(debate, problem)
    questions = []
    while not episode.done:
        for turn in episode.waiting:
            questions.append(turn.agent)
            right = turn.agent == "judge_0" or turn.turn == 1
            episode.reply(turn.agent, f"\\boxed{{{problem.gold if right else '0.5'}}}")
        advance(episode)
    assert questions == ["debater_0", "debater_1", "debater_0", "debater_1", "judge_0"]
    finished = record(episode)
    assert (finished.score, finished.answer) == (1.0, problem.gold)
    assert [call.role_score for call in finished.calls] == [0.0, 0.0, 1.0, 1.0, 1.0]


@pytest.mark.full
def test_the_example_runs_as_a_script():
    done = subprocess.run([sys.executable, str(PATH)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "debater_0" in done.stdout
    assert "judge_0" in done.stdout
