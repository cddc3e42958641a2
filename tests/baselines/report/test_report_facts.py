import json
import math
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest

from flowzoo.baselines.report.accuracy import (
    accuracy_table,
    cliff_facts,
    cliff_finding,
    cliff_of,
    gain_facts,
    gain_finding,
)
from flowzoo.baselines.report.by_policy import part_name, run_by_policy, split_roles
from flowzoo.baselines.report.changes import (
    change_sign,
    difference,
    role_changes,
    role_finding,
    split_peak,
    team_measures,
)
from flowzoo.baselines.report.gradients import (
    amplification_facts,
    capture_facts,
    capture_finding,
    gram_tables,
    probes,
    role_series,
    token_shares,
)
from flowzoo.baselines.report.health import health_findings
from flowzoo.baselines.report.reading import read_runs
from flowzoo.baselines.report.roles import swap_finding, swap_rows
from flowzoo.baselines.report.run_facts import (
    RESOLVED,
    changed_settings,
    course,
    run_facts,
    shares,
)
from flowzoo.baselines.run.reading import RunData
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.training.plan import resolve
from studies.truth.simulation import simulate

pytestmark = pytest.mark.xdist_group("report-facts")  # they share runs

MakeRun = Callable[..., Path]
FALLING = (0.45, 0.58, 0.66, 0.70, 0.70, 0.50, 0.42, 0.40, 0.40)


@pytest.fixture(scope="module")
def fallen(make_run: MakeRun, tmp_path_factory: pytest.TempPathFactory) -> RunData:
    """A cliff whose generators become unreadable and capture the aggregator."""
    folder = tmp_path_factory.mktemp("fallen")
    plan = {"course": FALLING, "items": 400, "gradients": True, "captured": True, "unread": 0.4}
    return read_runs([make_run(folder / "run", **plan)])[0]


@pytest.fixture(scope="module")
def steady(make_run: MakeRun, tmp_path_factory: pytest.TempPathFactory) -> RunData:
    """A run that rises and stays, with gradients in their first proportion."""
    folder = tmp_path_factory.mktemp("steady")
    return read_runs([make_run(folder / "run", items=400, gradients=True)])[0]


def of(changes: dict[str, Any], role: str, measure: str) -> dict[str, Any]:
    return next(r for r in changes["rows"] if (r["role"], r["measure"]) == (role, measure))


def test_the_table_names_the_bias_of_the_best_evaluation(fallen):
    cliff, _ = cliff_of([fallen])
    rows = {row["name"]: row for row in accuracy_table(fallen, cliff)}
    assert rows["best evaluation"]["accuracy"] >= rows["peak, cross-fitted"]["accuracy"]
    assert rows["last evaluation"]["tokens"] == 900 * 80
    assert rows["before training"]["n"] == 400
    assert rows["terminal"]["low"] < rows["terminal"]["accuracy"] < rows["terminal"]["high"]


def test_a_planted_cliff_is_told_with_its_uncertainty(fallen):
    verdict = cliff_facts(*cliff_of([fallen]))
    finding = cliff_finding(verdict)
    assert finding.level == "bad"
    for part in ("standard error", "400 held-out problems", "9 evaluations", "95\u00a0% interval"):
        assert part in finding.text
    assert "From step 50 on" in finding.text


def test_few_items_are_no_verdict_and_say_how_many_would_do(make_run, tmp_path):
    run = read_runs([make_run(tmp_path / "run", items=40, course=(0.5,) * 9)])[0]
    verdict = cliff_facts(*cliff_of([run]))
    finding = cliff_finding(verdict)
    assert (verdict["verdict"], finding.level) == ("not enough items", "unknown")
    assert verdict["items_needed"] > 40
    assert f"About {verdict['items_needed']} problems" in finding.text


def test_few_evaluations_are_no_verdict(make_run, tmp_path):
    run = read_runs([make_run(tmp_path / "run", items=40, course=(0.4, 0.5))])[0]
    cliff, why = cliff_of([run])
    assert cliff is None
    said = cliff_finding(cliff_facts(cliff, why)).text
    assert "takes 3 evaluations (before, a peak, after) and there are 2" in said
    assert "--eval-every 1" in said
    assert "3 evaluations" in role_changes(run)["why"]


