"""Findings on roles, on falls in progress and on peaks that were missed."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowzoo.agents.problems import distinct_problems
from flowzoo.baselines.diagnostics.checkers import LoopValue
from flowzoo.baselines.diagnostics.cliff import find_cliff
from flowzoo.baselines.diagnostics.roles import RoleTest
from flowzoo.baselines.report.accuracy import cliff_facts, cliff_finding, gain_finding
from flowzoo.baselines.report.changes import role_changes, role_finding
from flowzoo.baselines.report.health import distance_moved, distances, health_findings, missed_peak
from flowzoo.baselines.report.reading import read_runs
from flowzoo.baselines.report.roles import (
    blame_facts,
    blame_finding,
    death_findings,
    recorded_workflow,
    role_findings,
    value_finding,
)
from flowzoo.baselines.report.run_facts import run_facts
from flowzoo.baselines.run.reading import RunData
from flowzoo.envs.api.registry import make_workflow
from flowzoo.errors import DataError, UsageError
from flowzoo.permission import PERMISSION
from flowzoo.sandbox.tier import AUTO, usable_tier
from studies.truth.scripted_runs import judge_skill, scripted_episodes
from studies.truth.simulation import simulate, simulate_team

pytestmark = pytest.mark.xdist_group("report-facts")  # they share runs

MakeRun = Callable[..., Path]


@pytest.fixture(scope="module")
def plain(make_run: MakeRun, tmp_path_factory: pytest.TempPathFactory) -> RunData:
    """A run that rises and stays, of 60 problems and six evaluations."""
    folder = tmp_path_factory.mktemp("plain")
    course = (0.4, 0.5, 0.6, 0.6, 0.6, 0.6)
    return read_runs([make_run(folder / "run", items=60, course=course)])[0]


def with_shares(run: RunData, **courses: list[float]) -> RunData:
    rows = [dict(row) for row in run.rows]
    for place, row in enumerate(row for row in rows if "eval/scores" in row):
        for name, values in courses.items():
            row[f"eval/share/{name}"], row[f"eval/share_of/{name}"] = values[place], 60
    return replace(run, rows=rows)


def saved(run: RunData, step: int, episodes: list[dict[str, Any]]) -> None:
    path = run.folder / "transcripts" / f"eval-{step:06d}.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in episodes))


@pytest.mark.parametrize(
    ("tpr", "tnr", "level", "title"),
    [
        ([0.6, 0.5, 0.4, 0.2, 0.1, 0.05], [0.9] * 6, "bad", "collapsed: it rejects everything"),
        ([0.9] * 6, [0.6, 0.5, 0.4, 0.2, 0.1, 0.05], "bad", "collapsed: it accepts everything"),
        ([0.7] * 6, [0.7] * 6, "good", "still discriminates"),
        ([0.5] * 6, [0.5] * 6, "result", "judges no better than chance"),
        ([0.05] * 6, [0.9] * 6, "warn", "rejects everything from the start"),
        ([0.9] * 6, [0.05] * 6, "warn", "accepts everything from the start"),
    ],
)
def test_a_judge_is_described_with_both_shares(tpr, tnr, level, title, plain):
    run = with_shares(plain, evaluator_tpr=tpr, evaluator_tnr=tnr)
    (finding,) = (one for one in role_findings(run, False) if "evaluator" in one.title)
    assert (finding.level, title in finding.title) == (level, True)
    assert "of the right answers and rejects" in finding.text
    assert "95\u00a0% interval" in finding.text


def test_a_judge_that_never_judged_is_a_problem_if_it_was_trained(plain):
    run = with_shares(plain, evaluator_tpr=[0.05] * 6, evaluator_tnr=[0.9] * 6)
    rows = [
        row | {"eval/strict/evaluator": 1.0, "signal/evaluator/shared": 0.4} for row in run.rows
    ]
    facts = run_facts(replace(run, rows=rows))
    assert ("evaluator", "never judges") in facts["codes"]
    diagnosis = facts["diagnosis"]
    assert diagnosis["role"] == "evaluator"
    assert diagnosis["sentences"][0].startswith("The evaluator rejects everything from the start")


def test_dead_roles_and_the_teams_worth_are_findings(make_run, tmp_path):
    run = read_runs([make_run(tmp_path / "run", items=120, course=(0.5,) * 4)])[0]
    rng = np.random.default_rng(0)
    saved(run, 0, simulate_team(120, rng, skill=0.5))
    saved(run, 30, simulate_team(120, rng, skill=0.02, alone=0.8, place=1))
    rows = [dict(row) for row in run.rows]
    for row in rows:
        if "eval/scores" in row:
            row["eval/role_score/generator"] = 0.5 if not row["step"] else 0.1
    found = {one.title: one for one in role_findings(replace(run, rows=rows), True)}
    assert "generator lost its skill while the team gained" in found
    assert "The team became a single agent: aggregator" in found
    assert found["The choices of aggregator collapsed onto position 1"].role == "aggregator"
    assert found["The workflow is better than a candidate at random"].level == "good"
    text = found["generator lost its skill while the team gained"].text
    assert "found with probability 0.8" in text
    assert role_findings(replace(run, folder=tmp_path), True) == []


def test_a_frequent_reply_is_told_with_its_share():
    same = RoleTest("house", "says the same", True, 0.12, 0.91, 0.79, 0.72, 0.84, 200, 0, 0.92)
    (finding,) = death_findings([same], True, pays=True)
    assert finding.title == "house gives one reply to 91.0\u00a0% of the problems"
    assert "first reply went from 12.0\u00a0% to 91.0\u00a0% of the problems" in finding.text


@pytest.mark.parametrize(
    ("findable", "title"),
    [(0.08, "No role is dead"), (0.25, "Cannot tell whether a role lost its skill")],
)
def test_roles_are_cleared_only_by_tests_that_find_ten_points(findable, title):
    shares = (0.6, 0.58, -0.02, -0.1, 0.06)
    skill = RoleTest("generator", "lost skill", False, *shares, 90, 30, findable)
    (finding,) = death_findings([skill], True, pays=False)
    assert finding.title == title
    assert f"with probability 0.8: generator {100 * findable:.1f} points" in finding.text


@pytest.mark.parametrize(
    ("mean", "level", "title"),
    [
        (-0.2, "bad", "The workflow is worse than a candidate at random"),
        (0.0, "unknown", "Cannot tell whether the workflow beats a candidate at random"),
        (0.2, "good", "The workflow is better than a candidate at random"),
    ],
)
def test_an_interval_over_zero_says_nothing_of_the_workflow(mean, level, title):
    value = LoopValue("single candidate", 0.5, 0.5 + mean, mean, mean - 0.1, mean + 0.1, 60, 0.15)
    finding = value_finding([(0, value)])
    assert (finding.level, finding.title) == (level, title)


def test_a_healthy_team_has_no_problem(plain):
    rng = np.random.default_rng(1)
    for step in (0, 50):
        saved(plain, step, simulate_team(60, rng))
    findings = role_findings(plain, True)
    assert [finding.title for finding in findings if finding.level == "bad"] == []


@pytest.mark.parametrize(
    ("course", "level", "title", "said"),
    [
        ((0.70, 0.76, 0.78, 0.55, 0.50), "bad", "Accuracy was falling at the end", "began at"),
        ((0.4, 0.6, 0.7), "unknown", "Too few evaluations to see a fall", "--eval-every 2"),
    ],
)
def test_falls_in_progress_and_few_evaluations_are_told(course, level, title, said):
    scores = simulate(course, 300, np.random.default_rng(3))
    facts = cliff_facts(find_cliff([scores], range(len(course))), "", "repeat with --eval-every 2")
    finding = cliff_finding(facts)
    assert (finding.level, finding.title) == (level, title)
    assert said in finding.text


def test_a_rising_run_lost_nothing(make_run, tmp_path):
    folder = make_run(tmp_path / "run", items=160, course=(0.40, 0.46, 0.59, 0.70, 0.82))
    changes = role_changes(read_runs([folder])[0])
    assert changes["rising"]
    assert all(row["from_peak"]["mean"] is None for row in changes["rows"])
    finding = role_finding(changes, fell=False)
    assert (finding.level, finding.title) == ("good", "No role lost accuracy")


def test_a_last_evaluation_below_step_0_is_said_though_the_last_three_are_not():
    gain = {
        "before": 0.5, "after": 0.4, "step": 9,
        "last": {"mean": -0.1, "low": -0.181, "high": -0.019, "n": 160},
        "terminal": {"mean": -0.04, "low": -0.11, "high": 0.03, "n": 160},
    }  # fmt: skip
    finding = gain_finding(gain)
    assert (finding.level, finding.title) == ("warn", "The last evaluation is below the start")


def test_a_peak_between_two_evaluations_is_noticed(plain):
    rows = [dict(row) for row in plain.rows]
    assert missed_peak(replace(plain, rows=rows)) == []
    for row in rows[12:18]:
        row["reward/mean"] = 0.95
    (finding,) = missed_peak(replace(plain, rows=rows))
    assert "at steps 10 and 20" in finding.text
    assert "--eval-every 5" in finding.text
    other = replace(plain, rows=rows, settings={**plain.settings, "refill": 2})
    assert missed_peak(other) == []  # training on other problems than the evaluations


def test_a_peak_of_returns_beyond_1_is_noticed(plain):
    rng = np.random.default_rng(0)
    rows = [row | {"reward/mean": 20.0} for row in plain.rows]
    for row in rows:
        if "eval/scores" in row:
            row["eval/scores"] = (20 + rng.normal(size=60)).tolist()
    assert missed_peak(replace(plain, rows=rows)) == []
    for row in rows[12:18]:
        row["reward/mean"] = 26.0
    (finding,) = missed_peak(replace(plain, rows=rows))
    assert "at steps 10 and 20" in finding.text


def test_how_far_a_policy_moved_is_told(plain):
    rows = [
        row | {"learn/update_kl/shared": 0.4 if row["step"] == 7 else 0.01,
               "learn/update_ratio_max/shared": 3.0}
        for row in plain.rows if row["step"]
    ]  # fmt: skip
    run = replace(plain, rows=rows)
    (row,) = distances(run)
    assert (row["largest"], row["step"], row["median"], row["updates"]) == (0.4, 7, 0.01, 50)
    (finding,) = distance_moved(run)
    assert "0.4 nats a token at step 7" in finding.text
    silent = [{key: x for key, x in row.items() if "update_" not in key} for row in rows]
    assert (
        distances(replace(plain, rows=silent)) == distance_moved(replace(plain, rows=silent)) == []
    )
    calm = [row | {"learn/update_kl/shared": 0.01} for row in rows]
    assert distance_moved(replace(plain, rows=calm)) == []


def test_a_destroyed_policy_is_not_called_a_matter_of_problems(plain):
    rows = [
        row | {"group/count": 16, "group/zero_variance": 15,
               "reward/mean": 0.8 if row["step"] < 20 else 0.02}
        for row in plain.rows if row["step"]
    ]  # fmt: skip
    (finding,) = (
        one for one in health_findings(replace(plain, rows=rows)) if "variance" in one.title
    )
    assert "no longer solves problems that it solved" in finding.text
    assert "too hard" not in finding.text


OWN = """
from flowzoo.envs.workflows.eval_opt import EvalOpt
class Own(EvalOpt):
    name = "own_v0"
