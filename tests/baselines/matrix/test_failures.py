import json
from typing import Any

import pytest

from flowzoo.baselines.matrix.failures import PARTS, as_record, from_record
from flowzoo.baselines.matrix.file import load_matrix, read_matrix
from flowzoo.errors import UsageError

BLOCK = {
    "name": "A", "title": "They forget", "role": "generator", "metric": "acc", "fall": 0.1,
    "called_by": ["fall"], "shows": ["bad"], "remedies": ["good"],
}  # fmt: skip
CELLS = [{"label": "bad"}, {"label": "good"}]


def one(**changes: Any) -> Any:
    block = {key: value for key, value in (BLOCK | changes).items() if value is not None}
    return read_matrix({"cells": CELLS, "failures": [block]}, "m", "here").failures[0]


def rows(*values: float | None) -> list[dict[str, float | None]]:
    return [{"acc": value} for value in values]


@pytest.mark.parametrize(
    ("changes", "values", "there", "since"),
    [
        ({}, (0.5, 0.6, 0.4), True, 2),
        ({}, (0.5, 0.6, 0.41), False, None),
        ({}, (0.5, 0.3, 0.6, 0.3, 0.2), True, 3),
        ({}, (0.5, 0.3), True, 1),
        ({"below": "best"}, (0.5, 0.6, 0.5), True, 2),
        ({"below": "best"}, (0.5, 0.6, 0.51), False, None),
        ({"fall": None, "at_most": 0.2}, (0.1, 0.9, 0.2, 0.1), True, 2),
        ({"fall": None, "at_most": 0.2}, (0.1, 0.1), True, 1),
        ({"fall": None, "at_most": 0.2}, (0.1, 0.21), False, None),
        ({"fall": None, "at_most": 0.2}, (0.6, None), None, None),
        ({"fall": None, "at_most": 0.2}, (None, 0.6, 0.1), True, 2),
        ({"below": "best"}, (None, 0.6, 0.4), True, 2),
        ({}, (None, 0.6, 0.4), None, None),
        ({"fall": None, "at_most": 0.2}, (0.6, float("nan")), None, None),
    ],
)
def test_a_failure_is_there_by_its_rule_and_since_it_stays(changes, values, there, since):
    failure = one(**changes)
    assert failure.there(rows(*values)) is there
    assert failure.since(rows(*values)) == since


def test_the_rule_is_said_in_words():
    assert (
        one().rule
        == "acc is 10 points or more lower at the last evaluation than it was before training"
    )
    assert one(below="best").rule.endswith("than at its best evaluation")
    assert one(fall=None, at_most=0.2).rule == "acc is 20 % or less at the last evaluation"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"wrong": 1}, "unknown field of a failure in here 'wrong'"),
        ({"title": 3}, "`title` of a failure in here must be text, got 3"),
        ({"fall": None}, "needs either `at_most` or `fall`"),
        ({"at_most": 0.2}, "needs either `at_most` or `fall`"),
        ({"fall": 10}, "a number from 0 to 1"),
        ({"below": "peak"}, "unknown `below` of a failure in here 'peak'"),
        ({"remedies": ["goood"]}, "unknown cell in `remedies` .*'goood'. Did you mean 'good'"),
        ({"remedies": "good"}, "`remedies` of a failure in here must be a list of texts"),
    ],
)
def test_mistakes_in_a_failure_are_named(changes, message):
    with pytest.raises(UsageError, match=message):
        one(**changes)


def test_failures_must_be_blocks():
    with pytest.raises(UsageError, match=r"must be a list of blocks, got .* with \[\[failures\]\]"):
        read_matrix({"cells": CELLS, "failures": {"name": "A"}}, "m", "here")


def test_the_failures_of_the_zoo_have_all_of_its_cells_and_survive_their_file():
    zoo = load_matrix("zoo")
    cells = {(name, label) for failure in zoo.failures for name, label, _ in failure.cells}
    assert cells == {(cell.name, cell.label) for cell in zoo.cells}
    for failure in zoo.failures:
        parts = [part for _, _, part in failure.cells]
        assert {"shows", "remedies"} <= set(parts) <= set(PARTS)
        assert parts == sorted(parts, key=PARTS.index)
    assert from_record(json.loads(json.dumps(as_record(zoo.failures)))) == list(zoo.failures)


def test_a_record_of_other_relations_is_refused():
    (row,) = as_record([one()])
    old = row | {"cells": [[name, label, "mends"] for name, label, _ in row["cells"]]}
    with pytest.raises(UsageError, match="unknown relation of a cell 'mends'"):
        from_record([old])