def test_the_role_that_lost_is_named_with_the_way_it_lost(fallen):
    changes = role_changes(fallen)
    assert of(changes, "generator", "strict")["from_peak"]["high"] < 0
    assert of(changes, "aggregator", "strict")["from_peak"] == {
        "mean": 0.0, "low": None, "high": None, "n": 200, "before": 1.0, "after": 1.0,
    }  # fmt: skip
    for row in changes["rows"]:
        change = row["from_peak"]
        assert change["after"] - change["before"] == pytest.approx(change["mean"])
    finding = role_finding(changes, fell=True)
    assert finding.title == "The loss shows in generator most, and in aggregator"
    assert "strict parser reads" in finding.text
    assert "does not by itself prove a cause" in finding.text


@pytest.mark.full
def test_a_flat_run_shows_no_fall_from_its_peak(make_run, tmp_path):
    falls = 0
    for seed in range(8):
        folder = make_run(tmp_path / f"run-{seed}", seed=seed, items=100, course=(0.5,) * 12)
        changes = role_changes(read_runs([folder])[0])
        falls += any(change_sign(row["from_peak"]) < 0 for row in changes["rows"])
    # Together the intervals err in 5 % of runs; three of eight would be 1 in 190.
    assert falls < 3


def test_the_peak_is_looked_at_on_the_half_that_did_not_choose_it():
    looked, _ = split_peak(np.zeros((3, 40)))
    scores = np.zeros((3, 40))
    scores[1, looked] = 1
    scores[2, ~looked] = 1
    again, peak = split_peak(scores)
    assert peak == 2
    assert (again == looked).all()
    assert looked.sum() == 20


def test_falls_of_a_flat_run_are_as_rare_as_their_level_says():
    rng, z = np.random.default_rng(3), NormalDist().inv_cdf(0.975)
    falls, drops = 0, []
    for _ in range(1000):
        scores = simulate([0.6] * 20, 200, rng)
        looked, peak = split_peak(scores)
        change = difference(scores[-3:].mean(axis=0)[looked] - scores[peak][looked], z, 1.0)
        drops.append(change["mean"])
        falls += change_sign(change) < 0
    assert abs(float(np.mean(drops))) < 0.006  # the best of 20 evaluations is 6 points too good
    assert falls <= 42  # 25 are expected; 43 or more would be 1 in 1,000


def test_team_measures_know_choice_from_candidates():
    found = team_measures({"score": 0.0, "facts": {"any_correct": True}})
    assert (found["any_correct"], found["picked"]) == (True, 0.0)
    assert team_measures({"score": 0.0, "facts": {"any_correct": False}})["picked"] is None
    repaired = team_measures({"score": 1.0, "facts": {"first_correct": False}})
    assert (repaired["repaired"], repaired["kept"]) == (1.0, None)


def test_missing_episodes_are_said_not_guessed(make_run, tmp_path):
    folder = make_run(tmp_path / "run", items=20)
    (folder / "transcripts" / "eval-000070.jsonl").unlink()
    changes = role_changes(read_runs([folder])[0])
    assert "evaluations at [70] are missing" in changes["why"]
    assert role_finding(changes, fell=False).level == "unknown"


@pytest.mark.parametrize(
    ("cases", "level", "said"),
    [(60, "good", "significant"), (3, "unknown", "less than 41.5 points of some role")],
)
def test_unchanged_answers_to_few_problems_clear_no_role(cases, level, said):
    unchanged = {"mean": 0.0, "low": None, "high": None, "before": 1.0, "after": 1.0}
    rows = [
        {"role": role, "measure": "role_score", "from_peak": unchanged | {"n": of}}
        for role, of in (("generator", 60), ("aggregator", cases))
    ]
    changes = {
        "rows": rows, "why": "", "compared": 4, "peak": 10, "rising": False, "looked": 60,
        "last": [20, 30], "problems": 120,
    }  # fmt: skip
    finding = role_finding(changes, fell=False)
    assert finding.level == level
    assert said in finding.text
    title = "Cannot tell which role explains the drop"
    assert role_finding(changes, fell=True)[:2] == ("unknown", title)


@pytest.mark.parametrize("policy", ["", "/shared"])
def test_gradient_metrics_are_read_with_and_without_a_policy(policy, steady):
    rows = [{"step": 1, f"grad/mass/a{policy}": 0.5, f"grad/cos/a/b{policy}": -0.2}]
    run = replace(steady, rows=rows)
    assert role_series(run, "mass") == {("a",): [(1, 0.5)]}
    gram = gram_tables(run)[0]
    assert gram["cosines"] == [[1.0, -0.2], [-0.2, 1.0]]
    assert gram["conflict"] == 1.0


