"""Credit rules of the user's own, given by name."""

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from processes import run_python

from flowzoo.cli import main
from flowzoo.envs.api.registry import make_workflow
from flowzoo.envs.episode.recording import record
from flowzoo.errors import UsageError
from tests.envs.playing import play_experts

RULES = """
def rule(parts):
    return 10 * parts["local"] - parts["team"]

def text(parts):
    return "x"

def nan(parts):
    return float("nan")

def shape(parts):
    return [1.0, 2.0]

def raises(parts):
    return parts["nothing"]

number = 3
"""


@pytest.fixture(autouse=True)
def _file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cred.py").write_text(RULES)
    monkeypatch.chdir(tmp_path)


def rewards(workflow: Any) -> list[float]:
    """Rewards of the calls of an episode of right experts."""
    return [call.reward for call in record(play_experts(workflow, workflow.task.problem(0))).calls]


def test_a_rule_given_by_name_pays_as_the_function_does():
    named = make_workflow("voting_v0", credit="cred.py:rule")
    given = make_workflow("voting_v0", credit=lambda parts: 10 * parts["local"] - parts["team"])
    assert rewards(named) == rewards(given) == [9.0] * 4
    assert named == make_workflow("voting_v0", credit="cred.py:rule")
    assert list(named.functions) == ["credit=cred.py:rule"]
    assert given.functions == {}


def test_its_text_is_a_setting_of_the_workflow():
    before = make_workflow("voting_v0", credit="cred.py:rule")
    Path("cred.py").write_text(RULES.replace("10", "20"))
    after = make_workflow("voting_v0", credit="cred.py:rule")
    assert before.spec_digest != after.spec_digest
    assert before != after
    assert before.functions != after.functions


def test_another_process_loads_it_by_its_name():
    workflow = make_workflow("voting_v0", credit="cred.py:rule")
    assert rewards(pickle.loads(pickle.dumps(workflow))) == [9.0] * 4
    Path("workflow.pickle").write_bytes(pickle.dumps(workflow))
    script = (
        'import pickle; workflow = pickle.load(open("workflow.pickle", "rb"))\n'
        'print(workflow.credit({"local": 1, "team": 1}))'
    )
    assert run_python(script) == "9\n"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("text", "credit cred.py:text must return a number, got str 'x'"),
        ("nan", "credit cred.py:nan must return a finite number, got nan"),
        ("shape", r"credit cred.py:shape must return a number, got list \[1.0, 2.0\]"),
    ],
)
def test_a_rule_that_returns_no_number_is_named(name, message):
    with pytest.raises(UsageError, match=message):
        rewards(make_workflow("voting_v0", credit=f"cred.py:{name}"))


def test_what_raises_in_a_rule_says_whose_it_was():
    with pytest.raises(KeyError) as caught:
        rewards(make_workflow("voting_v0", credit="cred.py:raises"))
    assert caught.value.__notes__ == ["raised by credit cred.py:raises"]
    with pytest.raises(UsageError, match=r"credit .*test_credit_function.*<lambda> must return a"):
        rewards(make_workflow("voting_v0", credit=lambda parts: None))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"credit": "cred.py:rul"}, "credit cred.py:rul: cred.py has no 'rul'; it has"),
        ({"credit": "cred.py:number"}, "credit cred.py:number must be callable, got int"),
        ({"credit": "no.py:rule"}, "credit: there is no file no.py"),
        ({"credit": "loca"}, "unknown credit 'loca'.*Did you mean 'local'.*file.py:function"),
        ({"credit": 3}, "unknown credit 3"),
        ({"episode_reward": "cred.py:rule"}, "episode_reward: expected a function, got .*--reward"),
    ],
)
def test_what_is_no_rule_is_refused(options, message):
    with pytest.raises(UsageError, match=message):
        make_workflow("voting_v0", **options)


def test_an_evaluation_goes_on_with_the_same_rule_alone(capsys):
    arguments = ["eval", "voting", "--policy", "scripted:1", "--n", "2", "--out", "out"]
    arguments += ["--options", "credit=cred.py:rule"]
    assert main(arguments) == 0
    assert main(arguments) == 0
    assert list(json.loads(Path("out/run.json").read_text())["settings"]["functions"]) == [
        "credit=cred.py:rule"
    ]
    Path("cred.py").write_text(RULES.replace("10", "20"))
    assert main(arguments) == 2
    assert "other settings (functions)" in " ".join(capsys.readouterr().err.split())
