"""Pass rates: measured once, resumable, and the problems that training may draw."""

import json

import pytest

from flowzoo.agents import PolicyMap
from flowzoo.agents.problems import ProblemStream, distinct_problems
from flowzoo.agents.scripted import ScriptedPolicy
from flowzoo.baselines.training.curriculum import Curriculum, Stage, read_stages
from flowzoo.baselines.training.difficulty import (
    histogram,
    measure,
    read_rates,
    training_indices,
    within,
)
from flowzoo.cli import main
from flowzoo.envs import make_workflow
from flowzoo.errors import UsageError

WORKFLOW = make_workflow("single_v0", "math", level=2)
PROBLEMS = distinct_problems(WORKFLOW.task, "train", 80)


def policy_map() -> PolicyMap:
    return PolicyMap.shared(ScriptedPolicy(WORKFLOW, 0.5), WORKFLOW.role_counts())


def test_a_killed_measurement_goes_on_and_gives_the_same_rates(tmp_path):
    whole, torn = tmp_path / "whole.jsonl", tmp_path / "torn.jsonl"
    rates = measure(WORKFLOW, policy_map(), PROBLEMS, whole, samples=4)
    assert [rate.problem for rate in rates] == [problem.id for problem in PROBLEMS]
    assert {rate.rate for rate in rates} == {0.0, 0.25, 0.5, 0.75, 1.0}
    lines = whole.read_text().splitlines(keepends=True)
    torn.write_text("".join(lines[:40]) + lines[40][:20])
    played = []
    again = measure(WORKFLOW, policy_map(), PROBLEMS, torn, samples=4, on_episode=played.append)
    assert again == rates
    assert len(played) == 4 * (80 - 39)
    assert torn.read_text() == whole.read_text()
    assert measure(WORKFLOW, policy_map(), PROBLEMS, torn, samples=4) == rates
    with pytest.raises(UsageError, match=r"measured otherwise \(samples\)"):
        measure(WORKFLOW, policy_map(), PROBLEMS, torn, samples=5)


def test_training_draws_only_what_is_within_the_bounds(tmp_path):
    path = tmp_path / "rates.jsonl"
    rates = measure(WORKFLOW, policy_map(), PROBLEMS, path, samples=4)
    indices = training_indices(path, WORKFLOW.task, "train", 0.2, 0.8)
    assert indices == sorted(rate.index for rate in rates if 0.2 <= rate.rate <= 0.8)
    assert 0 < len(indices) < 80
    stream = ProblemStream("train", 0, only=indices)
    epoch = [problem.index for problem in stream.take(WORKFLOW.task, len(indices))]
    assert sorted(epoch) == indices
    assert epoch != indices
    assert sum(histogram(rates)) == 80
    assert histogram(rates)[9] == sum(rate.rate == 1.0 for rate in rates)


def test_rates_of_other_problems_are_refused(tmp_path):
    path = tmp_path / "rates.jsonl"
    measure(WORKFLOW, policy_map(), PROBLEMS[:30], path, samples=4)
    with pytest.raises(UsageError, match="split 'train', and the training has split 'test'"):
        training_indices(path, WORKFLOW.task, "test", 0, 1)
    other = make_workflow("single_v0", "math", level=2, seed=1).task
    with pytest.raises(UsageError, match="same data, seed and level"):
        training_indices(path, other, "train", 0, 1)
    with pytest.raises(UsageError, match="none of the 30 problems"):
        training_indices(path, WORKFLOW.task, "train", 0.3, 0.4)
    with pytest.raises(UsageError, match="make them with `flowzoo filter`"):
        training_indices(tmp_path / "none", WORKFLOW.task, "train", 0, 1)
    with pytest.raises(UsageError, match="0 <= low <= high <= 1"):
        within([], 0.9, 0.1)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text(lines[0] + lines[1].replace('"text": "', '"text": "0'))
    with pytest.raises(UsageError, match="is not problem"):
        training_indices(path, WORKFLOW.task, "train", 0, 1)


def test_the_command_measures_and_resumes(tmp_path, capsys):
    path = tmp_path / "deep" / "rates.jsonl"
    words = ["filter", "single", "--policy", "scripted:0.5", "--n", "20", "--samples", "4",
             "--out", str(path), "--low", "0.2", "--high", "0.8"]  # fmt: skip
    assert main(words) == 0
    first = capsys.readouterr().out
    protocol, rates = read_rates(path)
    assert (protocol["split"], protocol["samples"], len(rates)) == ("train", 4, 20)
    assert first.splitlines()[-1].startswith(f"{len(within(rates, 0.2, 0.8))}/20 problems")
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[0])
    assert found["problems"] == 20
    assert main([*words, "--low", "0.9"]) == 2
    path.write_text('{"of": "another kind"}\n')
    capsys.readouterr()
    assert main(words) == 2
    assert "has no pass rates: name another file" in capsys.readouterr().err
    assert path.read_text() == '{"of": "another kind"}\n'


def test_a_curriculum_changes_the_task_from_its_steps_on():
    curriculum = Curriculum(WORKFLOW, read_stages(["3:level=1-3", "5:level=4"]))
    levels = [curriculum.at(step).task.level for step in range(1, 7)]
    assert levels == [2, 2, "1-3", "1-3", 4, 4]
    assert curriculum.metrics(1) == {"curriculum/stage": 0.0}
    assert curriculum.metrics(3) == {"curriculum/stage": 1.0}
    assert curriculum.metrics(6) == {"curriculum/stage": 2.0, "curriculum/level": 4.0}
    assert curriculum.at(6).task.problem(0).id != WORKFLOW.task.problem(0).id
    assert Curriculum(WORKFLOW, ()).at(9) is WORKFLOW
    assert Curriculum(WORKFLOW, ()).metrics(9) == {}


def test_a_wrong_curriculum_shows_at_once(tmp_path):
    for word in ("level=2", "0:level=2", "x:level=2", "5"):
        with pytest.raises(UsageError, match="STEP:NAME=VALUE"):
            read_stages([word])
    with pytest.raises(UsageError, match="in order"):
        read_stages(["5:level=2", "3:level=1"])
    with pytest.raises(UsageError, match=r"level 9:"):
        Curriculum(WORKFLOW, [Stage(2, "level", 9)])
    with pytest.raises(UsageError, match="unknown setting of task 'math' 'levle'"):
        Curriculum(WORKFLOW, [Stage(2, "levle", 1)])
    file = tmp_path / "rows.jsonl"
    file.write_text('{"problem": "1+1", "answer": "2"}\n')
    on_file = make_workflow("single_v0", "math", data=str(file))
    with pytest.raises(UsageError, match="come from a file"):
        Curriculum(on_file, [Stage(2, "level", 1)])