def test_token_shares_are_those_of_lengths_times_calls(steady):
    rows = [{"step": 5, "tokens/a": 10.0, "calls/a": 3, "tokens/b": 30.0, "calls/b": 2}]
    shares = token_shares(replace(steady, rows=[*rows, {"step": 6}]), ["a", "b"], [5, 6])
    assert shares["a"][0] == pytest.approx(1 / 3)
    assert math.isnan(shares["a"][1])


def test_amplification_is_that_of_pooled_probes(steady):
    facts = amplification_facts(steady)
    whole = next(row for row in facts if row["part"] == "whole" and not row["applied"])
    assert (whole["role"], whole["slots"], whole["probes"]) == ("generator", 3, 7)
    assert whole["low"] < 3 < whole["high"] < 3.3
    assert whole["naive"] < 3
    assert 1 < whole["over_low"] < 3**0.5 < whole["over_high"]
    assert whole["effective"] == pytest.approx(3, abs=0.1)
    parts = [(row["part"], row["from"], row["to"]) for row in facts if row["applied"]]
    assert parts == [("whole", 1, 61), ("first", 1, 21)]  # two probes of the last third: too few


def test_probes_of_several_policies_or_numbers_of_slots_are_not_pooled(steady):
    (name,) = {key for row in steady.rows for key in row if key.startswith("gram/")}
    seen = [row for row in steady.rows if name in row]
    grams = [row[name] for row in seen]
    fewer = grams[0] | {"slots": 2, "products": np.ones((2, 8, 2, 8)).tolist(), "applied": None}
    rows = [{"step": row["step"], "gram/generator/a": one, "gram/generator/b": fewer}
            for row, one in zip(seen, grams, strict=True)]  # fmt: skip
    rows[1]["gram/generator/a"] = fewer
    rows[2]["gram/generator/a"] = rows[2]["gram/generator/a"] | {"applied": None}
    found = probes(replace(steady, rows=rows))
    assert {role: len(some) for role, some in found.items()} == {
        "generator under a": len(rows) - 1,
        "generator under b": len(rows),
    }
    facts = amplification_facts(replace(steady, rows=rows))
    whole = [row for row in facts if row["part"] == "whole" and row["role"].endswith("a")]
    assert [row["probes"] for row in whole] == [len(rows) - 1, len(rows) - 2]


def test_swaps_and_shares_are_shown_with_their_counts(steady, tmp_path):
    swap = {"roles": ["a", "b"], "accuracy": 0.1, "mean": -0.4, "low": -0.5, "high": -0.3, "n": 9}
    run = replace(steady, folder=tmp_path)
    (tmp_path / "swaps.json").write_text(json.dumps({"swaps": [swap]}))
    assert swap_rows(run) == [swap]
    assert swap_finding(swap).title == "a and b have specialized"
    assert "paired over 9 problems" in swap_finding(swap).text
    assert swap_finding(swap | {"high": 0.1}).title.startswith("No specialization")
    assert shares(run)["any_correct"][0][2] == 400


def test_few_evaluations_have_no_terminal_accuracy(make_run, tmp_path):
    run = read_runs([make_run(tmp_path / "run", items=40, course=(0.4, 0.5, 0.5, 0.5))])[0]
    assert "terminal" not in {row["name"] for row in accuracy_table(run, None)}
    assert "terminal" not in (gain_facts(run) or {})


def test_planted_capture_is_found_and_only_there(fallen, steady):
    caught = capture_facts(fallen)[0]
    assert [(p["by"], p["of"]) for p in caught["pairs"] if p["captured"]] == [
        ("generator", "aggregator")
    ]
    finding = capture_finding(caught)
    assert finding.level == "bad"
    assert "permutation test" in finding.text
    assert not any(pair["captured"] for pair in capture_facts(steady)[0]["pairs"])


def test_capture_without_gradients_or_sharing_is_not_claimed(make_run, tmp_path):
    bare = read_runs([make_run(tmp_path / "bare", items=20)])[0]
    finding = capture_finding(capture_facts(bare)[0])
    assert (finding.level, "--role-gradients" in finding.text) == ("unknown", True)
    alone = read_runs([make_run(tmp_path / "alone", items=20, sharing=("isolated",))])[0]
    verdicts = capture_facts(alone)
    assert [one["policy"] for one in verdicts] == ["generator", "aggregator"]
    assert all(capture_finding(one).title.startswith("Capture does not") for one in verdicts)


