"""Scores of answers: accepted, rejected and hostile ones, and equivalence classes."""

import re
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from flowzoo.errors import UsageError
from flowzoo.reward import MathOptions, equivalence_classes, is_gradable, score_batch
from flowzoo.reward.math.answer import _read_cached
from flowzoo.reward.math.score import compare, read_gold
from tests.tables import read_tables, shared_rows

TABLES = read_tables(__file__)

AS_GIVEN = MathOptions(read="answer")
NO_JUDGE = MathOptions(read="answer", judge="none")


@pytest.mark.parametrize(("pred", "gold"), TABLES["equal"])
def test_equal(pred, gold):
    assert score_batch([pred], [gold], AS_GIVEN) == ([1.0], ["equal"])
    assert score_batch([gold], [pred], AS_GIVEN) == ([1.0], ["equal"])
    assert score_batch([f"so \\boxed{{{pred}}}"], [gold]) == ([1.0], ["equal"])


@pytest.mark.parametrize(("pred", "gold"), TABLES["different"])
def test_different(pred, gold):
    assert score_batch([pred], [gold], AS_GIVEN) == ([0.0], ["different"])
    assert score_batch([gold], [pred], AS_GIVEN) == ([0.0], ["different"])


def test_predictions_come_first():
    reply = "First 6*7, which is \\boxed{42}"
    assert score_batch([reply], ["42"]).scores == [1.0]
    strict = MathOptions(read="strict")
    assert score_batch([reply], ["42"], strict).statuses == ["equal"]
    assert score_batch(["42"], [reply], strict).statuses == ["no_answer"]
    assert score_batch([""], ["42"]).statuses == ["no_answer"]
    assert score_batch(["42"], [""]).statuses == ["bad_gold"]


def test_statuses_and_order_of_a_batch():
    preds = ["1", None, f"\\boxed{{{10**299}}}", "2", "2", "<think>2"]
    golds = ["1", "1", "1", "3", "9" * 300, "2"]
    result = score_batch(preds, golds)
    expected = ["equal", "no_answer", "too_big", "different", "bad_gold", "no_answer"]
    assert result.statuses == expected
    assert result.scores == [1.0, 0.0, 0.0, 0.0, 0.0, 0.0]


def test_readings_differ_in_what_they_accept():
    text = "Work: 3+4. The answer is 7."
    by_reading = {
        read: score_batch([text], ["7"], MathOptions(read=read)).statuses[0]
        for read in ("auto", "answer", "strict", "lenient")
    }
    assert by_reading == {
        "auto": "equal",
        "answer": "different",
        "strict": "no_answer",
        "lenient": "equal",
    }


def test_mistakes_of_the_caller_raise():
    with pytest.raises(UsageError, match="equal length"):
        score_batch(["1"], ["1", "2"])
    with pytest.raises(UsageError, match="preds: '12'"):
        score_batch("12", ["1", "2"])
    with pytest.raises(UsageError, match="gold 1"):
        score_batch(["1", "2"], ["1", 2])  # type: ignore[list-item]
    with pytest.raises(UsageError, match="lenient"):
        MathOptions(read="lennient")  # type: ignore[arg-type]


def test_a_prediction_that_is_no_string_has_no_answer():
    rows = [42, {"content": "\\boxed{42}"}, None]
    assert score_batch(rows, ["42"] * 3).statuses == ["no_answer"] * 3  # type: ignore[arg-type]


def test_gradable_golds():
    assert is_gradable("42")
    assert not is_gradable(" ")
    assert not is_gradable("9" * 300)
    assert not is_gradable("(" * 80 + "1,2" + ")" * 80)


def test_classes_are_numbered_by_first_appearance():
    answers = ["1/2", None, "7", "0.5", " ", "\\frac12", "7.0", "x", "9" * 300, "9" * 300]
    assert equivalence_classes(answers) == (0, -1, 1, 0, -1, 0, 1, 2, 3, 3)
    assert equivalence_classes([]) == ()


def test_classes_are_chains_of_equal_pairs():
    assert equivalence_classes(["5 cm", "5 km"]) == (0, 1)
    assert equivalence_classes(["R - r", "r - R", "Yes", "YES", "No", "no"]) == (0, 1, 2, 2, 3, 3)
    assert equivalence_classes(["5 cm", "5 km", "5"]) == (0, 0, 0)


@given(st.text(max_size=60) | st.text("0123456789./,-+ ()[]{}\\$%x=frac^", max_size=80))
def test_any_text_is_scored_and_symmetric(text):
    status = score_batch([text], ["42"], NO_JUDGE).statuses[0]
    assert status in ("equal", "different", "no_answer", "too_big")
    forth = score_batch([text], ["1/2"], NO_JUDGE).scores
    if text.strip():
        assert forth == score_batch(["1/2"], [text], NO_JUDGE).scores


@given(st.fractions(max_denominator=999), st.integers(1, 50))
def test_notations_of_one_rational_are_equal(number, factor):
    top, bottom = number.numerator * factor, number.denominator * factor
    spelled = [f"{top}/{bottom}", f"\\frac{{{top}}}{{{bottom}}}", f"\\tfrac{{{top}}}{{{bottom}}}"]
    if bottom == factor:
        spelled += [f"{number.numerator:,}", f"{number.numerator}.00"]
    assert len(set(equivalence_classes([*spelled, f"{top + 1}/{bottom}"]))) == 2
    assert len(set(equivalence_classes(spelled))) == 1