"""


@pytest.fixture
def own_run(make_run: MakeRun, tmp_path: Path) -> RunData:
    """A run of a user's workflow: its evaluator rejects everything from the peak on."""
    (tmp_path / "own.py").write_text(OWN)
    name = f"{tmp_path / 'own.py'}:Own"
    (run,) = read_runs([make_run(tmp_path / "run", items=40, course=(0.9, 0.5), every=2)])
    workflow = make_workflow(name)
    problems = distinct_problems(workflow.task, "validation", 40)
    for step, verdicts in ((0, judge_skill(1.0, 1.0)), (2, judge_skill(0.0, 1.0))):
        skill = {"generator": 0.7, "evaluator": verdicts}
        saved(run, step, scripted_episodes(workflow, problems, skill, 0))
    return replace(run, settings={**run.settings, "workflow": name, "task": None})


def test_runs_of_own_workflows_are_played_again_if_the_command_may_load_them(own_run):
    with PERMISSION.of(["report", "run"]):
        refused = blame_facts(own_run, fell=True)
    assert refused["blame"] is None
    assert "own.py:Own (" in refused["why"]
    assert "repeat the command with --trust" in refused["why"]
    assert blame_finding(refused).level == "unknown"
    for words in (["report", "run", "--trust"], ["train", own_run.settings["workflow"]]):
        with PERMISSION.of(words):
            assert blame_facts(own_run, fell=True)["blame"].blamed == "evaluator"


