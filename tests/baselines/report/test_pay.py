"""Reports of games: pay of every role before and after, and no word of right replies."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browsing import show_at, wait_for

from flowzoo.agents.evaluation.intervals import interval
from flowzoo.baselines.diagnostics.pay import has_pay, pay_changes
from flowzoo.baselines.report.pay import pay_finding
from flowzoo.baselines.report.reading import read_runs
from flowzoo.baselines.report.run_facts import run_facts
from flowzoo.baselines.report.write import write_report
from flowzoo.baselines.run.reading import read_episodes
from flowzoo.baselines.stats import paired_gain
from flowzoo.cli import main

GAMES = Path(__file__).resolve().parents[3] / "examples" / "games.py"
WRONG = re.compile(r"\b(right|wrong|accurac\w*|candidates?|solved)\b", re.IGNORECASE)
"""Words that are false of pay."""
ROLES = ("first", "second")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run of a zero-sum game with pay of every role's own, and what `flowzoo train` printed."""
    import contextlib
    import io

    folder, printed = tmp_path_factory.mktemp("game") / "run", io.StringIO()
    line = ["train", f"{GAMES}:Throws", "--model", "pocket:math", "--algorithm", "dr_mas",
            "--options", "credit=local", "--sharing", "isolated", "--steps", "2", "--problems", "2",
            "--samples", "4", "--eval-problems", "40", "--eval-every", "1", "--eval-samples", "2",
            "--out", str(folder)]  # fmt: skip
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        assert main(line) == 0
    return folder, printed.getvalue()


def recomputed(folder: Path, step: int) -> dict[str, list[float]]:
    """Pay of every role by problem, from the saved episodes alone."""
    pays: dict[str, dict[str, list[float]]] = {role: {} for role in ROLES}
    for episode in read_episodes(folder / "transcripts" / f"eval-{step:06d}.jsonl"):
        hands = [call["reply"] if call["strict"] else "" for call in episode["calls"]]
        numbers = [int(re.findall(r"[123]", hand)[-1]) if hand else None for hand in hands]
        if None in numbers:
            pay = -2.0 * ((numbers[0] is None) - (numbers[1] is None))
        else:
            pay = (0.0, 1.0, -1.0)[(numbers[0] - numbers[1]) % 3]
        for role, own in zip(ROLES, (pay, -pay), strict=True):
            pays[role].setdefault(episode["problem"], []).append(own)
    return {role: [sum(v) / len(v) for v in values.values()] for role, values in pays.items()}


def test_the_page_states_the_pay_that_the_episodes_have(trained):
    folder, printed = trained
    (run,) = read_runs([folder])
    facts = run_facts(run)
    first, last = recomputed(folder, 0), recomputed(folder, 2)
    assert {row["role"] for row in facts["pay"]} == set(ROLES)
    for row in facts["pay"]:
        for pays, level in ((first, row["before"]), (last, row["after"])):
            values = np.array(pays[row["role"]])
            assert tuple(level) == pytest.approx((values.mean(), *interval(values)))
        gain = paired_gain(first[row["role"]], last[row["role"]])
        assert row["gain"] == pytest.approx(gain._asdict())
        text = next(f["text"] for f in facts["findings"] if f["text"].startswith(
            f"The mean pay of {row['role']} on"))  # fmt: skip
        for number in (*row["before"], *row["after"], gain.low, gain.high):
            assert f"{number:.3f}".replace("-", "−") in text
        assert f"pay of {row['role']}: {row['before'][0]:.3f} (" in printed


def test_no_sentence_of_a_game_is_about_right_replies(trained):
    folder, printed = trained
    facts = run_facts(read_runs([folder])[0])
    said = [f"{finding['title']} {finding['text']}" for finding in facts["findings"]]
    said += [*facts["diagnosis"]["sentences"], facts["diagnosis"]["cause"], printed]
    assert [text for text in said if WRONG.search(text)] == []
    # What one earns, the other loses.
    assert "held-out score 50.0 % -> 50.0 %, gain +0.0 points (no interval" in printed
    assert "measured on scores -2 to 2 as 0 to 100 %" in printed
    assert "stayed at 50.0\u00a0%, unchanged on every problem" in " ".join(said)
    assert "Score did not change on any problem" in {f["title"] for f in facts["findings"]}
    assert len({f["title"] for f in facts["findings"]}) == len(facts["findings"])
    metrics = {name for row in read_runs([folder])[0].rows for name in row}
    assert not any(re.search("pass@|solve_|eval/right", name) for name in metrics)


