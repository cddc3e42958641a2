"""The first lines of a run's page: what happened, in which role, why, and one thing to try."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from flowzoo.baselines.report.reading import read_runs
from flowzoo.baselines.report.run_facts import run_facts
from flowzoo.errors import DataError

pytestmark = pytest.mark.xdist_group("report-facts")

MakeRun = Callable[..., Path]
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
