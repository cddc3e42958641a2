"""Answers that are right and were once refused, or wrong and once paid, by cause."""

from typing import Any

import pytest

import flowzoo.reward.math.score as scoring
from flowzoo.reward import MathOptions, score_batch
from flowzoo.reward.math import judge as math_judge
from tests.tables import read_tables

RIGHT, WRONG = (read_tables(__file__, f"test_math_{label}") for label in ("right", "wrong"))

COSTLY = [
    "|a-" * 30 + "x" + "|" * 30,
    r"\sum_{k=1}^{n}\binom{n}{k}\sin(k)" * 6,
    r"\int_0^1 \sin(\cos(\exp(\sin(x^2+e^x))))dx",
    "+".join(rf"\left|{a}^5-3{a}+\sin {a}\right|" for a in "abcdghjkmnopqrst"),
]


def cases(tables: dict[str, Any]) -> list[list[str]]:
    return [row for rows in tables["answers"].values() for row in rows]


@pytest.mark.parametrize(("gold", "answer"), cases(RIGHT))
def test_is_paid(gold, answer):
    assert score_batch([rf"so \boxed{{{answer}}}."], [gold]).statuses == ["equal"]
    assert score_batch([rf"so \boxed{{{gold}}}."], [gold]).statuses == ["equal"]


@pytest.mark.parametrize(("gold", "reply"), RIGHT["replies"])
def test_a_reply_is_paid(gold, reply):
    assert score_batch([reply], [gold]).statuses == ["equal"]


@pytest.mark.parametrize(("gold", "answer"), cases(WRONG))
def test_is_not_paid(gold, answer):
    boxed = answer if "boxed" in answer else rf"so \boxed{{{answer}}}."
    assert score_batch([boxed], [gold]).statuses == ["different"]
    assert score_batch([answer], [gold]).scores == [0.0]


def test_unions_of_intervals_are_decided_without_the_judge(monkeypatch):
    monkeypatch.setattr(math_judge, "_ask", lambda pairs, deadline: 1 / 0)
    for gold, answer in WRONG["unions"]:
        assert score_batch([answer], [gold]).statuses == ["different"]
        assert score_batch([gold], [gold]).statuses == ["equal"]


def test_the_judge_is_started_beforehand_for_a_batch_that_may_need_it(monkeypatch):
    started: list[bool] = []
    monkeypatch.setattr(scoring, "warm", lambda: started.append(True))
    score_batch(["1"] * 40, ["2"] * 40)
    score_batch(["1"] * 40, ["x<2"] * 40, MathOptions(judge="none"))
    score_batch(["1"], ["x<2"])
    assert started == []
    score_batch(["1"] * 40, ["x<2"] * 40)
    assert started == [True]
    math_judge.warm()
    pair = ("z \\in [-7,-1] \\cup [1,7]", "1\\leq|z|\\leq 7")
    assert math_judge._ask([pair], 60.0) == ["equal"]


@pytest.mark.usual(2)
@pytest.mark.usefixtures("little_work")
@pytest.mark.parametrize("text", COSTLY)
def test_the_work_of_a_comparison_is_bounded(text):
    options = MathOptions(read="answer", judge="none")
    for gold in (f"{text}+0.5", "1"):
        assert score_batch([text], [gold], options).statuses == ["different"]
    score_batch([text], [f"{text}+z-z+0"], options)  # whatever it says, it comes back