@pytest.mark.parametrize("option", ["credit=x/my.py:rule", "retriever=http://127.0.0.1:9/x"])
def test_code_and_addresses_in_options_of_a_record_are_not_used(plain, option):
    run = replace(plain, settings={**plain.settings, "options": [option]})
    with PERMISSION.of(["report", "run"]):
        assert "with --trust" in blame_facts(run, fell=False)["why"]


def test_a_run_whose_episodes_are_all_cut_off_has_a_warning(plain):
    rows = [{**row, "eval/fact/cut": 0.0, "eval/fact/truncated": 1.0} for row in plain.rows]
    run = replace(plain, rows=rows, settings={**plain.settings, "env": "x.py:make"})
    titles = [one.title for one in health_findings(run) if one.level == "warn"]
    assert "No episode came to its end" in titles
    assert "No episode came to its end" not in [one.title for one in health_findings(plain)]


def test_an_experts_fault_leaves_the_page(own_run, tmp_path):
    raising = "    def expert(self, *given):\n        raise KeyError(given[0])\n"
    (tmp_path / "own.py").write_text(OWN + raising)
    assert "KeyError: 'generator'" in blame_facts(own_run, fell=True)["why"]


def test_what_was_played_unconfined_is_played_again_confined(plain):
    settings = {"workflow": "voting", "task": "code", "options": ["sandbox=unsafe"]}
    run = replace(plain, settings=settings)
    tier = usable_tier({"sandbox": {"tier": "unsafe"}})
    assert recorded_workflow(run, tier).task.sandbox == AUTO
    for others in ({"env": "x:y"}, {"program": "x:y"}):
        with pytest.raises(UsageError, match="of others are not played again"):
            recorded_workflow(replace(run, settings={"workflow": "", **others}))
    finding = blame_finding(blame_facts(plain, fell=False))  # its problems are no real ones
    assert finding.level == "unknown"
    assert finding.text.startswith("Reason: ")