@pytest.mark.usefixtures("little_work")
@pytest.mark.parametrize(
    "text",
    [
        "(" * 100_000, "((((" * 400 + "1,1" + "))))" * 400, "{" * 60 + "1,2" + "}" * 60,
        "\\frac{" * 300 + "1" + "}{2}" * 300, "9" * 1_000_000, "1e999999999", "10^{999999999}",
        "9**9**9**9", "1," * 900 + "1", "\x00", "\ud800", "\u202e42", "x=" * 900, " " * 1_900 + "1",
        "\\text{" * 300, "1 " * 900, "1,000" * 300,
    ],
)  # fmt: skip
def test_hostile_answers_are_different_at_once(text):
    result = score_batch([text, f"\\boxed{{{text}}}"], ["42", "42"], NO_JUDGE)
    equivalence_classes([text, text + "1", "42"])
    assert result.scores == [0.0, 0.0]


def test_shared_cases_agree_with_their_labels():
    rows = shared_rows("math_cases.jsonl")
    result = score_batch([row["pred"] for row in rows], [row["gold"] for row in rows])
    wrong = [row["id"] for row, s in zip(rows, result.scores, strict=True) if s > row["expected"]]
    right = sum(bool(s) == row["expected"] for row, s in zip(rows, result.scores, strict=True))
    # c0029 says that a formula in \\( \\) over several lines is no answer.
    assert set(wrong) <= {"c0029"}
    assert right / len(rows) >= 0.985


def test_kinds_that_were_new_agree_with_their_labels():
    rows = shared_rows("math_unseen.jsonl")
    scores = score_batch([row["pred"] for row in rows], [row["gold"] for row in rows]).scores
    wrong = [row for row, s in zip(rows, scores, strict=True) if bool(s) != row["expected"]]
    assert [row for row in wrong if not row["arguable"] or not row["expected"]] == []
    # Conventions: numerals keep their base, bound letters of sequences keep their names.
    assert {row["kind"] for row in wrong} <= {"base subscript", "recurrence"}


def test_answers_that_rules_tend_to_refuse():
    rows = shared_rows("hardverify/hardverify.jsonl")
    golds = [row["gold"] for row in rows]
    right, wrong = (
        sum(score_batch([rf"\boxed{{{row[label]}}}" for row in rows], golds).scores)
        for label in ("right", "wrong")
    )
    assert right >= 100
    assert wrong <= 1  # its set has the gold's members in another order


@pytest.mark.parametrize("read", ["auto", "strict"])
def test_reference_solutions_of_math_are_right(read):
    rows = shared_rows("math500/test.jsonl")
    options = MathOptions(read=read, judge="none")  # type: ignore[arg-type]
    result = score_batch([r["solution"] for r in rows], [r["answer"] for r in rows], options)
    assert [r["answer"] for r, s in zip(rows, result.scores, strict=True) if not s] == []


@pytest.mark.parametrize("read", ["auto", "lenient"])
def test_reference_solutions_of_gsm8k_are_right(read):
    rows = [row["answer"] for row in shared_rows("gsm8k/train.jsonl")]
    options = MathOptions(read=read, judge="none")  # type: ignore[arg-type]
    result = score_batch(rows, [row.rpartition("####")[2].strip() for row in rows], options)
    assert sum(result.scores) == len(rows)


def test_the_table_of_conventions_in_the_documentation_holds():
    page = (Path(__file__).parents[3] / "docs" / "math-reward.md").read_text(encoding="utf-8")
    table = page.split("## Conventions")[1].split("## ")[0]
    rows = [line.split(" | ") for line in table.splitlines() if line.startswith("| `")]
    assert len(rows) > 20
    for gold, answers, verdict, _ in rows:
        gold = gold.strip("| ").strip("`").replace("\\|", "|")
        for answer in re.findall(r"`([^`]+)`", answers):
            statuses = score_batch([answer, f"\\boxed{{{answer}}}"], [gold, gold]).statuses
            assert statuses == [verdict, verdict], (gold, answer)


DECIMALS = st.from_regex(r"-?[0-9]{1,15}(\.[0-9]{1,15})?", fullmatch=True)


@given(st.tuples(DECIMALS, DECIMALS) | DECIMALS.map(lambda one: (one, f"{one}0")))
@example(("0.333333", "0.3333333333"))
@example(("-0", "0"))
@example(("007", "7.0"))
def test_two_plain_decimals_are_compared_as_if_they_were_parsed(pair):
    answer, gold = pair[0], read_gold(pair[1], as_given=True)
    for percent in ("exact", "either"):
        options = MathOptions(percent=percent, units="required", lists="strict", digits=1)  # type: ignore[arg-type]
        assert compare(answer, gold, options) == compare(answer, gold._replace(plain=None), options)


def test_of_a_batch_of_plain_decimals_golds_alone_are_parsed():
    answers = [str(number) for number in range(500)]
    golds = [str(7 * (number // 24) + 1_000) for number in range(500)]
    _read_cached.cache_clear()
    assert set(score_batch(answers, golds, MathOptions(read="answer")).statuses) == {"different"}
    assert _read_cached.cache_info().misses == len(set(golds))