@pytest.mark.xdist_group("browser")
def test_no_word_on_the_page_is_about_right_replies(trained, browser, tmp_path):
    page = tmp_path / "game.html"
    write_report([trained[0]], page)
    show_at(browser, 1280)
    browser.get(page.as_uri())
    wait_for(browser, "return document.querySelectorAll('h2').length")
    # Names of settings and of metrics are the same in all runs.
    shown = browser.execute_script(
        """for (const name of ["provenance", "metrics"]) document.getElementById(name).remove();
        document.querySelectorAll("details").forEach((one) => { one.open = true; });
        return document.getElementById("main").innerText;"""
    )
    assert "Pay of each role before training" in shown
    assert "training reward" not in shown  # it is the score, and no pay
    assert "A score of −2 is 0 %, one of 2 is 100 %." in shown
    assert [line for line in shown.splitlines() if WRONG.search(line)] == []


def test_an_evaluation_of_a_game_names_pay(tmp_path, capsys, browser):
    folder = tmp_path / "eval"
    line = ["eval", f"{GAMES}:Commons", "--policy", "scripted:0.5", "--n", "30", "--samples", "2"]
    assert main([*line, "--task", "math", "--out", str(folder)]) == 0
    printed = capsys.readouterr()
    assert [text for text in printed.out.splitlines() if WRONG.search(text)] == []
    summary = json.loads((folder / "summary.json").read_text())
    rows = [json.loads(row) for row in (folder / "episodes.jsonl").read_text().splitlines()]
    pays = [sum(row["pay"].values()) / 3 for row in rows]
    assert summary["pay"]["player"] == pytest.approx(sum(pays) / len(pays))
    assert f"{summary['pay']['player']:.3f}" in printed.out
    assert printed.out.splitlines()[-1].startswith("score ")
    page = tmp_path / "page.html"
    assert main(["report", str(folder), "--out", str(page)]) == 0
    show_at(browser, 1280)
    browser.get(page.as_uri())
    shown = wait_for(browser, "return document.getElementById('main').innerText")
    assert "pay of player" in shown
    assert not re.search(r"\bgold\b|^answer|Compute", shown, re.MULTILINE)  # of the problem lent
    assert [text for text in shown.splitlines() if WRONG.search(text)] == []


def rows_of(before: Any, after: Any) -> list[dict[str, Any]]:
    return [
        {"step": step, "eval/pay_of/bidder": values, "eval/pay_of/house": [1.0] * len(values)}
        for step, values in ((0, before), (8, after))
    ]


def test_a_role_that_earns_less_is_named():
    fell = rows_of([2.0, 3.0] * 20, [-3.0, -2.0] * 20)
    bidder, house = pay_changes(*fell)
    found = pay_finding(bidder, 8)
    assert (found.level, found.title) == ("warn", "bidder earns less than at the start")
    assert "2.500" in found.text
    assert "−5.000" in found.text
    assert bidder.shares is None  # of a negative sum there is no share
    assert house.before == (1.0, None, None)
    found = pay_finding(house, 8)
    assert (found.level, found.title) == ("result", "house earns what it earned at the start")
    assert "1.000 before training and 1.000 at step 8. The difference is +0.000 (no" in found.text
    rose = pay_changes(*rows_of([1.0, 0.0] * 20, [3.0, 3.0] * 20))[0]
    assert pay_finding(rose, 8).title == "bidder earns more than at the start"
    assert rose.shares == (pytest.approx(1 / 3), pytest.approx(3 / 4))


def test_problems_without_pay_are_left_out():
    (change, _) = pay_changes(*rows_of([1.0, float("nan"), 3.0], [2.0, 5.0, 3.0]))
    assert change.before[0] == 2.0
    assert change.gain is not None
    assert change.gain.n == 2
    (lone, _) = pay_changes(*rows_of([1.0, float("nan")], [float("nan"), 5.0]))
    assert lone.gain is None
    assert pay_finding(lone, 8).level == "unknown"


def test_scores_are_pay_only_if_every_evaluation_has_it():
    paid = rows_of([1.0], [2.0])
    assert has_pay(paid)
    assert has_pay([{"eval/strict/bidder": 0.0}, *paid])
    assert not has_pay([*paid, {"eval/role_score/bidder": 0.5}])
    assert not has_pay([])
    assert not has_pay([{"eval/role_score/bidder": 0.5}])