def test_the_titles_of_bad_findings_are_the_runs_alarms(plain):
    facts = run_facts(with_shares(plain, verifier_tpr=[1.0, 0.9, 0.5, 0.1, 0.0, 0.0]))
    assert "The verifier collapsed: it rejects everything" in facts["alarms"]


FALL = (0.40, 0.60, 0.65, 0.66, 0.20, 0.18, 0.17)


@pytest.fixture
def page(make_run: MakeRun, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """`page(settings, rows, **plan)`: facts of a planted run with other settings and metrics."""

    def facts_of(
        settings: Mapping[str, Any], rows: Callable[[dict[str, Any]], None], **plan: Any
    ) -> dict[str, Any]:
        number = len(list(tmp_path.iterdir()))
        folder = make_run(tmp_path / f"run{number}", **{"every": 2, "items": 120} | plan)
        record = json.loads((folder / "run.json").read_text())
        record["settings"] |= dict(settings)
        (folder / "run.json").write_text(json.dumps(record))
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        for row in lines:
            rows(row)
        text = "".join(json.dumps(row) + "\n" for row in lines)
        (folder / "metrics.jsonl").write_text(text)
        return run_facts(read_runs([folder])[0])

    return facts_of


def moved(sizes: Mapping[int, float], steps: float = 1.0) -> Callable[[dict[str, Any]], None]:
    def change(row: dict[str, Any]) -> None:
        if row["step"]:
            row["learn/update_kl/shared"] = sizes.get(row["step"], 0.004)
            row["learn/steps/shared"] = steps

    return change


def test_suspects_are_functions_then_settings_then_findings_and_none_was_tried(page):
    settings = {"updates": 16, "reward": "rewards.py:mine", "kl": 0.2}
    facts = page(settings, moved({7: 0.3, 1: 0.4}, 16.0), course=FALL)
    diagnosis = facts["diagnosis"]
    assert "fell from 6" in diagnosis["sentences"][0]
    assert "at step 6 to" in diagnosis["sentences"][0]
    first, *others = diagnosis["suspects"]
    assert first == "--reward rewards.py:mine"
    assert {"--updates 16", "--kl 0.2"} <= set(others)
    assert others[-1] == "Large updates"
    assert diagnosis["cause"] == ""
    assert diagnosis["advice"].startswith("flowzoo why ")
    assert diagnosis["steps"] == (6, 8)
    assert diagnosis["moment"]["before"]["score"] > diagnosis["moment"]["after"]["score"]


def test_what_reruns_found_takes_the_place_of_suspects(make_run, tmp_path):
    folder = make_run(tmp_path / "run", every=2, items=120, course=FALL)
    row = {"left_out": ["--lr 0.02"], "seed": 0, "fails": False,
           "gain": {"mean": 0.4, "low": 0.3, "high": 0.5}}  # fmt: skip
    explanation = {
        "verdict": "explained", "fell": True, "culprits": [["--lr 0.02"]], "remaining": [],
        "change": ["--lr 0.02"], "confirmed": True, "parted": 4, "seeds": True, "made": 3,
        "minutes": 1.0, "reruns": [row],
    }  # fmt: skip
    (tmp_path / "run-why").mkdir()
    file = tmp_path / "run-why" / "why.json"
    file.write_text(json.dumps(explanation))
    facts = run_facts(read_runs([folder])[0])
    assert facts["diagnosis"]["cause"] == ("--lr 0.02; leaving out --lr 0.02 was run and mended it")
    assert not facts["diagnosis"]["suspects"]
    assert facts["why"]["lines"][-1] == (
        "without --lr 0.02, seed 0: does not fail, +40.0 points (95 % interval +30.0 to +50.0) "
        "against the run"
    )
    file.write_text("{}")
    with pytest.raises(DataError, match="repeat `flowzoo why`"):
        run_facts(read_runs([folder])[0])


def test_a_fall_at_every_evaluation_is_called_so(page):
    facts = page({}, moved({}), course=(0.39, 0.68, 0.72, 0.70, 0.65, 0.56), items=400)
    titles = [one["title"] for one in facts["findings"] if one["level"] == "bad"]
    assert [title for title in titles if "fell" in title]
    assert "no test found a fault" not in facts["diagnosis"]["sentences"][0]
    assert not any("not steadily" in one["title"] for one in facts["findings"])


def test_a_reward_that_rises_while_accuracy_falls_is_the_cause(page):
    def paid(row: dict[str, Any]) -> None:
        if row["step"]:
            row["reward/mean"] = min(1.0, 0.42 + 0.2 * (row["step"] - 1))

    facts = page({"reward": "rewards.py:wordy"}, paid, course=(0.4, 0.3, 0.2, 0.1, 0.1, 0.05, 0.05))
    diagnosis = facts["diagnosis"]
    assert diagnosis["suspects"][0] == "--reward rewards.py:wordy"
    assert "The reward was earned without right answers" in diagnosis["suspects"]
    titles = [finding["title"] for finding in facts["findings"]]
    assert titles[0] == "The reward was earned without right answers"  # causes come first


def test_a_reward_is_found_by_the_fall_from_the_best_evaluation(page):
    def paid(row: dict[str, Any]) -> None:
        if row["step"]:
            row["reward/mean"] = 0.1 if row["step"] < 6 else 0.6

    course = (0.5, 0.65, 0.7, 0.7, 0.45, 0.45, 0.45)  # it ends where it began
    for settings, code in (({"reward": "rewards.py:round"}, "hacked"), ({}, "parted")):
        codes = page(settings, paid, course=course)["codes"]
        assert ("", code) in codes


def test_a_negative_reward_that_parts_from_accuracy_is_found(page):
    def paid(row: dict[str, Any]) -> None:
        if row["step"]:
            row["reward/mean"] = -0.7 if row["step"] < 4 else -0.1

    course = (0.5, 0.4, 0.3, 0.25, 0.2, 0.2, 0.2)
    assert ("", "hacked") in page({"reward": "rewards.py:minus"}, paid, course=course)["codes"]


def test_a_policy_that_did_not_move_is_not_blamed_for_the_fall(page):
    def rows(row: dict[str, Any]) -> None:
        if row["step"]:
            row["learn/update_kl/generator"] = kl["generator"]
            row["learn/update_kl/aggregator"] = kl["aggregator"]
        if "eval/scores" in row and row["step"] > 6:
            row["eval/strict/aggregator"] = 0.3  # it became unreadable, first among the evidence

    for still, mover in (("aggregator", "generator"), ("generator", "aggregator")):
        kl = {still: 1e-4, mover: 0.02}
        facts = page({"sharing": ["isolated"]}, rows, course=FALL, sharing=("isolated",))
        assert {"aggregator", "generator"} <= {role for role, _ in facts["codes"]}
        assert facts["diagnosis"]["role"] == mover


def test_a_lone_agent_that_is_never_right_is_a_problem(page):
    def wrong(row: dict[str, Any]) -> None:
        if "eval/scores" in row:
            row["eval/role_score/solver"] = 0.0

    facts = page({}, wrong, course=(0.01,) * 4, workflow="single")
    assert facts["codes"] == [("solver", "never right")]
    assert facts["diagnosis"]["role"] == "solver"


def test_groups_without_variance_warn_only_while_nothing_is_learned(page):
    def flat(row: dict[str, Any]) -> None:
        if row["step"]:
            row |= {"group/count": 16, "group/zero_variance": 12}

    for course, level in (((0.3, 0.5, 0.6, 0.7, 0.7, 0.7), "result"), ((0.5,) * 6, "warn")):
        findings = page({}, flat, course=course)["findings"]
        levels = [one["level"] for one in findings if one["title"].endswith("zero variance")]
        assert levels == [level]


def test_a_role_that_could_never_be_read_is_named(page):
    def unread(row: dict[str, Any]) -> None:
        if "eval/scores" in row:
            row["eval/strict/aggregator"] = 0.0

    facts = page({}, unread, course=(0.5,) * 6)
    assert facts["diagnosis"]["role"] == "aggregator"
    assert ("aggregator", "never read") in facts["codes"]


def test_a_chooser_that_takes_one_place_is_named_with_the_update_before(make_run, tmp_path):
    folder = make_run(tmp_path / "run", every=2, items=120, course=(0.5,) * 6)  # it takes the first
    path = folder / "transcripts" / "eval-000000.jsonl"
    episodes = [json.loads(line) for line in path.read_text().splitlines()]
    for number, episode in enumerate(episodes):
        episode["facts"]["chosen"] = number % 3
    path.write_text("".join(json.dumps(episode) + "\n" for episode in episodes))
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for row in lines:
        moved({3: 0.3})(row)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))
    facts = run_facts(read_runs([folder])[0])
    assert ("aggregator", "one place") in facts["codes"]
    diagnosis = facts["diagnosis"]
    assert diagnosis["role"] == "aggregator"
    assert "It shows in aggregator" in diagnosis["sentences"][1]
    assert "Large updates" in diagnosis["suspects"]


