"""Evaluations as published: figures of 16 samples by hand, plans of power, and published sets."""

import json
import math

import numpy as np
import pytest
from endpoint import chat, serving

from flowzoo.agents.evaluation.intervals import evaluation_intervals, mean_interval, paired_interval
from flowzoo.agents.evaluation.majority import vote
from flowzoo.agents.evaluation.power import (
    EVEN,
    detectable_points,
    problem_count,
    score_variance,
)
from flowzoo.agents.evaluation.published import published_sets, read_sets
from flowzoo.agents.evaluation.summary import pass_at, seed_spread, summarize
from flowzoo.agents.problems import distinct_problems
from flowzoo.cli import main
from flowzoo.envs import EpisodeRecord, make_workflow
from flowzoo.envs.tasks import task_names
from flowzoo.errors import UsageError

SINGLE = make_workflow("single_v0", "math")
PROBLEMS = distinct_problems(SINGLE.task, "validation", 4)
RIGHT = (16, 8, 2, 0)
"""Right answers of 16 to each of the four problems; wrong ones are all different."""


def sixteen() -> list[EpisodeRecord]:
    records = []
    for problem, right in zip(PROBLEMS, RIGHT, strict=True):
        for sample in range(16):
            answer = problem.gold if sample < right else str(-1 - sample)
            records.append(
                EpisodeRecord(
                    "single_v0", "math", problem.id, f"{problem.id}#{sample}", problem.text,
                    problem.gold, float(sample < right), answer, False, {}, {},
                )
            )  # fmt: skip
    return records


def test_sixteen_samples_by_hand():
    records = sixteen()
    summary, ends = summarize(records), evaluation_intervals(records)
    assert summary["avg@16"] == summary["pass@1"] == summary["accuracy"] == 26 / 64
    assert (summary["problems"], summary["samples"]) == (4, 16)
    # 1, 1/2, 1/8 and 0 are 19/32, 3/32, -9/32 and -13/32 off 13/32.
    assert summary["stderr"] == pytest.approx(math.sqrt((19**2 + 3**2 + 9**2 + 13**2) / 3 / 4) / 32)
    # C(8, 4) = 70 and C(14, 4) = 1001 of C(16, 4) = 1820 draws have no right answer.
    assert summary["pass@4"] == pytest.approx((1 + (1 - 70 / 1820) + (1 - 1001 / 1820) + 0) / 4)
    assert summary["pass@16"] == 3 / 4
    votes = vote(SINGLE, PROBLEMS, records)
    assert (votes["samples"], votes["accuracy"]) == (16, 3 / 4)  # 2 of 16 outvote 14 single ones
    # 16, 8, 2 and 0 are 9.5, 1.5, -4.5 and -6.5 off 6.5; squares 90.25, 2.25, 20.25 and 42.25.
    variance = 4 / 3 * 155 / 64**2
    share, limit = 26 / 64, 3.18245  # of t with 3 degrees of freedom
    cases = share * (1 - share) / variance
    assert cases == pytest.approx(4.7807, abs=1e-4)
    middle = (share + limit**2 / (2 * cases)) / (1 + limit**2 / cases)
    half = limit * math.sqrt(share * (1 - share) / cases + limit**2 / (4 * cases**2))
    half /= 1 + limit**2 / cases
    assert ends["accuracy"] == pytest.approx([middle - half, middle + half], abs=5e-4)
    assert ends["avg@16"] == pytest.approx(ends["accuracy"], abs=1e-9)
    # Wilson's interval of 3 of 4.
    assert ends["pass@16"] == pytest.approx([0.30064, 0.95441], abs=1e-5)
    assert votes["interval"] == pytest.approx(ends["pass@16"])


@pytest.mark.parametrize(("right", "icc"), [(0.5, 0.57), (0.3, 0.5), (0.7, 1 / 3)])
def test_intervals_of_clusters_of_ten_hold_the_truth(right, icc):
    rng, inside = np.random.default_rng(1), 0
    for _ in range(1000):
        chances = rng.beta(right * (1 / icc - 1), (1 - right) * (1 / icc - 1), 60)
        low, high = mean_interval((rng.random((60, 10)) < chances[:, None]).astype(float).tolist())
        inside += low <= right <= high
    assert 930 <= inside <= 970


def test_pass_at_more_than_the_samples_is_refused():
    for samples, k in ((4, 5), (1, 2), (4, 0)):
        with pytest.raises(UsageError, match=f"pass@{k} needs {k} samples"):
            pass_at(samples, 1, k)


def test_one_seed_after_another():
    spread = seed_spread(sixteen())
    assert spread is not None
    assert (spread["seeds"], spread["low"], spread["high"]) == (16, 0.25, 0.75)
    scores = [0.75] * 2 + [0.5] * 6 + [0.25] * 8
    assert spread["std"] == pytest.approx(np.std(scores, ddof=1))
    assert seed_spread([record for record in sixteen() if record.episode.endswith("#3")]) is None


