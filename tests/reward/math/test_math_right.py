"""Answers that are right and were once refused, by subject."""

import pytest

from flowzoo.reward import score_batch
from tests.tables import read_tables

TABLES = read_tables(__file__)


@pytest.mark.parametrize(
    ("gold", "answer"), [row for rows in TABLES["answers"].values() for row in rows]
)
def test_is_paid(gold, answer):
    assert score_batch([rf"so \boxed{{{answer}}}."], [gold]).statuses == ["equal"]
    assert score_batch([rf"so \boxed{{{gold}}}."], [gold]).statuses == ["equal"]


@pytest.mark.parametrize(("gold", "reply"), TABLES["replies"])
def test_a_reply_is_paid(gold, reply):
    assert score_batch([reply], [gold]).statuses == ["equal"]