def test_a_healthy_run_has_one_sentence_and_no_cause(page):
    facts = page({}, moved({}), items=600)
    diagnosis = facts["diagnosis"]
    assert "rose from" in diagnosis["sentences"][0]
    assert "Aggregator chose position 1 throughout." in diagnosis["sentences"][0]
    assert (diagnosis["cause"], diagnosis["suspects"], diagnosis["role"]) == ("", (), "")
    assert [one["title"] for one in facts["findings"] if one["level"] == "bad"] == []


def test_a_run_with_a_warning_is_not_called_free_of_faults(page):
    def cut_off(row: dict[str, Any]) -> None:
        row.update({name: 0.15 for name in row if name.endswith("truncated/generator")})

    for rows, finished in ((moved({}), False), (cut_off, True)):
        facts = page({}, rows, items=600, finished=finished)
        titles = [one["title"] for one in facts["findings"] if one["level"] == "warn"]
        (sentence,) = facts["diagnosis"]["sentences"]
        assert "no test found a fault" not in sentence
        assert titles
        assert all(title in sentence for title in titles)
    assert "no test found a fault" in page({}, moved({}), items=600)["diagnosis"]["sentences"][0]


@pytest.mark.parametrize(
    ("course", "items", "title"),
    [
        ((0.5, 0.7, 0.7, 0.55, 0.7, 0.7, 0.7), 600, "Accuracy swings"),
        ((0.45, 0.5, 0.55, 0.55, 0.55, 0.55, 0.55), 150, "Cannot tell whether accuracy fell"),
    ],
)
def test_swings_and_low_power_are_said(page, course, items, title):
    facts = page({}, moved({}), course=course, items=items)
    assert title in [finding["title"] for finding in facts["findings"]]