def test_the_variance_of_scores_in_two_parts():
    rng = np.random.default_rng(2)
    chances = rng.random(4000)
    for samples in (2, 8):
        groups = (rng.random((4000, samples)) < chances[:, None]).astype(float).tolist()
        assert score_variance(groups) == pytest.approx(EVEN, abs=0.01)
    alone = (rng.random((4000, 1)) < chances[:, None]).astype(float).tolist()
    assert score_variance(alone) == pytest.approx(EVEN, abs=0.01)
    with pytest.raises(UsageError, match="two problems or more"):
        score_variance([[0.0, 1.0]])
    with pytest.raises(UsageError, match="all are 1: plan without --against"):
        score_variance([[1.0, 1.0], [1.0, 1.0]])


@pytest.mark.parametrize("samples", [1, 4])
def test_planned_problems_find_the_difference_in_four_of_five(samples):
    points, found, rng = 10.0, 0, np.random.default_rng(2)
    problems = problem_count(points, EVEN, samples)
    assert detectable_points(problems, EVEN, samples) == pytest.approx(points, rel=0.01)
    for _ in range(1000):
        before = rng.random(problems)
        after = np.where(rng.random(problems) < 0.5, before, rng.random(problems))
        after += 2 * points / 100 * (1 - after)
        first, second = (rng.binomial(samples, each) / samples for each in (before, after))
        ends = paired_interval(first.tolist(), second.tolist())
        found += ends is not None and ends[0] > 0
    assert 0.75 <= found / 1000 <= 0.87


def test_every_published_set_names_its_source():
    for name, published in published_sets().items():
        assert name.isidentifier()
        assert published.task in task_names()
        assert " of " in published.protocol.source
        assert published.data.count("@") == 1
    for name in ("math500", "aime24", "aime25", "amc23", "olympiadbench", "minerva", "humaneval",
                 "humanevalplus", "mbppplus", "livecodebench", "nq",
                 "hotpotqa"):  # fmt: skip
        assert read_sets((name,))[name] == (published_sets()[name], published_sets()[name].data)


@pytest.fixture
def rows(tmp_path):
    path = tmp_path / "rows.jsonl"
    lines = ({"problem": f"What is {n} + {n}?", "answer": str(2 * n)} for n in range(12))
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_sets_are_evaluated_as_published(rows, tmp_path, capsys):
    args = ["eval", "single", "--policy", "scripted:0.6", "--sets", f"aime24={rows}",
            f"mine={rows}", "--majority", "--out", str(tmp_path / "out")]  # fmt: skip
    assert main(args) == 0
    printed = " ".join(capsys.readouterr().out.split())
    for part in (
        "avg@16", "pass@16", "maj@16", "over 16 seeds: standard deviation",
        "aime24 by langfengQ/DrMAS examples/drmas_trainer/run_math.sh of 161a9a9a but 12 of 30 "
        "problems, all, 12 problems", "reply <= 4096 tokens", "aime24: majority@16 accuracy",
        "mine: majority@1 accuracy", "mean of 2 sets",
    ):  # fmt: skip
        assert part in printed
    summary = json.loads((tmp_path / "out" / "aime24" / "summary.json").read_text())
    assert summary["protocol"]["samples"] == summary["seed_spread"]["seeds"] == 16
    assert summary["maj@16"] == summary["majority"]["accuracy"]
    assert main([*args, "--json"]) == 0  # resumed: nothing is played again
    printed = capsys.readouterr().out.splitlines()
    results = json.loads(next(line for line in printed if line.startswith("{")))
    assert results["sets"]["aime24"]["accuracy"] == summary["accuracy"]


def test_given_sampling_is_kept_and_said(rows, capsys):
    args = ["eval", "single", "--sets", f"math500={rows}", "--n", "3"]
    assert main([*args, "--temperature", "1", "--samples", "2", "--max-tokens", "9"]) == 0
    printed = capsys.readouterr().out
    for part in ("3 of 500 problems", "2 samples instead of 16", "temperature 1 instead of 0.6",
                 "replies of 9 tokens instead of 4096", "T=1 p=0.95"):  # fmt: skip
        assert part in printed
    assert "top_p" not in printed


