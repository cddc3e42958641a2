"""`flowzoo regrade`: stored episodes judged again, as a user types it."""

import json
import math
import shutil
from pathlib import Path

import pytest

from flowzoo.agents.evaluation.regrade import regrade
from flowzoo.agents.policy_map import PolicyMap
from flowzoo.agents.rollout.episodes import EpisodeJob, Rollout
from flowzoo.agents.scripted import ScriptedPolicy
from flowzoo.cli import main
from flowzoo.commands.regrade import Options, read_stored
from flowzoo.envs.api.registry import WORKFLOWS, make_workflow
from flowzoo.envs.script import GradeResult
from flowzoo.envs.tasks.math import MathTask
from flowzoo.provenance import grader_digest


def stored(tmp_path: Path, *words: str) -> Path:
    folder = tmp_path / "stored"
    line = ["eval", *words, "--policy", "scripted:0.6", "--out", str(folder)]
    assert main(line) == 0
    return folder


def change(folder: Path, index: int, **values: object) -> None:
    path = folder / "episodes.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for name, value in values.items():
        if name == "reply":
            rows[index]["calls"][-1]["reply"] = value
        elif name == "role_score":
            rows[index]["calls"][0]["role_score"] = value
        else:
            rows[index][name] = value
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def judged(folder: Path, capsys: pytest.CaptureFixture[str], *words: str) -> dict:
    capsys.readouterr()
    assert main(["regrade", str(folder), "--json", *words]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("name", WORKFLOWS)
def test_every_workflow_is_judged_as_when_it_was_played(name):
    workflow = make_workflow(name)
    problems = [workflow.task.problem(index, "validation") for index in range(6)]
    policies = PolicyMap.shared(ScriptedPolicy(workflow, 0.6), workflow.roles)
    records = Rollout(workflow, policies).run([EpisodeJob(problem) for problem in problems])
    rows = [json.loads(json.dumps(record.to_json())) for record in records]
    assert [episode.state for episode in regrade(workflow, rows)] == ["same"] * 6


def test_equal_verdicts_are_said_with_the_grader_that_gave_them(tmp_path, capsys):
    folder = stored(tmp_path, "voting", "--n", "30")
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    capsys.readouterr()
    assert main(["regrade", str(folder)]) == 0
    first, states, accuracy = capsys.readouterr().out.splitlines()
    assert first.startswith(f"30 episodes of {folder} judged again in ")
    assert first.endswith(f" s; grader {grader_digest()}, as then")
    assert states == "30 same"
    assert accuracy.startswith("accuracy ")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == files
    record = json.loads((folder / "run.json").read_text())
    assert record["provenance"].pop("grader") == grader_digest()
    (folder / "run.json").write_text(json.dumps(record))
    assert main(["regrade", str(folder)]) == 0
    assert f"grader then not recorded, now {grader_digest()}" in capsys.readouterr().out


def test_a_changed_verdict_is_listed_by_what_differs(tmp_path, capsys):
    folder = stored(tmp_path, "single", "--n", "20")
    rows = [json.loads(line) for line in (folder / "episodes.jsonl").read_text().splitlines()]
    right = [index for index, row in enumerate(rows) if row["score"] == 1.0][:2]
    for index in right:  # as a stricter grader had it
        change(folder, index, score=0.0, role_score=0.0)
    change(folder, next(index for index, row in enumerate(rows) if row["score"] == 0.0), answer="x")
    capsys.readouterr()
    assert main(["regrade", str(folder)]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[1] == "17 same, 3 changed"
    names = ", ".join(rows[index]["episode"] for index in right)
    assert f"  2  score 0 -> 1: {names}" in printed
    assert f"  2  generator: role score 0 -> 1: {names}" in printed
    assert any(line.startswith("  1  another answer is read: ") for line in printed)
    assert ", +10.0 points (95 % interval " in printed[-1]
    assert printed[-1].endswith(", paired by problem)")


def test_a_grader_of_today_that_does_not_know_is_no_zero(tmp_path, capsys, monkeypatch):
    folder = stored(tmp_path, "single", "--n", "8")
    grade_batch = MathTask.grade_batch

    def unknown_first(task, problems, answers):
        found = grade_batch(task, problems, answers)
        return [GradeResult(math.nan, "unknown: no box started"), *found[1:]]

    monkeypatch.setattr(MathTask, "grade_batch", unknown_first)
    result = judged(folder, capsys)
    assert result["states"] == {
        "same": 7, "changed": 0, "unknown": 1, "other course": 0, "other problem": 0,
    }  # fmt: skip
    first = result["episodes"][0]
    assert (first["after"], first["reasons"]) == (None, ["no box started"])


def test_a_script_that_asks_what_was_not_answered_takes_another_course(tmp_path, capsys):
    folder = stored(tmp_path, "eval_opt", "--n", "12")
    rows = [json.loads(line) for line in (folder / "episodes.jsonl").read_text().splitlines()]
    roles = [[call["role"] for call in row["calls"]] for row in rows]
    index = roles.index(["generator", "evaluator"])  # accepted at once
    change(folder, index, reply="\\boxed{incorrect}")
    result = judged(folder, capsys)
    assert result["states"]["other course"] == 1
    assert result["episodes"][index]["reasons"] == ["generator_0 is asked, and no reply was stored"]


def test_a_task_with_other_problems_by_now(tmp_path, capsys):
    folder = stored(tmp_path, "single", "--n", "4")
    change(folder, 2, gold="7777")
    result = judged(folder, capsys)
    assert [row["state"] for row in result["episodes"]] == ["same"] * 2 + ["other problem", "same"]
    assert result["episodes"][2]["after"] is None


def test_an_evaluation_of_a_training_run_by_its_step(tmp_path, capsys):
    run = str(tmp_path / "run")
    line = ["train", "single", "--steps", "1", "--problems", "2", "--samples", "2"]
    assert main([*line, "--eval-problems", "8", "--out", run]) == 0
    last = judged(Path(run), capsys)
    assert last["source"] == f"{run}, step 1"
    assert last["states"]["same"] == 8
    assert last["grader"]["then"] == grader_digest()
    assert judged(Path(run), capsys, "--step", "0")["source"] == f"{run}, step 0"
    assert main(["regrade", run, "--step", "9"]) == 2
    assert "at step 9: expected one of 0, 1" in capsys.readouterr().err


def test_what_cannot_be_judged_again_is_refused_in_one_line(tmp_path, capsys):
    folder = stored(tmp_path, "single", "--n", "2")
    record = json.loads((folder / "run.json").read_text())
    refused = {
        "was not loaded": {**record["settings"], "workflow": "stranger.py:Team"},
        "whose own results are not stored": {**record["settings"], "env": "x.py:make"},
    }
    for message, settings in refused.items():
        (folder / "run.json").write_text(json.dumps({**record, "settings": settings}))
        capsys.readouterr()
        assert main(["regrade", str(folder)]) == 2
        assert message in capsys.readouterr().err
    (folder / "run.json").write_text(json.dumps({"kind": "evaluation"}))
    assert main(["regrade", str(folder)]) == 2
    assert "run.json has no settings of an evaluation" in capsys.readouterr().err
    (folder / "run.json").write_text(json.dumps(record))
    (folder / "episodes.jsonl").write_text('{"episode": "x"}\n' * 2)
    assert main(["regrade", str(folder)]) == 2
    assert "line 1: not an episode" in capsys.readouterr().err
    (folder / "episodes.jsonl").write_text("")
    assert main(["regrade", str(folder)]) == 2
    assert "has no stored episodes" in capsys.readouterr().err
    shutil.rmtree(folder)
    assert main(["regrade", str(folder)]) == 2
    assert "it has no run.json" in capsys.readouterr().err


def test_programs_of_a_stranger_run_in_a_sandbox(tmp_path):
    folder = stored(tmp_path, "single", "--task", "code", "--n", "3")
    record = json.loads((folder / "run.json").read_text())
    record["settings"]["problems"]["sandbox"] = "unsafe"
    record["grading"]["sandbox"]["tier"] = "unsafe"
    (folder / "run.json").write_text(json.dumps(record))
    stored_episodes = read_stored(Options(folder))
    assert stored_episodes.workflow.task.sandbox != "unsafe"
    assert read_stored(Options(folder, sandbox="unsafe")).workflow.task.sandbox == "unsafe"