def test_a_gain_that_includes_zero_is_not_called_one(make_run, tmp_path):
    flat = read_runs([make_run(tmp_path / "flat", items=60, course=(0.5,) * 6)])[0]
    finding = gain_finding(gain_facts(flat))
    assert finding.level == "unknown"
    assert "not over seeds" in finding.text


def test_settings_that_a_run_chooses_are_not_listed_as_given(steady):
    plain = asdict(resolve(TrainConfig(schedule="linear", problems=4)).config)
    rows = changed_settings(plain)
    assert [row for row in rows if row[0] not in RESOLVED] == [
        ["problems", "4"],
        ["schedule", "linear"],
    ]
    assert {row[0] for row in rows} >= {"lr", "max_tokens", "compute", "schedule_steps"}
    default = asdict(TrainConfig(schedule="linear", problems=4))
    assert {name for name, value in plain.items() if value != default[name]} <= set(RESOLVED)
    facts = run_facts(replace(steady, settings={**steady.settings, "lr": 0.5}))
    assert [name for name, _ in facts["resolved"]] == ["lr", "eval_problems"]
    assert "lr" not in dict(facts["changed"])


def test_health_names_what_went_wrong(make_run, tmp_path):
    folder = make_run(tmp_path / "run", items=20, finished=False)
    (folder / "nonfinite-000012.jsonl").write_text("{}\n")
    run = read_runs([folder])[0]
    rows = [dict(row) for row in run.rows]
    rows[40]["learn/grad_norm/shared"] = 4.0
    for row in rows:
        row["group/zero_variance"] = row.get("group/count", 0)
    rows[-1]["eval/truncated/generator"] = 0.4
    for row in rows[20:]:
        row["learn/lr/shared"] = 0.0
    titles = [finding.title for finding in health_findings(replace(run, rows=rows))]
    assert titles == [
        "The run stopped on a loss that was not finite",
        "The run is not finished",
        "The learning rate does not fall once",
        "Gradient spikes",
        "Most groups have zero variance",
        "Replies run into the length limit",
    ]
    finished = make_run(tmp_path / "good", items=20)
    assert health_findings(read_runs([finished])[0]) == []


@pytest.mark.parametrize(
    ("score", "said"),
    [
        (0.9, "too easy (mean score 90.0\u00a0%)"),
        (0.05, "too hard (mean score 5.0\u00a0%)"),
        (0.5, "too easy or too hard."),
    ],
)
def test_groups_without_signal_are_called_easy_or_hard_where_the_scores_say_so(score, said, steady):
    rows = [
        row | {"group/zero_variance": 0.8 * row.get("group/count", 0), "reward/mean": score}
        for row in steady.rows
    ]
    (finding,) = health_findings(replace(steady, rows=rows))
    assert said in finding.text
    solved = [row | {"group/solve_none": 0.25, "group/solve_all": 0.5} for row in rows]
    (finding,) = health_findings(replace(steady, rows=solved))
    parts = "25.0\u00a0% of the problems were solved in no episode, 50.0\u00a0% in every one."
    assert finding.text.endswith(parts)


def test_the_worst_finding_comes_first(fallen):
    levels = [finding["level"] for finding in run_facts(fallen)["findings"]]
    order = ["bad", "warn", "unknown", "result", "good"]
    assert levels == sorted(levels, key=order.index)


def test_course_has_none_where_a_metric_is_missing_or_not_finite(steady):
    rows = [{"step": 0, "a": math.nan}, {"step": 1, "a": 0.123456789, "flag": True}]
    found = course(replace(steady, rows=rows))
    assert found == {"steps": [0, 1], "metrics": {"a": [None, 0.123457]}}


def test_a_run_before_its_first_step_has_a_page(make_run, tmp_path):
    folder = make_run(tmp_path / "run", items=20, finished=False)
    (folder / "metrics.jsonl").unlink()
    facts = run_facts(read_runs([folder])[0])
    assert facts["accuracy"] == []
    assert facts["cliff"]["why"] == "there is no evaluation"


POLICIES = {"generator_0": "a", "generator_1": "b", "generator_2": "b", "aggregator": "c"}
GOOD, LOST = part_name("generator", "b"), part_name("generator", "a")