def test_thoughts_and_greedy_replies_are_deviations(rows, capsys):
    args = ["eval", "single", "--sets", f"math500={rows}", "--n", "3", "--samples", "1"]
    assert main([*args, "--temperature", "0", "--max-tokens", "9"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "thinking as in the chat template instead of off; greedy instead of" in printed
    assert "top_p" not in printed
    protocol = published_sets()["math500"].protocol
    way = {"decoding": "sampled", "temperature": 0.6, "top_p": 0.95, "thinking": False}
    measured = {"problems": 500, "samples": 16, "decoding": {"": way},
                "lengths": {"": (8192, protocol.max_tokens)}}  # fmt: skip
    assert published_sets()["math500"].describe(measured) == f"math500 by {protocol.source}"


def test_finished_sets_are_printed_and_share_one_budget(tmp_path, rows, capsys, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with serving() as endpoint:
        endpoint.answer = lambda body, count: chat("\\boxed{1}")  # 10 tokens a call
        args = ["eval", "single", "--policy", f"openai:m@{endpoint.url}", "--n", "3", "--sets",
                f"first={rows}", f"second={rows}", "--max-tokens-total", "30"]  # fmt: skip
        for words in ([], ["--json"]):
            assert main([*args, *words]) != 0
            printed, error = capsys.readouterr()
            assert "used 30 tokens of --max-tokens-total 30" in " ".join(error.split())
            assert "first: accuracy" in printed
            assert "second: " not in printed
        (line,) = [text for text in printed.splitlines() if text.startswith("{")]
        assert [*json.loads(line)["sets"]] == ["first"]
        assert main([*args[:-1], "60"]) == 0


def test_rows_with_numpy_are_read_without_further_options(tmp_path, capsys):
    rows = tmp_path / "rows.jsonl"
    check = "import numpy as np\n\ndef check(candidate):\n    assert np.allclose(candidate(2), 2)\n"
    row = {"task_id": "HumanEval/0", "prompt": "def same(x):\n", "entry_point": "same",
           "canonical_solution": "    return x\n", "test": check}  # fmt: skip
    rows.write_text(json.dumps(row) + "\n")
    args = ["eval", "single", "--policy", "scripted:1", "--sandbox", "unsafe", "--sets"]
    assert main([*args, f"humanevalplus={rows}"]) == 0
    assert "humanevalplus: accuracy 100.0 %" in capsys.readouterr().out
    assert main([*args, f"humaneval={rows}", "--options", "packages=numpy"]) == 0
    assert main([*args, f"humanevalplus={rows}", "--options", "packages="]) == 2


def test_a_plan_plays_nothing(rows, tmp_path, capsys):
    args = ["eval", "single", "--policy", "scripted:0.6", "--sets", f"aime24={rows}"]
    assert main([*args, "--out", str(tmp_path / "out")]) == 0
    capsys.readouterr()
    assert main([*args, "--detect", "5", "--out", str(tmp_path / "plan")]) == 0
    printed = capsys.readouterr().out
    assert "  1 per problem: 1,309 problems, 1,309 episodes\n" in printed
    assert "these 12 problems with 16 each find " in printed
    assert not (tmp_path / "plan").exists()
    assert main([*args, "--detect", "5", "--against", str(tmp_path / "out")]) == 0
    assert f"by the variance in {tmp_path / 'out' / 'aime24'}" in capsys.readouterr().out


def test_a_comparison_says_what_differs(tmp_path, capsys):
    args = ["eval", "single", "--n", "8", "--options", "level=1"]
    assert main([*args, "--out", str(tmp_path)]) == 0
    line = [*args, "--temperature", "0.5", "--max-tokens", "20", "--samples", "2"]
    assert main([*line, "--against", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    (found,) = [text for text in printed.splitlines() if text.startswith("protocols differ: ")]
    assert found == (
        "protocols differ: samples 1 -> 2, reply budget 256 -> 20, max_tokens 256 -> 20, "
        "temperature 1.0 -> 0.5"
    )
    assert main([*args, "--against", str(tmp_path)]) == 0
    assert "protocols differ" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--sets", "aime2"], "unknown published set 'aime2'. Did you mean 'aime25'"),
        (["--sets", "aime24="], "--sets takes NAME or NAME=DATA"),
        (["--sets", "../up=ROWS"], "--sets takes NAME or NAME=DATA"),
        (["--sets", "aime24", "aime24"], "--sets names aime24 twice"),
        (["--sets", "aime24=ROWS", "--data", "ROWS"], "leave --data out"),
        (["--sets", "aime24=ROWS", "--like", "ROWS"], "leave --like out"),
        (["--sets", "humaneval", "--task", "math"], "--task math is not that of humaneval, code"),
        (["--sets", "mine=ROWS", "humaneval=ROWS"], "no known layout has the columns"),
        (["--detect", "0"], "--detect takes points above 0"),
        (["--detect", "101"], "--detect takes points above 0"),
        (["--sets", "aime24=ROWS", "--top-p", "0"], "top_p"),
    ],
)
def test_wrong_sets_are_refused_before_anything_is_played(words, message, rows, tmp_path, capsys):
    words = [word.replace("ROWS", str(rows)) for word in words]
    line = ["eval", "single", "--policy", "scripted:0.6", *words, "--out", str(tmp_path / "out")]
    assert main(line) == 2
    error = capsys.readouterr().err
    assert message in " ".join(error.split())
    assert len(error.splitlines()) == 1 or "column" in error
    assert not (tmp_path / "out").exists()