@pytest.fixture
def run(make_run: Callable[..., Path], tmp_path: Path) -> RunData:
    """A steady run in which the generator of policy `a` becomes unreadable and wrong."""
    sharing = tuple(f"{name}={policy}" for name, policy in POLICIES.items())
    folder = make_run(tmp_path / "run", items=120, course=(0.6,) * 5, sharing=sharing)
    for path in (folder / "transcripts").glob("eval-*.jsonl"):
        episodes = [json.loads(line) for line in path.read_text().splitlines()]
        late = int(path.stem.split("-")[1]) >= 20
        for call in (call for episode in episodes for call in episode["calls"]):
            call["policy"] = POLICIES.get(call["agent"], "c")
            if call["policy"] == "a" and late:
                call |= {"reply": "no", "strict": False, "role_score": 0.0}
        path.write_text("".join(json.dumps(episode) + "\n" for episode in episodes))
    summary = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").write_text(json.dumps(summary | {"policies": POLICIES}))
    return read_runs([folder])[0]


def test_a_role_with_several_policies_has_a_row_for_each(run):
    assert split_roles(run) == {"generator"}
    assert run_by_policy(run).roles == ["aggregator", LOST, GOOD]
    rows = {(row["role"], row["measure"]): row for row in role_changes(run)["rows"]}
    assert {role for role, _ in rows} == {"", "aggregator", LOST, GOOD}
    assert rows[LOST, "strict"]["end"] == 0.0
    assert rows[GOOD, "strict"]["end"] == 1.0
    assert rows[GOOD, "role_score"]["end"] == pytest.approx(0.6, abs=0.1)


def test_the_finding_is_of_one_policy(run):
    facts = run_facts(run)
    codes = {(role, code) for role, code in facts["codes"]}
    assert {(LOST, "lost form"), (LOST, "lost skill")} <= codes
    assert not any(role in ("generator", GOOD) for role, _ in codes)
    diagnosis: dict[str, Any] = facts["diagnosis"]
    assert diagnosis["role"] == LOST
    assert f"It shows in {LOST}" in diagnosis["sentences"][1]


def test_roles_of_one_policy_stay_whole(make_run, tmp_path):
    (whole,) = read_runs([make_run(tmp_path / "whole", items=30, sharing=("isolated",))])
    assert split_roles(whole) == frozenset()
    assert run_by_policy(whole) is whole


AGREEING = [
    (100, 80, 0.9, 0.5, 0.6),
    (50, 40, 0.75, 0.75, 0.5),
]  # (verdicts, compared, agreement, …)
BLIND = [(200, 200, 0.5, 0.9, 0.5)] * 2


def rows(
    counts: list[tuple[int, int, float, float, float]], name: str = "compared"
) -> list[dict[str, Any]]:
    names = (name, "agreement", "passed", "right")
    return [
        {"verdicts": verdicts, "unreadable": verdicts // 10}
        | (dict(zip(names, (compared, *shares), strict=True)) if compared else {})
        for verdicts, compared, *shares in counts
    ]


@pytest.mark.parametrize(
    ("prefix", "counts", "level", "title", "text"),
    [
        ("judge/", AGREEING, "result", "agrees with the truth on 85.0 %", "kappa 0.69"),
        (
            "eval/judge/",
            AGREEING,
            "result",
            "agrees with the truth on 85.0 %",
            "Of 150 verdicts 15",
        ),
        ("judge/", BLIND, "warn", "hardly agrees", "by chance alone 50.0 %"),
        ("judge/", [(30, 0, 0.0, 0.0, 0.0)] * 2, "unknown", "compared with no truth", "Of 60"),
    ],
)
def test_agreement(make_run, tmp_path, prefix, counts, level, title, text):
    folder = make_run(tmp_path / "run", course=(0.4, 0.5, 0.5), items=30, every=1)
    path = folder / "metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line, row in zip(lines[1:], rows(counts), strict=True):
        line |= {prefix + name: value for name, value in row.items()}
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    findings = run_facts(read_runs([folder])[0])["findings"]
    (finding,) = (finding for finding in findings if "The judge" in finding["title"])
    plain = {name: value.replace("\xa0", " ") for name, value in finding.items()}
    assert plain["level"] == level
    assert title in plain["title"]
    assert text in plain["text"]
    assert "none of these counts as 0" in plain["text"]
